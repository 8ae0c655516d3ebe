/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * looped_bfs.c: breadth first over several smaller stages per rank.
 *
 * Idea     All micro-batches through chunk 0, then all through chunk 1, ...: GPipe whose pipeline
 *          fills and drains in steps of 1/v of the work, with each stage's work in one run. What is
 *          sharded over data replicas is then gathered and summed once a stage.
 * Source   Lamy-Poirier, Breadth-First Pipeline Parallelism, arXiv 2211.05953; PyTorch's
 *          ScheduleLoopedBFS. That one takes the micro-batches of backwards in falling order;
 *          they rise here, so that gradients are added in the order of the micro-batches.
 * Bubble   (P - 1)(F + B) / v per rank when M >= P.
 * Memory   1x parameters; M micro-batches of activations.
 * Slots    M / P a channel: what the last rank sends waits for the first one's turn.
 * Limits   v >= 2 (default 2). */
#include "schedule/methods.h"

static void emit_looped_bfs(dp__emit_t *e, int32_t rank)
{
    (void)rank;
    for (int32_t c = 0; c < e->chunks; c++)
        for (int32_t i = 0; i < e->microbatches; i++)
            dp__emit_f(e, c);
    for (int32_t c = e->chunks - 1; c >= 0; c--)
        for (int32_t i = 0; i < e->microbatches; i++)
            dp__emit_b(e, c);
}

dp_status_t dp__looped_bfs(const dp_schedule_request_t *request, dp_schedule_t **schedule_out)
{
    dp_schedule_request_t q;
    dp_status_t status = dp__request_check_loop("looped_bfs", "gpipe", false, request, &q);

    if (status < 0)
        return status;
    return dp__emit_schedule("looped_bfs", DP_PLACE_LOOP, q.chunks, &q, emit_looped_bfs, schedule_out);
}
