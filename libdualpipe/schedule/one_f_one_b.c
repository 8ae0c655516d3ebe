/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * one_f_one_b.c: 1F1B, the plain pipeline with bounded memory.
 *
 * Idea     Rank r lets P-1-r micro-batches pass, then alternates one forward and one backward: as
 *          many forwards are in flight as the pipeline below needs, and no more.
 * Source   PipeDream-Flush, arXiv 2006.09503; Megatron-LM, arXiv 2104.04473.
 * Bubble   (P - 1)(F + B) per rank.
 * Memory   1x parameters; min(P - r, M) micro-batches of activations on rank r.
 * Limits   none. */
#include "schedule/methods.h"

static void emit_one_f_one_b(dp__emit_t *e, int32_t rank)
{
    int32_t microbatches = e->request->microbatches;
    int32_t warm_up = e->request->ranks - 1 - rank;

    if (warm_up > microbatches)
        warm_up = microbatches;
    for (int32_t i = 0; i < warm_up; i++)
        dp__emit_f(e, 0);
    for (int32_t i = warm_up; i < microbatches; i++) {
        dp__emit_f(e, 0);
        dp__emit_b(e, 0);
    }
    for (int32_t i = 0; i < warm_up; i++)
        dp__emit_b(e, 0);
}

dp_status_t dp__one_f_one_b(const dp_schedule_request_t *request, dp_schedule_t **schedule_out)
{
    dp_schedule_request_t q;
    dp_status_t status = dp__request_check("1f1b", request, &q);

    if (status >= 0 && q.chunks > 1)
        return dp_fail(DP_ERR_INVALID, "1f1b: a rank holds exactly 1 chunk, not %d (see interleaved)", q.chunks);
    if (status >= 0)
        status = dp__request_check_fixed("1f1b", request, 1, &q);
    if (status < 0)
        return status;
    return dp__emit_schedule("1f1b", DP_PLACE_LINE, 1, &q, emit_one_f_one_b, schedule_out);
}
