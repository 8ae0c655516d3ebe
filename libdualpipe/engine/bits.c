/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * bits.c: dp_pipeline_options_t.check_bits: ranks that hold the same stage hold the same bits of
 * it. All say their digests; where two differ, memory has changed by itself. All ranks find the
 * same from the same digests. What they then look at once more tells which parameter it is, and
 * whose memory does not stay as it is. */
#include "base/clock.h"
#include "base/do.h"
#include "base/hash.h"
#include "base/memory.h"
#include "checkpoint/xxh64.h"
#include "engine/engine.h"

#include <stdio.h>
#include <string.h>

/* What is compared: parameters, summed gradients, and then the states that go with parameters, in
 * the order of registration. */
enum { PARAMS, GRADS, STATES };

enum { DENSE, EXPERTS, HALVES }; /* of a stage's parameters: experts differ in the expert group */

enum { NAME_BYTES = 256, RANKS_BYTES = 128, MOST_NAMED = 8 };

/* What a rank says of a chunk. Behind it: digests [kinds][HALVES]. */
typedef struct told {
    int64_t stage, nparams;
    uint64_t digest[];
} told_t;

typedef struct check {
    dp_pipeline_t *p;
    int32_t kinds;
    bool grads; /* or else states */
    char when[32];
    size_t told_bytes;
    char *told;  /* [ranks][chunks] */
    bool *wrong; /* [ranks] */
} check_t;

/* One group of copies: the holders of what entry `of` holds of a kind. */
typedef struct copies {
    int32_t of, kind, half;
} copies_t;

/* ---- digests ---- */

dp_status_t dp__digest(dp_pipeline_t *p, const char *memory, size_t bytes, bool host, uint64_t *digest_out)
{
    const size_t most = DP__SUM_COUNT * sizeof(double);
    dp_stream_t *s = p->lanes.stream[DP_LANE_REDUCE];
    dp__xxh64_t x;

    dp__xxh64_begin(&x);
    if (host || p->host_memory)
        dp__xxh64_add(&x, memory, bytes);
    for (size_t at = 0; !host && !p->host_memory && at < bytes; at += most) {
        const size_t n = bytes - at < most ? bytes - at : most;

        DO(p->device_vt->copy(s, p->sums.staging, memory + at, n));
        DO(p->device_vt->synchronize(s, -1));
        dp__xxh64_add(&x, p->sums.staging, n);
    }
    *digest_out = dp__xxh64_end(&x);
    return DP_OK;
}

/* State number n of those that go with the parameters of a chunk, and that have copies. */
static const dp_state_t *find_state(const dp_pipeline_t *p, int32_t chunk, int32_t n)
{
    for (int32_t i = 0; i < p->states.n; i++) {
        const dp_state_t *s = &p->states.at[i];
        const bool goes = s->scope == DP_STATE_PARAMS || (s->scope == DP_STATE_SHARDS && !dp__zero_is_on(p));

        if (goes && s->chunk == chunk && n-- == 0)
            return s;
    }
    return NULL;
}

static bool is_shard(const dp_pipeline_t *p, const dp_stage_t *stage, uint32_t param)
{
    for (int32_t i = 0; i < stage->nparts; i++)
        if (param - stage->parts[i].first_param < stage->parts[i].sizes.nparams)
            return dp__shard_is_cut(p, &stage->parts[i].part, &stage->param_list[param]);
    return false;
}

/* A gradient that is summed in shards has no copy: 0. */
static dp_status_t digest_param(dp_pipeline_t *p, int32_t c, int32_t kind, uint32_t index, uint64_t *digest_out)
{
    const dp__chunk_t *chunk = &p->chunks[c];
    const dp_param_t *param = &chunk->stage->param_list[index];
    const dp_state_t *state = kind >= STATES ? find_state(p, c, kind - STATES) : NULL;
    const dp_dtype_t dtype = kind == PARAMS  ? p->options.dtype
                             : kind == GRADS ? dp_dtype_accumulator(p->options.dtype)
                                             : state->dtype;
    const char *memory = kind == PARAMS ? chunk->params : kind == GRADS ? dp__summed_grads(chunk) : state->memory;
    const size_t size = dp_dtype_bytes(dtype);

    *digest_out = 0;
    if (kind == GRADS && is_shard(p, chunk->stage, index))
        return DP_OK;
    return dp__digest(p, memory + param->offset * size, param->count * size, state != NULL && state->host, digest_out);
}

static int32_t kind_at(const check_t *k, int32_t i)
{
    return i == 0 ? PARAMS : k->grads ? GRADS : STATES + i - 1;
}

static dp_status_t digest_chunk(const check_t *k, int32_t c, int32_t kind, uint64_t digest_out[HALVES])
{
    const dp__stage_info_t *info = &k->p->chunks[c].stage->info;

    digest_out[DENSE] = digest_out[EXPERTS] = DP__HASH_BEGIN;
    for (uint32_t i = 0; i < info->nparams; i++) {
        uint64_t *sum = &digest_out[info->param_list[i].sharded ? EXPERTS : DENSE], digest;

        DO(digest_param(k->p, c, kind, i, &digest));
        *sum = dp__hash_field(*sum, digest);
    }
    return DP_OK;
}

static dp_status_t tell_all(check_t *k)
{
    dp_pipeline_t *p = k->p;
    char *mine = dp__calloc((size_t)p->nchunks, k->told_bytes);
    dp_status_t status = mine != NULL ? DP_OK : dp_fail(DP_ERR_NOMEM, "no memory for digests of parameters");

    for (int32_t c = 0; c < p->nchunks && status >= 0; c++) {
        told_t *told = (told_t *)(void *)(mine + (size_t)c * k->told_bytes);

        told->stage = p->chunks[c].place.stage;
        told->nparams = p->chunks[c].stage->info.nparams;
        for (int32_t i = 0; i < k->kinds && status >= 0; i++)
            status = digest_chunk(k, c, kind_at(k, i), &told->digest[HALVES * i]);
    }
    if (status >= 0)
        k->told = dp__ask_ranks(p, mine, (size_t)p->nchunks * k->told_bytes, &status);
    dp__free(mine);
    return status;
}

/* ---- who differs ---- */

static int32_t count_entries(const check_t *k)
{
    return dp_group_size(k->p->group) * k->p->nchunks;
}

static const told_t *told_at(const check_t *k, int32_t entry)
{
    return (const told_t *)(const void *)(k->told + (size_t)entry * k->told_bytes);
}

static int32_t rank_at(const check_t *k, int32_t entry)
{
    return entry / k->p->nchunks;
}

static int32_t expert_rank_at(const check_t *k, int32_t entry)
{
    return rank_at(k, entry) / k->p->grid.pp % k->p->grid.ep;
}

static bool is_copy(const check_t *k, const copies_t *g, int32_t entry)
{
    return told_at(k, entry)->stage == told_at(k, g->of)->stage &&
           (g->half == DENSE || expert_rank_at(k, entry) == expert_rank_at(k, g->of));
}

static uint64_t digest_at(const check_t *k, const copies_t *g, int32_t entry)
{
    return told_at(k, entry)->digest[HALVES * g->kind + g->half];
}

/* Those that differ from more than half of the copies are wrong; without such a half all may be. */
static void mark_wrong(check_t *k, const copies_t *g)
{
    const int32_t n = count_entries(k);
    int32_t copies = 0, most = 0;
    uint64_t right = 0;

    for (int32_t i = 0; i < n; i++) {
        int32_t same = 0;

        for (int32_t j = 0; j < n && is_copy(k, g, i); j++)
            same += is_copy(k, g, j) && digest_at(k, g, j) == digest_at(k, g, i);
        copies += same > 0;
        if (same > most) {
            most = same;
            right = digest_at(k, g, i);
        }
    }
    for (int32_t i = 0; i < n; i++)
        if (is_copy(k, g, i) && (2 * most <= copies || digest_at(k, g, i) != right))
            k->wrong[rank_at(k, i)] = true;
}

/* Every copy against the first. found_out: the first group that differs; true: there is one. */
static dp_status_t compare_copies(check_t *k, bool *differ_out, copies_t *found_out)
{
    const dp_pipeline_t *p = k->p;
    const int32_t stages = dp_schedule_stages(p->schedule), n = count_entries(k);
    int32_t *first = dp__calloc((size_t)stages * (size_t)p->grid.ep, sizeof(*first));

    *differ_out = false;
    if (first == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory to compare digests of parameters");
    for (copies_t g = {0}; g.half < HALVES; g.half++) {
        memset(first, 0, (size_t)stages * (size_t)p->grid.ep * sizeof(*first));
        for (int32_t i = 0; i < n; i++) {
            const int32_t e = g.half == DENSE ? 0 : expert_rank_at(k, i);
            int32_t *before = &first[told_at(k, i)->stage * p->grid.ep + e];

            if (*before == 0)
                *before = i + 1;
            g.of = *before - 1;
            for (g.kind = 0; g.kind < k->kinds; g.kind++) {
                if (digest_at(k, &g, i) == digest_at(k, &g, g.of))
                    continue;
                if (!*differ_out)
                    *found_out = g;
                *differ_out = true;
                mark_wrong(k, &g);
            }
        }
    }
    dp__free(first);
    return DP_OK;
}

/* ---- which parameter, and whose memory ---- */

static int32_t own_chunk(const check_t *k, const copies_t *g)
{
    for (int32_t c = 0; c < k->p->nchunks; c++)
        if (is_copy(k, g, dp_group_rank(k->p->group) * k->p->nchunks + c))
            return c;
    return -1;
}

/* Digests of one half's parameters, made anew by those that hold them: [ranks][nparams], NULL:
 * *status_out. */
static uint64_t *look_again(const check_t *k, const copies_t *g, dp_status_t *status_out)
{
    const size_t n = (size_t)told_at(k, g->of)->nparams;
    const int32_t c = own_chunk(k, g);
    uint64_t *mine = dp__calloc(n + 1, sizeof(*mine)), *all = NULL;

    *status_out = mine != NULL ? DP_OK : dp_fail(DP_ERR_NOMEM, "no memory for digests of %zu parameters", n);
    for (uint32_t i = 0; i < n && c >= 0 && *status_out >= 0; i++)
        if ((k->p->chunks[c].stage->param_list[i].sharded != 0) == (g->half == EXPERTS))
            *status_out = digest_param(k->p, c, kind_at(k, g->kind), i, &mine[i]);
    if (*status_out >= 0)
        all = dp__ask_ranks(k->p, mine, n * sizeof(*mine), status_out);
    dp__free(mine);
    return all;
}

static uint64_t combine(const dp_stage_t *stage, const copies_t *g, const uint64_t *digests, int64_t n)
{
    uint64_t sum = DP__HASH_BEGIN;

    for (int64_t i = 0; i < n; i++)
        if ((stage->param_list[i].sharded != 0) == (g->half == EXPERTS))
            sum = dp__hash_field(sum, digests[i]);
    return sum;
}

/* What a holder of the stage finds. */
typedef struct finding {
    char name[NAME_BYTES]; /* of what differs */
    bool holds;
    bool unstable[]; /* [ranks] has other bits than a moment ago */
} finding_t;

static void find_param(const check_t *k, const copies_t *g, const uint64_t *again, finding_t *mine)
{
    static const char *const what[] = {"the parameter", "the gradient of"};
    const int32_t c = own_chunk(k, g), kind = kind_at(k, g->kind);
    const int64_t n = told_at(k, g->of)->nparams;
    const uint64_t *of = again + rank_at(k, g->of) * n;
    const dp_stage_t *stage = c >= 0 ? k->p->chunks[c].stage : NULL;
    const char *param = NULL;

    if (stage == NULL)
        return;
    mine->holds = true;
    for (int32_t i = 0; i < count_entries(k); i++) {
        const uint64_t *own = again + rank_at(k, i) * n;

        if (!is_copy(k, g, i))
            continue;
        mine->unstable[rank_at(k, i)] = combine(stage, g, own, n) != digest_at(k, g, i);
        for (int64_t at = 0; at < n && param == NULL; at++)
            if (own[at] != of[at])
                param = stage->param_list[at].name;
    }
    if (param == NULL)
        snprintf(mine->name, sizeof(mine->name), "something of stage %d", k->p->chunks[c].place.stage);
    else
        snprintf(mine->name, sizeof(mine->name), "%s%s %.160s of stage %d",
                 kind >= STATES ? find_state(k->p, c, kind - STATES)->name : what[kind], kind >= STATES ? " of" : "",
                 param, k->p->chunks[c].place.stage);
}

/* "3", "0 or 3", "0, 1 or 6", "0, 1, ... or others": returns how many there are. */
static int32_t list_ranks(const check_t *k, const copies_t *g, bool wrong, const char *last, char text[RANKS_BYTES])
{
    int32_t named = 0, left = 0;

    text[0] = '\0';
    for (int32_t i = 0; i < count_entries(k); i++)
        left += is_copy(k, g, i) && k->wrong[rank_at(k, i)] == wrong;
    for (int32_t i = 0; i < count_entries(k) && named < MOST_NAMED; i++) {
        if (!is_copy(k, g, i) || k->wrong[rank_at(k, i)] != wrong)
            continue;
        left--;
        snprintf(text + strlen(text), RANKS_BYTES - strlen(text), "%s%d",
                 named == 0  ? ""
                 : left == 0 ? last
                             : ", ",
                 rank_at(k, i));
        named++;
    }
    if (left > 0)
        snprintf(text + strlen(text), RANKS_BYTES - strlen(text), "%sothers", last);
    return named;
}

static dp_status_t tell_wrong(const check_t *k, const copies_t *g, const char *name)
{
    char wrong[RANKS_BYTES], right[RANKS_BYTES];

    if (list_ranks(k, g, false, " and ", right) > 0) {
        list_ranks(k, g, true, " and ", wrong);
        return dp_fail(DP_ERR_CORRUPT, "rank %s: %s: %s has other bits than on rank %s: memory of rank %s has changed",
                       wrong, k->when, name, right, wrong);
    }
    list_ranks(k, g, true, " or ", wrong);
    return dp_fail(DP_ERR_CORRUPT,
                   "rank %s: %s: %s has not the same bits on all of these: memory of one has changed, and so few "
                   "copies cannot tell whose",
                   wrong, k->when, name);
}

/* Where copies cannot decide, memory that has changed since is the wrong one. */
static void mark_unstable(check_t *k, const copies_t *g, const finding_t *found)
{
    int32_t unstable = 0, right = 0;

    for (int32_t i = 0; i < count_entries(k); i++) {
        const bool copy = is_copy(k, g, i);

        unstable += copy && found->unstable[rank_at(k, i)];
        right += copy && !k->wrong[rank_at(k, i)];
    }
    for (int32_t i = 0; i < count_entries(k) && unstable > 0; i++)
        if (is_copy(k, g, i))
            k->wrong[rank_at(k, i)] = found->unstable[rank_at(k, i)] || (right > 0 && k->wrong[rank_at(k, i)]);
}

static dp_status_t explain(check_t *k, const copies_t *g)
{
    const size_t ranks = (size_t)dp_group_size(k->p->group), bytes = sizeof(finding_t) + ranks * sizeof(bool);
    finding_t *mine = dp__calloc(1, bytes), *found = NULL;
    dp_status_t status;
    uint64_t *again = look_again(k, g, &status);
    char *all = NULL;

    if (status >= 0 && mine == NULL)
        status = dp_fail(DP_ERR_NOMEM, "no memory for what differs");
    if (status >= 0) {
        find_param(k, g, again, mine);
        all = dp__ask_ranks(k->p, mine, bytes, &status); /* others do not know its name */
    }
    for (size_t r = 0; r < ranks && all != NULL && found == NULL; r++)
        if (((finding_t *)(void *)(all + r * bytes))->holds)
            found = (finding_t *)(void *)(all + r * bytes);
    if (found != NULL) {
        mark_unstable(k, g, found);
        status = tell_wrong(k, g, found->name);
    }
    dp__free(all);
    dp__free(again);
    dp__free(mine);
    return status;
}

/* ---- checks ---- */

static dp_status_t compare(check_t *k)
{
    copies_t differ;
    bool any;

    k->told_bytes = sizeof(told_t) + (size_t)k->kinds * HALVES * sizeof(uint64_t);
    k->wrong = dp__calloc((size_t)dp_group_size(k->p->group), sizeof(*k->wrong));
    if (k->wrong == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a list of ranks");
    DO(dp__gather_finish(k->p));
    DO(tell_all(k));
    DO(compare_copies(k, &any, &differ));
    return any ? explain(k, &differ) : DP_OK;
}

/* The state of a rank whose memory is wrong is not used again, and the first cause is the same on
 * all ranks. */
static dp_status_t run_check(check_t *k)
{
    const int64_t begin = dp__now_ns();
    dp_pipeline_t *p = k->p;
    dp_status_t status = compare(k);

    if (status == DP_ERR_CORRUPT) {
        p->recovery.corrupt++;
        p->recovery.wrong = k->wrong[dp_group_rank(p->group)];
        if (p->recovery.wrong)
            p->recovery.holds = 0;
        p->run.failed = 1;
        dp_group_abort(p->group, status, dp_last_error());
        status = dp_group_health(p->group);
    } else if (status < 0) {
        status = dp__engine_fail(p, status, "comparing the bits of copies");
    } else {
        p->recovery.corrupt = 0;
        dp_log(DP_LOG_DEBUG, "engine", "check_bits: %s: compared in %.3f ms", k->when,
               1e-6 * (double)(dp__now_ns() - begin));
    }
    dp__free(k->told);
    dp__free(k->wrong);
    return status;
}

static bool has_copies(const dp_pipeline_t *p)
{
    return p->comms.sums.mirror != NULL || p->grid.dp * p->grid.ep > 1;
}

dp_status_t dp__bits_open(dp_pipeline_t *p)
{
    if (p->options.check_bits > 0 && !has_copies(p) && dp_group_rank(p->group) == 0)
        dp_log(DP_LOG_WARN, "engine",
               "check_bits: nothing is checked: in this placement there is one copy of each stage");
    return DP_OK;
}

dp_status_t dp__bits_check_step(dp_pipeline_t *p)
{
    const uint32_t steps = p->recovery.holds;
    check_t k = {.p = p, .kinds = 2, .grads = true};

    if (p->options.check_bits == 0 || steps % (uint32_t)p->options.check_bits != 0 || !has_copies(p))
        return DP_OK;
    snprintf(k.when, sizeof(k.when), "step %u", steps - 1);
    return run_check(&k);
}

dp_status_t dp__bits_check_save(dp_pipeline_t *p, uint64_t steps)
{
    check_t k = {.p = p, .kinds = 1};

    if (p->options.check_bits == 0 || !has_copies(p))
        return DP_OK;
    while (find_state(p, 0, k.kinds - 1) != NULL)
        k.kinds++;
    snprintf(k.when, sizeof(k.when), "after %llu steps", (unsigned long long)steps);
    return run_check(&k);
}
