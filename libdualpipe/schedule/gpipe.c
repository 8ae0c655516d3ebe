/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * gpipe.c: GPipe, all forwards, then all backwards.
 *
 * Idea     The simplest pipeline: nothing but the ends of the step is idle, at the price of keeping
 *          every micro-batch.
 * Source   Huang et al., GPipe, arXiv 1811.06965. Backwards run in rising order here, so that
 *          gradients are added in the order of the micro-batches.
 * Bubble   (P - 1)(F + B) per rank.
 * Memory   1x parameters; M micro-batches of activations.
 * Limits   none. */
#include "schedule/methods.h"

static void emit_gpipe(dp__emit_t *e, int32_t rank)
{
    (void)rank;
    for (int32_t i = 0; i < e->microbatches; i++)
        dp__emit_f(e, 0);
    for (int32_t i = 0; i < e->microbatches; i++)
        dp__emit_b(e, 0);
}

dp_status_t dp__gpipe(const dp_schedule_request_t *request, dp_schedule_t **schedule_out)
{
    dp_schedule_request_t q;
    dp_status_t status = dp__request_check_fixed("gpipe", request, 1, &q);

    return status < 0 ? status : dp__emit_schedule("gpipe", DP_PLACE_LINE, 1, &q, emit_gpipe, schedule_out);
}
