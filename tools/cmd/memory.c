/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * memory.c: what a rank holds at most while it goes through its list. */
#include "memory.h"

#include <math.h>

typedef struct held {
    const memory_bytes_t *bytes;
    double activations, deferred, weights;
    memory_peaks_t peaks;
} held_t;

static void add(held_t *held, double activations, double deferred)
{
    memory_peaks_t *peaks = &held->peaks;

    held->activations += activations;
    held->deferred += deferred;
    peaks->activations = fmax(peaks->activations, held->activations);
    peaks->deferred = fmax(peaks->deferred, held->deferred);
    peaks->bytes = fmax(peaks->bytes, held->weights + held->activations * held->bytes->activation +
                                          held->deferred * held->bytes->deferred);
}

memory_peaks_t memory_of(const dp_schedule_t *schedule, int32_t rank, const memory_bytes_t *bytes)
{
    double share = 1.0 / dp_schedule_split(schedule);
    held_t held = {.bytes = bytes, .weights = bytes->weights * dp_schedule_paths(schedule)};

    add(&held, 0.0, 0.0);
    for (int64_t i = schedule->first[rank]; i < schedule->first[rank + 1]; i++) {
        int kind = schedule->ops[i].kind;

        if (kind == DP_OP_F || kind == DP_OP_FB)
            add(&held, share, 0.0);
        if (kind == DP_OP_I)
            add(&held, 0.0, share);
        if (kind == DP_OP_B || kind == DP_OP_FB || kind == DP_OP_W || (kind == DP_OP_F && schedule->forward_only))
            add(&held, -share, kind == DP_OP_W ? -share : 0.0);
    }
    return held.peaks;
}
