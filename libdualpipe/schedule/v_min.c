/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * v_min.c: V-Min, a third of 1F1B's activations.
 *
 * Idea     On a V, everything moves one rank per slot: no activation lives longer than the way of
 *          its micro-batch. The least memory that a V can do with, at two thirds of 1F1B's bubble;
 *          unequal F, I and W add idle time to every period.
 * Source   Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362 (V-Min).
 * Bubble   (P - 1)(2/3)(F + I + W) per rank and up to 1.5 F more, when F = I = W.
 * Memory   1x parameters; about P / 3 + 2 micro-batches of activations.
 * Limits   none. */
#include "schedule/methods.h"
#include "schedule/v_block.h"

static void set_min_block(int32_t ranks, int32_t rank, int32_t start_out[DP__V_PARTS])
{
    int32_t gap = ranks % 3 == 0 ? 2 : 0; /* keeps the parts on different slots of the period */

    start_out[DP__V_F0] = rank;
    start_out[DP__V_F1] = 2 * ranks - 1 - rank;
    start_out[DP__V_I1] = 2 * ranks + gap + rank;
    start_out[DP__V_I0] = 4 * ranks - 1 + gap - rank;
}

dp_status_t dp__v_min(const dp_schedule_request_t *request, dp_schedule_t **schedule_out)
{
    return dp__v_block_schedule("v-min", request, set_min_block, schedule_out);
}
