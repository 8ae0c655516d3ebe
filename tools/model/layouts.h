/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * layouts.h: all layouts of a job, the fastest that fits first. */
#ifndef DP_TOOLS_LAYOUTS_H
#define DP_TOOLS_LAYOUTS_H

#include "estimate.h"

/* 0 or below: any. */
typedef struct wanted {
    int32_t tp, pp, ep, dp, recompute;
    const char *method; /* NULL: any */
} wanted_t;

typedef struct layouts {
    answer_t *answers; /* that fit and were timed, by step; then others by what they hold */
    size_t count, timed;
    size_t tried;            /* numbers of ranks that there are */
    int64_t batch_left_over; /* of them, those among whose ranks the batch cannot be dealt evenly */
} layouts_t;

/* Free with layouts_clear in any case. */
dp_status_t layouts_find(const job_t *job, const wanted_t *wanted, layouts_t *layouts);
void layouts_clear(layouts_t *layouts);

#endif
