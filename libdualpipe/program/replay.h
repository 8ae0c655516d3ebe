/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * replay.h: a schedule on equal devices (F = I = W = 1, B = 2, FB = 3), without transfer times. */
#ifndef DP_PROGRAM_REPLAY_H
#define DP_PROGRAM_REPLAY_H

#include "schedule/index.h"

typedef struct dp__replay {
    const dp_schedule_t *schedule;
    dp__index_t index;
    dp__dataflow_t dataflow;
    int64_t *end; /* [operations] */
} dp__replay_t;

/* Proves on the way that the schedule is complete and its data dependencies have no cycle, as
 * dp_schedule_verify does. Clear with dp__replay_clear, also after failure. */
dp_status_t dp__replay_run(const dp_schedule_t *schedule, dp__replay_t *replay);
void dp__replay_clear(dp__replay_t *replay);

/* When an operation starts. */
int64_t dp__replay_start(const dp__replay_t *replay, int32_t rank, int32_t position);

/* When the forward (DP_OP_F) or backward of a micro-batch ends. */
int64_t dp__replay_made(const dp__replay_t *replay, int32_t rank, int32_t chunk, int op, int32_t microbatch);

#endif
