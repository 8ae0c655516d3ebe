/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * lanes.c: lanes.inc for each vector width, and which one this machine runs. */
#include "eplb/lanes.h"

#include <stddef.h>

#pragma GCC optimize("O3")

#define LANES 4
#define TARGET
#define NAME(x) x##_4
#include "eplb/lanes.inc"
#undef LANES
#undef TARGET
#undef NAME

#if defined(__x86_64__)
#define LANES   8
#define TARGET  __attribute__((target("avx2")))
#define NAME(x) x##_8
#include "eplb/lanes.inc"
#undef LANES
#undef TARGET
#undef NAME

#define LANES   16
#define TARGET  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define NAME(x) x##_16
#include "eplb/lanes.inc"
#undef LANES
#undef TARGET
#undef NAME
#endif

static const dp__lanes_t widths[] = {{4, rank_4, pack_4},
#if defined(__x86_64__)
                                     {8, rank_8, pack_8},
                                     {16, rank_16, pack_16}
#endif
};

const dp__lanes_t *dp__lanes_width(int32_t k)
{
    int32_t here = 1;

#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        here = 2;
    if (here == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        here = 3;
#endif
    return k < here ? &widths[k] : NULL;
}

const dp__lanes_t *dp__lanes(void)
{
    int32_t k = 0;

    while (dp__lanes_width(k + 1) != NULL)
        k++;
    return dp__lanes_width(k);
}
