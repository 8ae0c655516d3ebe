/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * zb2p.c: ZB-H2, twice the forwards of 1F1B before the first backward, and so no idle time inside a
 * rank's step.
 *
 * Idea     Rank r makes 2(P - 1 - r) + 1 forwards while the first gradient is on its way, and its
 *          W lags 2r micro-batches behind: twice what zb1p does. Its first operation begins r
 *          forwards late, and its last one ends as much later.
 * Source   Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241 (ZB-H2).
 * Bubble   0 from the first to the last operation of a rank when F = I = W and M >= 2P - 1. Ranks
 *          that meet at the end of a step wait (P - 1)F there.
 * Memory   1x parameters; min(2P - 1, M) micro-batches of activations on every rank, up to 2r + 1
 *          of them waiting for W.
 * Limits   none. */
#include "base/range.h"
#include "schedule/methods.h"

static void emit_zb2p(dp__emit_t *e, int32_t rank)
{
    int64_t microbatches = e->microbatches;
    int64_t warm_up = dp__min_int64(2 * (e->request->ranks - 1 - rank), microbatches);
    int64_t lag = dp__min_int64(2 * rank, microbatches);

    for (int64_t i = 0; i < warm_up; i++)
        dp__emit_f(e, 0);
    for (int64_t i = 0; i < microbatches; i++) {
        if (i < microbatches - warm_up)
            dp__emit_f(e, 0);
        dp__emit_i(e, 0);
        if (i >= lag)
            dp__emit_w(e);
    }
    for (int64_t i = 0; i < lag; i++)
        dp__emit_w(e);
}

dp_status_t dp__zb2p(const dp_schedule_request_t *request, dp_schedule_t **schedule_out)
{
    dp_schedule_request_t q;
    dp_status_t status = dp__request_check_fixed("zb2p", request, 1, &q);

    return status < 0 ? status : dp__emit_schedule("zb2p", DP_PLACE_LINE, 1, &q, emit_zb2p, schedule_out);
}
