/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace.h: what a step records, and who looks at it. */
#ifndef DP_ENGINE_TRACE_H
#define DP_ENGINE_TRACE_H

#include <dualpipe/pipeline.h>

/* spans.c: what is recorded, and what is kept of it. */
typedef struct dp__trace {
    dp_span_t *records; /* the flight recorder: spans of the running step */
    int32_t capacity;   /* of records */
    /* records behind the first, one for each chunk: dp_pipeline_gather's. 0: no shards */
    int32_t ngathers;
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

/* meter.c: how long the lane's thread has a core in a segment; nothing without
 * options.cpu_times. */
dp_status_t dp__meter_open(dp_pipeline_t *p);
dp_status_t dp__meter_begin(dp_pipeline_t *p, int lane);
dp_status_t dp__meter_end(dp_pipeline_t *p, int lane, int32_t span);

/* spans.c */
dp_status_t dp__names_collect(dp_pipeline_t *p);

#define DP__GATHER "gather" /* the name of what dp_pipeline_gather does */

int32_t dp__name_index(const dp_pipeline_t *p, const char *name);
dp_status_t dp__records_open(dp_pipeline_t *p);
void dp__records_begin(dp_pipeline_t *p, const dp__plan_t *plan);
void dp__records_keep(dp_pipeline_t *p, const dp__plan_t *plan);
/* DUALPIPE_TRACE: nothing without it, before the first step and when the job is not well.
 * Collective. */
void dp__trace_write(dp_pipeline_t *p);
/* Rank 0 gets a timeline of `room` spans a rank with the rows of all, the others NULL. row: ours.
 * [collective] */
dp_status_t dp__timeline_collect(dp_pipeline_t *p, const dp_timeline_t *row, int64_t room, dp_timeline_t **all_out);

/* profile.c: nothing without a profiler. begin and end bracket what is enqueued for the operation
 * of a span. */
dp_status_t dp__profile_open(dp_pipeline_t *p);
void dp__profile_close(dp_pipeline_t *p);
void dp__profile_begin(dp_pipeline_t *p, int32_t span);
void dp__profile_end(dp_pipeline_t *p);
/* Puts the times of kernels into the kept spans. */
dp_status_t dp__profile_collect(dp_pipeline_t *p);

#endif
