/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * limits.c: what each rank's memory leaves for micro-batches, and who is beyond it. */
#include "search/limits.h"

#include "schedule/memory.h"

#include <math.h>

void dp__limits_shares(const dp__limits_t *limits, const dp_schedule_t *schedule, const double *parts,
                       double *share_out)
{
    dp_memory_bytes_t bytes = limits->bytes;

    bytes.parts = parts;
    for (int32_t r = 0; r < schedule->ranks; r++) {
        const double left = limits->caps[r] - dp__memory_fixed(schedule, &bytes, r);

        for (int32_t c = 0; c < schedule->chunks; c++)
            share_out[(int64_t)r * schedule->chunks + c] =
                left > 0.0 ? bytes.activation * dp__memory_part(schedule, &bytes, r, c) / left : INFINITY;
    }
}

dp_status_t dp__limits_measure(const dp__limits_t *limits, const dp_schedule_t *schedule, const double *parts,
                               int32_t slots, dp_memory_peaks_t *memory_out)
{
    dp_memory_bytes_t bytes = limits->bytes;

    bytes.parts = parts;
    bytes.slots = slots;
    return dp_schedule_memory(schedule, &bytes, memory_out);
}

double dp__limits_excess(const dp__limits_t *limits, const dp_memory_peaks_t *memory, int32_t ranks)
{
    double sum = 0.0;

    for (int32_t r = 0; r < ranks; r++)
        if (memory[r].bytes > limits->caps[r] * (1.0 + 1e-9))
            sum += memory[r].bytes / limits->caps[r] - 1.0;
    return sum;
}
