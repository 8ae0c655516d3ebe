/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * streams.c: all streams of a rank. Backends that complete transfers in bundles get one for each
 * peer and direction, so that a message that is late holds up only what comes from or goes to the
 * same place. */
#include "base/do.h"
#include "engine/engine.h"

int32_t dp__stream_count(const dp_pipeline_t *p)
{
    return DP_LANE_COUNT + p->transfer_streams.n;
}

dp_stream_t *dp__stream_at(const dp_pipeline_t *p, int32_t i)
{
    return i < DP_LANE_COUNT ? p->lanes.stream[i] : p->transfer_streams.stream[i - DP_LANE_COUNT];
}

/* Now and then the other streams are looked at: theirs may be the failure that this one waits
 * for. */
dp_status_t dp__stream_finish(dp_pipeline_t *p, dp_stream_t *s)
{
    for (;;) {
        dp_status_t status = p->device_vt->synchronize(s, 100000000);

        if (status != DP_ERR_TIMEOUT)
            return status;
        DO(p->device_vt->query_error(p->device));
        DO(dp_group_health(p->group));
    }
}

dp_status_t dp__transfer_streams_open(dp_pipeline_t *p)
{
    int32_t n = dp__transfer_streams_of(p->programs.training, p->grid.p, p->transfer_streams.at);

    if (n < 0)
        return dp_fail(DP_ERR_REJECTED, "rank %d of the pipeline has more than two neighbours", p->grid.p);
    while (p->transfer_streams.n < n) {
        DO(p->device_vt->stream_open(p->device, DP_LANE_P2P, &p->transfer_streams.stream[p->transfer_streams.n]));
        p->transfer_streams.n++;
    }
    return DP_OK;
}
