/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * interleaved_zb.c: zb1p over several smaller stages per rank.
 *
 * Idea     Forwards and backwards as interleaved 1F1B has them, with one forward less of warm-up
 *          for each rank below, and W of rank r lagging r backwards behind, as in zb1p.
 * Source   PyTorch, torch/distributed/pipelining/schedules.py, ScheduleInterleavedZeroBubble; Qi et
 *          al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241.
 * Bubble   (P - 1)F / v per rank when F = I = W and channels have P / 2 + 1 slots.
 * Memory   1x parameters; P micro-batches of activations on every rank.
 * Slots    P / 2 a channel where M > P, rounded up: the first rank goes on with forwards while its
 *          gradients wait for their turn on the last one.
 * Limits   M a multiple of P; v >= 2 (default 2). */
#include "base/range.h"
#include "schedule/interleave.h"
#include "schedule/methods.h"

static void emit_interleaved_zb(dp__emit_t *e, int32_t rank)
{
    const int32_t ranks = e->request->ranks;
    int64_t total = (int64_t)e->microbatches * e->chunks;
    int64_t warm_up = dp__min_int64(ranks - 1 - rank + (int64_t)(e->chunks - 1) * ranks, total);
    int64_t lag = dp__min_int64(rank, total), back = 0;

    for (int64_t k = 0; k < warm_up; k++)
        dp__emit_f(e, dp__interleave_forward(e, k));
    for (; back < total; back++) {
        if (back < total - warm_up)
            dp__emit_f(e, dp__interleave_forward(e, warm_up + back));
        dp__emit_i(e, dp__interleave_backward(e, back));
        if (back >= lag)
            dp__emit_w(e);
    }
    for (int64_t k = 0; k < lag; k++)
        dp__emit_w(e);
}

dp_status_t dp__interleaved_zb(const dp_schedule_request_t *request, dp_schedule_t **schedule_out)
{
    dp_schedule_request_t q;
    dp_status_t status = dp__request_check_loop("interleaved_zb", "zb1p", false, request, &q);

    if (status >= 0)
        status = dp__interleave_check("interleaved_zb", &q);
    if (status < 0)
        return status;
    return dp__emit_schedule("interleaved_zb", DP_PLACE_LOOP, q.chunks, &q, emit_interleaved_zb, schedule_out);
}
