/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * overlap.h: how much of a device's communication runs behind its computation, and what is left
 * standing.
 *
 * Times are unions: an instant at which two kernels run counts once. Communication is hidden while
 * any record that is not communication runs on the same device, exposed otherwise. */
#ifndef DP_TRACE_OVERLAP_H
#define DP_TRACE_OVERLAP_H

#include "trace/trace.h"

typedef struct dp__trace_overlap_stream {
    uint32_t stream;
    size_t records;
    int64_t busy, compute, comm, wait; /* unions; busy: of compute and communication */
} dp__trace_overlap_stream_t;

/* Communication that nothing hides. */
typedef struct dp__trace_overlap_gap {
    int64_t start, end;
    size_t comm;          /* the record that fills most of it */
    size_t before, after; /* the last computation to end, the first to begin; SIZE_MAX: none */
} dp__trace_overlap_gap_t;

/* Kernels of one class by the size of their grids. */
typedef struct dp__trace_overlap_grid {
    uint32_t blocks;
    uint8_t class;
    size_t kernels;
    int64_t time; /* sum */
} dp__trace_overlap_grid_t;

/* Records of one annotation, on one stream. */
typedef struct dp__trace_overlap_part {
    uint32_t group; /* index of dp__trace_overlap_group_t */
    uint32_t stream;
    size_t records;
    int64_t busy; /* union */
} dp__trace_overlap_part_t;

/* All occurrences of one annotation. */
typedef struct dp__trace_overlap_group {
    uint32_t name;
    size_t times, records;
    int64_t begin;         /* of the first */
    int64_t compute, comm; /* unions over streams, each occurrence by itself, summed */
    size_t first_part, nparts;
} dp__trace_overlap_group_t;

typedef struct dp__trace_overlap_rank {
    const dp__trace_rank_t *rank;
    int64_t start, end;
    int64_t compute, comm, hidden, idle;
    dp__trace_overlap_stream_t *streams; /* most records first */
    size_t nstreams;
    dp__trace_overlap_gap_t *gaps; /* the longest first */
    size_t ngaps;
    size_t exposed_gaps;             /* how many there are */
    dp__trace_overlap_grid_t *grids; /* by class, then the most time first */
    size_t ngrids;
    double sm_share
        /* of DP__TRACE_COMPUTE and DP__TRACE_COMM: mean part of the SMs that a grid covers, by
         * time; -1: not known */
        [2];
    dp__trace_overlap_group_t *groups; /* by begin */
    size_t ngroups;
    dp__trace_overlap_part_t *parts;
    size_t nparts;
} dp__trace_overlap_rank_t;

typedef struct dp__trace_overlap {
    const dp_trace_t *trace;
    dp__trace_overlap_rank_t *ranks;
    size_t nranks;
} dp__trace_overlap_t;

/* most_gaps: of each rank. Free with dp__trace_overlap_clear(), after a failure too. */
dp_status_t dp__trace_overlap_measure(const dp_trace_t *trace, size_t most_gaps, dp__trace_overlap_t *overlap);
void dp__trace_overlap_clear(dp__trace_overlap_t *overlap);

/* Merged intervals of one rank, of records of one class. */
typedef struct dp__trace_overlap_interval {
    int64_t start, end;
} dp__trace_overlap_interval_t;
/* classes: a bit per dp__trace_class_t. Free *out with dp__trace_release(). */
dp_status_t dp__trace_overlap_union(const dp_trace_t *trace, const dp__trace_rank_t *rank, unsigned classes,
                                    dp__trace_overlap_interval_t **out, size_t *count_out);
/* What of `from` no interval of `without` covers. */
dp_status_t dp__trace_overlap_minus(const dp__trace_overlap_interval_t *from, size_t nfrom,
                                    const dp__trace_overlap_interval_t *without, size_t nwithout,
                                    dp__trace_overlap_interval_t **out, size_t *count_out);

/* "cutlass::device_kernel<dpsk::grouped_gemm::...::GemmKernel>" of a kernel's whole name. */
void dp__trace_short_name(const char *name, char *text, size_t bytes);

#endif
