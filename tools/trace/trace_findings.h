/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_findings.h: what a rank's figures leave open: records without a grid, kernels that wait,
 * transfers between two records, passes that nobody names. */
#ifndef DP_TOOLS_TRACE_FINDINGS_H
#define DP_TOOLS_TRACE_FINDINGS_H

#include "trace_detail.h"

typedef struct trace_findings {
    /* records by their pass, as a span of ours or the annotation says it */
    size_t forwards, backwards, passless;
    /* kernels by class: those without a grid, and all */
    size_t gridless[2], device[2];
    /* kernels whose name says that they wait, counted with their class all the same; their time */
    size_t waits;
    int64_t wait_time;
    size_t a_wait; /* one of them */
    /* communication on a stream that computes as well; no other stream has any */
    size_t inlined;
    uint32_t inlined_on;
} trace_findings_t;

trace_findings_t trace_findings_of(const dp_trace_t *trace, const trace_detail_rank_t *rank);
/* "forward", "both" or "unknown" */
const char *trace_findings_passes(const trace_findings_t *findings);

#endif
