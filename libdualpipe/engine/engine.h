/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * engine.h: the pipeline handle as its files see it.
 *
 *   open.c     options, order of set-up and tear-down
 *   swap.c     another comm backend between two steps
 *   recover.c  the same pipeline after a death: which step counts, and who gets whose state
 *   move.c     the state of a rank moved to another
 *   buddy.c    a copy of it that outlives its process
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
 *   bits.c     looks for memory that has changed by itself, where there are copies
 *   guard.c    DUALPIPE_GUARD: looks at what every call does to memory
 *   meter.c    how long the threads of lanes had a core
 *   state.c    what the trainer keeps besides the parameters
 *   sums.c     losses and other doubles, summed over ranks
 *   norm.c     the norm of the gradient
 *   ties.c     parameters that two stages share
 *   tensors.c  all that a rank keeps, as tensors with names
 *   saving.h, snapshot.c, save.c, load.c  checkpoints
 *   lengths.c  tokens and documents of the micro-batches of a step
 *   requests.c slots of the caches that these go on with
 *   reduce.c   gradients of halves, mirrors and data groups summed
 *   shards.c   the same with a shard of the optimizer on each rank
 *   fault.c    a failure: what was being done, telling the job, bringing the lanes to rest
 *   profile.c  reports operations to a profiler plugin
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

#include <sys/types.h>

typedef struct dp__grid {
    int32_t pp, ep, dp; /* sizes */
    int32_t p, e, d;    /* our place */
} dp__grid_t;

static inline int32_t dp__world_rank(const dp__grid_t *g, int32_t p, int32_t e, int32_t d)
{
    return (d * g->ep + e) * g->pp + p;
}

/* step.c */
typedef struct dp__run {
    uint32_t step;
    uint64_t calls;         /* steps begun in this epoch */
    uint64_t pace_ns;       /* dp__step_call_t.pace_ns of the latest step */
    const dp__plan_t *plan; /* of the step in progress or failed; NULL before the first */
    int32_t enqueueing;     /* span of the operation that is being put on its lane, -1: none */
    dp__running_t running[DP__RUNNING];
    int32_t round, rounds; /* of the next training step, unless it is number 0 */
    int failed;
    int stuck; /* a lane does not come to rest: its memory must stay */
} dp__run_t;

/* What is in no separate struct is settled by open.c and read by all. */
struct dp_pipeline {
    dp_pipeline_options_t options;
    dp_group_t *group;
    const dp_host_t *host;
    dp__grid_t grid;
    char method[DP__NAME_BYTES], comm_name[DP__NAME_BYTES], device_name[DP__NAME_BYTES];
    pid_t pid;           /* that opened it */
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
    /* [nbackward_buffers] of backwards, each as large as the largest stage's */
    char **backward_buffers;
    int32_t nbackward_buffers;
    dp__lanes_t lanes;
    dp__plans_t plans;
    dp__graphs_t graphs;
    dp__trace_t trace;
    dp__profiler_t profiler;
    dp__meter_t meter;
    dp__sums_t sums;
    dp__lengths_t lengths;
    dp__requests_t requests;
    dp__guard_t guard;
    bool finite; /* what passes make is looked at */
    dp__recovery_t recovery;
    dp__buddy_t buddy;
    dp__states_t states;
    dp__ties_t ties;
    bool gathering; /* parameters may still be on their way */
    /* shards: nobody has said since the latest training step that they may go to the others */
    bool ungathered;
    dp__saving_t *saving; /* NULL: nothing is saved */
    uint64_t run_id;      /* dp_checkpoint_run, 0: none yet */
    int folder_lock;      /* descriptor (checkpoint/lock.h), -1: none; outlives an epoch */
    dp__run_t run;
};

/* open.c: all that is opened in an epoch of the group, and its end, after which it can be opened
 * again: device, stages, parameters and gradients stay. Collective. */
dp_status_t dp__pipeline_set_up(dp_pipeline_t *p);
void dp__pipeline_suspend(dp_pipeline_t *p);

/* check.c: refuses NULL, a call from a segment or from a child of fork, and a pipeline that has
 * failed. */
dp_status_t dp__pipeline_check(const dp_pipeline_t *p, const char *call);

/* fault.c: gives the job its first cause, or takes over the one it has. The message names rank,
 * step and operation, or `what`. */
dp_status_t dp__engine_fail(dp_pipeline_t *p, dp_status_t status, const char *what);
/* After a failure: returns when no lane uses anything any more, keeping the message. */
void dp__engine_settle(dp_pipeline_t *p);

/* guard.c: whether host functions can look at the memory of the device behind a call; why `what`
 * does nothing is said. */
bool dp__host_can_look(const dp_pipeline_t *p, const char *what);

/* agree.c; collective */
/* What all ranks say, `bytes` bytes each, in rank order; the caller frees it. NULL: *status_out. */
void *dp__ask_ranks(dp_pipeline_t *p, const void *mine, size_t bytes, dp_status_t *status_out);
dp_status_t dp__agree_on_settings(dp_pipeline_t *p);
dp_status_t dp__agree_on_stages(dp_pipeline_t *p);
/* DP_OK on all ranks, or an error on all: the first that one of them came with. */
dp_status_t dp__agree(dp_pipeline_t *p, dp_status_t mine, const char *what);
dp_status_t dp__agree_to_swap(dp_pipeline_t *p, dp_status_t mine, const char *name);

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
