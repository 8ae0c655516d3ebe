/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * tournament.h: a tree of matches that keeps the first of the largest of n keys while keys change
 * one by one. */
#ifndef DP_EPLB_TOURNAMENT_H
#define DP_EPLB_TOURNAMENT_H

#include <stdint.h>

typedef struct dp__tournament {
    int32_t leaves; /* power of two, at least the number of keys */
    /* [2 * leaves] of the winner below each match; matches from 1, leaves from `leaves` */
    float *key;
    int32_t *winner; /* [2 * leaves] its number */
} dp__tournament_t;

static inline int32_t dp__tournament_leaves(int32_t keys)
{
    int32_t leaves = 1;

    while (leaves < keys)
        leaves *= 2;
    return leaves;
}

static inline void dp__tournament_match(dp__tournament_t *t, int32_t at)
{
    int32_t left = 2 * at, best = left + (t->key[left] < t->key[left + 1]);

    t->key[at] = t->key[best];
    t->winner[at] = t->winner[best];
}

/* After key[leaves + i] was set for all i < keys. `none` is below every key that can win. */
static inline void dp__tournament_start(dp__tournament_t *t, int32_t keys, float none)
{
    for (int32_t i = 0; i < t->leaves; i++)
        t->winner[t->leaves + i] = i;
    for (int32_t i = keys; i < t->leaves; i++)
        t->key[t->leaves + i] = none;
    for (int32_t at = t->leaves - 1; at >= 1; at--)
        dp__tournament_match(t, at);
}

static inline int32_t dp__tournament_first(const dp__tournament_t *t)
{
    return t->winner[1];
}

static inline void dp__tournament_set(dp__tournament_t *t, int32_t i, float key)
{
    t->key[t->leaves + i] = key;
    for (int32_t at = (t->leaves + i) / 2; at >= 1; at /= 2)
        dp__tournament_match(t, at);
}

#endif
