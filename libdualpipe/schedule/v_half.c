/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * v_half.c: V-Half, half of 1F1B's activations and half of its bubble.
 *
 * Idea     On a V, forwards of chunk 0 and input gradients of chunk 1 go down at 2 slots a rank,
 *          the others up at 1: what the first leg keeps longer on early ranks, the second keeps
 *          longer on late ones, P / 2 micro-batches on each.
 * Source   Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362 (V-Half).
 * Bubble   (P - 1)(F + I + W) / 2 per rank when F = I = W (a little less for odd P).
 * Memory   1x parameters; about P / 2 + 1 micro-batches of activations.
 * Limits   none. */
#include "schedule/methods.h"
#include "schedule/v_block.h"

static void set_half_block(int32_t ranks, int32_t rank, int32_t start_out[DP__V_PARTS])
{
    int32_t gap = ranks % 2 == 0 ? 3 : 0; /* keeps the parts on different slots of the period */

    start_out[DP__V_F0] = 2 * rank;
    start_out[DP__V_F1] = 3 * ranks - 2 - rank;
    start_out[DP__V_I1] = 3 * ranks - 1 + gap + 2 * rank;
    start_out[DP__V_I0] = 6 * ranks - 2 + gap - rank;
}

dp_status_t dp__v_half(const dp_schedule_request_t *request, dp_schedule_t **schedule_out)
{
    return dp__v_block_schedule("v-half", request, set_half_block, schedule_out);
}
