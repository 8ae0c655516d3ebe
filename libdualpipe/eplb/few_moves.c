/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * few_moves.c: two ways to a plan with few moves: from the placement in use towards balance, and from a balanced plan back. */
#include "eplb/few_moves.h"

/* Loads this much over the limit, relative to it, are rounding. */
#define SLACK 1e-12
/* A change that moves nothing new counts as this much of a move. */
#define FREE 0.25

typedef struct repair {
    const dp__eplb_field_t *field;
    const int32_t *origin;
    dp__eplb_layer_t *layer;
    double limit;
} repair_t;

typedef struct offer {
    dp__eplb_change_t change;
    double worth;
} offer_t;

/* How often an expert is on a GPU in a map of slots. */
static int32_t times(const repair_t *r, const int32_t *slots, int32_t gpu, int32_t expert)
{
    int32_t count = 0;

    for (int32_t p = r->field->scratch->gpu_first[gpu]; p < r->field->scratch->gpu_first[gpu + 1]; p++)
        count += slots[p] == expert;
    return count;
}

/* Moves more (or less, if negative) when x goes from a GPU and y comes. */
static int32_t cost_of(const repair_t *r, int32_t gpu, int32_t x, int32_t y)
{
    int32_t cost = 0;

    if (times(r, r->layer->expert, gpu, x) > times(r, r->origin, gpu, x))
        cost--;
    if (times(r, r->layer->expert, gpu, y) >= times(r, r->origin, gpu, y))
        cost++;
    return cost;
}

static int32_t cost_of_change(const repair_t *r, const dp__eplb_change_t *change)
{
    const int32_t *gpu_of = r->field->scratch->gpu_of, *expert = r->layer->expert;
    int32_t x = expert[change->a], y = change->b < 0 ? change->expert : expert[change->b];
    int32_t cost = cost_of(r, gpu_of[change->a], x, y);

    return change->b < 0 ? cost : cost + cost_of(r, gpu_of[change->b], y, x);
}

static double over(const repair_t *r, double load)
{
    return load > r->limit ? load - r->limit : 0.0;
}

/* How much less load above the limit there is after a change. */
static double relief(const repair_t *r, const dp__eplb_change_t *change)
{
    const dp__eplb_scratch_t *s = r->field->scratch;
    int32_t touched = dp__change_preview(r->field, r->layer, change);
    double sum = 0.0;

    for (int32_t k = 0; k < touched; k++) {
        double before = r->layer->load[s->touched[k]];
        sum += over(r, before) - over(r, before + s->change[s->touched[k]]);
    }
    dp__change_forget(r->field, touched);
    return sum;
}

static void consider(const repair_t *r, dp__eplb_change_t change, double least, offer_t *best)
{
    double gain, cost;

    if (!dp__change_legal(r->field, r->layer, &change))
        return;
    gain = relief(r, &change);
    if (gain <= least)
        return;
    cost = cost_of_change(r, &change);
    gain /= cost < FREE ? FREE : cost;
    if (gain > best->worth)
        *best = (offer_t){change, gain};
}

static void consider_gpu(const repair_t *r, int32_t gpu, double least, offer_t *best)
{
    const dp__eplb_scratch_t *s = r->field->scratch;
    const dp__eplb_layer_t *l = r->layer;

    for (int32_t a = s->gpu_first[gpu]; a < s->gpu_first[gpu + 1]; a++) {
        double of_a = dp__layer_share(r->field, l, l->expert[a]);

        for (int32_t b = 0; b < r->field->sizes.replicas; b++) {
            double less = of_a - dp__layer_share(r->field, l, l->expert[b]);
            double there = l->load[s->gpu_of[b]], gain = over(r, l->load[gpu]) -
                                                         over(r, l->load[gpu] - less) + over(r, there) -
                                                         over(r, there + less);

            if (less > 0.0 && gain > least && gain > FREE * best->worth)
                consider(r, (dp__eplb_change_t){a, b, -1}, least, best);
            if (l->count[l->expert[b]] > 1 && l->expert[b] != l->expert[a])
                consider(r, (dp__eplb_change_t){b, -1, l->expert[a]}, least, best);
        }
        if (l->count[l->expert[a]] == 1)
            continue;
        for (int32_t y = 0; y < r->field->sizes.experts; y++)
            consider(r, (dp__eplb_change_t){a, -1, y}, least, best);
    }
}

/* Replaces or exchanges a replica that is one too many on its GPU, at whatever load. */
static bool part_doubles(const repair_t *r, int32_t gpu)
{
    const dp__eplb_scratch_t *s = r->field->scratch;
    offer_t best = {{-1, -1, -1}, -1e300};
    int32_t doubled = dp__layer_doubled(r->field, r->layer, gpu);

    for (int32_t a = s->gpu_first[gpu]; a < s->gpu_first[gpu + 1]; a++) {
        int32_t x = r->layer->expert[a];

        if (times(r, r->layer->expert, gpu, x) < 2)
            continue;
        for (int32_t b = 0; b < r->field->sizes.replicas; b++)
            consider(r, (dp__eplb_change_t){a, b, -1}, -1e300, &best);
        for (int32_t y = 0; y < r->field->sizes.experts && r->layer->count[x] > 1; y++)
            consider(r, (dp__eplb_change_t){a, -1, y}, -1e300, &best);
    }
    if (best.change.a < 0)
        return false;
    dp__change_apply(r->field, r->layer, &best.change);
    return dp__layer_doubled(r->field, r->layer, gpu) < doubled;
}

bool dp__eplb_relieve(const dp__eplb_field_t *f, const int32_t *origin, double limit, dp__eplb_layer_t *layer)
{
    repair_t r = {f, origin, layer, limit * (1.0 + SLACK)};

    for (int32_t gpu = 0; f->distinct && gpu < f->sizes.gpus; gpu++)
        while (dp__layer_doubled(f, layer, gpu) > 0)
            if (!part_doubles(&r, gpu))
                return false;
    for (int64_t steps = 4 * (int64_t)f->sizes.replicas; steps > 0; steps--) {
        int32_t gpu = dp__layer_fullest(f, layer);
        offer_t best = {{-1, -1, -1}, 0.0};

        if (layer->load[gpu] <= r.limit)
            return true;
        consider_gpu(&r, gpu, SLACK * layer->load[gpu], &best);
        if (best.change.a < 0)
            return false;
        dp__change_apply(f, layer, &best.change);
    }
    return false;
}

/* The change into slot a that saves most moves and keeps to the limit. */
static offer_t best_undo(const repair_t *r, int32_t a)
{
    const dp__eplb_scratch_t *s = r->field->scratch;
    offer_t best = {{-1, -1, -1}, 0.0};
    int32_t gpu = s->gpu_of[a];

    for (int32_t p = s->gpu_first[gpu]; p < s->gpu_first[gpu + 1]; p++) {
        int32_t home = r->origin[p];

        if (times(r, r->layer->expert, gpu, home) >= times(r, r->origin, gpu, home))
            continue;
        dp__eplb_change_t change = {a, -1, home};
        for (int32_t b = r->layer->head[home];; b = r->layer->next[b]) {
            double saved;

            if (dp__change_legal(r->field, r->layer, &change) &&
                (saved = -cost_of_change(r, &change)) > best.worth &&
                dp__change_peak(r->field, r->layer, &change) <= r->limit)
                best = (offer_t){change, saved};
            if (b < 0)
                break;
            change.b = b;
        }
    }
    return best;
}

void dp__eplb_undo(const dp__eplb_field_t *f, const int32_t *origin, double limit, dp__eplb_layer_t *layer)
{
    repair_t r = {f, origin, layer, limit * (1.0 + SLACK)};
    bool more = true;

    while (more) {
        more = false;
        for (int32_t a = 0; a < f->sizes.replicas; a++) {
            int32_t gpu = f->scratch->gpu_of[a], x = layer->expert[a];
            offer_t best;

            if (times(&r, layer->expert, gpu, x) <= times(&r, origin, gpu, x))
                continue;
            best = best_undo(&r, a);
            if (best.change.a < 0)
                continue;
            dp__change_apply(f, layer, &best.change);
            more = true;
        }
    }
}
