/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace.h: what is kept of a trace: when which device ran what, and which annotation it belongs to.
 * For what writes whole tables and pictures of it; others get by with <dualpipe/trace.h>.
 *
 * Of a kernel 40 bytes are kept, of a launch and an annotation 24 and 32 (of a span of ours 80), of
 * every name one copy, of everything else nothing: a trace of hundreds of megabytes takes tens.
 * Past a limit reading ends with an error. */
#ifndef DP_TRACE_TRACE_H
#define DP_TRACE_TRACE_H

#include "trace/classify.h"
#include "trace/read.h"

#define DP__TRACE_NONE UINT32_MAX

/* A kernel, a copy, a memset; a span of ours. */
typedef struct dp__trace_record {
    int64_t start, end; /* ns since the first record of the trace */
    uint32_t name, stream;
    uint32_t range;  /* the annotation it was launched in; DP__TRACE_NONE */
    uint32_t blocks; /* of its grid; 0: not known */
    uint32_t detail; /* of ours: in dp_trace_t.details; DP__TRACE_NONE */
    uint8_t class;   /* dp__trace_class_t */
    bool bare;       /* has no category: until dp__trace_keep_devices() */
} dp__trace_record_t;

/* What a span of ours says of itself. */
typedef struct dp__trace_detail {
    int32_t value[DP__TRACE_DETAILS]; /* DP__TRACE_STEP, ...; -1: not said */
    uint8_t lane, kind, pass;         /* dp_lane_t, dp_span_kind_t, dp_op_kind_t */
} dp__trace_detail_t;

/* An annotation. */
typedef struct dp__trace_range {
    int64_t start, end;
    uint32_t name, thread;
    uint32_t parent; /* the range around it; DP__TRACE_NONE */
    bool on_device;
} dp__trace_range_t;

/* What a viewer shows as one line: a stream of a device, or a thread of the host. */
typedef struct dp__trace_stream {
    uint32_t process, rank; /* rank: index, DP__TRACE_NONE for a thread of the host */
    uint64_t key;           /* hash of process and thread */
    int64_t number;         /* CUDA's number of the stream; -1: has none */
    bool counts;            /* its records without a category are of a device */
    uint32_t broken;        /* events without a category that were left out */
    char label[DP__TRACE_ID_BYTES];
} dp__trace_stream_t;

/* A device and its streams; records of it follow one another. */
typedef struct dp__trace_rank {
    char label[DP__TRACE_ID_BYTES]; /* "rank 3", "device 0" */
    int64_t number;                 /* -1: not known */
    uint32_t process;
    size_t first, end; /* its records */
} dp__trace_rank_t;

struct dp_trace {
    dp__trace_head_t head;
    int64_t origin_ns; /* of the first record */
    dp__trace_record_t *records;
    size_t nrecords;
    dp__trace_range_t *ranges;
    size_t nranges;
    dp__trace_stream_t *streams;
    size_t nstreams;
    dp__trace_rank_t *ranks; /* by number */
    size_t nranks;
    dp__trace_detail_t *details; /* of spans of ours */
    size_t ndetails;
    struct dp__trace_store *store;
};

#define DP__TRACE_BYTES (2ull << 30)

/* Names are numbered from 0. */
size_t dp__trace_names(const dp_trace_t *trace);
const char *dp__trace_name(const dp_trace_t *trace, uint32_t name);
/* A kernel of this name is counted as computation, and named like communication. */
bool dp__trace_likely(const dp_trace_t *trace, uint32_t name);
/* What a record counts as in a table by annotation: its range's name; of ours, its name without the
 * micro-batch. DP__TRACE_NONE: neither. */
uint32_t dp__trace_group(const dp_trace_t *trace, const dp__trace_record_t *record);

#endif
