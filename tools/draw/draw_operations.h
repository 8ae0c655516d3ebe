/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_operations.h: a run by segments as figures of schedules show it: boxes of operations. */
#ifndef DP_TOOLS_DRAW_OPERATIONS_H
#define DP_TOOLS_DRAW_OPERATIONS_H

#include <dualpipe/timeline.h>

#include <stdbool.h>

/* One span for each operation of a schedule, two for a pair. in_step: the timeline numbers
 * micro-batches through the step, as the engine does, and not in each direction, as the simulator
 * does. The caller frees the result. */
dp_status_t draw_operations(const dp_schedule_t *schedule, const dp_timeline_t *timeline, bool in_step,
                            dp_timeline_t **operations_out);

#endif
