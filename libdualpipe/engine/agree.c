/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * agree.c: what must be the same on all ranks is compared before anything depends on it. */
#include "base/hash.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "stage/dtype.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SETTINGS_BYTES 2048
#define REASON_BYTES   400

/* What a rank says at open. */
typedef struct statement {
    /* pipelines that its process has opened: names that no other pipeline of the job has had */
    uint64_t serial;
    int32_t trace;                 /* DUALPIPE_TRACE is set */
    char settings[SETTINGS_BYTES]; /* lines of name=value */
} statement_t;

void *dp__ask_ranks(dp_pipeline_t *p, const void *mine, size_t bytes, dp_status_t *status_out)
{
    const int32_t n = dp_group_size(p->group);
    void *all = dp__calloc((size_t)n, bytes);

    *status_out = all != NULL ? dp_group_all_gather(p->group, mine, bytes, all)
                              : dp_fail(DP_ERR_NOMEM, "no memory for what %d ranks say", n);
    if (*status_out >= 0)
        return all;
    dp__free(all);
    return NULL;
}

static uint64_t digest_schedule(const dp_schedule_t *s)
{
    uint64_t h = dp__hash_field(DP__HASH_BEGIN, s->placement);

    h = dp__hash_fields(h, s->first, (size_t)s->ranks + 1);
    for (int64_t i = 0; i < s->first[s->ranks]; i++) {
        const dp_op_t *op = &s->ops[i];
        const int64_t fields[] = {op->kind, op->chunk, op->chunk2, op->microbatch, op->microbatch2};

        h = dp__hash_fields(h, fields, 5);
    }
    return h;
}

static void write_settings(const dp_pipeline_t *p, const dp_host_places_t *places, char *text, size_t bytes)
{
    const dp_pipeline_options_t *o = &p->options;
    const dp_schedule_t *s = o->schedule;
    uint64_t hosts = DP__HASH_BEGIN;

    for (int32_t r = 0; r < places->ranks; r++)
        hosts = dp__hash_field(hosts, (uint64_t)places->host_of[r]);
    snprintf(
        text, bytes,
        "method=%s\nmicrobatches=%d\nchunks=%d\nmicrobatch_group=%d\nep=%d\ndp=%d\nboundary_bytes=%zu\ndtype=%s\nslots=%d\ngraph=%d\nzero=%d\n"
        "one_accumulator=%d\ncheck_bits=%d\nbuddy=%d\ntokens=%u\ndocuments=%u\ncache=%u requests of %u tokens\nschedule=%016" PRIx64
        "\nforward_only=%d\nversion=%s\ndevice=%s\ncomm=%s\nhosts=%d "
        "placed %016" PRIx64 "\n",
        s != NULL ? s->method : p->method, s != NULL ? s->microbatches : o->microbatches,
        s != NULL ? s->chunks : o->chunks, s != NULL ? 0 : o->microbatch_group, p->grid.ep, p->grid.dp,
        o->boundary_bytes, dp__dtype_name(o->dtype), o->slots, o->graph, o->zero, o->one_accumulator, o->check_bits,
        o->buddy, o->tokens, o->documents, o->cache_slots, o->cache_tokens, s != NULL ? digest_schedule(s) : 0,
        s != NULL ? s->forward_only : 0, DP_VERSION, p->device_name, p->comm_name, places->hosts, hosts);
}

/* The first line in which two ranks differ. */
static dp_status_t compare_settings(const char *a, int32_t r, const char *b)
{
    while (*a != '\0' || *b != '\0') {
        size_t na = strcspn(a, "\n"), nb = strcspn(b, "\n");

        if (na != nb || strncmp(a, b, na) != 0)
            return dp_fail(DP_ERR_MISMATCH,
                           "the ranks were opened with different settings: rank 0 has %.*s, rank %d has %.*s", (int)na,
                           a, r, (int)nb, b);
        a += na + (a[na] == '\n');
        b += nb + (b[nb] == '\n');
    }
    return DP_OK;
}

dp_status_t dp__agree_on_settings(dp_pipeline_t *p)
{
    static uint64_t opened;
    const dp_host_places_t *places = p->host->get_service(p->host, DP_HOST_PLACES);
    statement_t mine = {.trace = secure_getenv("DUALPIPE_TRACE") != NULL}, *all;
    dp_status_t status;

    if (places == NULL) /* once it is there it stays */
        return DP_ERR_NOMEM;
    mine.serial = __atomic_add_fetch(&opened, 1, __ATOMIC_RELAXED);
    write_settings(p, places, mine.settings, sizeof(mine.settings));
    all = dp__ask_ranks(p, &mine, sizeof(mine), &status);
    if (all == NULL)
        return status;
    p->serial = all[0].serial;
    p->trace.to_file = all[0].trace;
    for (int32_t r = 1; r < dp_group_size(p->group) && status >= 0; r++)
        status = compare_settings(all[0].settings, r, all[r].settings);
    dp__free(all);
    return status;
}

/* ---- stages ---- */

typedef struct shape {
    int64_t stage, count, nparts, shared; /* shared: how many parameters have such a name */
    uint64_t layout;
} shape_t;

/* Where the parameters lie, and which are summed over whom. Names may differ: experts are numbered
 * over all ranks. */
static uint64_t digest_params(const dp__stage_info_t *info)
{
    uint64_t h = DP__HASH_BEGIN;

    for (uint32_t i = 0; i < info->nparams; i++) {
        const dp_param_t *param = &info->param_list[i];
        const int64_t fields[] = {param->kind, (int64_t)param->offset, (int64_t)param->count, param->sharded};

        h = dp__hash_fields(h, fields, 4);
        if (param->shared != NULL)
            h = dp__hash_text(h, param->shared);
    }
    return h;
}

static dp_status_t compare_shapes(const dp_pipeline_t *p, const shape_t *mine, int32_t rank, const shape_t *theirs)
{
    if (mine->stage != theirs->stage)
        return DP_OK;
    if (mine->count != theirs->count)
        return dp_fail(DP_ERR_MISMATCH,
                       "stage %" PRId64 " has %" PRId64 " parameters on rank %d and %" PRId64 " on rank %d",
                       mine->stage, mine->count, dp_group_rank(p->group), theirs->count, rank);
    if (mine->nparts != theirs->nparts)
        return dp_fail(DP_ERR_MISMATCH, "stage %" PRId64 " has %" PRId64 " parts on rank %d and %" PRId64 " on rank %d",
                       mine->stage, mine->nparts, dp_group_rank(p->group), theirs->nparts, rank);
    if (mine->layout != theirs->layout)
        return dp_fail(DP_ERR_MISMATCH,
                       "stage %" PRId64 ": its parameters have other places, sizes, kinds or shared names on "
                       "rank %d than on rank %d",
                       mine->stage, dp_group_rank(p->group), rank);
    return DP_OK;
}

/* Parts are counted along the path: the parts of a model are the same whatever the number of its
 * stages. */
static void number_parts(dp_pipeline_t *p, const shape_t *all, size_t n)
{
    const int32_t stages = dp_schedule_stages(p->schedule);

    p->nparts = 0;
    for (int32_t s = 0; s < stages; s++) {
        int64_t here = 0;

        for (int32_t c = 0; c < p->nchunks; c++)
            if (p->chunks[c].place.stage == s)
                p->chunks[c].first_part = p->nparts;
        for (size_t i = 0; i < n && here == 0; i++)
            here = all[i].stage == s ? all[i].nparts : 0;
        p->nparts += (int32_t)here;
    }
}

dp_status_t dp__agree_on_stages(dp_pipeline_t *p)
{
    size_t n = (size_t)dp_group_size(p->group), chunks = (size_t)p->nchunks;
    shape_t mine[DP_MAX_CHUNKS], *all;
    dp_status_t status;

    for (size_t c = 0; c < chunks; c++) {
        const dp__stage_info_t *info = &p->chunks[c].stage->info;

        mine[c] = (shape_t){p->chunks[c].place.stage, (int64_t)info->param_count, p->chunks[c].stage->nparts, 0,
                            digest_params(info)};
        for (uint32_t i = 0; i < info->nparams; i++)
            mine[c].shared += info->param_list[i].shared != NULL;
    }
    all = dp__ask_ranks(p, mine, chunks * sizeof(*mine), &status);
    if (all == NULL)
        return status;
    for (size_t i = 0; i < n * chunks && status >= 0; i++) {
        p->ties.any |= all[i].shared > 0;
        for (size_t c = 0; c < chunks && status >= 0; c++)
            status = compare_shapes(p, &mine[c], (int32_t)(i / chunks), &all[i]);
    }
    number_parts(p, all, n * chunks);
    dp__free(all);
    return status;
}

/* ---- whether to go on ---- */

typedef struct verdict {
    int32_t status;
    char name[DP__NAME_BYTES], reason[REASON_BYTES];
} verdict_t;

/* The verdicts of all ranks, as dp__ask_ranks. */
static verdict_t *ask_all(dp_pipeline_t *p, dp_status_t mine, const char *name, dp_status_t *status_out)
{
    verdict_t own = {.status = mine};

    snprintf(own.name, sizeof(own.name), "%s", name);
    snprintf(own.reason, sizeof(own.reason), "%s", mine < 0 ? dp_last_error() : "");
    return dp__ask_ranks(p, &own, sizeof(own), status_out);
}

dp_status_t dp__agree(dp_pipeline_t *p, dp_status_t mine, const char *what)
{
    dp_status_t status;
    verdict_t *all = ask_all(p, mine, "", &status);

    if (all == NULL)
        return dp__engine_fail(p, status, what);
    for (int32_t r = 0; r < dp_group_size(p->group) && status >= 0; r++)
        if (all[r].status < 0)
            status = dp_fail(all[r].status, "rank %d: %s: %s", r, what, all[r].reason);
    dp__free(all);
    return status;
}

dp_status_t dp__agree_to_swap(dp_pipeline_t *p, dp_status_t mine, const char *name)
{
    const int32_t n = dp_group_size(p->group);
    dp_status_t status;
    verdict_t *all = ask_all(p, mine, name, &status);

    if (all == NULL)
        return dp__engine_fail(p, status, "swapping the comm backend");
    for (int32_t r = 0; r < n && status >= 0; r++)
        if (all[r].status < 0)
            status = dp_fail(all[r].status, "rank %d keeps its comm backend: %s", r, all[r].reason);
        else if (strcmp(all[r].name, all[0].name) != 0)
            status = dp_fail(DP_ERR_MISMATCH, "the comm backend was not swapped: rank 0 wants %s, rank %d wants %s",
                             all[0].name, r, all[r].name);
    dp__free(all);
    return status;
}
