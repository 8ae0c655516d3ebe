/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * interleaved_overlap.c: interleaved 1F1B whose forwards and backwards run as overlapped pairs.
 *
 * Idea     One more forward chunk in the warm-up, and the F and B that follow each other in the
 *          steady state no longer depend on one another: each pair hides the communication of both
 *          sides, with one copy of the parameters.
 * Source   Megatron Core, combined 1F1B (arXiv 2603.07685); Kimi K2, arXiv 2507.20534; with v = 1:
 *          1F1B with the warm-up doubled.
 * Bubble   (P - 1)(F + B) / v on rank 0; less on later ranks when pairs are cheaper than F + B,
 *          down to (P - 1)(2 F&B - F - B) / v on the last.
 * Memory   1x parameters; one chunk of activations more than interleaved.
 * Limits   as interleaved when v > 1; v >= 1 (default 2). */
#include "schedule/interleave.h"
#include "schedule/methods.h"

static void emit_interleaved_overlap(dp__emit_t *e, int32_t rank)
{
    int64_t total = (int64_t)e->microbatches * e->chunks;
    int64_t warm_up = dp__interleave_warm_up(e, rank) + 1;
    int64_t back = 0;

    for (int64_t k = 0; k < total; k++) {
        if (k < warm_up)
            dp__emit_f(e, dp__interleave_forward(e, k));
        else
            dp__emit_fb(e, dp__interleave_forward(e, k), dp__interleave_backward(e, back++));
    }
    while (back < total)
        dp__emit_b(e, dp__interleave_backward(e, back++));
}

dp_status_t dp__interleaved_overlap(const dp_schedule_request_t *request, dp_schedule_t **schedule_out)
{
    dp_schedule_request_t q;
    dp_status_t status = dp__request_check("interleaved_overlap", request, &q);

    if (status < 0)
        return status;
    status = dp__interleave_check("interleaved_overlap", &q);
    if (status < 0)
        return status;
    return dp__emit_schedule("interleaved_overlap", DP_PLACE_LOOP, q.chunks > 0 ? q.chunks : 2, &q,
                             emit_interleaved_overlap, schedule_out);
}
