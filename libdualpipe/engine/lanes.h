/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * lanes.h: the lanes of a rank, the stages that it holds, and their memory. */
#ifndef DP_ENGINE_LANES_H
#define DP_ENGINE_LANES_H

#include "program/commands.h"
#include "stage/stage.h"

#include <dualpipe/pipeline.h>
#include <stdbool.h>

/* shards.c: neighbouring parameters that are summed over the same ranks, and updated by all or each
 * by one of them. */
typedef struct dp__stretch {
    size_t first, count;     /* elements of the stage's */
    uint32_t param, nparams; /* in the stage's list */
    /* experts; shared with another stage, so that ties.c sums it over the data group */
    bool sharded, tied;
    bool cut; /* over both mirrors and the data group */
    /* if so, bounds as in comm.h: of both mirrors, and of the data group in our half; in elements,
     * and in bytes of parameters */
    size_t *across, *along, *across_bytes, *along_bytes;
} dp__stretch_t;

typedef struct dp__chunk {
    dp_place_t place;
    dp_stage_t *stage;
    int32_t first_part; /* the stage's first part, counted along the path */
    char *params;
    /* per half of the micro-batches; NULL where this chunk has none of that half, or the second
     * where both have one accumulator */
    char *grads[2];
    size_t param_bytes, grad_bytes;
    char *saved; /* activation slots, one after the other */
    int32_t nslots;
    char *cache;        /* of requests */
    dp_shard_t *shards; /* what we update */
    uint32_t nshards, nstretches;
    size_t shard_count; /* elements that the optimizer keeps */
    dp__stretch_t *stretches;
    size_t *bounds;       /* of all stretches */
    dp_event_t *gathered; /* the parameters have come from the others */
    uint32_t unwaited;    /* bits of lanes that have not waited for that yet */
} dp__chunk_t;

/* chunks.c: the streams of this rank by kind of work. */
typedef struct dp__lanes {
    dp_stream_t *stream[DP_LANE_COUNT];
    char *scratch[DP_LANE_COUNT];
    dp_event_t *mark[DP_LANE_COUNT]; /* "everything on this lane so far" */
    int one;                         /* every segment of this rank runs on the compute lane */
} dp__lanes_t;

/* lengths.c; nothing without options.tokens */
typedef struct dp__lengths {
    uint32_t *tokens, *documents; /* [M] of the running step */
    uint32_t *ends;               /* [M][options.documents], where host and device reach it */
} dp__lengths_t;

/* requests.c; nothing without options.cache_slots */
typedef struct dp__slot {
    uint32_t tokens;    /* that the caches of its path hold */
    int32_t microbatch; /* the last one of the running step that goes on with it; -1: none */
} dp__slot_t;

typedef struct dp__requests {
    dp__slot_t *slots;     /* [2 paths][options.cache_slots] */
    uint8_t *told;         /* [M] 1: the running step says which slots it goes on with */
    uint32_t *slot, *past; /* [M][options.documents], where host and device reach them */
    uint8_t *called;       /* [chunks][max_segments] while two micro-batches are compared */
} dp__requests_t;

/* guard.c */
typedef struct dp__guard {
    int on;
    dp_signal_t gate; /* opened for call number `calls` by this value */
    uint32_t calls;
    unsigned char *copies; /* of what lies behind the regions of a call */
} dp__guard_t;

/* finite.c: whether there is something to look at is in p->finite. */
dp_status_t dp__finite_open(dp_pipeline_t *p);
/* Behind the call of a segment, on its stream. */
dp_status_t dp__finite_put(const dp_pipeline_t *p, const dp_stage_t *stage, const dp__command_t *call,
                           const dp_segment_call_t *own, dp_stream_t *s);

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

/* lengths.c. take: what a step says, before any of it is enqueued. set: what a call says of its
 * micro-batch. */
dp_status_t dp__lengths_check(const dp_pipeline_options_t *o);
dp_status_t dp__lengths_open(dp_pipeline_t *p);
void dp__lengths_close(dp_pipeline_t *p);
dp_status_t dp__lengths_take(dp_pipeline_t *p, const dp_step_t *step);
size_t dp__lengths_bytes(const dp_pipeline_t *p, int32_t microbatch); /* of a message */
double dp__lengths_weigh(const dp_pipeline_t *p, int32_t microbatch, double value);
void dp__lengths_set(const dp_pipeline_t *p, dp_segment_call_t *call);

/* requests.c: the same of slots; take comes behind that of lengths. forget: what caches hold is no
 * request's any more. */
dp_status_t dp__requests_check(const dp_pipeline_options_t *o);
dp_status_t dp__requests_open(dp_pipeline_t *p);
void dp__requests_close(dp_pipeline_t *p);
dp_status_t dp__requests_take(dp_pipeline_t *p, const dp_step_t *step);
void dp__requests_forget(dp_pipeline_t *p);
void dp__requests_set(const dp_pipeline_t *p, const dp__chunk_t *chunk, dp_segment_call_t *call);

#endif
