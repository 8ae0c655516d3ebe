/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * search.c: iterated local search. The fullest GPU is relieved by the best change there is, until
 * none helps; then a few random changes, or two groups that trade nodes, open a new way down. The
 * best placement seen is kept. */
#include "eplb/search.h"
#include "base/clock.h"

#include <string.h>

/* Less than this, relative to the load, is rounding. */
#define GAIN 1e-9
/* Ways down from the same placement before the search goes on from a worse one. */
#define PATIENCE 24

typedef struct search {
    dp__eplb_field_t field;
    dp__eplb_layer_t *work, *base, *best;
    uint64_t random;
    int64_t steps, deadline_ns; /* left for this layer; deadline 0: none */
} search_t;

static int32_t draw_number(search_t *s, int32_t below)
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return (int32_t)((s->random >> 11) % (uint64_t)below);
}

typedef struct candidate {
    dp__eplb_change_t change;
    double peak;
} candidate_t;

static void try_change(const search_t *s, dp__eplb_change_t change, candidate_t *best)
{
    double peak;

    if (!dp__change_legal(&s->field, s->work, &change))
        return;
    peak = dp__change_peak(&s->field, s->work, &change);
    if (peak < best->peak)
        *best = (candidate_t){change, peak};
}

/* Replicas of the fullest GPU for lighter ones elsewhere. */
static void consider_exchanges(const search_t *s, int32_t gpu, candidate_t *best)
{
    const dp__eplb_scratch_t *scratch = s->field.scratch;
    const dp__eplb_layer_t *l = s->work;

    for (int32_t a = scratch->gpu_first[gpu]; a < scratch->gpu_first[gpu + 1]; a++) {
        double of_a = dp__layer_share(&s->field, l, l->expert[a]);

        for (int32_t b = 0; b < s->field.sizes.replicas; b++) {
            double less = of_a - dp__layer_share(&s->field, l, l->expert[b]);
            double here = l->load[gpu] - less, there = l->load[scratch->gpu_of[b]] + less;

            if (less > 0.0 && here < best->peak && there < best->peak)
                try_change(s, (dp__eplb_change_t){a, b, -1}, best);
        }
    }
}

/* One more replica, elsewhere, of an expert on the fullest GPU: all its replicas get less. */
static void consider_replicas(const search_t *s, int32_t gpu, candidate_t *best)
{
    const dp__eplb_scratch_t *scratch = s->field.scratch;
    const dp__eplb_layer_t *l = s->work;

    for (int32_t p = scratch->gpu_first[gpu]; p < scratch->gpu_first[gpu + 1]; p++) {
        int32_t y = l->expert[p];
        double after = (double)s->field.loads[y] / (l->count[y] + 1);
        /* where there is one already */
        double at_least = 2.0 * after - dp__layer_share(&s->field, l, y);

        for (int32_t a = 0; a < s->field.sizes.replicas; a++) {
            int32_t x = l->expert[a];

            if (l->count[x] > 1 && x != y &&
                l->load[scratch->gpu_of[a]] - dp__layer_share(&s->field, l, x) + at_least < best->peak)
                try_change(s, (dp__eplb_change_t){a, -1, y}, best);
        }
    }
}

/* One replica less on the fullest GPU, a replica of a lighter expert in its place. */
static void consider_replacements(const search_t *s, int32_t gpu, candidate_t *best)
{
    const dp__eplb_scratch_t *scratch = s->field.scratch;
    const dp__eplb_layer_t *l = s->work;

    for (int32_t a = scratch->gpu_first[gpu]; a < scratch->gpu_first[gpu + 1]; a++) {
        double of_a = dp__layer_share(&s->field, l, l->expert[a]);

        if (l->count[l->expert[a]] == 1)
            continue;
        for (int32_t y = 0; y < s->field.sizes.experts; y++)
            if (l->load[gpu] - of_a + (double)s->field.loads[y] / (l->count[y] + 1) < best->peak)
                try_change(s, (dp__eplb_change_t){a, -1, y}, best);
    }
}

/* Relieves the fullest GPU; false: no single change does. */
static bool improve_layer(search_t *s)
{
    int32_t gpu = dp__layer_fullest(&s->field, s->work);
    candidate_t best = {{-1, -1, -1}, s->work->load[gpu] * (1.0 - GAIN)};

    consider_exchanges(s, gpu, &best);
    consider_replicas(s, gpu, &best);
    consider_replacements(s, gpu, &best);
    if (best.change.a < 0)
        return false;
    dp__change_apply(&s->field, s->work, &best.change);
    return true;
}

/* Experts of two groups of one size change places, one for one. */
static bool trade_groups(search_t *s)
{
    const dp__eplb_sizes_t *sizes = &s->field.sizes;
    int32_t one = draw_number(s, sizes->groups), two = draw_number(s, sizes->groups);
    int32_t size = dp__eplb_share_count(sizes->experts, sizes->groups, one);
    int32_t first = dp__eplb_share_first(sizes->experts, sizes->groups, one);
    int32_t second = dp__eplb_share_first(sizes->experts, sizes->groups, two);

    if (one == two || size != dp__eplb_share_count(sizes->experts, sizes->groups, two))
        return false;
    for (int32_t p = 0; p < sizes->replicas; p++) {
        int32_t e = s->work->expert[p];

        s->field.scratch->best[p] = e >= first && e < first + size     ? e - first + second
                                    : e >= second && e < second + size ? e - second + first
                                                                       : e;
    }
    dp__layer_load(&s->field, s->field.scratch->best, s->work);
    return true;
}

static void shake_layer(search_t *s)
{
    int32_t changes = 1 + draw_number(s, 3);

    if (s->field.sizes.nodes > 1 && draw_number(s, 4) == 0 && trade_groups(s))
        return;
    for (int32_t tries = 0; changes > 0 && tries < 64; tries++) {
        dp__eplb_change_t change = {draw_number(s, s->field.sizes.replicas), -1, -1};

        if (draw_number(s, 2) == 0)
            change.b = draw_number(s, s->field.sizes.replicas);
        else
            change.expert = draw_number(s, s->field.sizes.experts);
        if (!dp__change_legal(&s->field, s->work, &change))
            continue;
        dp__change_apply(&s->field, s->work, &change);
        changes--;
    }
}

static bool may_go_on(search_t *s)
{
    if (s->steps <= 0 || (s->deadline_ns != 0 && dp__now_ns() >= s->deadline_ns))
        return false;
    s->steps--;
    return true;
}

/* Loads are added up again: what was added and taken away left rounding behind. */
static double exact_peak(search_t *s, dp__eplb_layer_t *layer)
{
    memcpy(s->field.scratch->best, layer->expert, (size_t)s->field.sizes.replicas * sizeof(int32_t));
    dp__layer_load(&s->field, s->field.scratch->best, layer);
    return dp__layer_peak(&s->field, layer);
}

static void search_layer(search_t *s, int32_t *slots)
{
    double best, base, peak, goal = s->field.mean * (1.0 + GAIN);
    int32_t failed = 0;

    dp__layer_load(&s->field, slots, s->work);
    best = base = dp__layer_peak(&s->field, s->work);
    dp__layer_copy(&s->field, s->work, s->base);
    dp__layer_copy(&s->field, s->work, s->best);
    while (best > goal && may_go_on(s)) {
        while (improve_layer(s) && may_go_on(s))
            ;
        peak = exact_peak(s, s->work);
        if (peak < best) {
            best = peak;
            dp__layer_copy(&s->field, s->work, s->best);
        }
        if (peak <= base || failed == PATIENCE) {
            failed = peak < base ? 0 : failed == PATIENCE ? 0 : failed + 1;
            base = peak;
            dp__layer_copy(&s->field, s->work, s->base);
        } else {
            failed++;
            if (failed % (8 * PATIENCE) == 0)
                dp__layer_copy(&s->field, s->best, s->base);
            dp__layer_copy(&s->field, s->base, s->work);
        }
        shake_layer(s);
    }
    memcpy(slots, s->best->expert, (size_t)s->field.sizes.replicas * sizeof(*slots));
}

void dp__eplb_search(const dp__eplb_sizes_t *sizes, const dp_eplb_options_t *options, const float *loads,
                     int32_t *physical_to_logical, dp__eplb_scratch_t *scratch)
{
    search_t s = {.work = &scratch->layer[0], .base = &scratch->layer[1], .best = &scratch->layer[2]};
    int64_t end = options->search_ns > 0 ? dp__now_ns() + options->search_ns : 0;

    dp__field_open(&s.field, sizes, scratch, options->distinct != 0);
    for (int32_t layer = 0; layer < sizes->layers; layer++) {
        int64_t now = end != 0 ? dp__now_ns() : 0;

        if (end != 0 && now >= end)
            return;
        s.random = (options->seed + (uint64_t)layer + 1) * UINT64_C(0x9e3779b97f4a7c15);
        s.random += s.random == 0;
        s.steps = options->search_steps > 0 ? options->search_steps : INT64_MAX;
        s.deadline_ns = end != 0 ? now + (end - now) / (sizes->layers - layer) : 0;
        dp__field_layer(&s.field, loads, layer);
        search_layer(&s, physical_to_logical + (size_t)layer * (size_t)sizes->replicas);
    }
}
