/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_run.h: a run of ours out of its trace, such that it can be simulated: the order of its
 * operations, and what they took. */
#ifndef DP_TOOLS_TRACE_RUN_H
#define DP_TOOLS_TRACE_RUN_H

#include <dualpipe/simulate.h>
#include <dualpipe/trace.h>
#include <stdbool.h>

/* Times are milliseconds. */
typedef struct trace_run {
    dp_schedule_t *schedule; /* as it ran; method "trace" */
    dp_program_t *program;
    /* what was measured, with segments where all of every stage were seen */
    dp_costs_t costs;
    dp_segment_costs_t segments;
    dp_measured_costs_t measured;
    double *rank_scale; /* [ranks] of two that hold a stage, each beside both */
    int32_t step;       /* the one of median length among those that are whole */
    double measured_step;
    bool metered;     /* the time that threads waited for cores is not in the costs */
    double step_time; /* simulated */
} trace_run_t;

/* DP_ERR_REJECTED: no run of ours, one of forwards alone or of planned braids, or not all of it.
 * Clear with trace_run_clear() in any case. */
dp_status_t trace_run_read(const dp_trace_t *trace, trace_run_t *run);
void trace_run_clear(trace_run_t *run);

#endif
