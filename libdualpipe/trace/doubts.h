/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * doubts.h: records that figures count, and that make them doubtful. */
#ifndef DP_TRACE_DOUBTS_H
#define DP_TRACE_DOUBTS_H

#include "trace/trace.h"

/* Kernels of one name. */
typedef struct dp__trace_likely {
    uint32_t name;
    size_t kernels;
    int64_t time; /* sum */
} dp__trace_likely_t;
/* Of the records from `first` to before `end`, computation that is named like communication, the
 * most time first. Free *out with dp__trace_release(). DP_ERR_NOMEM. */
dp_status_t dp__trace_likely_names(const dp_trace_t *trace, size_t first, size_t end, dp__trace_likely_t **out,
                                   size_t *count_out);

#define DP__TRACE_STRAYS 16
/* Records of a device at time 0, before all others by more than these reach, and records longer
 * than all others reach. *stray_out: one of them. At most DP__TRACE_STRAYS of the second kind. */
size_t dp__trace_strays(const dp_trace_t *trace, const dp__trace_rank_t *rank, size_t *stray_out);

#endif
