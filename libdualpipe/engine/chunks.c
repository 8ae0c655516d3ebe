/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * chunks.c: the stages this rank holds, and all the device memory a step will ever use. */
#include "base/do.h"
#include "base/memory.h"
#include "base/range.h"
#include "engine/engine.h"
#include "stage/dtype.h"
#include "stage/guard.h"

#include <string.h>

dp_status_t dp__device_memory(dp_pipeline_t *p, size_t bytes, size_t *account, char **memory_out)
{
    void *memory = NULL;

    *memory_out = NULL;
    if (bytes == 0)
        return DP_OK;
    if (p->guard.on && !dp__add(bytes, DP__GUARD_BYTES, &bytes))
        return dp_fail(DP_ERR_INVALID, "%zu bytes are more than memory can hold", bytes);
    DO(p->device_vt->allocate(p->device, bytes, &memory));
    if (p->guard.on)
        memset((char *)memory + bytes - DP__GUARD_BYTES, 0xa5, DP__GUARD_BYTES);
    *account += bytes;
    p->memory.total += bytes;
    *memory_out = memory;
    return DP_OK;
}

/* Memory that both the host and kernels reach. */
dp_status_t dp__shared_memory(dp_pipeline_t *p, size_t bytes, size_t *account, double **memory_out)
{
    void *memory = NULL;

    *memory_out = NULL;
    DO((p->host_memory ? p->device_vt->allocate : p->device_vt->host_allocate)(p->device, bytes, &memory));
    *account += bytes;
    p->memory.total += bytes;
    *memory_out = memory;
    return DP_OK;
}

void dp__shared_release(dp_pipeline_t *p, double *memory)
{
    if (memory != NULL)
        (p->host_memory ? p->device_vt->release : p->device_vt->host_release)(p->device, memory);
}

static dp_status_t check_stage(const dp_pipeline_t *p, dp_stage_t *stage, int32_t index, dp_stage_t **stage_out)
{
    const uint32_t host = DP_DEVICE_CAP_LAUNCH | DP_DEVICE_CAP_HOST_MEMORY;

    if (stage->dtype != p->options.dtype || stage->boundary_bytes != p->options.boundary_bytes)
        return dp_fail(
            DP_ERR_INVALID,
            "stage %d was made with dtype %s and boundary_bytes %zu, the pipeline's options have %s and %zu: "
            "they must be the same",
            index, dp__dtype_name(stage->dtype), stage->boundary_bytes, dp__dtype_name(p->options.dtype),
            p->options.boundary_bytes);
    if (stage->host && (p->device_vt->caps & host) != host)
        return dp_fail(DP_ERR_UNSUPPORTED,
                       "stage %d has segments with host functions, which device plugin %s does not run", index,
                       p->device_name);
    *stage_out = stage;
    return DP_OK;
}

/* Asks the trainer for the stage of chunk `c`. */
static dp_status_t build_stage(dp_pipeline_t *p, int32_t c, dp_stage_t **stage_out)
{
    dp_build_context_t context = {
        .struct_size = sizeof(context),
        .group = p->group,
        .host = p->host,
        .device_vt = p->device_vt,
        .device = p->device,
        .comm_vt = p->comms.vt,
        .expert_comm = p->comms.expert,
        .pipeline_rank = p->grid.p,
        .pipeline_size = p->grid.pp,
        .expert_rank = p->grid.e,
        .expert_size = p->grid.ep,
        .data_rank = p->grid.d,
        .data_size = p->grid.dp,
        .tokens = p->options.tokens,
        .documents = p->options.documents,
        .cache_slots = p->options.cache_slots,
        .cache_tokens = p->options.cache_tokens,
    };
    int32_t index = p->chunks[c].place.stage, stages = dp_schedule_stages(p->schedule);
    dp_stage_t *stage = NULL;
    dp_status_t status;

    p->built = 1;
    (void)dp_fail(DP_ERR_INVALID, "%s", ""); /* to see whether build says why */
    status = p->options.build(p->options.user, &context, index, stages, &stage);
    if (status < 0)
        return dp_last_error()[0] != '\0'
                   ? dp_fail(status, "building stage %d of %d: %s", index, stages, dp_last_error())
                   : dp_fail(status,
                             "building stage %d of %d: build returned %s without a message (dp_fail gives both)", index,
                             stages, dp_status_name(status));
    if (stage == NULL)
        return dp_fail(DP_ERR_INVALID, "building stage %d of %d: build returned no stage", index, stages);
    return check_stage(p, stage, index, stage_out);
}

dp_status_t dp__chunks_build(dp_pipeline_t *p)
{
    p->lanes.one = 1;
    for (int32_t c = 0; c < p->nchunks; c++) {
        dp__chunk_t *chunk = &p->chunks[c];

        DO(build_stage(p, c, &chunk->stage));
        if (chunk->stage->nsegments > p->max_segments)
            p->max_segments = chunk->stage->nsegments;
        for (int32_t s = 0; s < chunk->stage->nsegments; s++)
            p->lanes.one &= chunk->stage->segments[s].segment->lane == DP_LANE_COMPUTE;
    }
    return DP_OK;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* Memory, plan and names are those of the stage that was there first. */
static int same_stage(const dp_stage_t *a, const dp_stage_t *b)
{
    const dp__stage_info_t *x = &a->info, *y = &b->info;

    if (a->nsegments != b->nsegments || memcmp(a->shapes, b->shapes, (size_t)a->nsegments * sizeof(*a->shapes)) != 0 ||
        x->saved_bytes != y->saved_bytes || x->backward_buffer_bytes != y->backward_buffer_bytes ||
        x->work_bytes != y->work_bytes || a->backward_buffer_room != b->backward_buffer_room ||
        x->scratch_bytes != y->scratch_bytes || x->cache_bytes != y->cache_bytes || x->param_count != y->param_count ||
        x->nparams != y->nparams)
        return 0;
    for (int32_t s = 0; s < a->nsegments; s++)
        if (strcmp(a->segments[s].segment->name, b->segments[s].segment->name) != 0 ||
            a->segments[s].part != b->segments[s].part)
            return 0;
    for (uint32_t i = 0; i < x->nparams; i++)
        if (!same_text(x->param_list[i].shared, y->param_list[i].shared) ||
            x->param_list[i].offset != y->param_list[i].offset || x->param_list[i].count != y->param_list[i].count ||
            x->param_list[i].sharded != y->param_list[i].sharded || x->param_list[i].expert != y->param_list[i].expert)
            return 0;
    return 1;
}

dp_status_t dp__chunks_rebuild(dp_pipeline_t *p)
{
    dp_stage_t *fresh[DP_MAX_CHUNKS];

    for (int32_t c = 0; c < p->nchunks; c++) {
        DO(build_stage(p, c, &fresh[c]));
        if (!same_stage(p->chunks[c].stage, fresh[c]))
            return dp_fail(DP_ERR_MISMATCH, "stage %d was built with other segments, sizes or parameters than before",
                           p->chunks[c].place.stage);
    }
    for (int32_t c = 0; c < p->nchunks; c++)
        p->chunks[c].stage = fresh[c];
    return DP_OK;
}

/* Which accumulators a chunk needs: with two directions each chunk sees one half only. */
static int needs_half(const dp_pipeline_t *p, const dp__chunk_t *chunk, int half)
{
    int32_t m = p->schedule->microbatches;

    if (p->schedule->forward_only)
        return 0;
    if (dp_schedule_paths(p->schedule) == 2)
        return chunk->place.path == half;
    if (half == 0)
        return m / 2 > 0;
    return m / 2 == 0 || !p->options.one_accumulator;
}

static int32_t slots_of(const dp_pipeline_t *p, int32_t c)
{
    int32_t at = p->grid.p * p->nchunks + c;
    int32_t forward = p->programs.forward != NULL ? p->programs.forward->activation_slots[at] : 0;

    return dp__max_int32(p->programs.training->activation_slots[at], forward);
}

/* What outlives an epoch is there already. */
static dp_status_t kept_memory(dp_pipeline_t *p, size_t bytes, size_t *account, char **memory)
{
    if (*memory == NULL)
        return dp__device_memory(p, bytes, account, memory);
    *account += bytes;
    p->memory.total += bytes;
    return DP_OK;
}

static dp_status_t allocate_chunk(dp_pipeline_t *p, int32_t c)
{
    dp__chunk_t *chunk = &p->chunks[c];
    const dp__stage_info_t info = chunk->stage->info;
    size_t saved;

    if (chunk->params != NULL && chunk->param_bytes != info.param_count * dp_dtype_bytes(p->options.dtype))
        return dp_fail(DP_ERR_MISMATCH, "stage %d was built with other parameters than before", chunk->place.stage);
    chunk->param_bytes = info.param_count * dp_dtype_bytes(p->options.dtype);
    chunk->grad_bytes = info.param_count * dp_dtype_bytes(dp_dtype_accumulator(p->options.dtype));
    chunk->nslots = slots_of(p, c);
    if (!dp__mul(info.saved_bytes, (size_t)chunk->nslots, &saved))
        return dp_fail(DP_ERR_INVALID, "stage %d: %d activations of %zu bytes are more than memory can hold",
                       chunk->place.stage, chunk->nslots, info.saved_bytes);
    DO(kept_memory(p, chunk->param_bytes, &p->memory.params, &chunk->params));
    for (int half = 0; half < 2; half++)
        if (needs_half(p, chunk, half))
            DO(kept_memory(p, chunk->grad_bytes, &p->memory.grads, &chunk->grads[half]));
    DO(dp__device_memory(p, info.cache_bytes, &p->memory.cache, &chunk->cache));
    return dp__device_memory(p, saved, &p->memory.saved, &chunk->saved);
}

/* What backwards have beside the activation slots: one memory for each that is alive, of any
 * chunk. */
static dp_status_t allocate_backward_buffers(dp_pipeline_t *p)
{
    const int32_t n = p->plans.training.commands.backward_buffers;
    size_t bytes = 0;

    for (int32_t c = 0; c < p->nchunks; c++)
        bytes = dp__max_size(bytes, p->chunks[c].stage->info.backward_buffer_bytes);
    p->backward_buffers = dp__calloc((size_t)n + 1, sizeof(*p->backward_buffers));
    if (p->backward_buffers == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a list of %d backwards", n);
    for (p->nbackward_buffers = 0; p->nbackward_buffers < n; p->nbackward_buffers++)
        DO(dp__device_memory(p, bytes, &p->memory.backward_buffer, &p->backward_buffers[p->nbackward_buffers]));
    return DP_OK;
}

static dp_status_t allocate_work(dp_pipeline_t *p)
{
    size_t work[DP__KINDS] = {0, 0}, scratch = 0;

    for (int32_t c = 0; c < p->nchunks; c++) {
        const dp_stage_t *stage = p->chunks[c].stage;
        const dp__stage_info_t info = stage->info;

        work[DP__FORWARD] = dp__max_size(
            work[DP__FORWARD], stage->backward_buffer_room > 0 ? stage->backward_buffer_at + stage->backward_buffer_room
                                                               : info.work_bytes);
        work[DP__BACKWARD] = dp__max_size(work[DP__BACKWARD], info.work_bytes);
        scratch = info.scratch_bytes > scratch ? info.scratch_bytes : scratch;
    }
    for (int kind = 0; kind < DP__KINDS; kind++) {
        int32_t training = p->plans.training.commands.works[kind], forward = p->plans.forward.commands.works[kind];

        for (int32_t w = 0; w < (forward > training ? forward : training); w++) {
            DO(dp__device_memory(p, work[kind], &p->memory.work, &p->work[kind][w]));
            if (p->guard.on)
                memset(p->work[kind][w], 0xa5, work[kind]);
        }
    }
    for (int lane = DP_LANE_COMPUTE; lane <= DP_LANE_ALL_TO_ALL; lane++)
        DO(dp__device_memory(p, scratch, &p->memory.work, &p->lanes.scratch[lane]));
    for (int lane = 0; lane < DP_LANE_COUNT; lane++)
        DO(p->device_vt->event_open(p->device, &p->lanes.mark[lane]));
    return DP_OK;
}

dp_status_t dp__chunks_allocate(dp_pipeline_t *p)
{
    for (int32_t c = 0; c < p->nchunks; c++)
        DO(allocate_chunk(p, c));
    DO(allocate_backward_buffers(p));
    return allocate_work(p);
}

static void release_memory(dp_pipeline_t *p, char **memory)
{
    if (*memory != NULL)
        p->device_vt->release(p->device, *memory);
    *memory = NULL;
}

static void close_event(dp_pipeline_t *p, dp_event_t **event)
{
    if (*event != NULL)
        p->device_vt->event_close(*event);
    *event = NULL;
}

void dp__chunks_suspend(dp_pipeline_t *p)
{
    for (int32_t c = 0; p->chunks != NULL && c < p->nchunks; c++) {
        release_memory(p, &p->chunks[c].saved);
        release_memory(p, &p->chunks[c].cache);
        close_event(p, &p->chunks[c].gathered);
        p->chunks[c].unwaited = 0;
    }
    for (int32_t r = 0; r < p->nbackward_buffers; r++)
        release_memory(p, &p->backward_buffers[r]);
    dp__free(p->backward_buffers);
    p->backward_buffers = NULL;
    p->nbackward_buffers = 0;
    for (int kind = 0; kind < DP__KINDS; kind++)
        for (int w = 0; w < DP__WORKS; w++)
            release_memory(p, &p->work[kind][w]);
    for (int lane = 0; lane < DP_LANE_COUNT; lane++) {
        release_memory(p, &p->lanes.scratch[lane]);
        close_event(p, &p->lanes.mark[lane]);
    }
}

void dp__chunks_close(dp_pipeline_t *p)
{
    dp__chunks_suspend(p);
    for (int32_t c = 0; p->chunks != NULL && c < p->nchunks; c++) {
        dp__shards_free(&p->chunks[c]);
        release_memory(p, &p->chunks[c].params);
        release_memory(p, &p->chunks[c].grads[0]);
        release_memory(p, &p->chunks[c].grads[1]);
    }
}
