/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * view.c: what a trainer asks of an open pipeline. */
#include "base/do.h"
#include "base/sized.h"
#include "engine/engine.h"

#include <string.h>

int32_t dp_pipeline_chunks(const dp_pipeline_t *p)
{
    return p->nchunks;
}

dp_status_t dp_pipeline_chunk(const dp_pipeline_t *p, int32_t c, dp_chunk_view_t *view_out)
{
    const dp__chunk_t *chunk;
    const dp__stage_info_t *info;
    dp_chunk_view_t view;
    dp_status_t status;

    DO(dp__sized_check("dp_pipeline_chunk: view_out", view_out, "dp_chunk_view_t", DP_CHUNK_VIEW_MIN));
    if (p == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_pipeline_chunk: the pipeline is NULL");
    if (dp__segment_running == NULL && p->gathering) {
        status = dp__gather_finish((dp_pipeline_t *)p);
        if (status < 0)
            return dp__engine_fail((dp_pipeline_t *)p, status, "gathering parameters");
    }
    if (c < 0 || c >= p->nchunks)
        return dp_fail(DP_ERR_INVALID, "chunk %d: this rank has %d", c, p->nchunks);
    chunk = &p->chunks[c];
    info = &chunk->stage->info;
    view = (dp_chunk_view_t){
        .struct_size = sizeof(view),
        .chunk = c,
        .path = chunk->place.path,
        .stage = chunk->place.stage,
        .stages = dp_schedule_stages(p->schedule),
        .stage_object = chunk->stage,
        .params = chunk->params,
        .grads = dp__summed_grads(chunk),
        .param_count = info->param_count,
        .nparams = info->nparams,
        .param_list = info->param_list,
        .primary = chunk->place.path == 0 && p->grid.d == 0 && p->grid.e == 0,
        .primary_experts = chunk->place.path == 0 && p->grid.d == 0,
        .nshards = chunk->nshards,
        .shard_list = chunk->shards,
        .shard_count = chunk->shard_count,
    };
    dp_sized_put(view_out, &view);
    return DP_OK;
}

void dp_pipeline_ends(const dp_pipeline_t *p, uint8_t *first_out, uint8_t *last_out)
{
    int32_t m = p->schedule->microbatches;

    if (first_out != NULL)
        memset(first_out, 0, (size_t)m);
    if (last_out != NULL)
        memset(last_out, 0, (size_t)m);
    for (int32_t c = 0; c < p->nchunks; c++) {
        const dp_place_t *place = &p->chunks[c].place;
        int32_t start = dp_schedule_step_microbatch(p->schedule, place->path, 0);
        int32_t n = dp_schedule_path_microbatches(p->schedule, place->path);

        if (first_out != NULL && place->prev_rank < 0)
            memset(first_out + start, 1, (size_t)n);
        if (last_out != NULL && place->next_rank < 0)
            memset(last_out + start, 1, (size_t)n);
    }
}

dp_status_t dp_pipeline_memory(const dp_pipeline_t *p, dp_memory_report_t *report_out)
{
    DO(dp__sized_check("dp_pipeline_memory: report_out", report_out, "dp_memory_report_t", DP_MEMORY_REPORT_MIN));
    dp_sized_put(report_out, &p->memory);
    return DP_OK;
}

const dp_program_t *dp_pipeline_program(const dp_pipeline_t *p)
{
    return p->programs.training;
}
