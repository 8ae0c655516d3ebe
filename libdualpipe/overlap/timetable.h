/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * timetable.h: a family of schedules, as the times at which their segments are to begin. */
#ifndef DP_OVERLAP_TIMETABLE_H
#define DP_OVERLAP_TIMETABLE_H

#include "overlap/rules.h"

/* What tells one schedule of the family from another. Paces are of the passes of a rank. */
enum {
    TIMES_FIRST_GROUP, /* micro-batches that go through the chunks of a rank together */
    TIMES_FILL_PACE,   /* of F while the pipeline fills: 0 is that of their busiest lane, 1 of one
                        * after the other */
    TIMES_SPREAD,      /* how much of that pace keeps micro-batches of the first group apart */
    TIMES_FILLED,      /* share of the memory that is filled before the first backward */
    TIMES_F_SLOW,      /* what a first micro-batch takes on its way down, and up, of what it must */
    TIMES_I_SLOW,
    TIMES_LEADS, /* backwards that begin early, */
    TIMES_LEAD,  /* and by how much, of a micro-batch's computation */
    TIMES_GROUP,
    TIMES_LAST_GROUP,
    TIMES_STEADY_PACE, /* of F, I and W, of their computation */
    TIMES_DRAIN_PACE,  /* of I and W */
    TIMES_W_LATE,      /* from I to W, of a micro-batch's computation, */
    TIMES_W_LATE_LAST, /* where the pipeline empties, */
    TIMES_W_LATE_RANK, /* more so for each rank: the last ranks are done with I first */
    TIMES_W_LAST,      /* passes before the pipeline empties where that begins */
    TIMES
};

typedef struct dp__overlap_timetable {
    double of[TIMES];
} dp__overlap_timetable_t;

void dp__overlap_timetable_random(const dp__overlap_problem_t *problem, dp__overlap_random_t *random,
                                  dp__overlap_timetable_t *times);
/* One of them. */
void dp__overlap_timetable_change(const dp__overlap_problem_t *problem, dp__overlap_random_t *random,
                                  dp__overlap_timetable_t *times);
/* urgency: [nodes]. Of schedules with F, I and W. False: no memory. */
bool dp__overlap_timetable_write(const dp__overlap_graph_t *graph, const dp__overlap_timetable_t *times,
                                 double *urgency);

#endif
