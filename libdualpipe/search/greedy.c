/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * greedy.c: list scheduling. */
#include "search/greedy.h"

#include "base/memory.h"

#include <math.h>
#include <string.h>

/* What one chunk of one rank has done. */
typedef struct progress {
    int32_t forwards, backwards, weights;
} progress_t;

typedef struct greedy {
    const dp__shape_t *shape;
    const dp__rules_t *rules;
    double cap;
    dp__list_timer_t *timer;
    dp__lists_t *lists;
    progress_t *progress; /* [rank * chunks + chunk] */
} greedy_t;

typedef struct choice {
    dp_op_t op;
    double start, rank_by; /* rank_by: start with the rules' bias */
} choice_t;

dp__rules_t dp__rules_random(const dp__shape_t *shape, dp__search_random_t *random)
{
    bool pays = shape->cost[DP_OP_FB] < shape->cost[DP_OP_F] + shape->cost[DP_OP_B];

    return (dp__rules_t){.reach = 0.3 + dp__random_unit(random),
                         .more = dp__random_below(random, 3),
                         .forward_bias = dp__random_unit(random) * 2.0 - 0.5,
                         .patience = dp__random_unit(random) * 1.2,
                         .most_deferred = 1 + dp__random_below(random, 2 * shape->ranks),
                         .split = dp__random_below(random, 4) != 0,
                         .pair = pays ? dp__random_below(random, 4) != 0 : dp__random_below(random, 8) == 0,
                         .pair_patience = dp__random_unit(random) * 3.0};
}

static int64_t cell_of(const greedy_t *g, int32_t rank, int32_t chunk, int32_t microbatch)
{
    return ((int64_t)rank * g->shape->chunks + chunk) * g->shape->path_microbatches + microbatch;
}

static progress_t *progress_of(const greedy_t *g, int32_t rank, int32_t chunk)
{
    return &g->progress[(int64_t)rank * g->shape->chunks + chunk];
}

static double share_of(const greedy_t *g, int32_t rank, int32_t chunk)
{
    return g->shape->share[(int64_t)rank * g->shape->chunks + chunk];
}

/* When the next forward of a chunk may start; infinite: not yet known, or not allowed. */
static double forward_start(const greedy_t *g, int32_t rank, int32_t chunk)
{
    const dp__shape_t *shape = g->shape;
    const dp_place_t *place = &shape->places[(int64_t)rank * shape->chunks + chunk];
    const progress_t *p = progress_of(g, rank, chunk);
    int32_t stages = shape->placement == DP_PLACE_LOOP || shape->placement == DP_PLACE_V ? shape->ranks * shape->chunks
                                                                                         : shape->ranks;
    double limit = fmax(1.0, g->rules->reach * (stages - place->stage) + g->rules->more), ready;

    if (p->forwards == shape->path_microbatches || p->forwards - p->backwards >= limit ||
        (g->cap >= 0.0 && g->timer->held[rank] + share_of(g, rank, chunk) > g->cap + 1e-9))
        return INFINITY;
    ready = dp__timer_ready(g->timer, shape, rank, DP_OP_F, chunk, p->forwards);
    return ready < 0.0 ? INFINITY : fmax(ready, g->timer->free[rank]);
}

static double backward_start(const greedy_t *g, int32_t rank, int32_t chunk)
{
    const progress_t *p = progress_of(g, rank, chunk);
    double ready;

    if (p->backwards == g->shape->path_microbatches)
        return INFINITY;
    ready = dp__timer_ready(g->timer, g->shape, rank, DP_OP_B, chunk, p->backwards);
    return ready < 0.0 ? INFINITY : fmax(ready, g->timer->free[rank]);
}

static void prefer_choice(choice_t *best, dp_op_t op, double start, double bias)
{
    if (start + bias < best->rank_by)
        *best = (choice_t){op, start, start + bias};
}

static dp_op_t single_op(int kind, int32_t chunk, int32_t microbatch)
{
    return (dp_op_t){
        .kind = (uint8_t)kind, .chunk = (int16_t)chunk, .microbatch = microbatch, .chunk2 = -1, .microbatch2 = -1};
}

/* The oldest weight gradient that waits; false when none does. */
static bool waiting_weight(const greedy_t *g, int32_t rank, dp_op_t *op, int32_t *count)
{
    int32_t most = 0;

    *count = 0;
    for (int32_t c = 0; c < g->shape->chunks; c++) {
        const progress_t *p = progress_of(g, rank, c);
        int32_t waiting = p->backwards - p->weights;

        *count += waiting;
        if (waiting > most)
            *op = single_op(DP_OP_W, c, p->weights);
        most = waiting > most ? waiting : most;
    }
    return most > 0;
}

static void consider_pairs(const greedy_t *g, int32_t rank, choice_t *best)
{
    double patience = g->rules->pair_patience * g->shape->cost[DP_OP_F], alone = best->start;

    for (int32_t f = 0; f < g->shape->chunks; f++) {
        for (int32_t b = 0; b < g->shape->chunks; b++) {
            double start = fmax(forward_start(g, rank, f), backward_start(g, rank, b));
            const progress_t *forward = progress_of(g, rank, f), *backward = progress_of(g, rank, b);
            dp_op_t op = {.kind = DP_OP_FB,
                          .chunk = (int16_t)f,
                          .microbatch = forward->forwards,
                          .chunk2 = (int16_t)b,
                          .microbatch2 = backward->backwards};

            /* weights are taken in order, so a pair's may not overtake those that wait */
            if (start <= alone + patience && backward->weights == backward->backwards &&
                (best->op.kind != DP_OP_FB || start < best->start))
                *best = (choice_t){op, start, start};
        }
    }
}

static choice_t choose_next(const greedy_t *g, int32_t rank)
{
    const double *cost = g->shape->cost;
    choice_t best = {single_op(DP_OP_W, -1, -1), INFINITY, INFINITY};
    dp_op_t weight = best.op;
    int32_t waiting;

    for (int32_t c = 0; c < g->shape->chunks; c++) {
        const progress_t *p = progress_of(g, rank, c);
        bool whole = !g->rules->split && p->weights == p->backwards;

        prefer_choice(&best, single_op(DP_OP_F, c, p->forwards), forward_start(g, rank, c),
                      g->rules->forward_bias * cost[DP_OP_F]);
        prefer_choice(&best, single_op(whole ? DP_OP_B : DP_OP_I, c, p->backwards), backward_start(g, rank, c), 0.0);
    }
    if (g->rules->pair && best.start < INFINITY)
        consider_pairs(g, rank, &best);
    if (waiting_weight(g, rank, &weight, &waiting) &&
        (waiting > g->rules->most_deferred ||
         best.start > g->timer->free[rank] + g->rules->patience * cost[DP_OP_W] + 1e-12))
        best = (choice_t){weight, g->timer->free[rank], 0.0};
    return best;
}

static void commit_choice(greedy_t *g, int32_t rank, const choice_t *choice)
{
    const dp_op_t *op = &choice->op;
    double end = choice->start + dp__shape_cost(g->shape, rank, op);
    bool pair = op->kind == DP_OP_FB, backward = op->kind == DP_OP_B || op->kind == DP_OP_I;
    int32_t back_chunk = pair ? op->chunk2 : op->chunk, back_mb = pair ? op->microbatch2 : op->microbatch;

    g->lists->ops[(int64_t)rank * g->lists->room + g->lists->count[rank]++] = *op;
    g->timer->free[rank] = end;
    if (op->kind == DP_OP_F || pair) {
        g->timer->forward[cell_of(g, rank, op->chunk, op->microbatch)] = end;
        g->timer->held[rank] += share_of(g, rank, op->chunk);
        progress_of(g, rank, op->chunk)->forwards++;
    }
    if (backward || pair) {
        g->timer->backward[cell_of(g, rank, back_chunk, back_mb)] = end;
        progress_of(g, rank, back_chunk)->backwards++;
    }
    if (op->kind == DP_OP_B || op->kind == DP_OP_W || pair) {
        g->timer->held[rank] -= share_of(g, rank, back_chunk);
        progress_of(g, rank, back_chunk)->weights++;
    }
}

static void reset_greedy(greedy_t *g)
{
    int64_t cells = cell_of(g, g->shape->ranks, 0, 0);

    for (int64_t c = 0; c < cells; c++)
        g->timer->forward[c] = g->timer->backward[c] = -1.0;
    for (int32_t r = 0; r < g->shape->ranks; r++) {
        g->timer->free[r] = g->timer->held[r] = 0.0;
        g->lists->count[r] = 0;
    }
}

bool dp__greedy_run(const dp__shape_t *shape, const dp__rules_t *rules, double cap, dp__list_timer_t *timer,
                    dp__lists_t *lists)
{
    greedy_t g = {shape, rules, cap, timer, lists, NULL};
    int64_t left = 0;
    bool going = true;

    g.progress = dp__calloc((size_t)shape->ranks * (size_t)shape->chunks, sizeof(*g.progress));
    if (g.progress == NULL)
        return false;
    reset_greedy(&g);
    while (going) {
        choice_t first = {.start = INFINITY};
        int32_t chosen = -1;

        for (int32_t r = 0; r < shape->ranks; r++) {
            choice_t choice = choose_next(&g, r);

            if (choice.start < first.start) {
                first = choice;
                chosen = r;
            }
        }
        going = chosen >= 0;
        if (going)
            commit_choice(&g, chosen, &first);
    }
    for (int64_t p = 0; p < (int64_t)shape->ranks * shape->chunks; p++)
        left += shape->path_microbatches - g.progress[p].weights;
    dp__free(g.progress);
    return left == 0;
}
