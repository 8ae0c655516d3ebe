/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * braids.h: the segments of all ranks, in order, as operations of a schedule. */
#ifndef DP_OVERLAP_BRAIDS_H
#define DP_OVERLAP_BRAIDS_H

#include "overlap/list.h"

/* calls, counts: of dp__overlap_run(). Method, placement and sizes are those of `like`. */
dp_status_t dp__overlap_braids(const dp__overlap_problem_t *problem, const dp_schedule_t *like,
                               const dp__overlap_call_t *calls, const int64_t *counts, dp_schedule_t **schedule_out);

#endif
