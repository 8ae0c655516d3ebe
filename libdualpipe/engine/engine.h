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
 *   streams.c  all streams of a rank, among them those of bundles
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

#include "engine/lanes.h"
#include "engine/links.h"
#include "engine/plan.h"
#include "engine/reductions.h"
#include "engine/state.h"
#include "engine/trace.h"

typedef struct dp__grid {
    int32_t pp, ep, dp; /* sizes */
    int32_t p, e, d;    /* our place; world rank = (d * ep + e) * pp + p */
} dp__grid_t;

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
    dp__chunk_t *chunks;
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

/* fault.c: gives the job its first cause, or takes over the one it has. The message names rank, step and operation, or
   `what`. */
dp_status_t dp__engine_fail(dp_pipeline_t *p, dp_status_t status, const char *what);
/* After a failure: returns when no lane uses anything any more, keeping the message. */
void dp__engine_settle(dp_pipeline_t *p);

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
int dp__comms_bundle(const dp__comms_t *comms); /* its transfers complete in bundles */
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
dp_status_t dp__schedule_make(dp_pipeline_t *p);
dp_status_t dp__programs_make(dp_pipeline_t *p);
void dp__programs_free(dp_pipeline_t *p);

/* name.c: "shm" -> "comm_shm"; names with their kind, and paths, stay. NULL: what `variable` says, else `fallback`. */
dp_status_t dp__full_name(const char *kind, const char *name, const char *variable, const char *fallback,
                          char text[DP__NAME_BYTES]);

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

#endif
