/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * pair.h: which operation a span shares with others, in one byte. */
#ifndef DP_TIMELINE_PAIR_H
#define DP_TIMELINE_PAIR_H

#include <dualpipe/timeline.h>

/* number: of an operation of several passes, from 1, unlike its neighbours'; 0: of one pass. */
static inline uint8_t dp__span_pair(int64_t number)
{
    return number == 0 ? 0 : (uint8_t)(1 + (number - 1) % DP_SPAN_PAIRS);
}

#endif
