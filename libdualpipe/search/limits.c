/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * limits.c: how much memory a schedule takes of each rank. */
#include "search/limits.h"

#include "schedule/passes.h"

#include <math.h>

/* What a stage has of a device. */
static double part_of(const dp_schedule_t *schedule, const double *parts, int32_t rank, int32_t chunk)
{
    dp_place_t place;

    dp_schedule_place(schedule, rank, chunk, &place);
    return (parts != NULL ? parts[place.stage] : 1.0) / dp_schedule_split(schedule);
}

static double weights_of(const dp__limits_t *limits, const dp_schedule_t *schedule, const double *parts, int32_t rank)
{
    double sum = 0.0;

    for (int32_t c = 0; c < schedule->chunks && limits->weights > 0.0; c++)
        sum += limits->weights * part_of(schedule, parts, rank, c);
    return sum;
}

void dp__limits_shares(const dp__limits_t *limits, const dp_schedule_t *schedule, const double *parts,
                       double *share_out)
{
    for (int32_t r = 0; r < schedule->ranks; r++) {
        double left = limits->caps[r] - weights_of(limits, schedule, parts, r);

        for (int32_t c = 0; c < schedule->chunks; c++)
            share_out[(int64_t)r * schedule->chunks + c] =
                left > 0.0 ? limits->activations * part_of(schedule, parts, r, c) / left : INFINITY;
    }
}

/* An operation of a plain schedule: passes of braids begin in one and end in another. */
static void count_op(dp__alive_t *alive, const dp_op_t *op, bool braided, double share, double share2)
{
    dp_op_t plain = *op;
    dp_pass_t pass[2];
    bool starts = dp__op_starts(op), ends = braided && op->kind != DP_OP_FB && op->microbatch2 >= 0;
    int n;

    plain.kind = (uint8_t)(starts ? op->kind - DP__OP_START : op->kind);
    n = dp__op_passes(&plain, pass);
    for (int k = 0; k < n; k++)
        dp__alive_count(alive, pass[k].kind, starts || !ends, !starts, k == 0 ? share : share2);
}

dp_status_t dp__limits_measure(const dp__limits_t *limits, const dp_schedule_t *schedule, const double *parts,
                               double *memory_out)
{
    const dp_schedule_t *plain;
    dp_status_t status = dp__schedule_plain(schedule, &plain);

    for (int32_t r = 0; r < schedule->ranks && status >= 0; r++) {
        dp__alive_t alive = {.forward_only = schedule->forward_only != 0};

        for (int64_t i = plain->first[r]; i < plain->first[r + 1]; i++) {
            const dp_op_t *op = &plain->ops[i];

            count_op(&alive, op, plain != schedule, part_of(schedule, parts, r, op->chunk),
                     op->kind == DP_OP_FB ? part_of(schedule, parts, r, op->chunk2) : 0.0);
        }
        memory_out[r] = weights_of(limits, schedule, parts, r) + limits->activations * alive.most_inputs;
    }
    if (status >= 0)
        dp__schedule_plain_free(schedule, plain);
    return status;
}

double dp__limits_excess(const dp__limits_t *limits, const double *memory, int32_t ranks)
{
    double sum = 0.0;

    for (int32_t r = 0; r < ranks; r++)
        if (memory[r] > limits->caps[r] * (1.0 + 1e-9))
            sum += memory[r] / limits->caps[r] - 1.0;
    return sum;
}
