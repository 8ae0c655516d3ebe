/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * clock.h: what a rank knows of rank 0's clock. */
#ifndef DP_GROUP_CLOCK_H
#define DP_GROUP_CLOCK_H

#include "timeline/clock.h"

#include <dualpipe/group.h>

#define DP__CLOCK_SAMPLES 1024 /* that a rank remembers: some minutes */

/* Round trips to rank 0 since `since_ns` on this rank's clock, some of them made now, in no order;
 * none where the clock is the same. samples_out: [DP__CLOCK_SAMPLES]. [main] [blocks] */
dp_status_t dp__group_clock(dp_group_t *group, int64_t since_ns, dp__clock_sample_t *samples_out, size_t *count_out);

#endif
