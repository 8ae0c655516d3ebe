/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * serial.c: a schedule without overlap. */
#include <dualpipe/schedule.h>

#include "base/memory.h"
#include "schedule/passes.h"

static void put_rank_serially(const dp_schedule_t *from, int32_t rank, dp_schedule_t *to)
{
    dp_op_t *at = &to->ops[to->first[rank]];

    for (int64_t k = from->first[rank]; k < from->first[rank + 1]; k++) {
        dp_pass_t passes[2];
        int32_t n = dp__op_passes(&from->ops[k], passes);

        for (int32_t i = 0; i < n; i++)
            *at++ = (dp_op_t){passes[i].kind, passes[i].chunk, -1, passes[i].microbatch, -1};
    }
}

dp_status_t dp_schedule_serial(const dp_schedule_t *schedule, dp_schedule_t **serial_out)
{
    int64_t *counts;
    dp_status_t status;

    *serial_out = NULL;
    if (schedule->nbraids > 0)
        return dp_fail(DP_ERR_INVALID, "schedule: it has braids; pairs alone can be taken apart");
    counts = dp__calloc((size_t)schedule->ranks, sizeof(*counts));
    if (counts == NULL)
        return dp_fail(DP_ERR_NOMEM, "schedule: no memory for %d ranks", schedule->ranks);
    for (int32_t r = 0; r < schedule->ranks; r++)
        for (int64_t k = schedule->first[r]; k < schedule->first[r + 1]; k++)
            counts[r] += schedule->ops[k].kind == DP_OP_FB ? 2 : 1;
    status = dp_schedule_create(schedule->method, schedule->placement, schedule->ranks, schedule->microbatches,
                                schedule->chunks, counts, serial_out);
    dp__free(counts);
    if (status < 0)
        return status;
    (*serial_out)->forward_only = schedule->forward_only;
    for (int32_t r = 0; r < schedule->ranks; r++)
        put_rank_serially(schedule, r, *serial_out);
    return DP_OK;
}
