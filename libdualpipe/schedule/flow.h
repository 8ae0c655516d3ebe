/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * flow.h: lanes of steps that wait for steps of other lanes: does everything run, when, and if not,
 * around which cycle.
 *
 * A lane runs its steps in order. A step may wait until another lane has finished some step.
 * Nothing chooses, so if one order of execution finishes, all do; a run that gets stuck proves a
 * deadlock. */
#ifndef DP_SCHEDULE_FLOW_H
#define DP_SCHEDULE_FLOW_H

#include <dualpipe/status.h>
#include <stdbool.h>

/* Step `position` of `lane` has finished. */
typedef struct dp__need {
    int32_t lane, position;
} dp__need_t;

typedef struct dp__flow {
    int32_t lanes;
    const int32_t *length; /* [lanes] steps */
    const void *context;
    /* The k-th thing (from 0) that a step waits for besides the step before it; false: no more. */
    bool (*need)(const void *context, int32_t lane, int32_t position, int32_t k, dp__need_t *need_out);
    /* Writes a step's name, like "rank 1 F chunk 0 mb 3 (op 5)". */
    void (*name)(const void *context, int32_t lane, int32_t position, char *text, size_t bytes);
    /* Optional: durations of steps, and where their ends go: end[first[lane] + position]. */
    int32_t (*cost)(const void *context, int32_t lane, int32_t position);
    const int64_t *first;
    int64_t *end;
} dp__flow_t;

/* Runs everything. *progress_out (caller frees with dp__free; [lanes]) counts finished steps; all
 * of them on DP_OK. When the run gets stuck: DP_ERR_REJECTED without a message. */
dp_status_t dp__flow_run(const dp__flow_t *flow, int32_t **progress_out);

/* For a stuck run: records the shortest cycle among the unfinished steps as the error message,
 * prefixed by `what`, and returns DP_ERR_REJECTED. In very large programs the search stops early
 * and shows a short cycle instead. */
dp_status_t dp__flow_explain(const dp__flow_t *flow, const int32_t *progress, const char *what);

/* Both: runs, explains, cleans up. */
dp_status_t dp__flow_prove(const dp__flow_t *flow, const char *what);

#endif
