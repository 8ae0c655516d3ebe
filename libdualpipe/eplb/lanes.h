/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * lanes.h: the loops that take the time, in vectors; packing takes several problems of one size
 * side by side. */
#ifndef DP_EPLB_LANES_H
#define DP_EPLB_LANES_H

#include <stdint.h>

#define DP__LANES_MOST 8
/* Arrays for these loops start on a multiple of this. */
#define DP__LANES_ALIGNMENT 64

typedef struct dp__eplb_lanes {
    int32_t lanes; /* problems at once: 4 or 8 */
    /* rank_out[i]: position of key i in descending order, equal keys in ascending order of i. Keys
     * are bits of floats that are not negative. Both arrays hold a multiple of `lanes` values: keys
     * beyond n are -1. */
    void (*rank)(const int32_t *keys, int32_t n, int32_t *rank_out);
    /* Number of the first of the largest of n keys, which are padded as above. */
    int32_t (*first_most)(const int32_t *keys, int32_t n);
    /* Puts `items` items in order into the first of the least loaded of `bins` bins that have fewer
     * than `capacity`. share [items][lanes], bin_out [items][lanes], load and room [bins][lanes]:
     * to work in. */
    void (*pack)(const float *share, int32_t items, int32_t bins, int32_t capacity, float *load, int32_t *room,
                 int32_t *bin_out);
} dp__eplb_lanes_t;

/* The widest that this machine has; all give the same answers. */
const dp__eplb_lanes_t *dp__eplb_lanes(void);
/* Each width that this machine has: k from 0 until NULL. */
const dp__eplb_lanes_t *dp__lanes_width(int32_t k);

#endif
