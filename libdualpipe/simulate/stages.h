/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * stages.h: the segments of every stage of a schedule, with what they take. */
#ifndef DP_SIMULATE_STAGES_H
#define DP_SIMULATE_STAGES_H

#include <dualpipe/simulate.h>

#include "program/pair.h"

typedef struct dp__stage_costs {
    dp__stage_shape_t shape;
    const dp_segment_cost_t *list; /* [shape.nsegments] */
    const double *r;               /* the same; NULL: all 0 */
    double scale;
} dp__stage_costs_t;

typedef struct dp__stages {
    dp__stage_costs_t *at;     /* [stages of a path] */
    dp_segment_cost_t *layers; /* of stages that are alike */
    double *layers_r;
    dp__segment_shape_t *shapes;
} dp__stages_t;

/* The segments of one layer, in forward order: how many. */
int32_t dp__layer_costs(const dp_segment_costs_t *costs, dp_segment_cost_t out[DP__LAYER_SEGMENTS],
                        double r_out[DP__LAYER_SEGMENTS]);

/* costs: resolved, with segments. Clear with dp__stages_clear, also after failure. */
dp_status_t dp__stages_make(const dp_schedule_t *schedule, const dp_costs_t *costs, dp__stages_t *out);
void dp__stages_clear(dp__stages_t *stages);

#endif
