/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * reductions.c: when the gradients of a stage can be summed over its copies, in an order common to its
 * holders. */
#include "program/lower.h"

/* When all weight gradients of a chunk are there. */
static int64_t chunk_ready(const dp__lowering_t *w, int32_t rank, int32_t chunk, int32_t *position_out)
{
    const int32_t *weight = &w->index.weight[dp__index_at(&w->index, rank, chunk, 0)];
    int32_t last = 0;

    for (int32_t mb = 0; mb < w->microbatches; mb++)
        last = weight[mb] > last ? weight[mb] : last;
    *position_out = last;
    return w->end[w->schedule->first[rank] + last];
}

/* Ordered by the time at which the last holder is ready, then by stage: both holders get the same answer. */
void dp__lower_reductions(dp__lowering_t *w, int32_t rank)
{
    int32_t chunks = w->schedule->chunks;
    const dp_place_t *place = w->edges.place + (size_t)rank * (size_t)chunks;
    int32_t *order = w->reduce_order + (size_t)rank * (size_t)chunks;
    int32_t *after = w->reduce_after + (size_t)rank * (size_t)chunks;
    int64_t ready[DP_MAX_CHUNKS];
    int32_t latest = 0;

    for (int32_t c = 0; c < chunks; c++) {
        int32_t k, ignored;

        ready[c] = chunk_ready(w, rank, c, &after[c]);
        if (place[c].mirror_rank >= 0) {
            int64_t there = chunk_ready(w, place[c].mirror_rank, 1 - c, &ignored);

            ready[c] = there > ready[c] ? there : ready[c];
        }
        for (k = c; k > 0; k--) {
            int32_t other = order[k - 1];

            if (ready[other] < ready[c] || (ready[other] == ready[c] && place[other].stage < place[c].stage))
                break;
            order[k] = other;
        }
        order[k] = c;
        w->reduce_moment[(size_t)rank * (size_t)chunks + (size_t)c] = ready[c];
    }
    for (int32_t k = 0; k < chunks; k++) {
        latest = after[order[k]] > latest ? after[order[k]] : latest;
        after[order[k]] = latest;
    }
}
