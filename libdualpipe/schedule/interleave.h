/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * interleave.h: the order in which interleaved methods go through the chunks of a rank.
 *
 * Micro-batches pass in rounds of P: chunk 0 of P micro-batches, then chunk 1 of the same, ...,
 * then the next P. Backwards do so from the last chunk to the first. Source: Narayanan et al.,
 * arXiv 2104.04473; Megatron-LM. */
#ifndef DP_SCHEDULE_INTERLEAVE_H
#define DP_SCHEDULE_INTERLEAVE_H

#include "schedule/emit.h"

/* Chunk of the k-th forward, or backward, of a rank. */
static inline int dp__interleave_forward(const dp__emit_t *e, int64_t k)
{
    return (int)(k / e->request->ranks % e->chunks);
}
static inline int dp__interleave_backward(const dp__emit_t *e, int64_t k)
{
    return e->chunks - 1 - dp__interleave_forward(e, k);
}

/* Forwards of a rank before its first backward: 2 per rank below, all chunks but the last once. */
static inline int64_t dp__interleave_warm_up(const dp__emit_t *e, int32_t rank)
{
    return 2 * (int64_t)(e->request->ranks - 1 - rank) + (int64_t)(e->chunks - 1) * e->request->ranks;
}

#endif
