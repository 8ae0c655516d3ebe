/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * rules.c: rules by chance. */
#include "overlap/rules.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"

/* splitmix64. */
static uint64_t next_random(dp__overlap_random_t *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double dp__overlap_unit(dp__overlap_random_t *random)
{
    return (double)(next_random(random) >> 11) * 0x1p-53;
}

static int32_t random_below(dp__overlap_random_t *random, int32_t n)
{
    return (int32_t)(next_random(random) % (uint64_t)n);
}

/* 0 with that chance, else up to 1. */
static double often_zero(dp__overlap_random_t *random, double chance)
{
    return dp__overlap_unit(random) < chance ? 0.0 : dp__overlap_unit(random);
}

/* Up to `most`, small ones as often as large ones. */
static double random_spread(dp__overlap_random_t *random, double most)
{
    return most * exp(-4.5 * dp__overlap_unit(random));
}

static void set_patience(dp__overlap_random_t *random, dp__overlap_rules_t *rules, int which)
{
    rules->patience[which] = random_below(random, 2) == 0 ? 1.0 : often_zero(random, 0.4);
}

static void set_gap(double period, dp__overlap_random_t *random, dp__overlap_rules_t *rules)
{
    rules->gap = random_below(random, 4) == 0 ? 0.0 : random_spread(random, period);
}

static void set_ahead(double period, dp__overlap_random_t *random, dp__overlap_rules_t *rules, int phase)
{
    int kind = random_below(random, 4);

    rules->ahead[phase] = phase == PHASE_STEADY ? (kind < 3 ? 0.0 : random_spread(random, period))
                          : kind == 0           ? 0.0
                          : kind == 1           ? INFINITY
                                                : random_spread(random, 8.0 * period);
}

static void set_alive(dp__overlap_random_t *random, dp__overlap_rules_t *rules, int phase)
{
    rules->alive[phase] = 1 + (random_below(random, 3) > 0);
}

void dp__overlap_rules_random(double period, dp__overlap_random_t *random, dp__overlap_rules_t *rules)
{
    for (int phase = 0; phase < PHASES; phase++) {
        set_ahead(period, random, rules, phase);
        set_alive(random, rules, phase);
    }
    for (int k = 0; k <= LANES; k++)
        set_patience(random, rules, k);
    set_gap(period, random, rules);
}

void dp__overlap_rules_change(double period, dp__overlap_random_t *random, dp__overlap_rules_t *rules)
{
    int which = random_below(random, LANES + 2 + 2 * PHASES);

    if (which <= LANES)
        set_patience(random, rules, which);
    else if (which == LANES + 1)
        set_gap(period, random, rules);
    else if (which < LANES + 2 + PHASES)
        set_ahead(period, random, rules, which - LANES - 2);
    else
        set_alive(random, rules, which - LANES - 2 - PHASES);
}

void dp__overlap_urgency_random(const dp__overlap_graph_t *graph, dp__overlap_random_t *random, double *urgency)
{
    const dp__overlap_problem_t *p = graph->problem;
    double stage = (double)p->paths * p->ranks / p->stages; /* what a chunk is of a rank's share */
    double forward = random_spread(random, 4.0 * stage), backward = random_spread(random, 4.0 * stage);
    double begin = (dp__overlap_unit(random) - 0.5) * p->ranks * random_below(random, 2);
    double defer = random_spread(random, p->ranks) * random_below(random, 4);

    for (int32_t w = 0; w < graph->walks; w++) {
        const dp__overlap_walk_t *walk = &graph->walk[w];
        double at = (double)walk->microbatch * p->paths;
        int32_t on = p->chunk[walk->chunk].stage;

        at += walk->kind == PASS_F ? on * forward : begin + p->stages * forward + (p->stages - 1 - on) * backward;
        at += walk->kind == PASS_W ? defer : 0.0;
        for (int32_t k = 0; k < walk->count; k++)
            urgency[walk->first + k] = at * p->period;
    }
}

void dp__overlap_urgency_change(const dp__overlap_graph_t *graph, double step, dp__overlap_random_t *random,
                                double *urgency)
{
    const dp__overlap_problem_t *p = graph->problem;
    int part = random_below(random, 3);
    double length = random_spread(random, step / 4.0), edge = fmin(step, 0.25 * step);
    double from = part == 0   ? edge * dp__overlap_unit(random) - 0.5 * length
                  : part == 1 ? step - edge * dp__overlap_unit(random) - 0.5 * length
                              : step * dp__overlap_unit(random);
    double to = from + length;
    double most = random_spread(random, 4.0 * p->period), by = (2.0 * dp__overlap_unit(random) - 1.0) * most;
    int kind = random_below(random, PASS_KINDS + 2);
    int32_t rank = random_below(random, 2) == 0 ? -1 : random_below(random, p->ranks);
    int32_t chunk = random_below(random, 2) == 0 ? -1 : random_below(random, p->chunks);
    bool all_alike = random_below(random, 3) > 0;

    for (int32_t w = 0; w < graph->walks; w++) {
        const dp__overlap_walk_t *walk = &graph->walk[w];
        double when = urgency[walk->first];

        if (when < from || when > to || (kind < PASS_KINDS && walk->kind != kind) ||
            (rank >= 0 && p->chunk[walk->chunk].rank != rank) || (chunk >= 0 && walk->chunk % p->chunks != chunk))
            continue;
        if (!all_alike || kind >= PASS_KINDS)
            by = (2.0 * dp__overlap_unit(random) - 1.0) * most;
        for (int32_t k = 0; k < walk->count; k++)
            urgency[walk->first + k] += by;
    }
}

typedef struct placed {
    double time;
    int32_t walk;
} placed_t;

static int compare_placed(const void *a, const void *b)
{
    const placed_t *x = a, *y = b;

    return x->time != y->time ? (x->time < y->time ? -1 : 1) : x->walk - y->walk;
}

static void move_walk(const dp__overlap_graph_t *graph, int32_t walk, double by, double *urgency)
{
    for (int32_t k = graph->walk[walk].first; k < graph->walk[walk].first + graph->walk[walk].count; k++)
        urgency[k] += by;
}

/* Micro-batches of the first stage of a path that leave the order of a rank, and where they go. */
typedef struct lifted {
    int32_t from, count;
    double to, apart;
} lifted_t;

/* What follows moves up by as many places as have become free. A W goes with its I. */
static void lift_passes(const dp__overlap_graph_t *graph, int32_t rank, int kind, lifted_t what, placed_t *list,
                        double *urgency)
{
    const dp__overlap_problem_t *p = graph->problem;
    int32_t n = p->chunks * p->microbatches, first = dp__overlap_walk_at(p, kind, rank * p->chunks, 0), lifted = 0;

    for (int32_t k = 0; k < n; k++)
        list[k] = (placed_t){urgency[graph->walk[first + k].first], first + k};
    qsort(list, (size_t)n, sizeof(*list), compare_placed);
    for (int32_t k = 0; k < n; k++) {
        const dp__overlap_walk_t *walk = &graph->walk[list[k].walk];
        double by = list[k - lifted].time - list[k].time;

        if (walk->chunk % p->chunks == 0 && walk->microbatch >= what.from && walk->microbatch < what.from + what.count)
            by = what.to + lifted++ * what.apart - list[k].time;
        move_walk(graph, list[k].walk, by, urgency);
        if (kind == PASS_I)
            move_walk(graph, dp__overlap_walk_at(p, PASS_W, walk->chunk, walk->microbatch), by, urgency);
    }
}

bool dp__overlap_urgency_lift(const dp__overlap_graph_t *graph, double step, dp__overlap_random_t *random,
                              double *urgency)
{
    const dp__overlap_problem_t *p = graph->problem;
    placed_t *list = dp__calloc((size_t)p->chunks * (size_t)p->microbatches, sizeof(*list));
    int32_t most = p->ranks < p->microbatches ? p->ranks : p->microbatches, n = p->chunks * p->microbatches;
    int32_t count = random_below(random, most + 1),
            last = random_below(random, 2) == 0 ? count : random_below(random, most + 1);
    double early = dp__overlap_unit(random), late = dp__overlap_unit(random);

    for (int32_t r = 0; r < p->ranks && list != NULL; r++) {
        double filled = INFINITY, drained = 0.0;
        const dp__overlap_walk_t *f = &graph->walk[dp__overlap_walk_at(p, PASS_F, r * p->chunks, 0)];
        const dp__overlap_walk_t *i = &graph->walk[dp__overlap_walk_at(p, PASS_I, r * p->chunks, 0)];

        for (int32_t k = 0; k < n; k++) {
            filled = fmin(filled, urgency[i[k].first]);
            drained = fmax(drained, urgency[f[k].first]);
        }
        lift_passes(graph, r, PASS_F, (lifted_t){most, count, filled * early, filled * (1.0 - early) / (count + 1)},
                    list, urgency);
        lift_passes(graph, r, PASS_I,
                    (lifted_t){p->microbatches - most - last, last, drained, (step - drained) * late / (last + 1)},
                    list, urgency);
    }
    dp__free(list);
    return list != NULL;
}
