/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_timeline.h: a trace of ours as the timeline and the schedule that it shows. */
#ifndef DP_TOOLS_TRACE_TIMELINE_H
#define DP_TOOLS_TRACE_TIMELINE_H

#include <dualpipe/schedule.h>

#include "trace.h"

/* The timeline's rows are the trace's ranks. The schedule has placement, sizes and no operations: what dp_costs_measure()
 * needs, but for the W that stands right behind its own I, which counts as a whole backward. DP_ERR_REJECTED: no span of
 * ours is there. */
dp_status_t trace_to_timeline(const trace_t *trace, dp_timeline_t **timeline_out,
                              dp_schedule_t **schedule_out);

#endif
