/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_detail.h: what tables and pages of a trace show beside the figures of its devices. */
#ifndef DP_TOOLS_TRACE_DETAIL_H
#define DP_TOOLS_TRACE_DETAIL_H

#include "trace/overlap.h"

typedef struct trace_detail_stream {
    uint32_t stream;
    size_t records;
    int64_t busy, compute, comm, wait; /* unions; busy: of compute and communication */
} trace_detail_stream_t;

/* Communication that nothing hides. */
typedef struct trace_detail_gap {
    int64_t start, end;
    size_t comm;          /* the record that fills most of it */
    size_t before, after; /* the last computation to end, the first to begin; SIZE_MAX: none */
} trace_detail_gap_t;

/* Records of one annotation, on one stream. */
typedef struct trace_detail_part {
    uint32_t group; /* index of trace_detail_group_t */
    uint32_t stream;
    size_t records;
    int64_t busy; /* union */
} trace_detail_part_t;

/* All occurrences of one annotation. */
typedef struct trace_detail_group {
    uint32_t name;
    size_t times, records;
    int64_t begin;         /* of the first */
    int64_t compute, comm; /* unions over streams, each occurrence by itself, summed */
    size_t first_part, nparts;
} trace_detail_group_t;

typedef struct trace_detail_rank {
    const dp__trace_rank_t *rank;
    dp__trace_overlap_figures_t figures;
    trace_detail_stream_t *streams; /* most records first */
    size_t nstreams;
    trace_detail_gap_t *gaps; /* the longest first */
    size_t ngaps;
    trace_detail_group_t *groups; /* by begin */
    size_t ngroups;
    trace_detail_part_t *parts;
    size_t nparts;
} trace_detail_rank_t;

typedef struct trace_detail {
    const dp_trace_t *trace;
    trace_detail_rank_t *ranks;
    size_t nranks;
} trace_detail_t;

/* most_gaps: of each rank. Free with trace_detail_clear(), after a failure too. */
dp_status_t trace_detail_measure(const dp_trace_t *trace, size_t most_gaps, trace_detail_t *detail);
void trace_detail_clear(trace_detail_t *detail);

/* "129,012": nanoseconds as whole microseconds. Returns text. */
char *trace_microseconds(int64_t ns, char text[32]);

/* "cutlass::device_kernel<dpsk::grouped_gemm::...::GemmKernel>" of a kernel's whole name. */
void trace_short_name(const char *name, char *text, size_t bytes);

#endif
