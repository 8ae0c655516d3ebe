/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * lanes.c: lanes.inc for each vector width, and which one this machine runs. */
#include "eplb/lanes.h"

#include <stddef.h>

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
#endif

/* AVX-512 was tried: on a processor that has it, 16 lanes took a tenth longer. */
static const dp__eplb_lanes_t widths[] = {
    {4, rank_4, first_most_4, pack_4},
#if defined(__x86_64__)
    {8, rank_8, first_most_8, pack_8},
#endif
};

const dp__eplb_lanes_t *dp__lanes_width(int32_t k)
{
    int32_t here = 1;

#if defined(__x86_64__)
    here += __builtin_cpu_supports("avx2") != 0;
#endif
    return k < here ? &widths[k] : NULL;
}

const dp__eplb_lanes_t *dp__eplb_lanes(void)
{
    const dp__eplb_lanes_t *wider = dp__lanes_width(1);

    return wider != NULL ? wider : dp__lanes_width(0);
}
