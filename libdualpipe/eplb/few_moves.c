/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * few_moves.c: plans with few moves: from the placement in use to balance, and back from a plan. */
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
    int32_t *changed; /* [gpus] 0: the GPU holds what it held; NULL: not known */
    double *share;    /* [experts] load of a replica */
    double *spread;   /* [experts] relief where the expert is now, if it gets one replica more */
} repair_t;

typedef struct offer {
    dp__eplb_change_t change;
    double worth;
} offer_t;

/* How often an expert is on a GPU in a map of slots. */
static int32_t times_on(const repair_t *r, const int32_t *slots, int32_t gpu, int32_t expert)
{
    int32_t count = 0;

    for (int32_t p = r->field->scratch->gpu_first[gpu]; p < r->field->scratch->gpu_first[gpu + 1]; p++)
        count += slots[p] == expert;
    return count;
}

/* Moves more (or less, if negative) when x goes from a GPU and y comes. */
static int32_t change_cost(const repair_t *r, int32_t gpu, int32_t x, int32_t y)
{
    int32_t cost = 0;

    if (r->changed != NULL && !r->changed[gpu])
        return 1;
    if (times_on(r, r->layer->expert, gpu, x) > times_on(r, r->origin, gpu, x))
        cost--;
    if (times_on(r, r->layer->expert, gpu, y) >= times_on(r, r->origin, gpu, y))
        cost++;
    return cost;
}

static int32_t cost_of_change(const repair_t *r, const dp__eplb_change_t *change)
{
    const int32_t *gpu_of = r->field->scratch->gpu_of, *expert = r->layer->expert;
    int32_t x = expert[change->a], y = change->b < 0 ? change->expert : expert[change->b];
    int32_t cost = change_cost(r, gpu_of[change->a], x, y);

    return change->b < 0 ? cost : cost + change_cost(r, gpu_of[change->b], y, x);
}

static double load_over(const repair_t *r, double load)
{
    return load > r->limit ? load - r->limit : 0.0;
}

/* How much less load above the limit there is after a change. */
static double relief_by(const repair_t *r, const dp__eplb_change_t *change)
{
    const dp__eplb_scratch_t *s = r->field->scratch;
    int32_t touched = dp__change_preview(r->field, r->layer, change);
    double sum = 0.0;

    for (int32_t k = 0; k < touched; k++) {
        double before = r->layer->load[s->touched[k]];
        sum += load_over(r, before) - load_over(r, before + s->change[s->touched[k]]);
    }
    dp__change_forget(r->field, touched);
    return sum;
}

/* `most`: no less than what the change relieves; so that few changes need be looked at closely. */
static void consider_change(const repair_t *r, dp__eplb_change_t change, double most, double least, offer_t *best)
{
    double gain, cost;

    if (most <= least || most <= FREE * best->worth)
        return;
    cost = cost_of_change(r, &change);
    cost = cost < FREE ? FREE : cost;
    if (most <= cost * best->worth || !dp__change_legal(r->field, r->layer, &change))
        return;
    gain = relief_by(r, &change);
    if (gain > least && gain / cost > best->worth)
        *best = (offer_t){change, gain / cost};
}

static void prepare_repair(const repair_t *r)
{
    const int32_t *gpu_of = r->field->scratch->gpu_of;
    const dp__eplb_layer_t *l = r->layer;

    for (int32_t gpu = 0; gpu < r->field->sizes.gpus; gpu++)
        r->changed[gpu] = 0;
    for (int32_t p = 0; p < r->field->sizes.replicas; p++)
        r->changed[gpu_of[p]] |= l->expert[p] != r->origin[p];

    for (int32_t e = 0; e < r->field->sizes.experts; e++) {
        double less;

        r->share[e] = dp__layer_share(r->field, l, e);
        less = r->share[e] / (l->count[e] + 1);
        r->spread[e] = 0.0;
        for (int32_t p = l->head[e]; p >= 0; p = l->next[p])
            r->spread[e] += load_over(r, l->load[gpu_of[p]]) - load_over(r, l->load[gpu_of[p]] - less);
    }
}

/* Relief of a GPU that gets `more` load (or less, if negative). */
static double relief_of(const repair_t *r, int32_t gpu, double more)
{
    return load_over(r, r->layer->load[gpu]) - load_over(r, r->layer->load[gpu] + more);
}

/* Slot a gets a replica of y. */
static void consider_replica(const repair_t *r, int32_t a, int32_t y, double least, offer_t *best)
{
    const dp__eplb_layer_t *l = r->layer;
    int32_t x = l->expert[a], gpu = r->field->scratch->gpu_of[a];
    double after = r->share[y] * l->count[y] / (l->count[y] + 1);

    if (l->count[x] > 1 && x != y)
        consider_change(r, (dp__eplb_change_t){a, -1, y}, r->spread[y] + relief_of(r, gpu, after - r->share[x]), least,
                        best);
}

static void consider_gpu(const repair_t *r, int32_t gpu, double least, offer_t *best)
{
    const dp__eplb_scratch_t *s = r->field->scratch;
    const dp__eplb_layer_t *l = r->layer;

    prepare_repair(r);
    for (int32_t a = s->gpu_first[gpu]; a < s->gpu_first[gpu + 1]; a++) {
        int32_t x = l->expert[a];

        for (int32_t b = 0; b < r->field->sizes.replicas; b++) {
            double less = r->share[x] - r->share[l->expert[b]];

            if (less > 0.0)
                consider_change(r, (dp__eplb_change_t){a, b, -1},
                                relief_of(r, gpu, -less) + relief_of(r, s->gpu_of[b], less), least, best);
            consider_replica(r, b, x, least, best);
        }
        for (int32_t y = 0; l->count[x] > 1 && y < r->field->sizes.experts; y++)
            consider_replica(r, a, y, least, best);
    }
}

/* The change that is best at whatever load, for a replica that has to go. */
static void consider_any(const repair_t *r, dp__eplb_change_t change, offer_t *best)
{
    double worth;

    if (!dp__change_legal(r->field, r->layer, &change))
        return;
    worth = relief_by(r, &change) / r->field->mean - cost_of_change(r, &change);
    if (best->change.a < 0 || worth > best->worth)
        *best = (offer_t){change, worth};
}

/* Replaces or exchanges a replica that is one too many on its GPU, at whatever load. */
static bool part_doubles(const repair_t *r, int32_t gpu)
{
    const dp__eplb_scratch_t *s = r->field->scratch;
    offer_t best = {{-1, -1, -1}, 0.0};
    int32_t doubled = dp__layer_doubled(r->field, r->layer, gpu);

    for (int32_t a = s->gpu_first[gpu]; a < s->gpu_first[gpu + 1]; a++) {
        int32_t x = r->layer->expert[a];

        if (times_on(r, r->layer->expert, gpu, x) < 2)
            continue;
        for (int32_t b = 0; b < r->field->sizes.replicas; b++)
            consider_any(r, (dp__eplb_change_t){a, b, -1}, &best);
        for (int32_t y = 0; y < r->field->sizes.experts && r->layer->count[x] > 1; y++)
            consider_any(r, (dp__eplb_change_t){a, -1, y}, &best);
    }
    if (best.change.a < 0)
        return false;
    dp__change_apply(r->field, r->layer, &best.change);
    return dp__layer_doubled(r->field, r->layer, gpu) < doubled;
}

bool dp__eplb_relieve(const dp__eplb_field_t *f, const int32_t *origin, double limit, dp__eplb_layer_t *layer)
{
    repair_t r = {.field = f, .origin = origin, .layer = layer, .limit = limit * (1.0 + SLACK)};

    for (int32_t gpu = 0; f->distinct && gpu < f->sizes.gpus; gpu++)
        while (dp__layer_doubled(f, layer, gpu) > 0)
            if (!part_doubles(&r, gpu))
                return false;
    r.changed = f->scratch->match;
    r.share = f->scratch->share;
    r.spread = f->scratch->spread;
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

        if (times_on(r, r->layer->expert, gpu, home) >= times_on(r, r->origin, gpu, home))
            continue;
        dp__eplb_change_t change = {a, -1, home};
        for (int32_t b = r->layer->head[home];; b = r->layer->next[b]) {
            double saved;

            if (dp__change_legal(r->field, r->layer, &change) && (saved = -cost_of_change(r, &change)) > best.worth &&
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
    repair_t r = {.field = f, .origin = origin, .layer = layer, .limit = limit * (1.0 + SLACK)};
    bool more = true;

    while (more) {
        more = false;
        for (int32_t a = 0; a < f->sizes.replicas; a++) {
            int32_t gpu = f->scratch->gpu_of[a], x = layer->expert[a];
            offer_t best;

            if (times_on(&r, layer->expert, gpu, x) <= times_on(&r, origin, gpu, x))
                continue;
            best = best_undo(&r, a);
            if (best.change.a < 0)
                continue;
            dp__change_apply(f, layer, &best.change);
            more = true;
        }
    }
}
