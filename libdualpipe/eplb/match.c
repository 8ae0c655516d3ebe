/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * match.c: greedy matching of places: in each round those with the most in common. */
#include "eplb/match.h"

#include <string.h>

/* Rounds after which the rest takes what is left, in order. */
#define ROUNDS 64

/* Places of one level: GPUs of one node, or nodes. */
typedef struct level {
    const dp__eplb_field_t *field;
    const dp__eplb_layer_t *origin;
    const int32_t *plan;
    bool nodes;
    int32_t first_new, first_old, count; /* places that are matched with each other */
    int32_t *old_of, *new_of;            /* -1: not yet */
} level_t;

static int32_t place_of(const level_t *v, int32_t slot)
{
    int32_t gpu = v->field->scratch->gpu_of[slot];

    return v->nodes ? v->field->scratch->node_of[gpu] : gpu;
}

static void slots_of(const level_t *v, int32_t place, int32_t *first, int32_t *end)
{
    const dp__eplb_scratch_t *s = v->field->scratch;
    int32_t gpu = place, gpus = 1;

    if (v->nodes) {
        gpu = dp__eplb_share_first(v->field->sizes.gpus, v->field->sizes.nodes, place);
        gpus = dp__eplb_share_count(v->field->sizes.gpus, v->field->sizes.nodes, place);
    }
    *first = s->gpu_first[gpu];
    *end = s->gpu_first[gpu + gpus];
}

/* Places that can stand for each other: as many GPUs, each with as many slots. */
static bool count_alike(const level_t *v, int32_t one, int32_t two)
{
    const dp__eplb_sizes_t *sizes = &v->field->sizes;
    int32_t a, a_end, b, b_end, extra = sizes->replicas % sizes->gpus;

    slots_of(v, one, &a, &a_end);
    slots_of(v, two, &b, &b_end);
    if (a_end - a != b_end - b)
        return false;
    if (!v->nodes)
        return true;
    a = dp__eplb_share_first(sizes->gpus, sizes->nodes, one);
    b = dp__eplb_share_first(sizes->gpus, sizes->nodes, two);
    /* The node in which GPUs with one more slot end is like no other. */
    return dp__eplb_share_count(sizes->gpus, sizes->nodes, one) ==
               dp__eplb_share_count(sizes->gpus, sizes->nodes, two) &&
           (one == two || ((a + dp__eplb_share_count(sizes->gpus, sizes->nodes, one) <= extra || a >= extra) &&
                           (b + dp__eplb_share_count(sizes->gpus, sizes->nodes, two) <= extra || b >= extra)));
}

/* The free old place that has most in common with a new one; *overlap_out says how much. */
static int32_t best_old(const level_t *v, int32_t place, int32_t *overlap_out)
{
    int32_t *overlap = v->field->scratch->overlap, first, end, best = -1;

    slots_of(v, place, &first, &end);
    for (int32_t k = 0; k < v->count; k++)
        overlap[v->first_old + k] = 0;
    for (int32_t p = first; p < end; p++)
        for (int32_t q = v->origin->head[v->plan[p]]; q >= 0; q = v->origin->next[q])
            if (place_of(v, q) >= v->first_old && place_of(v, q) < v->first_old + v->count)
                overlap[place_of(v, q)]++;
    for (int32_t old = v->first_old; old < v->first_old + v->count; old++)
        if (v->new_of[old] < 0 && count_alike(v, place, old) && (best < 0 || overlap[old] > overlap[best]))
            best = old;
    *overlap_out = best < 0 ? 0 : overlap[best];
    return best;
}

/* One round: new places take their best if it is at least `enough`. Returns the best left out. */
static int32_t match_round(const level_t *v, int32_t enough)
{
    int32_t next = -1;

    for (int32_t place = v->first_new; place < v->first_new + v->count; place++) {
        int32_t overlap, old;

        if (v->old_of[place] >= 0)
            continue;
        old = best_old(v, place, &overlap);
        if (overlap >= enough) {
            v->old_of[place] = old;
            v->new_of[old] = place;
        } else if (overlap > next) {
            next = overlap;
        }
    }
    return next;
}

static void match_level(const level_t *v)
{
    int32_t enough = INT32_MAX;

    for (int32_t k = 0; k < v->count; k++)
        v->old_of[v->first_new + k] = v->new_of[v->first_old + k] = -1;
    for (int32_t round = 0; round < ROUNDS && enough > 0; round++) {
        enough = match_round(v, enough);
        if (enough < 0)
            return;
    }
    match_round(v, 0);
}

void dp__eplb_match(const dp__eplb_field_t *f, const int32_t *plan, const int32_t *origin, int32_t *out)
{
    dp__eplb_scratch_t *s = f->scratch;
    level_t nodes = {.field = f,
                     .origin = &s->layer[0],
                     .plan = plan,
                     .nodes = true,
                     .count = f->sizes.nodes,
                     .old_of = s->node_match,
                     .new_of = s->match_too};
    level_t gpus = {.field = f, .origin = &s->layer[0], .plan = plan, .old_of = s->match, .new_of = s->match_too};

    dp__layer_load(f, origin, &s->layer[0]);
    match_level(&nodes);
    for (int32_t node = 0; node < f->sizes.nodes; node++) {
        gpus.first_new = dp__eplb_share_first(f->sizes.gpus, f->sizes.nodes, node);
        gpus.first_old = dp__eplb_share_first(f->sizes.gpus, f->sizes.nodes, s->node_match[node]);
        gpus.count = dp__eplb_share_count(f->sizes.gpus, f->sizes.nodes, node);
        match_level(&gpus);
    }
    for (int32_t gpu = 0; gpu < f->sizes.gpus; gpu++)
        memcpy(out + s->gpu_first[s->match[gpu]], plan + s->gpu_first[gpu],
               (size_t)(s->gpu_first[gpu + 1] - s->gpu_first[gpu]) * sizeof(*out));
}

/* Brings one of `expert` to slot p from a slot at or after `from`, where it is not at home. */
static void bring_slot(const int32_t *origin, int32_t *slots, int32_t p, int32_t from, int32_t end)
{
    for (int32_t q = from; q < end; q++) {
        if (slots[q] == origin[p] && origin[q] != slots[q]) {
            slots[q] = slots[p];
            slots[p] = origin[p];
            return;
        }
    }
}

void dp__eplb_settle(const dp__eplb_field_t *f, const int32_t *origin, int32_t *slots)
{
    for (int32_t gpu = 0; gpu < f->sizes.gpus; gpu++) {
        int32_t first = f->scratch->gpu_first[gpu], end = f->scratch->gpu_first[gpu + 1];

        for (int32_t p = first; p < end; p++)
            if (slots[p] != origin[p])
                bring_slot(origin, slots, p, first, end);
    }
}
