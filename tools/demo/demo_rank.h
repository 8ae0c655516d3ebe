/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * demo_rank.h: one rank of a demo: a pipeline whose segments sleep. */
#ifndef DP_TOOLS_DEMO_RANK_H
#define DP_TOOLS_DEMO_RANK_H

#include <dualpipe/dualpipe.h>
#include <dualpipe/plan.h>
#include <dualpipe/run.h>

/* What the segments of a chunk take; segments.layers of them are in one chunk. */
typedef struct demo_pace {
    dp_segment_costs_t segments;
    const double *rank_scale; /* [ranks] NULL: 1 everywhere */
    double unit_ns;
} demo_pace_t;

/* Runs the steps, the ranks being threads of this process. *timeline_out: all steps; the caller
 * frees it. */
dp_status_t demo_ranks_run(const dp_schedule_t *schedule, const demo_pace_t *pace, int32_t steps,
                           dp_timeline_t **timeline_out);

#endif
