/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * dualpipe.c: DualPipe, two streams of micro-batches that enter the pipeline from both ends.
 *
 * Idea     Rank r holds stages r and P-1-r, so forwards of one direction always have backwards of
 *          the other beside them, and a pair hides the communication of either side. Some weight
 *          gradients wait for the gaps of the cool-down.
 * Source   DeepSeek-V3 technical report, arXiv 2412.19437, section 3.2.1; deepseek-ai/DualPipe.
 * Bubble   (P/2 - 1)(F&B + B - 3W) per rank.
 * Memory   2x parameters; P + 1 micro-batches of activations.
 * Limits   P even; M even, M >= 2P (M counts both directions). */
#include "schedule/eight_phases.h"
#include "schedule/methods.h"

static void emit_dualpipe(dp__emit_t *e, int32_t rank)
{
    int32_t ranks = e->request->ranks;
    int near = rank < ranks / 2 ? 0 : 1;

    dp__emit_eight_phases(e, ranks / 2, near == 0 ? rank : ranks - 1 - rank, e->request->microbatches / 2, near,
                          1 - near);
}

dp_status_t dp__dualpipe(const dp_schedule_request_t *request, dp_schedule_t **schedule_out)
{
    dp_schedule_request_t q;
    dp_status_t status = dp__request_check_fixed("dualpipe", request, 2, &q);

    if (status < 0)
        return status;
    if (q.ranks % 2 != 0)
        return dp_fail(DP_ERR_INVALID, "dualpipe: %d ranks; an even number is needed, as rank r and P-1-r are partners",
                       q.ranks);
    if (q.microbatches % 2 != 0)
        return dp_fail(DP_ERR_INVALID, "dualpipe: %d micro-batches; an even number is needed, half for each direction",
                       q.microbatches);
    if (q.microbatches < 2 * q.ranks)
        return dp_fail(DP_ERR_INVALID, "dualpipe: %d micro-batches on %d ranks; at least 2 per rank are needed: %d",
                       q.microbatches, q.ranks, 2 * q.ranks);
    return dp__emit_schedule("dualpipe", DP_PLACE_BIDIRECTIONAL, 2, &q, emit_dualpipe, schedule_out);
}
