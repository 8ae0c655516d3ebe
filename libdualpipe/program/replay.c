/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * replay.c: runs a schedule on equal devices. */
#include "program/replay.h"

#include "base/memory.h"
#include "schedule/passes.h"

#include <string.h>

static int32_t replay_cost(const void *context, int32_t rank, int32_t position)
{
    static const int32_t costs[2 * DP__OP_START] = {
        [DP_OP_F] = 1, [DP_OP_B] = 2, [DP_OP_I] = 1, [DP_OP_W] = 1, [DP_OP_FB] = 3};
    const dp_schedule_t *s = ((const dp__dataflow_t *)context)->schedule;

    return costs[s->ops[s->first[rank] + position].kind];
}

dp_status_t dp__replay_run(const dp_schedule_t *schedule, dp__replay_t *replay)
{
    int64_t operations = schedule->first[schedule->ranks];
    dp_status_t status;

    *replay = (dp__replay_t){.schedule = schedule};
    status = dp__index_build(schedule, &replay->index);
    if (status >= 0)
        status = dp__dataflow_create(schedule, &replay->index, &replay->dataflow);
    if (status < 0)
        return status;
    replay->end = dp__calloc((size_t)operations, sizeof(*replay->end));
    if (replay->end == NULL)
        return dp_fail(DP_ERR_NOMEM, "program: no memory for %lld operations", (long long)operations);
    replay->dataflow.flow.cost = replay_cost;
    replay->dataflow.flow.first = schedule->first;
    replay->dataflow.flow.end = replay->end;
    return dp__flow_prove(&replay->dataflow.flow, "verify");
}

void dp__replay_clear(dp__replay_t *replay)
{
    dp__free(replay->end);
    dp__dataflow_clear(&replay->dataflow);
    dp__index_clear(&replay->index);
}

int64_t dp__replay_start(const dp__replay_t *replay, int32_t rank, int32_t position)
{
    return replay->end[replay->schedule->first[rank] + position] - replay_cost(&replay->dataflow, rank, position);
}

int64_t dp__replay_made(const dp__replay_t *replay, int32_t rank, int32_t chunk, int op, int32_t microbatch)
{
    const int32_t *table = op == DP_OP_F ? replay->index.forward : replay->index.backward;

    return replay->end[replay->schedule->first[rank] + table[dp__index_at(&replay->index, rank, chunk, microbatch)]];
}
