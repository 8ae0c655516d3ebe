/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * layouts.h: all layouts of a job. */
#ifndef DP_MODEL_LAYOUTS_H
#define DP_MODEL_LAYOUTS_H

#include "estimate.h"

enum { DP__MOST_STAGES = 64 };

struct dp_layouts {
    dp__job_t job;
    const dp_layout_request_t *asked; /* during dp_layouts_find() */
    dp_layout_t *rows;
    int32_t count, timed, tried, uneven;
    char advice[400];
};

/* Fills rows, the fastest that fit first, and the counts. */
dp_status_t dp__layouts_fill(dp_layouts_t *all);
void dp__layouts_advise(dp_layouts_t *all);

#endif
