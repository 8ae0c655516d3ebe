/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * store.h: what a trace holds besides the arrays that its readers see. */
#ifndef DP_TRACE_STORE_H
#define DP_TRACE_STORE_H

#include "trace/table.h"
#include "trace/trace.h"

/* A call of the host that put a kernel on a stream. */
typedef struct dp__trace_launch {
    int64_t time;
    uint32_t correlation, thread; /* thread: a stream of the trace */
    uint32_t world;               /* see dp__trace_process_t; set by dp__trace_resolve() */
} dp__trace_launch_t;

typedef struct dp__trace_process {
    bool named;      /* its name says of which rank it is */
    int64_t rank;    /* -1: it does not */
    uint32_t row;    /* of the trace's ranks; DP__TRACE_NONE */
    bool has_device; /* holds records */
    uint8_t machine; /* dp__trace_machine_t */
    char label[DP__TRACE_ID_BYTES];
} dp__trace_process_t;

/* What is known of a name. */
typedef struct dp__trace_name_info {
    uint8_t class; /* as a kernel's; 255: not asked yet */
    bool likely;   /* computation that is named like communication */
    uint32_t stem; /* of a span of ours: without the micro-batch; else DP__TRACE_NONE */
} dp__trace_name_info_t;

typedef struct dp__trace_store {
    dp__trace_budget_t budget;
    dp__trace_table_t names, pids, threads; /* threads: pid and tid */
    dp__trace_process_t *processes;         /* [pids.count] */
    dp__trace_name_info_t *infos;           /* [names.count] */
    dp__trace_launch_t *launches;
    size_t nlaunches;
    size_t records_room, ranges_room, streams_room, launches_room, processes_room, infos_room, details_room;
} dp__trace_store_t;

/* Drops the records of processes and threads that are no device's. devices: see
 * dp_trace_options_t; NULL. */
void dp__trace_keep_devices(dp_trace_t *trace, const regex_t *devices);

/* Ranks, sorted records and ranges, the annotation of each record. */
dp_status_t dp__trace_resolve(dp_trace_t *trace);

#endif
