/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * dualpipev.c: DualPipeV, DualPipe cut in half: one stream that goes down the ranks and back up.
 *
 * Idea     The far half of DualPipe's ranks only repeats the near half with the directions
 *          exchanged. Keep the near half, let the second leg of a V take the place of the second
 *          direction, and every stage exists once.
 * Source   Sea AI Lab, "DualPipe could be better without the Dual" (2025); deepseek-ai/DualPipe.
 * Bubble   (P - 1)(F&B + B - 3W) per rank, in chunks of half a device.
 * Memory   1x parameters; 2P + 1 micro-batches of activations in chunks of half a device.
 * Limits   M >= 2P. */
#include "schedule/eight_phases.h"
#include "schedule/methods.h"

static void emit_dualpipev(dp__emit_t *e, int32_t rank)
{
    dp__emit_eight_phases(e, e->request->ranks, rank, e->request->microbatches, 0, 1);
}

dp_status_t dp__dualpipev(const dp_schedule_request_t *request, dp_schedule_t **schedule_out)
{
    dp_schedule_request_t q;
    dp_status_t status = dp__request_check_fixed("dualpipev", request, 2, &q);

    if (status < 0)
        return status;
    if (q.microbatches < 2 * q.ranks)
        return dp_fail(DP_ERR_INVALID, "dualpipev: %d micro-batches on %d ranks; at least 2 per rank are needed: %d",
                       q.microbatches, q.ranks, 2 * q.ranks);
    return dp__emit_schedule("dualpipev", DP_PLACE_V, 2, &q, emit_dualpipev, schedule_out);
}
