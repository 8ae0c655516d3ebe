/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * engine.h: the pipeline handle as its files see it.
 *
 *   open.c     options, order of set-up and tear-down
 *   swap.c     another comm backend between two steps
 *   recover.c  the same pipeline after a death: which step counts, and who gets whose state
 *   move.c     the state of a rank moved to another
 *   view.c     what a trainer asks of an open pipeline
 *   programs.c the schedule and the programs made of it
 *   agree.c    what must be the same on all ranks
 *   backend.c  which comm plugins are used, by name or by what fits the job
 *   comms.c    the groups a rank belongs to, channels, swapping the backend
 *   chunks.c   stages of this rank with their parameters, gradients and in-flight memory
 *   plan.c     this rank's commands (program/commands.h) with links, memory and span records
 *   name.c     plugins' names in full
 *   streams.c     all streams of a rank, among them those of bundles
 *   moe_block.c  the plugins of MoE layers, opened by name
 *   step.c     a step: has it enqueued, waits, collects
 *   graph.c    a step captured once and replayed
 *   enqueue.c  puts the commands of a plan on the streams
 *   finite.c   looks for the first NaN or overflow
 *   guard.c    DUALPIPE_GUARD: looks at what every call does to memory
 *   meter.c    how long the threads of lanes had a core
 *   state.c    what the trainer keeps besides the parameters
 *   sums.c     losses and other doubles, summed over ranks
 *   norm.c     the norm of the gradient
 *   ties.c     parameters that two stages share
 *   tensors.c  all that a rank keeps, as tensors with names
 *   saving.h, snapshot.c, save.c, load.c  checkpoints
 *   lengths.c  tokens and documents of the micro-batches of a step
 *   reduce.c   gradients of halves, mirrors and data groups summed
 *   shards.c   the same with a shard of the optimizer on each rank
 *   fault.c    a failure: what was being done, telling the job, bringing the lanes to rest
 *   profile.c  the same for a profiler's eyes
 *   spans.c    what was recorded
 *   align.c    what all ranks recorded, on one clock */
#ifndef DP_ENGINE_ENGINE_H
#define DP_ENGINE_ENGINE_H

#include "group/spans.h"
#include "program/commands.h"
#include "stage/stage.h"

#include <dualpipe/comm.h>
#include <dualpipe/run.h>
#include <stdbool.h>

enum { DP__NAME_BYTES = 512 }; /* of a plugin, or its path */
#define DP__AUTO "auto"        /* a comm that the engine chooses */
enum { DP__SUM_COUNT = 4096 }; /* doubles that dp_pipeline_sum moves at once */
enum { DP__TIES = 16 };        /* parameters of a model that two stages share, at most */

typedef struct dp__grid {
    int32_t pp, ep, dp; /* sizes */
    int32_t p, e, d;    /* our place; world rank = (d * ep + e) * pp + p */
} dp__grid_t;

/* backend.c: between ranks of one host, and between hosts; the same when there is but one. */
typedef struct dp__backend {
    const dp_comm_vt_t *vt;
    char near[DP__NAME_BYTES], far[DP__NAME_BYTES];
} dp__backend_t;

/* What gradients are summed over: both mirrors; the data groups of all that is no expert, and of experts. */
typedef struct dp__sum_comms {
    dp_comm_t *mirror, *dense, *expert_data;
} dp__sum_comms_t;

/* The groups of a rank; an instance is NULL where the group is this rank alone. */
typedef struct dp__comms {
    const dp_comm_vt_t *vt;
    dp_comm_t *pipeline, *expert, *world;
    dp__sum_comms_t sums;
    dp__sum_comms_t gathers;  /* the same groups, where steps are graphs, whose instances replays alone may use */
    dp_comm_t *tie[DP__TIES]; /* between the ranks that hold its two ends */
} dp__comms_t;

/* Our end of a channel, or a bend inside this rank. */
typedef struct dp__link {
    const dp_channel_t *channel; /* of the training program */
    dp_channel_end_t *end;       /* NULL: a bend */
    /* messages of earlier steps, but for those of replays */
    uint32_t base;
    int32_t sends;        /* 1: we are the source */
    int32_t in_lane;      /* 1: sent from the lane that made the data, not from the p2p lane */
    int32_t nbuffers;     /* of the larger of the plans */
    char **buffer;        /* [nbuffers] device memory; not of a receiver */
    const void **arrived; /* [nbuffers] bundles, receiver: where the latest message lies */
} dp__engine_link_t;

/* shards.c: neighbouring parameters that are summed over the same ranks, and updated by all or each by one of them. */
typedef struct dp__stretch {
    size_t first, count;     /* elements of the stage's */
    uint32_t param, nparams; /* in the stage's list */
    bool sharded, tied;      /* experts; shared with another stage, so that ties.c sums it over the data group */
    bool cut;                /* over both mirrors and the data group */
    /* if so, bounds as in comm.h: of both mirrors, and of the data group in our half; in elements, and in bytes of
     * parameters */
    size_t *across, *along, *across_bytes, *along_bytes;
} dp__stretch_t;

typedef struct dp__chunk {
    dp_place_t place;
    dp_stage_t *stage;
    int32_t first_part; /* the stage's first part, counted along the path */
    char *params;
    char *grads[2]; /* per half of the micro-batches; NULL where this chunk has none of that half, or the
                       second where both have one accumulator */
    size_t param_bytes, grad_bytes;
    char *saved; /* activation slots, one after the other */
    int32_t nslots;
    dp_shard_t *shards; /* what we update */
    uint32_t nshards, nstretches;
    size_t shard_count; /* elements that the optimizer keeps */
    dp__stretch_t *stretches;
    size_t *bounds;       /* of all stretches */
    dp_event_t *gathered; /* the parameters have come from the others */
    uint32_t unwaited;    /* bits of lanes that have not waited for that yet */
} dp__engine_chunk_t;

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
    int32_t *span; /* [commands.count] record of a command, -1: none. A bundle's transfers have one each, in a row */
    int32_t nspans;
    dp_span_t *spans;  /* templates: all but step and times. The step, then gathers of chunks, if any, then commands */
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

/* programs.c: what is run, and the same in this rank's own terms. A backend that completes transfers in bundles runs
 * other lists of a schedule than one that is one-sided. */
typedef struct dp__programs {
    dp_schedule_t *own_schedule, *forward_schedule;
    dp_program_t *training, *forward; /* forward: NULL when the schedule is forward-only itself */
    int bundled;
} dp__programs_t;

typedef struct dp__plans {
    dp__plan_t training, forward;
} dp__plans_t;

/* chunks.c: the streams of this rank by kind of work. */
typedef struct dp__lanes {
    dp_stream_t *stream[DP_LANE_COUNT];
    char *scratch[DP_LANE_COUNT];
    dp_event_t *mark[DP_LANE_COUNT]; /* "everything on this lane so far" */
    int one;                         /* every segment of this rank runs on the compute lane */
} dp__lanes_t;

/* comms.c */
typedef struct dp__links {
    int32_t n;
    dp__engine_link_t *at;
    int32_t *of_channel; /* [training->nchannels], -1: not ours */
} dp__links_t;

/* streams.c: streams for the bundles to or from one peer */
typedef struct dp__transfer_streams {
    int32_t n;
    dp__transfer_stream_t at[DP__TRANSFER_STREAMS];
    dp_stream_t *stream[DP__TRANSFER_STREAMS];
} dp__transfer_streams_t;

/* comms.c: of the plan that has more */
typedef struct dp__events {
    int32_t n;
    dp_event_t **at;
} dp__events_t;

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

/* spans.c: what is recorded, and what is kept of it. */
typedef struct dp__trace {
    dp_span_t *records; /* the flight recorder: spans of the running step */
    int32_t capacity;   /* of records */
    int32_t ngathers;   /* records behind the first, one for each chunk: dp_pipeline_gather's. 0: no shards */
    int32_t steps;
    dp_span_t *kept; /* [steps][capacity] */
    int32_t *kept_count;
    uint64_t kept_steps; /* that were run, whatever their numbers */
    const char **names;  /* of segments; span.name is 1 + index */
    int32_t nnames;
    int to_file; /* DUALPIPE_TRACE, as world rank 0 has it */
} dp__trace_t;

/* meter.c: what the clock of each lane's thread said when its running segment began. */
typedef struct dp__meter {
    int on;
    int64_t began[DP_LANE_COUNT];
} dp__meter_t;

/* profile.c */
typedef struct dp__profiler {
    const struct dp_profiler_vt *vt; /* NULL: none was asked for */
    struct dp_profiler *instance;
} dp__profiler_t;

/* state.c */
static inline size_t dp__state_bytes(const dp_state_t *state)
{
    return state->count * dp_dtype_bytes(state->dtype);
}
void dp__states_free(dp_pipeline_t *p);

/* save.c: nothing without dp_pipeline_save_open. copied: returns when the trainer may change what is being saved. */
dp_status_t dp__save_copied(dp_pipeline_t *p);
void dp__save_close(dp_pipeline_t *p);

/* norm.c: whether this replica is the first of its expert; placement NULL: there are no replicas */
bool dp__first_replica(const int32_t *placement, int32_t replica);

/* sums.c */
typedef struct dp__sums {
    /* Both the host and the device reach them. losses: [M], then auxiliary losses [nparts][2 halves]; a micro-batch,
     * and half of a part's, is made on one rank, everywhere else it is zero: sums over the pipeline are exact. staging:
     * for dp_pipeline_sum. */
    double *losses, *staging;
    double *losses_there, *staging_there; /* where sums are made: the same, or their twins in device memory */
} dp__sums_t;

/* lengths.c; nothing without options.tokens */
typedef struct dp__lengths {
    uint32_t *tokens, *documents; /* [M] of the running step */
    uint32_t *ends;               /* [M][options.documents], where host and device reach it */
} dp__lengths_t;

/* guard.c */
typedef struct dp__guard {
    int on;
    dp_signal_t gate; /* opened for call number `calls` by this value */
    uint32_t calls;
    unsigned char *copies; /* of what lies behind the regions of a call */
} dp__guard_t;

/* step.c */
typedef struct dp__run {
    uint32_t step;
    const dp__plan_t *plan; /* of the step in progress or failed; NULL before the first */
    int32_t enqueueing;     /* span of the operation that is being put on its lane, -1: none */
    dp__running_t running[DP__RUNNING];
    int32_t round, rounds; /* of the next training step, unless it is number 0 */
    int failed;
    int stuck; /* a lane does not come to rest: its memory must stay */
} dp__run_t;

/* recover.c */
typedef struct dp__recovery {
    uint32_t holds; /* 0: nothing yet; n + 1: the state behind n steps that count */
    uint32_t step;  /* run.step at the begin of the step that does not count yet */
    int reformed;   /* the group has come together again, the pipeline is not open yet */
} dp__recovery_t;

/* state.c: what was registered, in that order. */
typedef struct dp__states {
    int32_t n;
    dp_state_t *at; /* names are copies; counts are filled in */
} dp__states_t;

typedef struct dp__saving dp__saving_t; /* saving.h */

/* ties.c: one parameter in two places, its ends, in the order of the path. */
typedef struct dp__tie {
    char name[DP__SHARED_BYTES];
    int32_t ends; /* 2 once the table is made */
    int64_t kind;
    size_t count;
    int32_t stage[2];
    size_t offset[2]; /* elements, within the stage */
    int32_t chunk[2]; /* of this rank, -1: another's */
    int32_t rank[2];  /* between which pipeline ranks we sum: the same for both when we have both, -1 when none */
    int32_t span;     /* of the sum, in the plan for training */
} dp__tie_t;

typedef struct dp__ties {
    int32_t n;
    dp__tie_t at[DP__TIES]; /* the same on all ranks, but for what is said to be ours */
    bool any;               /* a rank has shared parameters */
    bool checked;           /* the ends have the same values */
} dp__ties_t;

/* What is not in a struct of its own is settled by open.c and read by all. */
struct dp_pipeline {
    dp_pipeline_options_t options;
    dp_group_t *group;
    const dp_host_t *host;
    dp__grid_t grid;
    char method[DP__NAME_BYTES], comm_name[DP__NAME_BYTES], device_name[DP__NAME_BYTES];
    uint64_t serial;     /* of this pipeline in its job, and ... */
    uint32_t generation; /* ... of its comm set-up, for unique names */
    const dp_device_vt_t *device_vt;
    dp_device_t *device;
    int host_memory; /* the host reaches all memory of the device */
    dp_memory_report_t memory;

    const dp_schedule_t *schedule;
    dp__programs_t programs;
    dp__backend_t backend;
    dp__comms_t comms;
    dp__links_t links;
    dp__transfer_streams_t transfer_streams;
    dp__events_t events;
    int32_t nchunks;
    dp__engine_chunk_t *chunks;
    int32_t nparts; /* of the whole path */
    int32_t max_segments;
    int built;                        /* the trainer was asked for a stage */
    char *work[DP__KINDS][DP__WORKS]; /* memory of passes */
    char **backward_buffers;          /* [nbackward_buffers] of backwards, each as large as the largest stage's */
    int32_t nbackward_buffers;
    dp__lanes_t lanes;
    dp__plans_t plans;
    dp__graphs_t graphs;
    dp__trace_t trace;
    dp__profiler_t profiler;
    dp__meter_t meter;
    dp__sums_t sums;
    dp__lengths_t lengths;
    dp__guard_t guard;
    bool finite; /* what passes make is looked at */
    dp__recovery_t recovery;
    dp__states_t states;
    dp__ties_t ties;
    bool gathering;       /* parameters may still be on their way */
    bool ungathered;      /* shards: nobody has said since the latest training step that they may go to the others */
    dp__saving_t *saving; /* NULL: nothing is saved */
    dp__run_t run;
};

/* open.c: all that is opened in an epoch of the group, and its end, after which it can be opened again: device, stages,
 * parameters and gradients stay. Collective. */
dp_status_t dp__pipeline_set_up(dp_pipeline_t *p);
void dp__pipeline_suspend(dp_pipeline_t *p);

/* move.c: rank `to` gets from rank `from` of the job what `what` says. For these two ranks; others return at once. */
enum { DP__MOVE_CHUNKS = 1, DP__MOVE_SHARED = 2 }; /* of stages, parameters among it; of pipeline and job */
dp_status_t dp__move_state(dp_pipeline_t *p, int32_t from, int32_t to, unsigned what);

/* fault.c: gives the job its first cause, or takes over the one it has. The message names rank, step and operation, or
   `what`. */
dp_status_t dp__engine_fail(dp_pipeline_t *p, dp_status_t status, const char *what);
/* After a failure: returns when no lane uses anything any more, keeping the message. */
void dp__engine_settle(dp_pipeline_t *p);

/* enqueue.c: puts all of a step on the lanes. */
dp_status_t dp__step_put(dp_pipeline_t *p, const dp__plan_t *plan, const dp_step_t *step);

/* finite.c: whether there is something to look at is in p->finite. */
dp_status_t dp__finite_open(dp_pipeline_t *p);
/* Behind the call of a segment, on its stream. */
dp_status_t dp__finite_put(const dp_pipeline_t *p, const dp_stage_t *stage, const dp__command_t *call,
                           const dp_segment_call_t *own, dp_stream_t *s);

/* meter.c: how long the lane's thread has a core in a segment; nothing without options.cpu_times. */
dp_status_t dp__meter_open(dp_pipeline_t *p);
dp_status_t dp__meter_begin(dp_pipeline_t *p, int lane);
dp_status_t dp__meter_end(dp_pipeline_t *p, int lane, int32_t span);

/* Whether the gradients are complete with this step. rounds is set. */
static inline bool dp__last_round(const dp_step_t *step)
{
    return step->round + 1 == step->rounds;
}

/* graph.c; nothing without options.graph. forget: what was captured is of no use any more, every stream is idle. */
dp_status_t dp__graphs_open(dp_pipeline_t *p);
void dp__graphs_forget(dp_pipeline_t *p);
void dp__graphs_close(dp_pipeline_t *p);
dp_status_t dp__graph_put(dp_pipeline_t *p, const dp__plan_t *plan, const dp_step_t *step);

/* agree.c; collective */
dp_status_t dp__agree_on_settings(dp_pipeline_t *p);
dp_status_t dp__agree_on_stages(dp_pipeline_t *p);
/* DP_OK on all ranks, or an error on all: the first that one of them came with. */
dp_status_t dp__agree(dp_pipeline_t *p, dp_status_t mine, const char *what);
dp_status_t dp__agree_to_swap(dp_pipeline_t *p, dp_status_t mine, const char *name);

/* chunks.c */
dp_status_t dp__chunks_build(dp_pipeline_t *p);
dp_status_t dp__chunks_rebuild(dp_pipeline_t *p);
dp_status_t dp__chunks_allocate(dp_pipeline_t *p);
/* All but the stages, their parameters and gradients. */
void dp__chunks_suspend(dp_pipeline_t *p);
void dp__chunks_close(dp_pipeline_t *p);
dp_status_t dp__device_memory(dp_pipeline_t *p, size_t bytes, size_t *account, char **memory_out);
dp_status_t dp__shared_memory(dp_pipeline_t *p, size_t bytes, size_t *account, double **memory_out);
void dp__shared_release(dp_pipeline_t *p, double *memory);

/* backend.c. name: what was asked for, NULL as well, in full: "comm_shm", "comm_shm+comm_ofi", "auto". find is
   collective; its errors are those of this rank. */
dp_status_t dp__backend_name(const char *comm, char name[DP__NAME_BYTES]);
dp_status_t dp__backend_find(dp_pipeline_t *p, const char *name, dp__backend_t *backend);
void dp__backend_log(const dp_pipeline_t *p);

/* comms.c */
/* What was opened before a failure stays in *comms: closing it meets the other ranks, so the job must know first. */
dp_status_t dp__comms_open(dp_pipeline_t *p, const dp_comm_vt_t *vt, dp__comms_t *comms);
dp_status_t dp__comms_open_ties(dp_pipeline_t *p, dp__comms_t *comms); /* once ties.c has made its table */
dp_status_t dp__comms_start(dp_pipeline_t *p, dp__comms_t *comms);
void dp__comms_close(dp__comms_t *comms);
/* Lists our channels; connect opens our ends of them; then plans can be built, and buffers_open gives them memory and
 * events. */
dp_status_t dp__links_list(dp_pipeline_t *p);
dp_status_t dp__links_connect(dp_pipeline_t *p, const dp__comms_t *comms);
dp_status_t dp__buffers_open(dp_pipeline_t *p);
void dp__links_close(dp_pipeline_t *p);

/* streams.c */
dp_status_t dp__transfer_streams_open(dp_pipeline_t *p);
/* All streams of this rank: lanes, then transfer streams. NULL beyond the last one. */
int32_t dp__stream_count(const dp_pipeline_t *p);
dp_stream_t *dp__stream_at(const dp_pipeline_t *p, int32_t i);
/* Waits for a stream as long as the job is healthy; streams themselves give up on peers that hang. */
dp_status_t dp__stream_finish(dp_pipeline_t *p, dp_stream_t *s);

/* plan.c */
dp_status_t dp__plans_build(dp_pipeline_t *p);
void dp__plans_free(dp_pipeline_t *p);

/* programs.c */
dp_status_t dp__programs_make(dp_pipeline_t *p);
void dp__programs_free(dp_pipeline_t *p);

/* name.c. named: `name`, which NULL leaves to DUALPIPE_PLUGINS; "": nobody names one. full: "shm" -> "comm_shm"; names
 * with their kind, and paths, stay; where nobody names one, `fallback`. */
dp_status_t dp__plugin_named(const char *kind, const char *name, char text[DP__NAME_BYTES]);
dp_status_t dp__full_name(const char *kind, const char *name, const char *fallback, char text[DP__NAME_BYTES]);

/* sums.c */
dp_status_t dp__sums_open(dp_pipeline_t *p);
void dp__sums_close(dp_pipeline_t *p);

/* lengths.c. take: what a step says, before any of it is enqueued. set: what a call says of its micro-batch. */
dp_status_t dp__lengths_check(const dp_pipeline_options_t *o);
dp_status_t dp__lengths_open(dp_pipeline_t *p);
void dp__lengths_close(dp_pipeline_t *p);
dp_status_t dp__lengths_take(dp_pipeline_t *p, const dp_step_t *step);
size_t dp__lengths_bytes(const dp_pipeline_t *p, int32_t microbatch); /* of a message */
double dp__lengths_weigh(const dp_pipeline_t *p, int32_t microbatch, double value);
void dp__lengths_set(const dp_pipeline_t *p, dp_segment_call_t *call);

/* reduce.c */
dp_status_t dp__reduce(dp_pipeline_t *p, int32_t chunk, int32_t span);
const char *dp__summed_grads(const dp__engine_chunk_t *chunk);

/* shards.c; on: optimizers have shards, so that what a rank has of them nobody else has. */
bool dp__zero_is_on(const dp_pipeline_t *p);
bool dp__shard_is_cut(const dp_pipeline_t *p, const dp_part_t *part, const dp_param_t *param);
dp_status_t dp__shards_make(dp_pipeline_t *p);
void dp__shards_free(dp__engine_chunk_t *chunk);
/* Over mirrors and data groups, on the reduce lane. */
dp_status_t dp__shards_sum(dp_pipeline_t *p, const dp__engine_chunk_t *chunk, char *grads);
/* Before parameters are used: by a lane in a step; by anything else. */
dp_status_t dp__gather_wait(dp_pipeline_t *p, dp__engine_chunk_t *chunk, int lane);
dp_status_t dp__gather_finish(dp_pipeline_t *p);

/* ties.c; nothing where no parameters are shared. find: makes the table and opens what sums need; check: before the
   first step, whether both ends begin alike; both collective. put: the sums, behind all else on the reduce lane. */
dp_status_t dp__ties_find(dp_pipeline_t *p);
dp_status_t dp__ties_check(dp_pipeline_t *p);
dp_status_t dp__ties_put(dp_pipeline_t *p);
/* Whether the parameter is the end that is neither counted nor saved. */
bool dp__tie_is_second(const dp_pipeline_t *p, int32_t stage, const dp_param_t *param);

/* spans.c */
dp_status_t dp__names_collect(dp_pipeline_t *p);
#define DP__GATHER "gather" /* the name of what dp_pipeline_gather does */
int32_t dp__name_index(const dp_pipeline_t *p, const char *name);
dp_status_t dp__records_open(dp_pipeline_t *p);
void dp__records_begin(dp_pipeline_t *p, const dp__plan_t *plan);
void dp__records_keep(dp_pipeline_t *p, const dp__plan_t *plan);
/* DUALPIPE_TRACE: nothing without it, before the first step and when the job is not well. Collective. */
void dp__trace_write(dp_pipeline_t *p);
/* Rank 0 gets a timeline of `room` spans a rank with the rows of all, the others NULL. row: ours. [collective] */
dp_status_t dp__timeline_collect(dp_pipeline_t *p, const dp_timeline_t *row, int64_t room, dp_timeline_t **all_out);

/* Losses and auxiliary losses. */
static inline size_t dp__losses_count(const dp_pipeline_t *p)
{
    return (size_t)p->schedule->microbatches + 2 * (size_t)p->nparts;
}

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
