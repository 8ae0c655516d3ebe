/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moves.h: small random changes to one rank's list. What is computed stays the same, in which order
 * may become impossible: timing tells. */
#ifndef DP_SEARCH_MOVES_H
#define DP_SEARCH_MOVES_H

#include "search/lists.h"

typedef struct dp__search_random {
    uint64_t state;
} dp__search_random_t;

/* 0 <= result < n */
int32_t dp__random_below(dp__search_random_t *random, int32_t n);
/* 0 <= result < 1 */
double dp__random_unit(dp__search_random_t *random);

/* Changes the list of a rank, which it returns, or returns -1 having changed nothing. */
int32_t dp__move_random(const dp__shape_t *shape, dp__lists_t *lists, dp__search_random_t *random);

/* Behind the last forward of each rank, B becomes I, and its W comes `lag` such I later. */
void dp__move_weights_later(const dp__shape_t *shape, const dp__lists_t *from, int32_t lag, dp__lists_t *to);

#endif
