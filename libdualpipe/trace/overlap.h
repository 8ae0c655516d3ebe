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

/* Kernels of one class by the size of their grids. */
typedef struct dp__trace_overlap_grid {
    uint32_t blocks;
    uint8_t class;
    size_t kernels;
    int64_t time; /* sum */
} dp__trace_overlap_grid_t;

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

/* Of one device. */
typedef struct dp__trace_overlap_figures {
    int64_t start, end, compute, comm, hidden, idle;
    dp__trace_overlap_interval_t *exposed; /* communication that nothing hides */
    size_t nexposed;
    dp__trace_overlap_grid_t *grids; /* by class, then the most time first */
    size_t ngrids;
    /* of DP__TRACE_COMPUTE and DP__TRACE_COMM: mean part of the SMs that a grid covers, by time;
     * -1: not known */
    double sm_share[2];
} dp__trace_overlap_figures_t;
/* Clear with dp__trace_overlap_clear(), after a failure too. */
dp_status_t dp__trace_overlap_figures(const dp_trace_t *trace, const dp__trace_rank_t *rank,
                                      dp__trace_overlap_figures_t *figures_out);
void dp__trace_overlap_clear(dp__trace_overlap_figures_t *figures);

#endif
