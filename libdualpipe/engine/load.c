/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * load.c: everything that a rank keeps, out of a checkpoint that another layout may have saved. */
#include "base/do.h"
#include "base/memory.h"
#include "checkpoint/read.h"
#include "engine/saving.h"
#include "stage/dtype.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK = 1 << 20 };

typedef struct loading {
    dp_pipeline_t *p;
    dp_checkpoint_t *checkpoint;
    const dp__kept_t *kept; /* what is being read, ... */
    size_t first;           /* ... out of a tensor that begins with this element of the whole */
    double *buffer;         /* [BLOCK] bytes, which the host and copies of the device reach */
    double own;             /* parameters that this rank would save */
} loading_t;

/* ---- one tensor ---- */

/* What of a block is ours goes to its place. */
static dp_status_t put_bytes(void *user, size_t at, const void *data, size_t bytes)
{
    const loading_t *l = user;
    const size_t size = dp_dtype_bytes(l->kept->dtype);
    const size_t there = l->first * size + at, ours = l->kept->first * size, end = ours + dp__kept_bytes(l->kept);
    const size_t begin = there > ours ? there : ours, stop = there + bytes < end ? there + bytes : end;
    dp_stream_t *s = l->p->lanes.stream[DP_LANE_REDUCE];
    char *to = l->kept->memory + (begin - ours);

    if (begin >= stop)
        return DP_OK;
    data = (const char *)data + (begin - there);
    if (l->kept->host || l->p->host_memory) {
        memcpy(to, data, stop - begin);
        return DP_OK;
    }
    DO(l->p->device_vt->copy(s, to, data, stop - begin));
    return l->p->device_vt->synchronize(s, -1);
}

/* The name without a shard's bounds, and these: of what is kept, or of a tensor of the
 * checkpoint. */
static bool split_name(const char *name, size_t *length_out, size_t *first_out, size_t *end_out)
{
    const char *bracket = strrchr(name, '[');
    int n = 0;

    if (bracket == NULL || sscanf(bracket, "[%zu:%zu]%n", first_out, end_out, &n) != 2 || bracket[n] != '\0')
        return false;
    *length_out = (size_t)(bracket - name);
    return *end_out >= *first_out;
}

/* How many elements of what is kept are in a tensor that has first .. end - 1 of the whole. */
static size_t common(const dp__kept_t *kept, size_t first, size_t end)
{
    const size_t begin = first > kept->first ? first : kept->first;
    const size_t stop = end < kept->first + kept->count ? end : kept->first + kept->count;

    return begin < stop ? stop - begin : 0;
}

/* Out of the shards that other ranks have saved, which lie one behind the other by name.
 * *count_out: elements found; where `take` is false they are counted alone. */
static dp_status_t load_shards(loading_t *l, const char *name, size_t length, bool take, size_t *count_out)
{
    const dp__place_t *places = l->checkpoint->places;
    const dp__kept_t *kept = l->kept;
    uint32_t begin = 0, behind = l->checkpoint->count;

    while (begin < behind) {
        const uint32_t middle = begin + (behind - begin) / 2;

        if (strcmp(places[middle].tensor->name, name) < 0)
            begin = middle + 1;
        else
            behind = middle;
    }
    *count_out = 0;
    for (uint32_t i = begin; i < l->checkpoint->count; i++) {
        const dp__tensor_t *there = places[i].tensor;
        size_t first, end, own;

        if (strncmp(there->name, name, length) != 0)
            break;
        if (!split_name(there->name, &own, &first, &end) || own != length || there->dtype != kept->dtype ||
            there->count != end - first || common(kept, first, end) == 0)
            continue;
        l->first = first;
        *count_out += common(kept, first, end);
        if (take)
            DO(dp__checkpoint_stream(l->checkpoint, i, l->buffer, BLOCK, put_bytes, l));
    }
    return DP_OK;
}

/* Where experts were replicated, 0.1 called their tensors "replicas.<expert>". */
static int64_t find_tensor(const loading_t *l, const char *name)
{
    const int64_t i = dp_checkpoint_find(l->checkpoint, name);
    const char *at = i < 0 ? strstr(name, "experts.") : NULL;
    char older[DP__NAME_MOST + 1];

    if (at == NULL)
        return i;
    snprintf(older, sizeof(older), "%.*sreplicas.%s", (int)(at - name), name, at + sizeof("experts.") - 1);
    return dp_checkpoint_find(l->checkpoint, older);
}

static dp_status_t load_tensor(loading_t *l, const dp__kept_t *kept)
{
    const size_t whole = kept->whole > 0 ? kept->whole : kept->count;
    dp_checkpoint_tensor_t there = {.struct_size = sizeof(there)};
    size_t length = strlen(kept->name), first, end, found;
    char name[DP__NAME_MOST + 1];
    dp_status_t status;
    int64_t i;

    if (kept->whole > 0)
        (void)split_name(kept->name, &length, &first, &end);
    snprintf(name, sizeof(name), "%.*s", (int)length, kept->name);
    l->kept = kept;
    l->first = 0;
    i = find_tensor(l, name);
    if (i < 0) {
        status = load_shards(l, name, length, false, &found);
        if (status >= 0 && found == kept->count)
            return load_shards(l, name, length, true, &found);
        if (status < 0 || kept->optional)
            return status;
        return found == 0 ? dp_fail(DP_ERR_MISMATCH, "tensor %s is not in it", name)
                          : dp_fail(DP_ERR_MISMATCH, "of tensor %s %zu elements are in it, %zu were wanted", kept->name,
                                    found, kept->count);
    }
    DO(dp_checkpoint_tensor(l->checkpoint, (uint32_t)i, &there));
    if (there.dtype == kept->dtype && there.count == whole)
        return dp__checkpoint_stream(l->checkpoint, (uint32_t)i, l->buffer, BLOCK, put_bytes, l);
    return kept->optional
               ? DP_OK
               : dp_fail(DP_ERR_MISMATCH, "%s: tensor %s has %" PRIu64 " elements of %s, this model's has %zu of %s",
                         there.file, name, there.count, dp__dtype_name(there.dtype), whole,
                         dp__dtype_name(kept->dtype));
}

static dp_status_t load_list(loading_t *l)
{
    dp__kept_list_t list;
    dp_status_t status = dp__kept_list(l->p, &list);

    l->own = 0;
    for (uint32_t i = 0; i < list.n && status >= 0; i++) {
        l->own += list.at[i].parameter && list.at[i].mine;
        status = load_tensor(l, &list.at[i]);
    }
    dp__kept_list_free(&list);
    return status;
}

/* ---- one checkpoint ---- */

static uint32_t parameters_in(const dp_checkpoint_t *checkpoint)
{
    dp_checkpoint_tensor_t tensor = {.struct_size = sizeof(tensor)};
    uint32_t n = 0;

    for (uint32_t i = 0; i < dp_checkpoint_count(checkpoint); i++)
        n += dp_checkpoint_tensor(checkpoint, i, &tensor) >= 0 && tensor.parameter != 0;
    return n;
}

/* Every rank found all that it has: as many are in the checkpoint as there are, or more. */
static dp_status_t check_rest(loading_t *l)
{
    const uint32_t n = parameters_in(l->checkpoint);
    dp_status_t status = dp_pipeline_sum(l->p, &l->own, 1);

    if (status >= 0 && l->own != n)
        return dp_fail(DP_ERR_MISMATCH,
                       "the checkpoint has %u parameters and this model %.0f of them: it is of a larger model", n,
                       l->own);
    return status;
}

static dp_status_t load_step(loading_t *l, const char *folder, uint64_t step)
{
    dp_status_t status = dp_checkpoint_open(folder, step, &l->checkpoint);
    char what[64];

    snprintf(what, sizeof(what), "cannot load step %" PRIu64, step);
    if (status >= 0)
        status = load_list(l);
    status = dp__agree(l->p, status, what);
    if (status >= 0)
        status = check_rest(l);
    if (status >= 0)
        l->p->run_id = dp_checkpoint_run(l->checkpoint);
    dp_checkpoint_close(l->checkpoint);
    l->checkpoint = NULL;
    return status;
}

/* ---- the newest that is whole ---- */

typedef struct found {
    int32_t status;
    uint64_t step;
} found_t;

/* Rank 0 looks, for all. */
static dp_status_t find_checkpoint(dp_pipeline_t *p, const char *folder, uint64_t below, uint64_t *step_out)
{
    found_t mine = {.status = DP_OK}, *all;
    uint64_t hollow = 0;
    dp_status_t status;

    if (dp_group_rank(p->group) == 0)
        mine.status = dp__checkpoint_newest(folder, below, &mine.step, &hollow);
    if (hollow > 0)
        dp_log(DP_LOG_WARN, "checkpoint", "%s: folders without an index are passed over, as that of step %" PRIu64,
               folder, hollow);
    all = dp__ask_ranks(p, &mine, sizeof(mine), &status);
    if (all == NULL)
        return status;
    *step_out = all[0].step;
    status = all[0].status;
    if (status < 0 && dp_group_rank(p->group) != 0)
        (void)dp_fail(status, "rank 0 cannot look into %s", folder);
    dp__free(all);
    return status;
}

static dp_status_t load_newest(loading_t *l, const char *folder, uint64_t *step_out)
{
    char why[1024] = "";
    uint64_t step = UINT64_MAX;
    dp_status_t status, broken = DP_OK;

    for (;;) {
        status = find_checkpoint(l->p, folder, step, &step);
        if (status == DP_PENDING && broken < 0)
            return dp_fail(broken, "%s: no checkpoint in it is whole; the newest: %s", folder, why);
        if (status != DP_OK)
            return status;
        status = load_step(l, folder, step);
        if (status >= 0)
            *step_out = step;
        if (status != DP_ERR_INVALID && status != DP_ERR_IO)
            return status;
        if (broken == DP_OK)
            snprintf(why, sizeof(why), "%s", dp_last_error());
        broken = broken < 0 ? broken : status;
        if (dp_group_rank(l->p->group) == 0)
            dp_log(DP_LOG_WARN, "checkpoint", "%s: %s; an earlier one is tried", folder, dp_last_error());
    }
}

dp_status_t dp_pipeline_load(dp_pipeline_t *p, const char *folder, uint64_t *step_out)
{
    loading_t l = {.p = p};
    size_t account = 0;
    dp_status_t status;

    DO(dp__pipeline_check(p, "dp_pipeline_load"));
    if (folder == NULL || step_out == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_load: %s is NULL", folder == NULL ? "folder" : "step_out");
    status = dp__gather_finish(p);
    if (status >= 0)
        status = dp__shared_memory(p, BLOCK, &account, &l.buffer);
    p->memory.total -= account;
    if (status >= 0)
        status = load_newest(&l, folder, step_out);
    if (status == DP_OK)
        p->ungathered = false; /* all parameters of all chunks are those of the file */
    dp__shared_release(p, l.buffer);
    return status < 0 ? dp__engine_fail(p, status, "loading a checkpoint") : status;
}
