/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * reduce.c: sums a stage's gradients in one fixed order: half 0 + half 1, then the data group in
 * rank order, then what the parts of the stage do themselves (replicas of experts). Shared
 * parameters go on in ties.c, shards are in shards.c. */
#include "base/do.h"
#include "engine/engine.h"

char *dp__summed_grads(const dp__chunk_t *chunk)
{
    return chunk->grads[0] != NULL ? chunk->grads[0] : chunk->grads[1];
}

/* Shared parameters are summed over it behind their tie. */
static dp_comm_t *data_group(const dp_pipeline_t *p, const dp_param_t *param)
{
    if (param->shared != NULL)
        return NULL;
    return param->sharded ? p->comms.sums.expert_data : p->comms.sums.dense;
}

/* Sums every run of neighbouring parameters that have one group: experts over their shards, the
 * rest over all replicas. Where a part lists its parameters in another order than they lie, others
 * may lie in between: one by one. */
static dp_status_t reduce_over_data(dp_pipeline_t *p, const dp__chunk_t *chunk, char *grads)
{
    const dp_param_t *param = chunk->stage->info.param_list;
    dp_dtype_t dtype = dp_dtype_accumulator(p->options.dtype);
    size_t size = dp_dtype_bytes(dtype);
    uint32_t n = chunk->stage->info.nparams;

    for (uint32_t i = 0; i < n;) {
        dp_comm_t *comm = data_group(p, &param[i]);
        size_t start = param[i].offset, end = start;

        for (; i < n && data_group(p, &param[i]) == comm && (end == start || chunk->stage->rising); i++)
            end = param[i].offset + param[i].count;
        if (comm == NULL)
            continue;
        DO(p->comms.vt->all_reduce(comm, grads + start * size, end - start, dtype, p->lanes.stream[DP_LANE_REDUCE]));
    }
    return DP_OK;
}

static dp_status_t reduce_whole(dp_pipeline_t *p, const dp__chunk_t *chunk, char *grads)
{
    const size_t count = chunk->stage->info.param_count;

    if (p->comms.sums.mirror != NULL)
        DO(p->comms.vt->all_reduce(p->comms.sums.mirror, grads, count, dp_dtype_accumulator(p->options.dtype),
                                   p->lanes.stream[DP_LANE_REDUCE]));
    return reduce_over_data(p, chunk, grads);
}

static dp_status_t put_sums(dp_pipeline_t *p, const dp__chunk_t *chunk, dp_stream_t *s)
{
    char *grads = dp__summed_grads(chunk);

    if (chunk->grads[0] != NULL && chunk->grads[1] != NULL)
        DO(p->device_vt->add(s, chunk->grads[0], chunk->grads[1], chunk->stage->info.param_count,
                             dp_dtype_accumulator(p->options.dtype)));
    DO(dp__zero_is_on(p) ? dp__shards_sum(p, chunk, grads) : reduce_whole(p, chunk, grads));
    return dp__stage_reduce(chunk->stage, grads, s);
}

dp_status_t dp__reduce(dp_pipeline_t *p, int32_t c, int32_t span)
{
    dp_stream_t *s = p->lanes.stream[DP_LANE_REDUCE];
    dp_status_t status;

    if (p->chunks[c].stage->info.param_count == 0)
        return DP_OK;
    DO(p->device_vt->stamp(s, &p->trace.records[span].start_ns));
    dp__profile_begin(p, span);
    status = put_sums(p, &p->chunks[c], s);
    dp__profile_end(p);
    DO(status);
    return p->device_vt->stamp(s, &p->trace.records[span].end_ns);
}
