/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * rules.c: rules by chance. */
#include "overlap/rules.h"

#include <math.h>
#include <string.h>

static size_t shifts(const dp__overlap_problem_t *p)
{
    return PASS_KINDS * (size_t)p->ranks * (size_t)p->chunks;
}

/* splitmix64. */
static uint64_t next(dp__overlap_random_t *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double dp__overlap_unit(dp__overlap_random_t *random)
{
    return (double)(next(random) >> 11) * 0x1p-53;
}

static int32_t below(dp__overlap_random_t *random, int32_t n)
{
    return (int32_t)(next(random) % (uint64_t)n);
}

/* 0 with that chance, else up to 1. */
static double often_zero(dp__overlap_random_t *random, double chance)
{
    return dp__overlap_unit(random) < chance ? 0.0 : dp__overlap_unit(random);
}

/* Up to `most`, small ones as often as large ones. */
static double spread(dp__overlap_random_t *random, double most)
{
    return most * exp(-4.5 * dp__overlap_unit(random));
}

void dp__overlap_rules_plain(const dp__overlap_problem_t *p, dp__overlap_rules_t *rules)
{
    double *shift = rules->shift;

    *rules = (dp__overlap_rules_t){.alive = {1, 1}, .shift = shift};
    memset(shift, 0, shifts(p) * sizeof(*shift));
}

static void set_patience(dp__overlap_random_t *random, dp__overlap_rules_t *rules)
{
    for (int phase = 0; phase < 2; phase++)
        for (int lane = 0; lane < LANES; lane++)
            rules->patience[phase][lane] = often_zero(random, 0.4);
    rules->weight_patience = often_zero(random, 0.3);
}

static void set_alive(dp__overlap_random_t *random, dp__overlap_rules_t *rules)
{
    rules->alive[STEADY] = 1 + below(random, 2);
    rules->alive[RAMP] = 1 + below(random, 2);
}

static void set_ahead(dp__overlap_random_t *random, dp__overlap_rules_t *rules)
{
    rules->ahead[STEADY] = below(random, 3) > 0 ? 0 : below(random, 8);
    rules->ahead[RAMP] = below(random, 3) > 0 ? below(random, 8) : below(random, 32);
}

void dp__overlap_rules_random(const dp__overlap_problem_t *p, dp__overlap_random_t *random, dp__overlap_rules_t *rules)
{
    double stage = (double)p->paths * p->ranks / p->stages; /* what a chunk is of a rank's share */

    dp__overlap_rules_plain(p, rules);
    rules->free = below(random, 2) == 0;
    rules->begin = (dp__overlap_unit(random) - 0.5) * (rules->free ? p->ranks : 2.0) * below(random, 2);
    rules->defer = spread(random, rules->free ? p->ranks : 4.0) * below(random, 4);
    rules->forward = spread(random, 4.0 * stage);
    rules->backward = spread(random, 4.0 * stage);
    set_patience(random, rules);
    set_alive(random, rules);
    set_ahead(random, rules);
}

static void change_shifts(const dp__overlap_problem_t *p, dp__overlap_random_t *random, dp__overlap_rules_t *rules)
{
    for (int32_t k = 1 + below(random, 4); k > 0; k--)
        rules->shift[below(random, (int32_t)shifts(p))] += (dp__overlap_unit(random) - 0.5) * spread(random, 2.0);
}

void dp__overlap_rules_change(const dp__overlap_problem_t *p, dp__overlap_random_t *random, dp__overlap_rules_t *rules)
{
    double factor = exp(dp__overlap_unit(random) - 0.5);

    switch (below(random, 10)) {
    case 0:
        rules->forward *= factor;
        break;
    case 1:
        rules->backward *= factor;
        break;
    case 2:
        rules->begin += factor - 1.0;
        break;
    case 3:
        rules->defer *= factor;
        break;
    case 4:
        set_ahead(random, rules);
        break;
    case 5:
        set_alive(random, rules);
        break;
    case 6:
        set_patience(random, rules);
        break;
    case 7:
        rules->weight_patience = often_zero(random, 0.3);
        break;
    case 8:
        rules->patience[below(random, 2)][below(random, LANES)] = often_zero(random, 0.3);
        break;
    default:
        change_shifts(p, random, rules);
    }
}

void dp__overlap_rules_copy(const dp__overlap_problem_t *p, const dp__overlap_rules_t *from, dp__overlap_rules_t *to)
{
    double *shift = to->shift;

    memcpy(shift, from->shift, shifts(p) * sizeof(*shift));
    *to = *from;
    to->shift = shift;
}
