/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * shards.c: dp_pipeline_options_t.zero: who of the ranks that hold a parameter sums its gradient
 * and updates it, and how the others get it then.
 *
 * Neighbouring parameters with the same holders are cut together, first between the two mirrors,
 * then each half over the data group: in that order they are summed without shards too, so the bits
 * are the same. Cuts are where sums of squares of a parameter are cut as well (norm.c). */
#include "base/do.h"
#include "base/memory.h"
#include "engine/engine.h"

#include <string.h>

/* ---- groups ---- */

static bool has_mirror(const dp_pipeline_t *p)
{
    const int32_t mirror = p->chunks[0].place.mirror_rank;

    return mirror >= 0 && mirror != p->grid.p && !p->schedule->forward_only;
}

/* Of the two mirrors, the one with the lower rank is the first. */
static int32_t own_half(const dp_pipeline_t *p)
{
    return has_mirror(p) && p->chunks[0].place.mirror_rank < p->grid.p;
}

static int32_t data_size(const dp_pipeline_t *p, bool sharded)
{
    return sharded ? p->grid.dp : p->grid.dp * p->grid.ep;
}

static int32_t data_rank(const dp_pipeline_t *p, bool sharded)
{
    return sharded ? p->grid.d : p->grid.d * p->grid.ep + p->grid.e;
}

static dp_comm_t *data_comm(const dp__sum_comms_t *comms, bool sharded)
{
    return sharded ? comms->expert_data : comms->dense;
}

bool dp__zero_is_on(const dp_pipeline_t *p)
{
    return p->options.zero && !p->schedule->forward_only && data_size(p, false) * (has_mirror(p) ? 2 : 1) > 1;
}

/* Routers' biases need the counts of all experts, and what a part sums itself is summed whole. */
bool dp__shard_is_cut(const dp_pipeline_t *p, const dp_part_t *part, const dp_param_t *param)
{
    const size_t size = dp_dtype_bytes(p->options.dtype);

    return dp__zero_is_on(p) && data_size(p, param->sharded != 0) * (has_mirror(p) ? 2 : 1) > 1 &&
           param->kind != DP_PARAM_ROUTER_BIAS && part->reduce == NULL && part->placement == NULL &&
           param->offset * size % sizeof(uint64_t) == 0 && param->count * size % sizeof(uint64_t) == 0;
}

/* ---- cutting ---- */

/* Begins a stretch with a parameter, or adds it to the latest. Without expert groups experts have
 * the holders of all else. */
static void stretch(const dp_pipeline_t *p, dp__chunk_t *chunk, const dp_param_t *param, uint32_t index, bool cut)
{
    const dp__stretch_t one = {.first = param->offset,
                               .count = param->count,
                               .param = index,
                               .nparams = 1,
                               .sharded = param->sharded != 0 && p->grid.ep > 1,
                               .tied = param->shared != NULL,
                               .cut = cut};
    dp__stretch_t *last = chunk->nstretches > 0 ? &chunk->stretches[chunk->nstretches - 1] : NULL;

    if (last == NULL || !chunk->stage->rising || last->sharded != one.sharded || last->tied != one.tied ||
        last->cut != one.cut) {
        chunk->stretches[chunk->nstretches++] = one;
        return;
    }
    last->count = param->offset + param->count - last->first;
    last->nparams++;
}

/* The cut nearest to element `at` of a stretch, at the end of a block of the parameter that it is
 * in. */
static size_t nearest(const dp__chunk_t *chunk, const dp__stretch_t *s, size_t at)
{
    const dp_param_t *param = &chunk->stage->param_list[s->param];
    uint32_t i = 0;
    size_t begin, block;

    while (i + 1 < s->nparams && param[i + 1].offset - s->first <= at)
        i++;
    begin = param[i].offset - s->first;
    block = (at - begin + DP_SHARD_BLOCK / 2) / DP_SHARD_BLOCK * DP_SHARD_BLOCK;
    return begin + (block < param[i].count ? block : param[i].count);
}

/* *room: 2 * (3 + n + 1) numbers, with those of this stretch in front taken. */
static void cut_stretch(const dp_pipeline_t *p, const dp__chunk_t *chunk, dp__stretch_t *s, size_t **room)
{
    const size_t size = dp_dtype_bytes(p->options.dtype);
    const int32_t n = data_size(p, s->sharded), halves = has_mirror(p) ? 2 : 1, half = own_half(p);
    size_t *at = *room;

    s->across = at, s->along = at + 3;
    s->across_bytes = at + 4 + n, s->along_bytes = at + 7 + n;
    *room += 8 + 2 * n;
    for (int32_t h = 0; h <= halves; h++)
        s->across[h] = h == halves ? s->count : h == 0 ? 0 : nearest(chunk, s, s->count / 2);
    for (int32_t r = 0; r <= n; r++) {
        const size_t share = (size_t)(half * n + r), of = (size_t)(halves * n);
        const size_t begin = s->across[half], end = s->across[half + 1];
        const size_t point = r == 0   ? begin
                             : r == n ? end
                                      : nearest(chunk, s, s->count / of * share + s->count % of * share / of);

        s->along[r] = (point < begin ? begin : point > end ? end : point) - begin;
    }
    for (int32_t h = 0; h <= halves; h++)
        s->across_bytes[h] = s->across[h] * size;
    for (int32_t r = 0; r <= n; r++)
        s->along_bytes[r] = s->along[r] * size;
}

static void add_shard(dp__chunk_t *chunk, uint32_t param, size_t first, size_t end)
{
    if (end <= first)
        return;
    chunk->shards[chunk->nshards++] =
        (dp_shard_t){.param = param, .first = first, .count = end - first, .at = chunk->shard_count};
    chunk->shard_count += end - first;
}

/* What is ours of a stretch. */
static void list_shards(const dp_pipeline_t *p, dp__chunk_t *chunk, const dp__stretch_t *s)
{
    const int32_t r = data_rank(p, s->sharded), half = own_half(p);
    const size_t begin = s->cut ? s->first + s->across[half] + s->along[r] : s->first;
    const size_t end = s->cut ? s->first + s->across[half] + s->along[r + 1] : s->first + s->count;

    for (uint32_t i = s->param; i < s->param + s->nparams; i++) {
        const dp_param_t *param = &chunk->stage->param_list[i];
        const size_t first = begin > param->offset ? begin - param->offset : 0;
        const size_t stop = end > param->offset ? end - param->offset : 0;

        add_shard(chunk, i, first, stop < param->count ? stop : param->count);
    }
}

/* Without zero each parameter is a shard, and what the optimizer keeps lies as the parameters
 * do. */
static void list_whole(dp__chunk_t *chunk)
{
    for (uint32_t i = 0; i < chunk->stage->info.nparams; i++)
        chunk->shards[chunk->nshards++] = (dp_shard_t){
            .param = i, .count = chunk->stage->param_list[i].count, .at = chunk->stage->param_list[i].offset};
    chunk->shard_count = chunk->stage->info.param_count;
}

static dp_status_t make(const dp_pipeline_t *p, dp__chunk_t *chunk)
{
    const dp_stage_t *stage = chunk->stage;
    const size_t n = stage->info.nparams, bounds = 8 + 2 * (size_t)data_size(p, false);
    size_t *room;

    if (!dp__arrays(DP__ARRAY(chunk->shards, n), DP__ARRAY(chunk->stretches, n),
                    DP__ARRAY(chunk->bounds, dp__zero_is_on(p) ? n * bounds : 0)))
        return dp_fail(DP_ERR_NOMEM, "no memory for the shards of stage %d", chunk->place.stage);
    if (!dp__zero_is_on(p)) {
        list_whole(chunk);
        return DP_OK;
    }
    for (int32_t i = 0; i < stage->nparts; i++)
        for (uint32_t k = 0; k < stage->parts[i].sizes.nparams; k++) {
            const uint32_t index = stage->parts[i].first_param + k;
            const dp_param_t *param = &stage->param_list[index];

            stretch(p, chunk, param, index, dp__shard_is_cut(p, &stage->parts[i].part, param));
        }
    room = chunk->bounds;
    for (uint32_t i = 0; i < chunk->nstretches; i++) {
        if (chunk->stretches[i].cut)
            cut_stretch(p, chunk, &chunk->stretches[i], &room);
        list_shards(p, chunk, &chunk->stretches[i]);
    }
    return DP_OK;
}

dp_status_t dp__shards_make(dp_pipeline_t *p)
{
    for (int32_t c = 0; c < p->nchunks; c++) {
        if (p->chunks[c].shards == NULL) /* they outlive an epoch */
            DO(make(p, &p->chunks[c]));
        if (p->chunks[c].gathered == NULL)
            DO(p->device_vt->event_open(p->device, &p->chunks[c].gathered));
    }
    return DP_OK;
}

void dp__shards_free(dp__chunk_t *chunk)
{
    dp__free(chunk->shards);
    chunk->shards = NULL;
    chunk->nshards = chunk->nstretches = 0;
    chunk->shard_count = 0;
}

/* ---- sums ---- */

/* Each rank of comm gets its part; bounds NULL: all get all. n: ranks. */
static dp_status_t sum_shards(const dp_pipeline_t *p, dp_comm_t *comm, char *data, size_t count, const size_t *bounds)
{
    const dp_dtype_t dtype = dp_dtype_accumulator(p->options.dtype);
    dp_stream_t *s = p->lanes.stream[DP_LANE_REDUCE];

    if (comm == NULL)
        return DP_OK;
    if (bounds != NULL && p->comms.vt->reduce_scatter != NULL)
        return p->comms.vt->reduce_scatter(comm, data, bounds, dtype, s);
    return p->comms.vt->all_reduce(comm, data, count, dtype, s);
}

dp_status_t dp__shards_sum(dp_pipeline_t *p, const dp__chunk_t *chunk, char *grads)
{
    const size_t size = dp_dtype_bytes(dp_dtype_accumulator(p->options.dtype));

    for (uint32_t i = 0; i < chunk->nstretches; i++) {
        const dp__stretch_t *s = &chunk->stretches[i];
        const bool scatter = s->cut && !s->tied; /* ties.c goes on with all of it */
        char *at = grads + s->first * size;
        size_t count = s->count;

        DO(sum_shards(p, p->comms.sums.mirror, at, count, scatter ? s->across : NULL));
        if (scatter) {
            at += s->across[own_half(p)] * size;
            count = s->along[data_size(p, s->sharded)];
        }
        if (!s->tied)
            DO(sum_shards(p, data_comm(&p->comms.sums, s->sharded), at, count, scatter ? s->along : NULL));
    }
    return DP_OK;
}

/* ---- gathering ---- */

/* Parts of ranks that are zero but for ours add up to all of them: no bit is added to another. */
static dp_status_t gather_shards(const dp_pipeline_t *p, dp_comm_t *comm, char *data, const size_t *bounds,
                                 int32_t rank, int32_t n)
{
    dp_stream_t *s = p->lanes.stream[DP_LANE_REDUCE];

    if (comm == NULL || bounds[n] == 0)
        return DP_OK;
    if (p->comms.vt->all_gather != NULL)
        return p->comms.vt->all_gather(comm, data, bounds, s);
    if (bounds[rank] > 0)
        DO(p->device_vt->zero(s, data, bounds[rank]));
    if (bounds[n] > bounds[rank + 1])
        DO(p->device_vt->zero(s, data + bounds[rank + 1], bounds[n] - bounds[rank + 1]));
    return p->comms.vt->all_reduce(comm, data, bounds[n] / sizeof(uint64_t), DP_I64, s);
}

/* Of the step that comes next. */
static dp_span_t *begin_record(const dp_pipeline_t *p, int32_t chunk)
{
    dp_span_t *record = &p->trace.records[1 + chunk];

    *record = p->plans.training.spans[1 + chunk];
    record->step = (int32_t)p->run.step;
    return record;
}

static dp_status_t gather_chunk(dp_pipeline_t *p, dp__chunk_t *chunk)
{
    const size_t size = dp_dtype_bytes(p->options.dtype);
    const dp__sum_comms_t *comms = p->options.graph ? &p->comms.gathers : &p->comms.sums;
    dp_stream_t *lane = p->lanes.stream[DP_LANE_REDUCE];
    dp_span_t *record = begin_record(p, (int32_t)(chunk - p->chunks));

    DO(p->device_vt->stamp(lane, &record->start_ns));
    for (uint32_t i = 0; i < chunk->nstretches; i++) {
        const dp__stretch_t *s = &chunk->stretches[i];
        char *at = chunk->params + s->first * size;

        if (!s->cut)
            continue;
        DO(gather_shards(p, data_comm(comms, s->sharded), at + s->across_bytes[own_half(p)], s->along_bytes,
                         data_rank(p, s->sharded), data_size(p, s->sharded)));
        DO(gather_shards(p, comms->mirror, at, s->across_bytes, own_half(p), 2));
    }
    DO(p->device_vt->stamp(lane, &record->end_ns));
    chunk->unwaited = 1u << DP_LANE_COMPUTE | 1u << DP_LANE_ALL_TO_ALL;
    return p->device_vt->event_record(chunk->gathered, lane);
}

/* In the order of the path: mirrors have their chunks the other way round. */
static dp_status_t gather_all(dp_pipeline_t *p)
{
    for (int32_t stage = 0; stage < dp_schedule_stages(p->schedule); stage++)
        for (int32_t c = 0; c < p->nchunks; c++)
            if (p->chunks[c].place.stage == stage)
                DO(gather_chunk(p, &p->chunks[c]));
    return DP_OK;
}

dp_status_t dp_pipeline_gather(dp_pipeline_t *p)
{
    dp_status_t status;

    if (p != NULL && !dp__zero_is_on(p)) /* behind a commit that counts also when a rank has died */
        return DP_OK;
    DO(dp__pipeline_check(p, "dp_pipeline_gather"));
    status = dp__gather_finish(p); /* of a call before: its records are taken again */
    p->gathering = true;
    p->ungathered = false;
    if (status >= 0)
        status = gather_all(p);
    if (status < 0) {
        status = dp__engine_fail(p, status, "gathering parameters");
        dp__engine_settle(p);
    }
    return status;
}

dp_status_t dp__gather_wait(dp_pipeline_t *p, dp__chunk_t *chunk, int lane)
{
    const uint32_t bit = 1u << lane;

    if ((chunk->unwaited & bit) == 0)
        return DP_OK;
    chunk->unwaited &= ~bit;
    return p->device_vt->stream_wait(p->lanes.stream[lane], chunk->gathered);
}

dp_status_t dp__gather_finish(dp_pipeline_t *p)
{
    dp_status_t status = DP_OK;

    if (p->gathering)
        status = dp__stream_finish(p, p->lanes.stream[DP_LANE_REDUCE]);
    if (p->gathering && status >= 0)
        p->recovery.torn = false;
    p->gathering = false;
    return status;
}
