/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * order.h: the sort of the method: descending, equal loads in ascending order of their number. */
#ifndef DP_EPLB_ORDER_H
#define DP_EPLB_ORDER_H

#include "eplb/scratch.h"

#include <string.h>

/* Bits of a float that is not negative order as the float does. Minus zero becomes zero. */
static inline int32_t dp__eplb_key(float load)
{
    int32_t key;

    load += 0.0f;
    memcpy(&key, &load, sizeof(key));
    return key;
}

static inline float dp__eplb_load(int32_t key)
{
    float load;

    memcpy(&load, &key, sizeof(load));
    return load;
}

/* order_out[position] = number of the key. key has room for DP__LANES_MOST values beyond n, which
 * it changes. */
void dp__eplb_order(dp__eplb_scratch_t *scratch, int32_t *key, int32_t n, int32_t *order_out);
/* position_out[number] = position, for n up to DP__EPLB_COUNTED, with room as key has. */
#define DP__EPLB_COUNTED 256
void dp__eplb_positions(const dp__eplb_lanes_t *lanes, int32_t *key, int32_t n, int32_t *position_out);

#endif
