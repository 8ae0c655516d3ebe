/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * edges.c: one channel for activations and one for gradients on every edge between two chunks. */
#include "program/edges.h"

#include "base/memory.h"

#include <string.h>

static int32_t number_channels(const dp_schedule_t *s, dp__edges_t *x, dp_channel_t *channels)
{
    int32_t count = 0;

    for (int32_t r = 0; r < s->ranks; r++)
        for (int32_t c = 0; c < s->chunks; c++) {
            int32_t from = r * s->chunks + c;
            const dp_place_t *place = &x->place[from];
            int32_t to = place->next_rank * s->chunks + place->next_chunk;

            if (place->next_rank < 0)
                continue;
            if (channels != NULL)
                channels[count] = (dp_channel_t){
                    .src = r, .src_chunk = c, .dst = place->next_rank, .dst_chunk = place->next_chunk, .op = DP_OP_F};
            x->forward_out[from] = x->forward_in[to] = count++;
            if (s->forward_only)
                continue;
            if (channels != NULL)
                channels[count] = (dp_channel_t){
                    .src = place->next_rank, .src_chunk = place->next_chunk, .dst = r, .dst_chunk = c, .op = DP_OP_B};
            x->backward_out[to] = x->backward_in[from] = count++;
        }
    return count;
}

dp_status_t dp__edges_create(const dp_schedule_t *schedule, dp__edges_t *edges, dp_channel_t *channels,
                             int32_t *count_out)
{
    size_t places = (size_t)schedule->ranks * (size_t)schedule->chunks;

    memset(edges, 0, sizeof(*edges));
    edges->chunks = schedule->chunks;
    if (!dp__arrays(DP__ARRAY(edges->place, places), DP__ARRAY(edges->forward_in, 4 * places)))
        return dp_fail(DP_ERR_NOMEM, "program: no memory for %zu chunks", places);
    edges->forward_out = edges->forward_in + places;
    edges->backward_in = edges->forward_out + places;
    edges->backward_out = edges->backward_in + places;
    memset(edges->forward_in, 0xff, 4 * places * sizeof(*edges->forward_in));
    for (int32_t r = 0; r < schedule->ranks; r++)
        for (int32_t c = 0; c < schedule->chunks; c++)
            dp_schedule_place(schedule, r, c, &edges->place[r * schedule->chunks + c]);
    *count_out = number_channels(schedule, edges, channels);
    return DP_OK;
}

void dp__edges_clear(dp__edges_t *edges)
{
    dp__free(edges->place);
    memset(edges, 0, sizeof(*edges));
}
