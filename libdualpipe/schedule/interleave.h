/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * interleave.h: the order in which interleaved methods go through the chunks of a rank.
 *
 * Micro-batches pass in groups: chunk 0 of a whole group, then chunk 1 of the same, ..., then the
 * next group. Backwards do so from the last chunk to the first. A group has P micro-batches, or
 * what the request says. Larger ones fill the pipeline without a gap where a forward takes longer
 * to reach the next rank than to make way for the next one, and hold more. Source: Narayanan et
 * al., arXiv 2104.04473; Megatron-LM, microbatch_group_size_per_virtual_pipeline_stage. */
#ifndef DP_SCHEDULE_INTERLEAVE_H
#define DP_SCHEDULE_INTERLEAVE_H

#include "schedule/emit.h"

/* The first `larger` groups have one micro-batch more than `size`. */
typedef struct dp__groups {
    int64_t size, larger;
} dp__groups_t;

static inline dp__groups_t dp__interleave_groups(const dp_schedule_request_t *request)
{
    const int64_t most = request->microbatch_group > 0 ? request->microbatch_group : request->ranks;
    const int64_t n = (request->microbatches + most - 1) / most;

    return (dp__groups_t){request->microbatches / n, request->microbatches % n};
}

/* Chunk of the k-th forward, or backward, of a rank. */
static inline int dp__interleave_forward(const dp__emit_t *e, int64_t k)
{
    const dp__groups_t groups = dp__interleave_groups(e->request);
    const int64_t first = groups.larger * (groups.size + 1) * e->chunks; /* of the smaller ones */

    return (int)((k < first ? k / (groups.size + 1) : (k - first) / groups.size) % e->chunks);
}
static inline int dp__interleave_backward(const dp__emit_t *e, int64_t k)
{
    return e->chunks - 1 - dp__interleave_forward(e, k);
}

/* Forwards of a rank before its first backward: 2 per rank below, all chunks but the last of the
 * first group. */
static inline int64_t dp__interleave_warm_up(const dp__emit_t *e, int32_t rank)
{
    const dp__groups_t groups = dp__interleave_groups(e->request);

    return 2 * (int64_t)(e->request->ranks - 1 - rank) + (e->chunks - 1) * (groups.size + (groups.larger > 0));
}

/* Whether the micro-batches can be divided into such groups. */
static inline dp_status_t dp__interleave_check(const char *method, const dp_schedule_request_t *q)
{
    const dp__groups_t groups = dp__interleave_groups(q);

    if (q->chunks == 1)
        return q->microbatch_group == 0
                   ? DP_OK
                   : dp_fail(DP_ERR_INVALID, "%s: groups of %d with 1 chunk per rank; they need 2 or more", method,
                             q->microbatch_group);
    if (q->microbatch_group == 0 && q->microbatches % q->ranks != 0)
        return dp_fail(
            DP_ERR_INVALID,
            "%s: %d micro-batches on %d ranks; a multiple of the ranks is needed with more than one chunk per "
            "rank, or a group size",
            method, q->microbatches, q->ranks);
    if (groups.size < q->ranks)
        return dp_fail(DP_ERR_INVALID,
                       "%s: %d micro-batches in groups of at most %d leave one of %lld; %d ranks need "
                       "as many in each",
                       method, q->microbatches, q->microbatch_group, (long long)groups.size, q->ranks);
    return DP_OK;
}

#endif
