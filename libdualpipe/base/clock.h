/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * clock.h: the clocks. */
#ifndef DP_BASE_CLOCK_H
#define DP_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t dp__clock_ns(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Monotonic nanoseconds. */
static inline int64_t dp__now_ns(void)
{
    return dp__clock_ns(CLOCK_MONOTONIC);
}

static inline double dp__now_seconds(void)
{
    return 1e-9 * (double)dp__now_ns();
}

#endif
