/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * timeline.h: a trace of ours as the timeline and the schedule that it shows. */
#ifndef DP_TRACE_TIMELINE_H
#define DP_TRACE_TIMELINE_H

#include <dualpipe/schedule.h>

#include "trace/trace.h"

/* The timeline's rows are the trace's ranks, the spans of an operation one after the other. The
 * schedule is as much of one as dp_costs_measure() needs: placement, sizes, and the backwards for
 * the input that stand alone. DP_ERR_REJECTED: no span of ours is there. */
dp_status_t dp__trace_to_timeline(const dp_trace_t *trace, dp_timeline_t **timeline_out, dp_schedule_t **schedule_out);

/* Whether its schedule has two directions, chunk 1 being the second. Only for our traces. */
bool dp__trace_is_bidirectional(const dp_trace_t *trace);

#endif
