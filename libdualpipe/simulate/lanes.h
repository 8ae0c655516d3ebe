/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * lanes.h: the run of a model by segments on lanes. */
#ifndef DP_SIMULATE_LANES_H
#define DP_SIMULATE_LANES_H

#include "program/commands.h"
#include "simulate/run.h"
#include "simulate/stages.h"

typedef struct dp__lanes_model {
    const dp__model_t *model;
    dp__stages_t stages;
    dp__commands_t *commands; /* [ranks] */
} dp__lanes_model_t;

/* Clear with dp__lanes_clear, also after failure. */
dp_status_t dp__lanes_make(const dp__model_t *model, dp__lanes_model_t *out);
void dp__lanes_clear(dp__lanes_model_t *lanes);

/* Spans of the fullest rank. */
int64_t dp__lanes_spans(const dp__lanes_model_t *lanes);

/* As dp__run. */
dp_status_t dp__lanes_run(const dp__lanes_model_t *lanes, dp__rank_result_t *results, dp_timeline_t *timeline);

#endif
