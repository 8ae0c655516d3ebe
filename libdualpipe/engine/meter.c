/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * meter.c: how long the thread of a lane had a core while a segment ran. Where ranks share cores,
 * the stamps of a span hold the time of others. */
#include "base/clock.h"
#include "engine/engine.h"

typedef struct reading {
    int64_t *began;
    dp_span_t *span; /* NULL: the segment begins */
} reading_t;

static dp_status_t read_clock(void *arg)
{
    const reading_t *reading = arg;
    int64_t now = dp__clock_ns(CLOCK_THREAD_CPUTIME_ID);

    if (reading->span == NULL)
        *reading->began = now;
    else if (now - *reading->began <= DP_SPAN_BUSY_MAX)
        reading->span->busy_ns = (uint32_t)(now - *reading->began);
    return DP_OK;
}

static dp_status_t put_clock(dp_pipeline_t *p, int lane, dp_span_t *span)
{
    const reading_t reading = {&p->meter.began[lane], span};

    return p->meter.on ? p->device_vt->launch(p->lanes.stream[lane], read_clock, &reading, sizeof(reading)) : DP_OK;
}

dp_status_t dp__meter_open(dp_pipeline_t *p)
{
    p->meter.on = p->options.cpu_times && (p->device_vt->caps & DP_DEVICE_CAP_LAUNCH) != 0 && !p->options.graph;
    return DP_OK;
}

dp_status_t dp__meter_begin(dp_pipeline_t *p, int lane)
{
    return put_clock(p, lane, NULL);
}

dp_status_t dp__meter_end(dp_pipeline_t *p, int lane, int32_t span)
{
    return put_clock(p, lane, &p->trace.records[span]);
}
