/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * demo.h: a schedule run by the real engine, with segments that sleep instead of computing, beside
 * its simulation: what the schedule is worth on its own devices, seen on any machine. */
#ifndef DP_TOOLS_DEMO_H
#define DP_TOOLS_DEMO_H

#include <dualpipe/simulate.h>

typedef struct demo_request {
    const char *method;
    const char *label;                   /* the schedule is called so; NULL: as the method */
    int32_t forwards;                    /* of dp_forwards_t, of forwards alone; -1: training */
    int32_t ranks, microbatches, chunks; /* chunks 0: the method's own */
    const dp_segment_costs_t *segments;  /* of a layer of a device, in units */
    double hop;                          /* of the simulation, in units */
    const double *rank_scale;            /* [ranks], as in dp_costs_t; NULL: 1 everywhere */
    double unit_ns;                      /* of sleep; 0: simulate only */
    int32_t steps;                       /* the shortest is taken */
} demo_request_t;

/* One of the two runs. */
typedef struct demo_figures {
    double step;   /* units */
    double bubble; /* share of the step in which nothing of a chunk runs, mean over ranks */
    /* share of dispatch and combine during which attention or MLP ran; NaN: there are none */
    double hidden;
} demo_figures_t;

typedef struct demo_result {
    dp_schedule_t *schedule;
    demo_figures_t simulated, measured;
    dp_timeline_t *timeline; /* the measured step, from time 0; NULL: simulated only */
} demo_result_t;

/* DP_ERR_INVALID: the method refuses these sizes; the message says why. Free with demo_clear in any
 * case. */
dp_status_t demo_run(const demo_request_t *request, demo_result_t *result_out);
void demo_clear(demo_result_t *result);

#endif
