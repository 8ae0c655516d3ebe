/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * machine.h: the one run of a model: when each segment, operation and message takes place. */
#ifndef DP_SIMULATE_MACHINE_H
#define DP_SIMULATE_MACHINE_H

#include "program/commands.h"
#include "simulate/model.h"
#include "simulate/stages.h"

/* What the ranks do: commands of segments or, where the costs have none, whole operations. */
typedef struct dp__machine {
    const dp__model_t *model;
    dp__stages_t stages;
    dp__commands_t *commands; /* [ranks]; NULL: operations */
} dp__machine_t;

/* What a rank came to. */
typedef struct dp__rank_result {
    double first_start, last_end; /* of its operations; 0 and 0 when it has none */
    double busy;
} dp__rank_result_t;

/* Clear with dp__machine_clear, also after failure. */
dp_status_t dp__machine_make(const dp__model_t *model, dp__machine_t *out);
void dp__machine_clear(dp__machine_t *machine);

/* Spans of the fullest rank, one for its step included. */
int64_t dp__machine_spans(const dp__machine_t *machine);

/* results: [ranks]. timeline: with room for all spans, or NULL. */
dp_status_t dp__machine_run(const dp__machine_t *machine, dp__rank_result_t *results, dp_timeline_t *timeline);

/* Model time to nanoseconds of a timeline: a unit is a millisecond. Saturates. */
int64_t dp__model_ns(double time);

#endif
