/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * memory.c: what each rank holds at most while it goes through its list. */
#include "schedule/memory.h"

#include "base/do.h"
#include "base/sized.h"
#include "schedule/passes.h"

#include <math.h>

/* What one rank holds now. */
typedef struct held {
    const dp_memory_bytes_t *bytes;
    dp__alive_t counted, weighed; /* each chunk as its share, and that times its part */
    double fixed, deferred, deferred_weighed;
    dp_memory_peaks_t peaks;
} held_t;

static void note_peaks(held_t *held)
{
    dp_memory_peaks_t *peaks = &held->peaks;

    peaks->activations = held->counted.most_inputs;
    peaks->deferred = fmax(peaks->deferred, held->deferred);
    peaks->bytes = fmax(peaks->bytes, held->fixed + held->bytes->activation * held->weighed.inputs +
                                          held->bytes->deferred * held->deferred_weighed);
}

static void count_pass(held_t *held, int kind, bool begins, bool ends, double share, double weighed)
{
    if (begins) {
        dp__alive_count(&held->counted, kind, true, false, share);
        dp__alive_count(&held->weighed, kind, true, false, weighed);
        note_peaks(held);
    }
    if (!ends)
        return;
    dp__alive_count(&held->counted, kind, false, true, share);
    dp__alive_count(&held->weighed, kind, false, true, weighed);
    held->deferred += kind == DP_OP_I ? share : kind == DP_OP_W ? -share : 0.0;
    held->deferred_weighed += kind == DP_OP_I ? weighed : kind == DP_OP_W ? -weighed : 0.0;
    note_peaks(held);
}

/* Passes of braids begin in one operation of a plain schedule and end in another. */
static void count_op(held_t *held, const dp_op_t *op, bool braided, double share, const double *parts)
{
    dp_op_t plain = *op;
    dp_pass_t pass[2];
    bool starts = dp__op_starts(op), ends = braided && op->kind != DP_OP_FB && op->microbatch2 >= 0;
    int n;

    plain.kind = (uint8_t)(starts ? op->kind - DP__OP_START : op->kind);
    n = dp__op_passes(&plain, pass);
    for (int k = 0; k < n; k++)
        count_pass(held, pass[k].kind, starts || !ends, !starts, share, parts[pass[k].chunk]);
}

double dp__memory_part(const dp_schedule_t *schedule, const dp_memory_bytes_t *bytes, int32_t rank, int32_t chunk)
{
    dp_place_t place;

    dp_schedule_place(schedule, rank, chunk, &place);
    return (bytes->parts != NULL ? bytes->parts[place.stage] : 1.0) / dp_schedule_split(schedule);
}

double dp__memory_fixed(const dp_schedule_t *schedule, const dp_memory_bytes_t *bytes, int32_t rank)
{
    double sum = 0.0;

    for (int32_t c = 0; c < schedule->chunks; c++) {
        dp_place_t place;

        dp_schedule_place(schedule, rank, c, &place);
        sum += bytes->weights * dp__memory_part(schedule, bytes, rank, c);
        if (place.prev_rank >= 0 && place.prev_rank != rank)
            sum += bytes->message * bytes->slots;
        if (place.next_rank >= 0 && place.next_rank != rank && !schedule->forward_only)
            sum += bytes->message * bytes->slots;
    }
    return sum;
}

dp_status_t dp_schedule_memory(const dp_schedule_t *schedule, const dp_memory_bytes_t *given,
                               dp_memory_peaks_t *peaks_out)
{
    dp_memory_bytes_t bytes = {.struct_size = sizeof(bytes)};
    double parts[DP_MAX_CHUNKS];
    const dp_schedule_t *plain;

    if (given != NULL)
        DO(dp__take("dp_schedule_memory: the bytes", dp_memory_bytes_t, DP_MEMORY_BYTES_MIN, &bytes, given));
    if (peaks_out == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_schedule_memory: peaks_out is NULL");
    if (bytes.slots < 0 ||
        !(bytes.message >= 0.0 && bytes.activation >= 0.0 && bytes.deferred >= 0.0 && bytes.weights >= 0.0))
        return dp_fail(DP_ERR_INVALID,
                       "dp_schedule_memory: %d slots, bytes of a message %g, activation %g, deferred %g, weights %g: "
                       "none may be negative; slots are those of a program, never DP_SLOTS_NEEDED",
                       bytes.slots, bytes.message, bytes.activation, bytes.deferred, bytes.weights);
    DO(dp__schedule_plain(schedule, &plain));
    for (int32_t r = 0; r < schedule->ranks; r++) {
        held_t held = {.bytes = &bytes};

        held.counted.forward_only = held.weighed.forward_only = schedule->forward_only != 0;
        held.fixed = held.peaks.bytes = dp__memory_fixed(schedule, &bytes, r);
        for (int32_t c = 0; c < schedule->chunks; c++)
            parts[c] = dp__memory_part(schedule, &bytes, r, c);
        for (int64_t i = plain->first[r]; i < plain->first[r + 1]; i++)
            count_op(&held, &plain->ops[i], plain != schedule, 1.0 / dp_schedule_split(schedule), parts);
        peaks_out[r] = held.peaks;
    }
    dp__schedule_plain_free(schedule, plain);
    return DP_OK;
}
