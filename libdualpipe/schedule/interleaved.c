/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * interleaved.c: interleaved 1F1B, several smaller stages per rank.
 *
 * Idea     A rank holds v stages, P apart, each 1/v of a device: the pipeline fills and drains in
 *          steps of 1/v of the work. The price is v times as many hops.
 * Source   Narayanan et al., arXiv 2104.04473; Megatron-LM.
 * Bubble   (P - 1)(F + B) / v per rank.
 * Memory   1x parameters; on rank 0 G + (2P - 1 - G)/v micro-batches of activations in groups of G,
 *          P + (P - 1)/v in groups of P: more than 1F1B's P.
 * Limits   M a multiple of P, or a group size and P micro-batches in the smallest group; v >= 2
 *          (default 2). */
#include "schedule/interleave.h"
#include "schedule/methods.h"

static void emit_interleaved(dp__emit_t *e, int32_t rank)
{
    int64_t total = (int64_t)e->microbatches * e->chunks;
    int64_t warm_up = dp__interleave_warm_up(e, rank);
    int64_t back = 0;

    if (warm_up > total)
        warm_up = total;
    for (int64_t k = 0; k < total; k++) {
        dp__emit_f(e, dp__interleave_forward(e, k));
        if (k >= warm_up)
            dp__emit_b(e, dp__interleave_backward(e, back++));
    }
    while (back < total)
        dp__emit_b(e, dp__interleave_backward(e, back++));
}

dp_status_t dp__interleaved(const dp_schedule_request_t *request, dp_schedule_t **schedule_out)
{
    dp_schedule_request_t q;
    dp_status_t status = dp__request_check_loop("interleaved", "1f1b", true, request, &q);

    if (status >= 0)
        status = dp__interleave_check("interleaved", &q);
    if (status < 0)
        return status;
    return dp__emit_schedule("interleaved", DP_PLACE_LOOP, q.chunks, &q, emit_interleaved, schedule_out);
}
