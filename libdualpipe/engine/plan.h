/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * plan.h: this rank's commands with links, memory and span records; a step of them, enqueued or
 * captured. */
#ifndef DP_ENGINE_PLAN_H
#define DP_ENGINE_PLAN_H

#include "group/spans.h"
#include "program/commands.h"

#include <dualpipe/pipeline.h>
#include <stdbool.h>

/* What the engine adds to a pass of the commands. */
typedef struct dp__pass {
    int32_t microbatch, half; /* of the step; accumulator */
    int32_t source, dest;     /* links; -1: none */
} dp__pass_t;

/* plan.c: the commands of a program of ours, every index resolved. */
typedef struct dp__plan {
    const dp_program_t *program;
    dp__commands_t commands;
    dp__pass_t *passes; /* [commands.npasses] */
    /* [commands.count] record of a command, -1: none. A bundle's transfers have one each, in a row
     * */
    int32_t *span;
    int32_t nspans;
    /* templates: all but step and times. The step, then gathers of chunks, if any, then commands */
    dp_span_t *spans;
    int32_t *messages; /* [nlinks] per step */
    int32_t *link;     /* [nchannels] of this program, -1: not ours */
} dp__plan_t;

/* A step of one kind as the device replays it. */
typedef struct dp__graph {
    dp_graph_t *graph; /* NULL: not captured yet */
    int64_t runs;
    const void **lent; /* [3][M] inputs, targets, outputs of the capture */
    double loss_scale;
    uint64_t revision; /* of all stages */
} dp__graph_t;

/* programs.c: what is run, and the same in this rank's own terms. A backend that completes
 * transfers in bundles runs other lists of a schedule than one that is one-sided. */
typedef struct dp__programs {
    dp_schedule_t *own_schedule, *forward_schedule;
    dp_program_t *training, *forward; /* forward: NULL when the schedule is forward-only itself */
    int bundled;
    int32_t slots; /* a channel; 0: as lowering has it */
} dp__programs_t;

typedef struct dp__plans {
    dp__plan_t training, forward;
} dp__plans_t;

enum { DP__RUNNING = 32 }; /* DP_BRAID_PASSES of them may be alive */

/* enqueue.c: a pass whose segments are being enqueued. */
typedef struct dp__running {
    int32_t pass;
    dp_segment_call_t call;
} dp__running_t;

/* graph.c */
enum { DP__GRAPHS = 5 }; /* training: zeroes or adds, sums or not; forward only */

typedef struct dp__graphs {
    dp__graph_t at[DP__GRAPHS];
    int replayed; /* the latest step put nothing on the lanes but a graph */
} dp__graphs_t;

/* step.c: says that no step follows. */
void dp__step_tell_closed(dp_pipeline_t *p);
/* enqueue.c: puts all of a step on the lanes. */
dp_status_t dp__step_put(dp_pipeline_t *p, const dp__plan_t *plan, const dp_step_t *step);

/* Whether the gradients are complete with this step. rounds is set. */
static inline bool dp__last_round(const dp_step_t *step)
{
    return step->round + 1 == step->rounds;
}

/* graph.c; nothing without options.graph. forget: what was captured is of no use any more, every
 * stream is idle. */
dp_status_t dp__graphs_open(dp_pipeline_t *p);
void dp__graphs_forget(dp_pipeline_t *p);
void dp__graphs_close(dp_pipeline_t *p);
dp_status_t dp__graph_put(dp_pipeline_t *p, const dp__plan_t *plan, const dp_step_t *step);

/* plan.c */
dp_status_t dp__plans_build(dp_pipeline_t *p);
void dp__plans_free(dp_pipeline_t *p);

/* programs.c */
dp_status_t dp__schedule_make(dp_pipeline_t *p);
dp_status_t dp__programs_make(dp_pipeline_t *p);
void dp__programs_free(dp_pipeline_t *p);

#endif
