/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * list.h: list scheduling of all ranks on their lanes, from the begin of the step or its end. */
#ifndef DP_OVERLAP_LIST_H
#define DP_OVERLAP_LIST_H

#include "overlap/graph.h"

/* Of a rank: before its first I, and after its last F has begun. */
enum { PHASE_FILL, PHASE_STEADY, PHASE_DRAIN, PHASES };

/* How a lane chooses. Next on it is the most urgent that the rules let begin, whether its
 * data are there or not; urgency is the time at which something is to begin. */
typedef struct dp__overlap_rules {
    /* how much less urgent than the next one a segment may be that goes first */
    double ahead[PHASES];
    /* share of a segment's time that a lane waits for a more urgent one; [LANES]: of a W */
    double patience[LANES + 1];
    double gap;            /* it waits for none that is not late by that much otherwise */
    int32_t alive[PHASES]; /* passes F at once, and I */
} dp__overlap_rules_t;

/* One segment of a pass, in the order of a rank. */
typedef struct dp__overlap_call {
    uint8_t kind;
    int16_t segment;
    int32_t chunk, microbatch;
} dp__overlap_call_t;

typedef struct dp__overlap_run dp__overlap_run_t;

/* NULL: no memory. */
dp__overlap_run_t *dp__overlap_run_open(const dp__overlap_graph_t *graph);
void dp__overlap_run_close(dp__overlap_run_t *run);

/* urgency: of each node, the lowest goes first. The step; infinite when passes are left that the
 * memory keeps from starting, or when it is sure to end after `limit`. reverse: time runs from the
 * end of the step, and what waits is waited for. calls: NULL, or room for all nodes, rank by rank;
 * count_out[rank] is how many there are of each. */
double dp__overlap_run(dp__overlap_run_t *run, const dp__overlap_rules_t *rules, const double *urgency, bool reverse,
                       double limit, dp__overlap_call_t *calls, int64_t *count_out);
/* Of the last run: when each node began, and the most held on a rank. */
const double *dp__overlap_run_starts(const dp__overlap_run_t *run);
double dp__overlap_run_peak(const dp__overlap_run_t *run);

/* Passes that a braid takes before it begins to end. */
enum { OPENED_MOST = DP_BRAID_PASSES - 2, ALIVE_MOST = 4 };

#endif
