/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * list.h: list scheduling of all ranks on their lanes, under one set of rules. */
#ifndef DP_OVERLAP_LIST_H
#define DP_OVERLAP_LIST_H

#include "overlap/problem.h"

enum { STEADY, RAMP }; /* RAMP: before the first backward of a rank, or after its last forward */

/* What is urgent, and how long a lane waits for it. */
typedef struct dp__overlap_rules {
    bool free;                              /* urgency by position on the path; else by the place in the schedule */
    int32_t ahead[2];                       /* not free: how many forwards a forward may overtake: [STEADY], [RAMP] */
    int32_t alive[2];                       /* passes of a kind at once: [STEADY], [RAMP] */
    double forward, backward, begin, defer; /* urgency of a stage further on, back, of all I, and of W; in periods */
    double patience[2]
                   [LANES]; /* of a lane: [STEADY], [RAMP]: share of a segment's time that it waits for a better one */
    double weight_patience;
    double *shift; /* [PASS_KINDS * all chunks] what is added to urgency, in periods */
} dp__overlap_rules_t;

/* One segment of a pass, in the order of a rank. */
typedef struct dp__overlap_call {
    uint8_t kind;
    int16_t segment;
    int32_t chunk, microbatch;
} dp__overlap_call_t;

typedef struct dp__overlap_run dp__overlap_run_t;

/* NULL: no memory. */
dp__overlap_run_t *dp__overlap_run_open(const dp__overlap_problem_t *problem);
void dp__overlap_run_close(dp__overlap_run_t *run);

/* The step; infinite when passes are left that the memory keeps from starting. calls: NULL, or for each rank room for
 * all its segments, behind one another; count_out[rank] is how many there are. */
double dp__overlap_run(dp__overlap_run_t *run, const dp__overlap_rules_t *rules, dp__overlap_call_t *calls,
                       int64_t *count_out);
/* Of the last run: most held on a rank. */
double dp__overlap_run_peak(const dp__overlap_run_t *run);
/* Takes the times at which the passes of the last run began for their places in the schedule. */
void dp__overlap_run_places(const dp__overlap_run_t *run, dp__overlap_problem_t *problem);

/* Passes that a rank opens before all of them have ended: a braid holds no more. */
enum { OPENED_MOST = DP_BRAID_PASSES - 2 };

#endif
