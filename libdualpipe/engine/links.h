/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * links.h: the comms of a rank, its ends of the program's channels, and all its streams. */
#ifndef DP_ENGINE_LINKS_H
#define DP_ENGINE_LINKS_H

#include "engine/reductions.h"
#include "program/commands.h"

#include <dualpipe/comm.h>
#include <dualpipe/pipeline.h>

enum { DP__NAME_BYTES = 512 }; /* of a plugin, or its path */

#define DP__AUTO "auto" /* a comm that the engine chooses */

/* backend.c: between ranks of one host, and between hosts; the same when there is but one. */
typedef struct dp__backend {
    const dp_comm_vt_t *vt;
    char near[DP__NAME_BYTES], far[DP__NAME_BYTES];
} dp__backend_t;

/* What gradients are summed over: both mirrors; the data groups of all that is no expert, and of
 * experts. */
typedef struct dp__sum_comms {
    dp_comm_t *mirror, *dense, *expert_data;
} dp__sum_comms_t;

/* The groups of a rank; an instance is NULL where the group is this rank alone. */
typedef struct dp__comms {
    const dp_comm_vt_t *vt;
    dp_comm_t *pipeline, *expert, *world;
    dp__sum_comms_t sums;
    /* the same groups, where steps are graphs, whose instances replays alone may use */
    dp__sum_comms_t gathers;
    dp_comm_t *tie[DP__TIES]; /* between the ranks that hold its two ends */
} dp__comms_t;

/* Our end of a channel, or a local edge: one inside this rank. */
typedef struct dp__link {
    const dp_channel_t *channel; /* of the training program */
    dp_channel_end_t *end;       /* NULL: a local edge */
    /* messages of earlier steps, but for those of replays */
    uint32_t base;
    int32_t sends;        /* 1: we are the source */
    int32_t in_lane;      /* 1: sent from the lane that made the data, not from the p2p lane */
    int32_t nbuffers;     /* of the larger of the plans */
    char **buffer;        /* [nbuffers] device memory; not of a receiver */
    const void **arrived; /* [nbuffers] bundles, receiver: where the latest message lies */
} dp__link_t;

/* comms.c */
typedef struct dp__links {
    int32_t n;
    dp__link_t *at;
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

/* backend.c. name: what was asked for, NULL as well, in full: "comm_shm", "comm_shm+comm_ofi",
 * "auto". find is collective; its errors are those of this rank. */
dp_status_t dp__backend_name(const char *comm, char name[DP__NAME_BYTES]);
dp_status_t dp__backend_find(dp_pipeline_t *p, const char *name, dp__backend_t *backend);
void dp__backend_log(const dp_pipeline_t *p);

/* comms.c */
/* What was opened before a failure stays in *comms: closing it meets the other ranks, so the job
 * must know first. */
dp_status_t dp__comms_open(dp_pipeline_t *p, const dp_comm_vt_t *vt, dp__comms_t *comms);
/* its transfers complete in bundles */
int dp__comms_bundle(const dp__comms_t *comms);
/* once ties.c has made its table */
dp_status_t dp__comms_open_ties(dp_pipeline_t *p, dp__comms_t *comms);
dp_status_t dp__comms_start(dp_pipeline_t *p, dp__comms_t *comms);
void dp__comms_close(dp__comms_t *comms);
/* Lists our channels; connect opens our ends of them; then plans can be built, and buffers_open
 * gives them memory and events. */
dp_status_t dp__links_list(dp_pipeline_t *p);
dp_status_t dp__links_connect(dp_pipeline_t *p, const dp__comms_t *comms);
dp_status_t dp__buffers_open(dp_pipeline_t *p);
void dp__links_close(dp_pipeline_t *p);

/* streams.c */
dp_status_t dp__transfer_streams_open(dp_pipeline_t *p);
/* All streams of this rank: lanes, then transfer streams. NULL beyond the last one. */
int32_t dp__stream_count(const dp_pipeline_t *p);
dp_stream_t *dp__stream_at(const dp_pipeline_t *p, int32_t i);
/* Waits for a stream as long as the job is healthy; streams themselves give up on peers that
 * hang. */
dp_status_t dp__stream_finish(dp_pipeline_t *p, dp_stream_t *s);

/* name.c. named: `name`, which NULL leaves to DUALPIPE_PLUGINS; "": nobody names one. full: "shm"
 * -> "comm_shm"; names with their kind, and paths, stay; where nobody names one, `fallback`. */
dp_status_t dp__plugin_named(const char *kind, const char *name, char text[DP__NAME_BYTES]);
dp_status_t dp__full_name(const char *kind, const char *name, const char *fallback, char text[DP__NAME_BYTES]);

#endif
