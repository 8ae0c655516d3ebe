/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * measure_lists.h: what a timeline shows of every segment of every stage. */
#ifndef DP_SIMULATE_MEASURE_LISTS_H
#define DP_SIMULATE_MEASURE_LISTS_H

#include <dualpipe/simulate.h>

#include "schedule/out.h"

/* In milliseconds: with busy_ns, as long as the work had a core. */
static inline double dp__span_length(const dp_span_t *span)
{
    return (double)(span->busy_ns > 0 ? span->busy_ns : span->end_ns - span->start_ns) / 1e6;
}

/* A segment is known by its name in a MoE layer: its role - 1; -1: another one. */
int dp__span_segment(const dp_timeline_t *timeline, const dp_span_t *span);

/* *lists_out: costs with a list, in one block of memory that dp__free() frees; NULL where a segment
 * of a stage was not seen, as in a timeline of whole operations. */
dp_status_t dp__measure_lists(const dp_timeline_t *timeline, int32_t stages, dp_segment_costs_t **lists_out);

/* measure.c: what dp_measured_costs_write() writes. before_scales: "STAGE_SCALE=", or more. */
void dp__measured_costs_put(const dp_measured_costs_t *measured, const char *before_scales, dp__out_t *out);

#endif
