/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * memory.c: what a rank holds at most while it goes through its list. */
#include "memory.h"

#include <math.h>
#include <string.h>

#include "tools/io/size.h"

typedef struct held {
    const memory_bytes_t *bytes;
    double activations, deferred, now;
    double share;               /* of a device that a chunk has */
    double part[DP_MAX_CHUNKS]; /* of the bytes of a chunk that each has */
    int forward_only;
    memory_peaks_t peaks;
} held_t;

static void add_held(held_t *held, int32_t chunk, double activations, double deferred)
{
    memory_peaks_t *peaks = &held->peaks;

    held->activations += activations;
    held->deferred += deferred;
    held->now += held->part[chunk] * (activations * held->bytes->activation + deferred * held->bytes->deferred);
    peaks->activations = fmax(peaks->activations, held->activations);
    peaks->deferred = fmax(peaks->deferred, held->deferred);
    peaks->bytes = fmax(peaks->bytes, held->now);
}

static void begin_hold(held_t *held, int kind, int32_t chunk)
{
    if (kind == DP_OP_F)
        add_held(held, chunk, held->share, 0.0);
}

static void end_hold(held_t *held, int kind, int32_t chunk)
{
    if (kind == DP_OP_I)
        add_held(held, chunk, 0.0, held->share);
    if (kind == DP_OP_B || kind == DP_OP_W || (kind == DP_OP_F && held->forward_only))
        add_held(held, chunk, -held->share, kind == DP_OP_W ? -held->share : 0.0);
}

/* Passes begin at their first letter and end at their last; under a name all at once, or two. */
static void add_braid(held_t *held, const dp_braid_t *braid)
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
            end_hold(held, braid->passes[i - alive].kind, braid->passes[i - alive].chunk);
        begin_hold(held, braid->passes[i].kind, braid->passes[i].chunk);
    }
    for (const char *c = braid->order, *seen = c; *c != '\0' && !named; c++) {
        int pass;

        c += *c == '+';
        pass = *c >= 'a' ? *c - 'a' : *c - 'A';
        if (*c >= 'a' && memchr(seen, *c, (size_t)(c - seen)) == NULL)
            begin_hold(held, braid->passes[pass].kind, braid->passes[pass].chunk);
        if (--left[pass] == 0)
            end_hold(held, braid->passes[pass].kind, braid->passes[pass].chunk);
    }
    for (int32_t i = braid->npasses - alive; i < braid->npasses && named; i++)
        end_hold(held, braid->passes[i].kind, braid->passes[i].chunk);
}

memory_bytes_t memory_asked(const args_t *args)
{
    return (memory_bytes_t){.activation = fmax(args->activation_bytes, 0.0),
                            .deferred = fmax(args->deferred_bytes, 0.0),
                            .weights = fmax(args->weight_bytes, 0.0),
                            .parts = args->parts};
}

memory_peaks_t memory_of(const dp_schedule_t *schedule, int32_t rank, const memory_bytes_t *bytes)
{
    held_t held = {.bytes = bytes, .share = 1.0 / dp_schedule_split(schedule), .forward_only = schedule->forward_only};

    for (int32_t c = 0; c < schedule->chunks; c++) {
        dp_place_t place;

        dp_schedule_place(schedule, rank, c, &place);
        held.part[c] = bytes->parts != NULL ? bytes->parts[place.stage] : 1.0;
        held.now += held.part[c] * held.share * bytes->weights;
    }
    held.peaks.bytes = held.now;
    for (int64_t i = schedule->first[rank]; i < schedule->first[rank + 1]; i++) {
        int kind = schedule->ops[i].kind;

        if (kind == DP_OP_BRAID) {
            add_braid(&held, &schedule->braids[schedule->ops[i].microbatch]);
            continue;
        }
        begin_hold(&held, kind == DP_OP_FB ? DP_OP_F : kind, schedule->ops[i].chunk);
        end_hold(&held, kind == DP_OP_FB ? DP_OP_B : kind,
                 kind == DP_OP_FB ? schedule->ops[i].chunk2 : schedule->ops[i].chunk);
    }
    return held.peaks;
}

dp_status_t memory_check(const args_t *args, const dp_schedule_t *schedule)
{
    const memory_bytes_t bytes = memory_asked(args);
    const char *name = args->file != NULL ? args->file : schedule->method;
    char held[32], there[32];

    if (args->parts != NULL && args->nparts != dp_schedule_stages(schedule))
        return dp_fail(DP_ERR_INVALID, "--partition has %d numbers, %s has %d stages", args->nparts, name,
                       dp_schedule_stages(schedule));
    for (int32_t r = 0; r < schedule->ranks; r++) {
        const memory_peaks_t peaks = memory_of(schedule, r, &bytes);
        const double memory = args_memory_of(args, r);

        if (memory >= 0.0 && peaks.bytes > memory * (1.0 + 1e-9))
            return dp_fail(DP_ERR_REJECTED, "%s: rank %d holds %s at once, %s are there", name, r,
                           size_text(peaks.bytes, held, sizeof(held)), size_text(memory, there, sizeof(there)));
        if (args->memory_cap >= 0.0 && peaks.activations > args->memory_cap + 1e-9)
            return dp_fail(DP_ERR_REJECTED, "%s: rank %d holds %g micro-batches' activations at once, the cap is %g",
                           name, r, peaks.activations, args->memory_cap);
    }
    return DP_OK;
}
