/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * zbv.c: ZB-V, a V of half-size stages whose weight gradients fill every gap.
 *
 * Idea     The last stage lies beside the first one, so the first loss comes back after one way
 *          down and up, and I and W of one leg fill what the other leaves open: no bubble inside
 *          the step. A barrier at its end still costs the way of one chunk's forward down the
 *          ranks.
 * Source   Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362 (V-ZB); Zero
 *          Bubble, arXiv 2401.10241.
 * Bubble   (P - 1) F / 2 per rank, a chunk's forward being F / 2, when F = I = W.
 * Memory   1x parameters; P micro-batches of activations on every rank.
 * Limits   none; the order is that of 2P - 1 micro-batches, cut off, when there are fewer. */
#include "schedule/methods.h"

static void emit_zbv(dp__emit_t *e, int32_t rank)
{
    int32_t ranks = e->request->ranks;
    int32_t microbatches = e->microbatches > 2 * ranks - 1 ? e->microbatches : 2 * ranks - 1;
    int32_t to_turn = ranks - rank;
    int32_t down = 2 * to_turn - 1 + rank; /* forwards of chunk 0 before the steady state */

    /* fill the V, the second leg joining in */
    for (int32_t i = 0; i < 2 * to_turn - 1; i++)
        dp__emit_f(e, 0);
    for (int32_t i = 0; i < rank; i++) {
        dp__emit_f(e, 1);
        dp__emit_f(e, 0);
    }
    for (int32_t i = 0; i < to_turn; i++) {
        dp__emit_f(e, 1);
        dp__emit_i(e, 1);
        dp__emit_w_of(e, 1);
    }
    /* steady state: all three of both legs */
    for (int32_t i = ranks; i < microbatches; i++) {
        if (down < microbatches) {
            dp__emit_f(e, 0);
            down++;
        }
        dp__emit_i(e, 0);
        dp__emit_w_of(e, 0);
        dp__emit_f(e, 1);
        dp__emit_i(e, 1);
        dp__emit_w_of(e, 1);
    }
    /* drain: first what the neighbours wait for */
    for (int32_t i = 0; i < rank; i++) {
        dp__emit_i(e, 0);
        dp__emit_i(e, 1);
    }
    for (int32_t i = 0; i < to_turn; i++) {
        dp__emit_i(e, 0);
        dp__emit_w_of(e, 0);
    }
    for (int32_t i = 0; i < rank; i++)
        dp__emit_w_of(e, 1);
    for (int32_t i = 0; i < rank; i++)
        dp__emit_w_of(e, 0);
}

dp_status_t dp__zbv(const dp_schedule_request_t *request, dp_schedule_t **schedule_out)
{
    dp_schedule_request_t q;
    dp_status_t status = dp__request_check_fixed("zbv", request, 2, &q);

    return status < 0 ? status : dp__emit_schedule("zbv", DP_PLACE_V, 2, &q, emit_zbv, schedule_out);
}
