/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * greedy.h: list scheduling: what can start first is started, under rules of a few numbers. */
#ifndef DP_SEARCH_GREEDY_H
#define DP_SEARCH_GREEDY_H

#include "search/lists.h"
#include "search/moves.h"

typedef struct dp__rules {
    /* micro-batches in flight on a chunk, per stage from it to the end of its path */
    double reach;
    int32_t more;        /* and this many besides */
    double forward_bias; /* in forwards: how much later a backward may start and still go first */
    /* in weights: how long to stay idle rather than compute a weight gradient */
    double patience;
    int32_t most_deferred; /* weight gradients that may wait */
    bool split, pair;      /* I and W instead of B; FB where F and B can start together */
    /* in forwards: how much later the pair may start than one of its sides alone */
    double pair_patience;
} dp__rules_t;

dp__rules_t dp__rules_random(const dp__shape_t *shape, dp__search_random_t *random);

/* Fills the lists; false when the rules lead to a standstill. The timer's contents are used up. */
bool dp__greedy_run(const dp__shape_t *shape, const dp__rules_t *rules, double cap, dp__list_timer_t *timer,
                    dp__lists_t *lists);

#endif
