/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * ties.c: one parameter of the model as a tensor in two places (dp_param_t.shared): who holds the
 * two, that they begin alike, and the sum of their gradients.
 *
 * A sum of two numbers has no order, so its bits are the same wherever the two places are. It comes
 * behind the sums of halves and mirrors and before that over the data group, as it would if each
 * pipeline were one rank. It is put behind all else on the reduce lane: mostly one of the places is
 * the first stage, whose gradients are the step's last. */
#include "base/do.h"
#include "base/memory.h"
#include "engine/engine.h"

#include <stdio.h>
#include <string.h>

enum { CLAIMS = 2 * DP__TIES };

/* A tensor that is one of two. */
typedef struct claim {
    char name[DP__SHARED_BYTES];
    int64_t kind;
    int32_t stage;
    size_t offset, count;
} claim_t;

/* ---- who holds what ---- */

static dp_status_t list_claims(const dp_pipeline_t *p, claim_t *claims)
{
    int32_t n = 0;

    for (int32_t c = 0; c < p->nchunks; c++)
        for (uint32_t i = 0; i < p->chunks[c].stage->info.nparams; i++) {
            const dp_param_t *param = &p->chunks[c].stage->param_list[i];

            if (param->shared == NULL)
                continue;
            if (n == CLAIMS)
                return dp_fail(DP_ERR_UNSUPPORTED, "rank %d has more than %d parameters with the member shared",
                               dp_group_rank(p->group), CLAIMS);
            claims[n].kind = param->kind;
            claims[n].stage = p->chunks[c].place.stage;
            claims[n].offset = param->offset;
            claims[n].count = param->count;
            snprintf(claims[n++].name, DP__SHARED_BYTES, "%s", param->shared);
        }
    return DP_OK;
}

static dp_status_t add_end(dp__tie_t *tie, const claim_t *claim)
{
    const int32_t n = tie->ends;
    int32_t at = n;

    for (int32_t k = 0; k < n; k++)
        if (tie->stage[k] == claim->stage && tie->offset[k] == claim->offset)
            return DP_OK; /* of another rank that holds the stage */
    if (n == 2)
        return dp_fail(DP_ERR_UNSUPPORTED,
                       "three tensors share the name %s, in stages %d, %d and %d: two at most can be one parameter",
                       tie->name, tie->stage[0], tie->stage[1], claim->stage);
    if (n == 1 && (tie->count != claim->count || tie->kind != claim->kind))
        return dp_fail(
            DP_ERR_INVALID,
            "stages %d and %d have tensors that share the name %s, but not their size and kind: %zu elements "
            "of kind %d, %zu of kind %d",
            tie->stage[0], claim->stage, tie->name, tie->count, (int)tie->kind, claim->count, (int)claim->kind);
    if (n == 1 && (claim->stage < tie->stage[0] || (claim->stage == tie->stage[0] && claim->offset < tie->offset[0]))) {
        tie->stage[1] = tie->stage[0];
        tie->offset[1] = tie->offset[0];
        at = 0;
    }
    tie->stage[at] = claim->stage;
    tie->offset[at] = claim->offset;
    tie->count = claim->count;
    tie->kind = claim->kind;
    tie->ends++;
    return DP_OK;
}

static dp_status_t add_claim(dp__ties_t *ties, const claim_t *claim)
{
    int32_t i = 0;

    while (i < ties->n && strcmp(ties->at[i].name, claim->name) != 0)
        i++;
    if (i == DP__TIES)
        return dp_fail(DP_ERR_UNSUPPORTED, "the model has more than %d shared parameters", DP__TIES);
    if (i == ties->n)
        snprintf(ties->at[ties->n++].name, DP__SHARED_BYTES, "%s", claim->name);
    return add_end(&ties->at[i], claim);
}

/* The rank of our pipeline that holds a stage on a path. */
static int32_t holder(const dp_pipeline_t *p, int32_t stage, int32_t path)
{
    dp_place_t place;

    for (int32_t r = 0; r < p->grid.pp; r++)
        for (int32_t c = 0; c < p->nchunks; c++) {
            dp_schedule_place(p->schedule, r, c, &place);
            if (place.stage == stage && place.path == path)
                return r;
        }
    return -1;
}

/* Where placements have mirrors, who holds one end on one path and the other on the other path is
 * content with that. */
static void find_own(const dp_pipeline_t *p, dp__tie_t *tie)
{
    for (int k = 0; k < 2; k++) {
        tie->chunk[k] = tie->rank[k] = -1;
        for (int32_t c = 0; c < p->nchunks; c++)
            if (p->chunks[c].place.stage == tie->stage[k]) {
                tie->chunk[k] = c;
                tie->rank[k] = p->grid.p;
            }
    }
    for (int k = 0; k < 2; k++)
        if (tie->chunk[k] >= 0 && tie->chunk[1 - k] < 0)
            tie->rank[1 - k] = holder(p, tie->stage[1 - k], p->chunks[tie->chunk[k]].place.path);
}

static dp_status_t make_table(dp_pipeline_t *p, const claim_t *all, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (all[i].name[0] != '\0')
            DO(add_claim(&p->ties, &all[i]));
    for (int32_t i = 0; i < p->ties.n; i++) {
        if (p->ties.at[i].ends < 2)
            return dp_fail(DP_ERR_INVALID, "a parameter of stage %d has the shared name %s, which no other has",
                           p->ties.at[i].stage[0], p->ties.at[i].name);
        find_own(p, &p->ties.at[i]);
    }
    return DP_OK;
}

dp_status_t dp__ties_find(dp_pipeline_t *p)
{
    claim_t mine[CLAIMS] = {{.kind = 0}}, *all;
    dp_status_t status;

    if (!p->ties.any)
        return DP_OK;
    p->ties = (dp__ties_t){.any = true};
    DO(list_claims(p, mine));
    all = dp__ask_ranks(p, mine, sizeof(mine), &status);
    if (all != NULL)
        status = make_table(p, all, (size_t)dp_group_size(p->group) * CLAIMS);
    dp__free(all);
    return status < 0 ? status : dp__comms_open_ties(p, &p->comms);
}

bool dp__tie_is_second(const dp_pipeline_t *p, int32_t stage, const dp_param_t *param)
{
    for (int32_t i = 0; i < p->ties.n; i++)
        if (p->ties.at[i].stage[1] == stage && p->ties.at[i].offset[1] == param->offset)
            return true;
    return false;
}

/* ---- first values ---- */

dp_status_t dp__ties_check(dp_pipeline_t *p)
{
    const size_t size = dp_dtype_bytes(p->options.dtype);
    /* of digests: sums over all that hold a place are exact */
    double halves[DP__TIES][2][2] = {{{0}}};

    if (p->ties.n == 0 || p->ties.checked)
        return DP_OK;
    DO(dp__gather_finish(p));
    for (int32_t i = 0; i < p->ties.n; i++)
        for (int k = 0; k < 2; k++) {
            const dp__tie_t *tie = &p->ties.at[i];
            uint64_t d;

            if (tie->chunk[k] < 0)
                continue;
            DO(dp__digest(p, p->chunks[tie->chunk[k]].params + tie->offset[k] * size, tie->count * size, false, &d));
            halves[i][k][0] = (double)(d >> 32);
            halves[i][k][1] = (double)(d & UINT32_MAX);
        }
    DO(dp_pipeline_sum(p, halves[0][0], 4 * (size_t)p->ties.n));
    for (int32_t i = 0; i < p->ties.n; i++)
        if (memcmp(halves[i][0], halves[i][1], sizeof(halves[i][0])) != 0)
            return dp_fail(DP_ERR_MISMATCH,
                           "the parameter that stages %d and %d share as %s has other values in one than in the other: "
                           "give both the same before the first step",
                           p->ties.at[i].stage[0], p->ties.at[i].stage[1], p->ties.at[i].name);
    p->ties.checked = true;
    return DP_OK;
}

/* ---- sums of gradients ---- */

static dp_status_t put_tie(dp_pipeline_t *p, const dp__tie_t *tie, dp_comm_t *between)
{
    const dp_dtype_t dtype = dp_dtype_accumulator(p->options.dtype);
    const size_t size = dp_dtype_bytes(dtype);
    dp_stream_t *s = p->lanes.stream[DP_LANE_REDUCE];
    char *end[2], *sum;

    for (int k = 0; k < 2; k++)
        end[k] = tie->chunk[k] >= 0 ? dp__summed_grads(&p->chunks[tie->chunk[k]]) + tie->offset[k] * size : NULL;
    sum = end[0] != NULL ? end[0] : end[1];
    DO(end[0] != NULL && end[1] != NULL ? p->device_vt->add(s, end[0], end[1], tie->count, dtype)
                                        : p->comms.vt->all_reduce(between, sum, tie->count, dtype, s));
    if (p->comms.sums.dense != NULL)
        DO(p->comms.vt->all_reduce(p->comms.sums.dense, sum, tie->count, dtype, s));
    if (end[0] != NULL && end[1] != NULL)
        DO(p->device_vt->copy(s, end[1], end[0], tie->count * size));
    return DP_OK;
}

dp_status_t dp__ties_put(dp_pipeline_t *p)
{
    dp_stream_t *s = p->lanes.stream[DP_LANE_REDUCE];
    dp_status_t status = DP_OK;

    for (int32_t i = 0; i < p->ties.n && status >= 0; i++) {
        const dp__tie_t *tie = &p->ties.at[i];

        if (tie->rank[0] < 0)
            continue;
        p->run.enqueueing = tie->span;
        status = p->device_vt->stamp(s, &p->trace.records[tie->span].start_ns);
        dp__profile_begin(p, tie->span);
        if (status >= 0)
            status = put_tie(p, tie, p->comms.tie[i]);
        dp__profile_end(p);
        if (status >= 0)
            status = p->device_vt->stamp(s, &p->trace.records[tie->span].end_ns);
    }
    p->run.enqueueing = -1;
    return status;
}
