/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run.h: the run of a model: when each operation and transfer takes place. */
#ifndef DP_SIMULATE_RUN_H
#define DP_SIMULATE_RUN_H

#include "simulate/model.h"

/* What a rank came to. */
typedef struct dp__rank_result {
    double first_start, last_end; /* of its operations; 0 and 0 when it has none */
    double busy, peak_activations;
} dp__rank_result_t;

/* results: [ranks]. timeline: with room for all spans, or NULL. */
dp_status_t dp__run(const dp__model_t *model, dp__rank_result_t *results, dp_timeline_t *timeline);

/* Model time to nanoseconds of a timeline: a unit is a millisecond. Saturates. */
int64_t dp__model_ns(double time);

#endif
