/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * search_moves.h: small random changes to one rank's list. What is computed stays the same, in which order may become
 * impossible: timing tells. */
#ifndef DP_TOOLS_SEARCH_MOVES_H
#define DP_TOOLS_SEARCH_MOVES_H

#include "search_lists.h"

typedef struct search_random {
    uint64_t state;
} search_random_t;

/* 0 <= result < n */
int32_t random_below(search_random_t *random, int32_t n);
/* 0 <= result < 1 */
double random_unit(search_random_t *random);

/* Changes the list of a rank, which it returns, or returns -1 having changed nothing. */
int32_t move_random(const shape_t *shape, lists_t *lists, search_random_t *random);

#endif
