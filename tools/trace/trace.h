/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace.h: what is kept of a trace: when which device ran what, and which annotation it belongs to.
 *
 * Of a kernel 40 bytes are kept, of a launch and an annotation 24 and 32 (of a span of ours 80), of every name one
 * copy, of everything else nothing: a trace of hundreds of megabytes takes tens. Past a limit reading ends with an
 * error. */
#ifndef DP_TOOLS_TRACE_H
#define DP_TOOLS_TRACE_H

#include "trace_classify.h"
#include "trace_read.h"

#define TRACE_NONE UINT32_MAX

/* A kernel, a copy, a memset; a span of ours. */
typedef struct trace_record {
    int64_t start, end; /* ns since the first record of the trace */
    uint32_t name, stream;
    uint32_t range;  /* the annotation it was launched in; TRACE_NONE */
    uint32_t blocks; /* of its grid; 0: not known */
    uint32_t detail; /* of ours: in trace_t.details; TRACE_NONE */
    uint8_t class;   /* trace_class_t */
} trace_record_t;

/* What a span of ours says of itself. */
typedef struct trace_detail {
    int32_t value[TRACE_DETAILS]; /* TRACE_STEP, ...; -1: not said */
    uint8_t lane, kind, pass;     /* dp_lane_t, dp_span_kind_t, dp_op_kind_t */
} trace_detail_t;

/* An annotation. */
typedef struct trace_range {
    int64_t start, end;
    uint32_t name, thread;
    uint32_t parent; /* the range around it; TRACE_NONE */
    bool on_device;
} trace_range_t;

/* What a viewer shows as one line: a stream of a device, or a thread of the host. */
typedef struct trace_stream {
    uint32_t process, rank; /* rank: index, TRACE_NONE for a thread of the host */
    uint64_t key;           /* hash of process and thread */
    int64_t number;         /* CUDA's number of the stream; -1: has none */
    char label[TRACE_ID_BYTES];
} trace_stream_t;

/* A device and its streams; records of it follow one another. */
typedef struct trace_rank {
    char label[TRACE_ID_BYTES]; /* "rank 3", "device 0" */
    int64_t number;             /* -1: not known */
    uint32_t process;
    size_t first, end; /* its records */
} trace_rank_t;

typedef struct trace {
    trace_head_t head;
    int64_t origin_ns; /* of the first record */
    trace_record_t *records;
    size_t nrecords;
    trace_range_t *ranges;
    size_t nranges;
    trace_stream_t *streams;
    size_t nstreams;
    trace_rank_t *ranks; /* by number */
    size_t nranks;
    trace_detail_t *details; /* of spans of ours */
    size_t ndetails;
    struct trace_store *store;
} trace_t;

typedef struct trace_options {
    const regex_t *comm; /* more communication; NULL: none */
    uint64_t most_bytes; /* of memory; 0: TRACE_BYTES */
    bool annotations;    /* a trace of annotations alone, without a record of a device, will do */
} trace_options_t;

#define TRACE_BYTES (2ull << 30)

/* Reads a file. Messages begin with the path. DP_ERR_REJECTED: not a trace, or one without a record of a device.
 * DP_ERR_OVERFLOW: it does not fit into the memory. Free with trace_clear(), after a failure too. */
dp_status_t trace_load(const char *path, const trace_options_t *options, trace_t *trace);
dp_status_t trace_load_from(json_read_fn read, void *source, const trace_options_t *options, trace_t *trace);
void trace_clear(trace_t *trace);

/* Names are numbered from 0. */
size_t trace_names(const trace_t *trace);
const char *trace_name(const trace_t *trace, uint32_t name);
/* What a record counts as in a table by annotation: its range's name; of ours, its name without the micro-batch.
 * TRACE_NONE: neither. */
uint32_t trace_group(const trace_t *trace, const trace_record_t *record);

#endif
