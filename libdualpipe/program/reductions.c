/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * reductions.c: when gradients of a stage can be reduced, in one order for all its holders. */
#include "program/lower.h"

#include "base/memory.h"

/* When all weight gradients of a chunk are there. */
static int64_t chunk_ready(const dp__lowering_t *w, int32_t rank, int32_t chunk, int32_t *position_out)
{
    const int32_t *weight = &w->replay.index.weight[dp__index_at(&w->replay.index, rank, chunk, 0)];
    int32_t last = 0;

    for (int32_t microbatch = 0; microbatch < w->microbatches; microbatch++)
        last = weight[microbatch] > last ? weight[microbatch] : last;
    *position_out = last;
    return w->replay.end[w->schedule->first[rank] + last];
}

/* Ordered by the time at which the last holder is ready, then by stage: the same for both. */
static void find_reductions_of_rank(dp__lowering_t *w, int32_t rank)
{
    int32_t chunks = w->schedule->chunks;
    size_t row = (size_t)rank * (size_t)chunks;
    const dp_place_t *place = w->edges.place + row;
    int32_t *order = w->reductions.order + row, *after = w->reductions.after + row, latest = 0;
    int64_t *ready = w->reductions.logical_time + row;

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
    }
    for (int32_t k = 0; k < chunks; k++) {
        latest = after[order[k]] > latest ? after[order[k]] : latest;
        after[order[k]] = latest;
    }
}

dp_status_t dp__reductions_find(dp__lowering_t *w)
{
    size_t places = (size_t)w->schedule->ranks * (size_t)w->schedule->chunks;
    dp__reductions_t *r = &w->reductions;

    if (!dp__arrays(DP__ARRAY(r->after, places), DP__ARRAY(r->order, places), DP__ARRAY(r->logical_time, places)))
        return dp_fail(DP_ERR_NOMEM, "program: no memory for the reductions of %d ranks", w->schedule->ranks);
    for (int32_t rank = 0; rank < w->schedule->ranks; rank++)
        find_reductions_of_rank(w, rank);
    return DP_OK;
}
