/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * edges.h: the channels of a placement, and which one a chunk reads from or writes to. */
#ifndef DP_PROGRAM_EDGES_H
#define DP_PROGRAM_EDGES_H

#include <dualpipe/program.h>

/* Channel numbers by rank * chunks + chunk; -1: none (an end of a path, or no backward). */
typedef struct dp__edges {
    int32_t chunks;
    dp_place_t *place;
    int32_t *forward_in, *forward_out;   /* activations */
    int32_t *backward_in, *backward_out; /* gradients */
} dp__edges_t;

/* Numbers the edges between the chunks of a schedule, and writes the channels (without messages and
 * slots) when channels is not NULL: room for 2 * ranks * chunks. Clear with dp__edges_clear, also
 * after failure. */
dp_status_t dp__edges_create(const dp_schedule_t *schedule, dp__edges_t *edges, dp_channel_t *channels,
                             int32_t *count_out);
void dp__edges_clear(dp__edges_t *edges);

/* The channel that the forward (DP_OP_F) or backward part of an operation reads or writes; -1. */
static inline int32_t dp__edges_in(const dp__edges_t *edges, int32_t rank, int32_t chunk, int part)
{
    return (part == DP_OP_F ? edges->forward_in : edges->backward_in)[rank * edges->chunks + chunk];
}
static inline int32_t dp__edges_out(const dp__edges_t *edges, int32_t rank, int32_t chunk, int part)
{
    return (part == DP_OP_F ? edges->forward_out : edges->backward_out)[rank * edges->chunks + chunk];
}

/* The parts of an operation that have boundary tensors, F and B: how many (0 for W). */
typedef struct dp__part {
    int op; /* DP_OP_F or DP_OP_B */
    int32_t chunk, microbatch;
} dp__part_t;
static inline int dp__parts(int kind, int32_t chunk, int32_t microbatch, int32_t chunk2, int32_t microbatch2,
                            dp__part_t part[2])
{
    if (kind == DP_OP_W || kind > DP_OP_FB)
        return 0; /* the start of a pass has them at its end */
    part[0] = (dp__part_t){kind == DP_OP_F || kind == DP_OP_FB ? DP_OP_F : DP_OP_B, chunk, microbatch};
    part[1] = (dp__part_t){DP_OP_B, chunk2, microbatch2};
    return kind == DP_OP_FB ? 2 : 1;
}

#endif
