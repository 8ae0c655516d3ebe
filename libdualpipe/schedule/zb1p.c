/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * zb1p.c: ZB-H1, 1F1B with the weight gradients moved into the bubble.
 *
 * Idea     Only the gradient of the input is urgent: the rank above waits for it. Split B into I
 *          and W and let W of rank r lag r micro-batches behind, no further: as much memory as
 *          1F1B's first rank, on every rank.
 * Source   Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241 (ZB-H1, "ZB1P").
 * Bubble   (P - 1)(F + B - 2W) per rank when F = I.
 * Memory   1x parameters; min(P, M) micro-batches of activations on every rank, up to r + 1 of them
 *          waiting for W.
 * Limits   none. */
#include "schedule/methods.h"

static void emit_zb1p(dp__emit_t *e, int32_t rank)
{
    int32_t microbatches = e->microbatches;
    int32_t warm_up = e->request->ranks - 1 - rank;
    int32_t lag = rank < microbatches ? rank : microbatches;

    if (warm_up > microbatches)
        warm_up = microbatches;
    for (int32_t i = 0; i < warm_up; i++)
        dp__emit_f(e, 0);
    for (int32_t i = 0; i < microbatches; i++) {
        if (i < microbatches - warm_up)
            dp__emit_f(e, 0);
        dp__emit_i(e, 0);
        if (i >= lag)
            dp__emit_w(e);
    }
    for (int32_t i = 0; i < lag; i++)
        dp__emit_w(e);
}

dp_status_t dp__zb1p(const dp_schedule_request_t *request, dp_schedule_t **schedule_out)
{
    dp_schedule_request_t q;
    dp_status_t status = dp__request_check_fixed("zb1p", request, 1, &q);

    return status < 0 ? status : dp__emit_schedule("zb1p", DP_PLACE_LINE, 1, &q, emit_zb1p, schedule_out);
}
