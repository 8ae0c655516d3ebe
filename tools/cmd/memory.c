/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * memory.c: what a rank holds at most while it goes through its list. */
#include "memory.h"

#include <math.h>
#include <string.h>

#include "tools/io/size.h"

typedef struct held {
    const memory_bytes_t *bytes;
    double activations, deferred, weights;
    memory_peaks_t peaks;
} held_t;

static void add_held(held_t *held, double activations, double deferred)
{
    memory_peaks_t *peaks = &held->peaks;

    held->activations += activations;
    held->deferred += deferred;
    peaks->activations = fmax(peaks->activations, held->activations);
    peaks->deferred = fmax(peaks->deferred, held->deferred);
    peaks->bytes = fmax(peaks->bytes, held->weights + held->activations * held->bytes->activation +
                                          held->deferred * held->bytes->deferred);
}

static void begin_hold(held_t *held, int kind, double share)
{
    if (kind == DP_OP_F)
        add_held(held, share, 0.0);
}

static void end_hold(held_t *held, int kind, double share, int forward_only)
{
    if (kind == DP_OP_I)
        add_held(held, 0.0, share);
    if (kind == DP_OP_B || kind == DP_OP_W || (kind == DP_OP_F && forward_only))
        add_held(held, -share, kind == DP_OP_W ? -share : 0.0);
}

/* Passes begin at their first letter and end at their last; under a name all at once, or two. */
static void add_braid(held_t *held, const dp_braid_t *braid, double share, int forward_only)
{
    static const char *const names[] = {"canonical", "turns", "prefill", "decode"};
    int32_t alive = strcmp(braid->order, "prefill") == 0 || strcmp(braid->order, "decode") == 0 ? 2 : braid->npasses;
    int named = 0;
    size_t left[DP_BRAID_PASSES] = {0};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        named |= strcmp(braid->order, names[i]) == 0;
    for (const char *c = braid->order; *c != '\0' && !named; c++)
        if (*c != '+')
            left[*c >= 'a' ? *c - 'a' : *c - 'A']++;
    for (int32_t i = 0; i < braid->npasses && named; i++) {
        if (i >= alive)
            end_hold(held, braid->passes[i - alive].kind, share, forward_only);
        begin_hold(held, braid->passes[i].kind, share);
    }
    for (const char *c = braid->order, *seen = c; *c != '\0' && !named; c++) {
        int pass;

        c += *c == '+';
        pass = *c >= 'a' ? *c - 'a' : *c - 'A';
        if (*c >= 'a' && memchr(seen, *c, (size_t)(c - seen)) == NULL)
            begin_hold(held, braid->passes[pass].kind, share);
        if (--left[pass] == 0)
            end_hold(held, braid->passes[pass].kind, share, forward_only);
    }
    for (int32_t i = braid->npasses - alive; i < braid->npasses && named; i++)
        end_hold(held, braid->passes[i].kind, share, forward_only);
}

memory_bytes_t memory_asked(const args_t *args)
{
    return (memory_bytes_t){.activation = fmax(args->activation_bytes, 0.0),
                            .deferred = fmax(args->deferred_bytes, 0.0),
                            .weights = fmax(args->weight_bytes, 0.0)};
}

memory_peaks_t memory_of(const dp_schedule_t *schedule, int32_t rank, const memory_bytes_t *bytes)
{
    double share = 1.0 / dp_schedule_split(schedule);
    held_t held = {.bytes = bytes, .weights = bytes->weights * dp_schedule_paths(schedule)};

    add_held(&held, 0.0, 0.0);
    for (int64_t i = schedule->first[rank]; i < schedule->first[rank + 1]; i++) {
        int kind = schedule->ops[i].kind;

        if (kind == DP_OP_BRAID) {
            add_braid(&held, &schedule->braids[schedule->ops[i].microbatch], share, schedule->forward_only);
            continue;
        }
        begin_hold(&held, kind == DP_OP_FB ? DP_OP_F : kind, share);
        end_hold(&held, kind == DP_OP_FB ? DP_OP_B : kind, share, schedule->forward_only);
    }
    return held.peaks;
}

dp_status_t memory_check(const args_t *args, const dp_schedule_t *schedule)
{
    const memory_bytes_t bytes = memory_asked(args);
    const char *name = args->file != NULL ? args->file : schedule->method;
    char held[32], there[32];

    for (int32_t r = 0; r < schedule->ranks; r++) {
        const memory_peaks_t peaks = memory_of(schedule, r, &bytes);

        if (args->memory >= 0.0 && peaks.bytes > args->memory * (1.0 + 1e-12))
            return dp_fail(DP_ERR_REJECTED, "%s: rank %d holds %s at once, %s are there", name, r,
                           size_text(peaks.bytes, held, sizeof(held)), size_text(args->memory, there, sizeof(there)));
        if (args->memory_cap >= 0.0 && peaks.activations > args->memory_cap + 1e-9)
            return dp_fail(DP_ERR_REJECTED, "%s: rank %d holds %g micro-batches' activations at once, the cap is %g",
                           name, r, peaks.activations, args->memory_cap);
    }
    return DP_OK;
}
