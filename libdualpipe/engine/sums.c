/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * sums.c: losses and other doubles summed over ranks, in memory that both the host and the device
 * reach. */
#include "base/do.h"
#include "engine/engine.h"

#include <string.h>

dp_status_t dp__sums_open(dp_pipeline_t *p)
{
    size_t losses = dp__losses_count(p) * sizeof(double);
    char *memory[2] = {NULL, NULL};

    DO(dp__shared_memory(p, losses, &p->memory.work, &p->sums.losses));
    DO(dp__shared_memory(p, DP__SUM_COUNT * sizeof(double), &p->memory.work, &p->sums.staging));
    p->sums.losses_there = p->sums.losses;
    p->sums.staging_there = p->sums.staging;
    if (p->host_memory)
        return DP_OK;
    DO(dp__device_memory(p, losses, &p->memory.work, &memory[0]));
    p->sums.losses_there = (double *)(void *)memory[0];
    DO(dp__device_memory(p, DP__SUM_COUNT * sizeof(double), &p->memory.work, &memory[1]));
    p->sums.staging_there = (double *)(void *)memory[1];
    return DP_OK;
}

void dp__sums_close(dp_pipeline_t *p)
{
    if (p->sums.losses_there != NULL && p->sums.losses_there != p->sums.losses)
        p->device_vt->release(p->device, p->sums.losses_there);
    if (p->sums.staging_there != NULL && p->sums.staging_there != p->sums.staging)
        p->device_vt->release(p->device, p->sums.staging_there);
    dp__shared_release(p, p->sums.losses);
    dp__shared_release(p, p->sums.staging);
    p->sums = (dp__sums_t){0};
}

dp_status_t dp_pipeline_sum(dp_pipeline_t *p, double *values, size_t count)
{
    dp_stream_t *s;

    DO(dp__pipeline_check(p, "dp_pipeline_sum"));
    if (values == NULL && count > 0)
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_sum: values is NULL");
    s = p->lanes.stream[DP_LANE_REDUCE];
    for (size_t at = 0; at < count; at += DP__SUM_COUNT) {
        size_t n = count - at < DP__SUM_COUNT ? count - at : DP__SUM_COUNT;
        dp_status_t status;

        memcpy(p->sums.staging, values + at, n * sizeof(*values));
        status = p->sums.staging_there != p->sums.staging
                     ? p->device_vt->copy(s, p->sums.staging_there, p->sums.staging, n * sizeof(*values))
                     : DP_OK;
        if (status >= 0)
            status = p->comms.vt->all_reduce(p->comms.world, p->sums.staging_there, n, DP_F64, s);
        if (status >= 0 && p->sums.staging_there != p->sums.staging)
            status = p->device_vt->copy(s, p->sums.staging, p->sums.staging_there, n * sizeof(*values));
        if (status >= 0)
            status = p->device_vt->synchronize(s, -1);
        if (status < 0) {
            status = dp__engine_fail(p, status, "summing over all ranks");
            dp__engine_settle(p);
            return status;
        }
        memcpy(values + at, p->sums.staging, n * sizeof(*values));
    }
    return DP_OK;
}
