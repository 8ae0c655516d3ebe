/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * engine.h: the pipeline handle as its files see it.
 *
 *   open.c     options, order of set-up and tear-down
 *   agree.c    what must be the same on all ranks
 *   comms.c    the groups a rank belongs to, channels, swapping the backend
 *   chunks.c   stages of this rank with their parameters, gradients and in-flight memory
 *   plan.c     this rank's list of the program turned into actions with every index resolved
 *   ways.c     streams of group backends: one for each peer and direction
 *   step.c     enqueues the actions; the only code that runs in a step
 *   graph.c    a step captured once and replayed
 *   reduce.c   gradients of halves, mirrors and data groups summed
 *   fault.c    a failure: what was being done, telling the job, bringing the lanes to rest
 *   profile.c  the same for a profiler's eyes
 *   spans.c    what was recorded, gathered into a timeline */
#ifndef DP_ENGINE_ENGINE_H
#define DP_ENGINE_ENGINE_H

#include "stage/stage.h"

#include <dualpipe/pipeline.h>

enum { DP__WORKS = 2 };               /* passes of one kind (F, backward) that may be in flight on the lanes at once */
enum { DP__NAME_BYTES = 512 };        /* of a plugin, or its path */
enum { DP__WAYS = 4 };                 /* two neighbours, to and from each */
enum { DP__FORWARD = 0, DP__BACKWARD = 1, DP__KINDS = 2 };

typedef struct dp__grid {
    int32_t pp, ep, dp; /* sizes */
    int32_t p, e, d;    /* our place; world rank = (d * ep + e) * pp + p */
} dp__grid_t;

/* The groups of a rank; an instance is NULL where the group is this rank alone. */
typedef struct dp__comms {
    const dp_comm_vt_t *vt;
    dp_comm_t *pipeline, *expert, *mirror, *dense, *shard, *world;
} dp__comms_t;

/* Our end of a channel, or a turn inside this rank. */
typedef struct dp__link {
    const dp_channel_t *channel; /* of the training program                                                */
    dp_channel_end_t *end;       /* NULL: a turn                                                            */
    uint32_t base;               /* messages of earlier steps, but for those of replays                                               */
    int32_t sends;               /* 1: we are the source                                                    */
    int32_t nslots;              /* output buffers of a source, slots of a turn or of a grouped receiver    */
    int32_t way;                 /* grouped: whose stream carries it                                        */
    char **slot;                 /* [nslots] device memory                                                  */
    int32_t in_lane;             /* 1: sent from the lane that made the data, not from the p2p lane           */
    dp_event_t **free;           /* [nslots] recorded when the slot's reader has finished                   */
    dp_event_t **ready;          /* [nslots] recorded when its writer has finished: a pass, or a grouped receive */
    const void **arrived;        /* grouped receiver: [nslots] where the latest message lies                */
    uint8_t *writer_lane;        /* [nslots] where the pass that wrote it last ended                        */
    uint8_t claim_lane;          /* where the part that writes starts                                       */
} dp__link_t;

typedef struct dp__chunk {
    dp_place_t place;
    dp_stage_t *stage;
    char *params;
    char *grads[2];              /* per half of the micro-batches; NULL where this chunk has none of that half */
    size_t param_bytes, grad_bytes;
    char *saved;                 /* activation slots, one after the other                                   */
    int32_t nslots;
    dp_event_t **slot_end;       /* [nslots] forward-only: recorded when the slot's last pass has ended       */
    uint8_t *slot_lane;          /* [nslots] lane of that                                                     */
} dp__chunk_t;

/* One pass of one micro-batch: a forward, a backward, or the weight part alone. */
typedef struct dp__pass {
    uint8_t op;                  /* F, B, I or W                                                            */
    uint8_t kind, work;          /* DP__FORWARD or DP__BACKWARD; which of the work memories                  */
    int16_t chunk;
    int32_t mb, half, slot;      /* micro-batch of the step; accumulator; activation slot                    */
    int32_t source, source_at;   /* link that x or dy comes from (-1: none); message in the step, or turn slot */
    int32_t dest, dest_at;       /* link that y or dx goes to                                                */
    int32_t recv_span, send_span; /* -1: none */
} dp__pass_t;

/* Grouped: a message of this rank in the step. */
typedef struct dp__transfer {
    int32_t link, at, mb, span;
} dp__transfer_t;

/* A stream for the groups to or from one peer. */
typedef struct dp__way {
    int32_t peer, sends;
    dp_stream_t *stream;
} dp__way_t;

/* One step of an action's order: which pass of the action, what, where it is recorded. */
typedef struct dp__call {
    uint8_t pass, op;            /* index into passes; F, I or W */
    int16_t segment;
    int32_t span;
} dp__call_t;

typedef struct dp__action {
    uint8_t kind;                /* DP_INSTR_COMPUTE or DP_INSTR_REDUCE; grouped: also SEND and RECV */
    uint8_t npasses;
    int16_t chunk;               /* REDUCE */
    int32_t ncalls;
    dp__call_t *calls;
    dp__pass_t passes[2];        /* forward before backward */
    uint8_t nsends, sends[2];    /* passes whose result leaves this rank, in the program's order */
    int32_t span;                /* REDUCE */
    int32_t ntransfers, way;     /* SEND, RECV: members of one group */
    dp__transfer_t *transfers;
} dp__action_t;

typedef struct dp__plan {
    const dp_program_t *program;
    int64_t nactions;
    dp__action_t *actions;
    dp__call_t *calls;
    dp__transfer_t *transfers;
    int32_t nspans;
    dp_span_t *spans;            /* templates: all but step and times */
    int32_t *messages;           /* [nlinks] per step */
} dp__plan_t;

/* A step of one kind as the device replays it. */
typedef struct dp__graph {
    dp_graph_t *graph;           /* NULL: not captured yet */
    int64_t runs;
    const void **lent;           /* [3][M] inputs, targets, outputs of the capture */
    double loss_scale;
    uint64_t revision;           /* of all stages */
} dp__graph_t;

struct dp_pipeline {
    dp_pipeline_options_t options;
    dp_group_t *group;
    const dp_host_t *host;
    dp__grid_t grid;
    char comm_name[DP__NAME_BYTES], device_name[DP__NAME_BYTES];
    uint64_t serial;             /* of this pipeline in its job, and ... */
    uint32_t generation;         /* ... of its comm set-up, for unique names */

    dp_schedule_t *own_schedule, *forward_schedule;
    const dp_schedule_t *schedule;
    dp_program_t *program, *forward_program;

    const dp_device_vt_t *device_vt;
    dp_device_t *device;
    dp_stream_t *stream[DP_LANE_COUNT];
    dp__comms_t comms;
    int grouped;                 /* the backend completes transfers in matched groups only */
    int32_t nways;
    dp__way_t ways[DP__WAYS];

    int32_t nchunks;
    dp__chunk_t *chunks;
    int32_t nlinks;
    dp__link_t *links;
    int32_t *link_of_channel;    /* [program->nchannels], -1: not ours */

    char *work[DP__KINDS][DP__WORKS];
    uint8_t work_lane[DP__KINDS][DP__WORKS];       /* lane on which the last user ended */
    dp_event_t *work_end[DP__KINDS][DP__WORKS];
    dp_event_t **hop[DP__KINDS][DP__WORKS];        /* [max_segments] between segments on different lanes */
    char *scratch[DP_LANE_COUNT];
    dp_event_t *mark[DP_LANE_COUNT];               /* "everything on this lane so far" */
    int32_t max_segments;
    int one_lane;                /* every segment of this rank runs on the compute lane */

    dp__plan_t plan, forward_plan;
    dp__graph_t graphs[2];       /* of plan and of forward_plan */
    int replayed;                /* the latest step put nothing on the lanes but a graph */
    dp_span_t *records;          /* the black box: spans of the running step */
    int32_t record_capacity;
    dp_span_t *history;          /* [trace_steps][record_capacity] */
    int32_t *history_count;
    int32_t trace_steps;
    const struct dp_profiler_vt *profiler_vt; /* NULL: none was asked for */
    struct dp_profiler *profiler;
    const char **names;          /* of segments; span.name is 1 + index */
    int32_t nnames;

    int host_memory;             /* the host reaches all memory of the device */
    double *losses, *staging;    /* [M], and for dp_pipeline_sum; both the host and the device reach them */
    double *losses_there, *staging_there; /* where sums are made: the same, or their twins in device memory */
    uint32_t step;
    const dp__plan_t *running;   /* of the step in progress or failed; NULL before the first */
    int32_t enqueueing;          /* span of the operation that is being put on its lane, -1: none */
    int failed;
    int built;                   /* the trainer was asked for a stage */
    int stuck;                   /* a lane does not come to rest: its memory must stay */
    dp_memory_report_t memory;
};

/* fault.c: gives the job its first cause, or takes over the one it has. The message names rank, step and operation, or `what`. */
dp_status_t dp__engine_fail(dp_pipeline_t *p, dp_status_t status, const char *what);
/* After a failure: returns when no lane uses anything any more, keeping the message. */
void dp__engine_settle(dp_pipeline_t *p);

/* step.c: puts all of a step on the lanes. */
dp_status_t dp__step_put(dp_pipeline_t *p, const dp__plan_t *plan, const dp_step_t *step);

/* graph.c; nothing without options.graph. forget: what was captured is of no use any more, every stream is idle. */
void dp__graph_slots(dp_program_t *program);
dp_status_t dp__graphs_open(dp_pipeline_t *p);
void dp__graphs_forget(dp_pipeline_t *p);
void dp__graphs_close(dp_pipeline_t *p);
dp_status_t dp__graph_put(dp_pipeline_t *p, const dp__plan_t *plan, const dp_step_t *step);

/* agree.c; collective */
dp_status_t dp__agree_on_settings(dp_pipeline_t *p);
dp_status_t dp__agree_on_stages(dp_pipeline_t *p);
/* DP_OK on all ranks, or an error on all: the first that one of them came with. */
dp_status_t dp__agree_to_swap(dp_pipeline_t *p, dp_status_t mine, const char *name);

/* chunks.c */
dp_status_t dp__chunks_build(dp_pipeline_t *p);
dp_status_t dp__chunks_rebuild(dp_pipeline_t *p);
dp_status_t dp__chunks_allocate(dp_pipeline_t *p);
void dp__chunks_close(dp_pipeline_t *p);
dp_status_t dp__device_memory(dp_pipeline_t *p, size_t bytes, size_t *account, char **memory_out);
dp_status_t dp__shared_memory(dp_pipeline_t *p, size_t bytes, size_t *account, double **memory_out);
void dp__shared_release(dp_pipeline_t *p, double *memory);

/* comms.c */
dp_status_t dp__comms_find(const char *name, const dp_comm_vt_t **vt_out);
/* What was opened before a failure stays in *comms: closing it meets the other ranks, so the job must know first. */
dp_status_t dp__comms_open(dp_pipeline_t *p, const dp_comm_vt_t *vt, dp__comms_t *comms);
dp_status_t dp__comms_start(dp_pipeline_t *p, dp__comms_t *comms);
void dp__comms_close(dp__comms_t *comms);
dp_status_t dp__links_open(dp_pipeline_t *p);
dp_status_t dp__links_connect(dp_pipeline_t *p, const dp__comms_t *comms);
void dp__links_close(dp_pipeline_t *p);

/* ways.c */
dp_status_t dp__ways_open(dp_pipeline_t *p);
/* All streams of this rank: lanes, then ways. NULL beyond the last one. */
int32_t dp__stream_count(const dp_pipeline_t *p);
dp_stream_t *dp__stream_at(const dp_pipeline_t *p, int32_t i);
int32_t dp__way_find(const dp_pipeline_t *p, int32_t peer, int32_t sends);
/* Most outputs of a channel that are made and not yet sent, in the order of the list. */
int32_t dp__outputs_held(const dp_pipeline_t *p, const dp_channel_t *channel);

/* plan.c */
dp_status_t dp__plan_build(dp_pipeline_t *p, const dp_program_t *program, dp__plan_t *plan);
void dp__plan_free(dp__plan_t *plan);

/* open.c */
dp_status_t dp__programs_make(dp_pipeline_t *p);
void dp__programs_free(dp_pipeline_t *p);

/* reduce.c */
dp_status_t dp__reduce(dp_pipeline_t *p, int32_t chunk, int32_t span);
const char *dp__summed_grads(const dp__chunk_t *chunk);

/* spans.c */
dp_status_t dp__names_collect(dp_pipeline_t *p);
int32_t dp__name_index(const dp_pipeline_t *p, const char *name);
dp_status_t dp__records_open(dp_pipeline_t *p);
void dp__records_begin(dp_pipeline_t *p, const dp__plan_t *plan);
void dp__records_keep(dp_pipeline_t *p, const dp__plan_t *plan);

static inline int32_t dp__half_of(const dp_pipeline_t *p, int32_t microbatch)
{
    return microbatch < p->schedule->microbatches / 2 ? 0 : 1;
}

/* profile.c: nothing without a profiler. begin and end bracket what is enqueued for the operation of a span. */
dp_status_t dp__profile_open(dp_pipeline_t *p);
void dp__profile_close(dp_pipeline_t *p);
void dp__profile_begin(dp_pipeline_t *p, int32_t span);
void dp__profile_end(dp_pipeline_t *p);
/* Puts the times of kernels into the kept spans. */
dp_status_t dp__profile_collect(dp_pipeline_t *p);

#endif
