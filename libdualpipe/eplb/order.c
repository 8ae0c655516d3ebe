/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * order.c: counting positions for short lists, radix sort for long ones; both stable. */
#include "eplb/order.h"

void dp__eplb_positions(const dp__eplb_lanes_t *lanes, int32_t *key, int32_t n, int32_t *position_out)
{
    for (int32_t i = n; i % lanes->lanes != 0; i++)
        key[i] = -1;
    lanes->rank(key, n, position_out);
}

/* Eight bits at a time, from the low end; a byte that all keys share needs no pass. */
static void sort_radix(dp__eplb_scratch_t *scratch, const int32_t *key, int32_t n, int32_t *order_out)
{
    uint64_t *from = scratch->pairs, *to = scratch->pairs_too;
    uint32_t count[4][256] = {{0}};

    for (int32_t i = 0; i < n; i++) {
        uint32_t falling = ~(uint32_t)key[i];

        from[i] = (uint64_t)falling << 32 | (uint32_t)i;
        for (int byte = 0; byte < 4; byte++)
            count[byte][falling >> (8 * byte) & 255]++;
    }
    for (int byte = 0; byte < 4; byte++) {
        uint32_t sum = 0;

        if (count[byte][from[0] >> (32 + 8 * byte) & 255] == (uint32_t)n)
            continue;
        for (int value = 0; value < 256; value++) {
            uint32_t here = count[byte][value];
            count[byte][value] = sum;
            sum += here;
        }
        for (int32_t i = 0; i < n; i++)
            to[count[byte][from[i] >> (32 + 8 * byte) & 255]++] = from[i];
        uint64_t *other = from;
        from = to;
        to = other;
    }
    for (int32_t i = 0; i < n; i++)
        order_out[i] = (int32_t)(uint32_t)from[i];
}

void dp__eplb_order(dp__eplb_scratch_t *scratch, int32_t *key, int32_t n, int32_t *order_out)
{
    if (n > DP__EPLB_COUNTED) {
        sort_radix(scratch, key, n, order_out);
        return;
    }
    dp__eplb_positions(scratch->lanes, key, n, scratch->position);
    for (int32_t i = 0; i < n; i++)
        order_out[scratch->position[i]] = i;
}
