/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * simulate.h: event-driven run of a program under a cost model; its result is a timeline like any other. */
#ifndef DUALPIPE_SIMULATE_H
#define DUALPIPE_SIMULATE_H

#include <dualpipe/program.h>
#include <dualpipe/timeline.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Costs, in any one unit of time, for the work of one device on one micro-batch: with C chunks on a rank that share the
 *  model (V, loop), a chunk costs 1/C of these. Bidirectional ranks hold full-size stages: a chunk costs the whole. */
typedef struct dp_costs {
    uint32_t struct_size;
    double f, i, w;      /* forward, backward for input, backward for weights               */
    double b;            /* full backward; < 0: i + w                                       */
    double fb;           /* overlapped pair; < 0: f + b                                     */
    double hop;          /* latency of one transfer between ranks, not occupying the rank    */
    double barrier;      /* 1: all ranks meet at the end of the step (optimizer), else 0     */
    const double *stage_scale; /* [stages of a path] factor per stage; NULL: 1 everywhere    */
} dp_costs_t;

typedef struct dp_simulation {
    uint32_t struct_size;
    double step_time;           /* first start to last end                                                   */
    double formula_bubble;      /* the published formula for this method, NaN when there is none              */
    int32_t ranks;
    double *bubble;             /* [ranks] step_time minus busy time                                          */
    double *peak_activations;   /* [ranks] most held at once, in units of one rank's stage inputs (a chunk that
                                   is 1/C of a device counts 1/C)                                              */
    dp_timeline_t *timeline;    /* times scaled by 1e6 (one unit = 1 ms); NULL unless asked for                */
} dp_simulation_t;

/** Runs the program. with_timeline 1 keeps the spans. Free the result with dp_simulation_clear(). DP_ERR_REJECTED when the
 *  program cannot finish. [any] */
DP_API dp_status_t dp_simulate(const dp_program_t *program, dp_transport_t transport, const dp_costs_t *costs,
                               int with_timeline, dp_simulation_t *result);
DP_API void dp_simulation_clear(dp_simulation_t *result);

#ifdef __cplusplus
}
#endif
#endif
