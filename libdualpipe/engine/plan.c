/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * plan.c: this rank's commands with links, micro-batches of the step and span records, so that a
 * step looks nothing up. */
#include "base/do.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "timeline/pair.h"

#include <string.h>

/* State while a plan is built. */
typedef struct builder {
    dp_pipeline_t *p;
    dp__plan_t *plan;
    const dp_instr_t *instrs; /* of this rank */
} builder_t;

static int32_t new_span(builder_t *b, dp_span_t span)
{
    b->plan->spans[b->plan->nspans] = span;
    return b->plan->nspans++;
}

static uint64_t flow_of(const builder_t *b, int32_t channel, int32_t number)
{
    uint64_t pipeline = (uint64_t)(b->p->grid.d * b->p->grid.ep + b->p->grid.e);

    return 1 + ((pipeline & 0x7ff) << 37 | ((uint64_t)channel & 0xfffff) << 17 | ((uint64_t)number & 0x1ffff));
}

static int16_t stage_of(const builder_t *b, int32_t chunk)
{
    return (int16_t)b->p->chunks[chunk].place.stage;
}

static int32_t microbatch_of(const builder_t *b, int32_t chunk, int32_t microbatch)
{
    return dp_schedule_step_microbatch(b->p->schedule, b->p->chunks[chunk].place.path, microbatch);
}

/* Bits are the same for all schedules that finish weight gradients in micro-batch order. Others are
 * legal, and said. */
static dp_status_t watch_order(const builder_t *b)
{
    /* of each segment: beside each other, passes take them in turn */
    int32_t first[DP_MAX_CHUNKS + 1] = {0}, *latest;

    for (int32_t c = 0; c < b->p->nchunks; c++)
        first[c + 1] = first[c] + b->p->chunks[c].stage->nsegments;
    latest = dp__calloc((size_t)first[b->p->nchunks] + 1, sizeof(*latest));
    if (latest == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the order of %d segments", first[b->p->nchunks]);
    for (int64_t i = 0; i < b->plan->commands.count; i++) {
        const dp__command_t *c = &b->plan->commands.at[i];
        const dp__step_pass_t *pass;
        int32_t microbatch, *before;

        if (c->kind != DP__CALL || c->op != DP_OP_W)
            continue;
        pass = &b->plan->commands.passes[c->at];
        microbatch = microbatch_of(b, pass->chunk, pass->microbatch);
        before = &latest[first[pass->chunk] + c->segment];
        if (microbatch < *before) {
            dp_log(DP_LOG_WARN, "engine",
                   "schedule %s adds the weight gradient of micro-batch %d after that of %d on rank %d: its sums may "
                   "differ from other schedules' in the last bits",
                   b->p->schedule->method, microbatch, *before, b->p->grid.p);
            break;
        }
        *before = microbatch;
    }
    dp__free(latest);
    return DP_OK;
}

/* The link of a channel of `program`, which may be the forward-only one with separate channels
 * numbering. */
static int32_t find_link(const dp_pipeline_t *p, const dp_channel_t *wanted)
{
    for (int32_t l = 0; l < p->links.n; l++) {
        const dp_channel_t *c = p->links.at[l].channel;

        if (c->src == wanted->src && c->dst == wanted->dst && c->src_chunk == wanted->src_chunk &&
            c->dst_chunk == wanted->dst_chunk && c->op == wanted->op)
            return l;
    }
    return -1;
}

/* Memory of a link is that of the plan which needs more. */
static void find_links(builder_t *b)
{
    dp__plan_t *plan = b->plan;

    for (int32_t c = 0; c < plan->program->nchannels; c++) {
        int32_t l = plan->link[c] = find_link(b->p, &plan->program->channels[c]);

        if (l >= 0 && plan->commands.buffers[c] > b->p->links.at[l].nbuffers)
            b->p->links.at[l].nbuffers = plan->commands.buffers[c];
    }
}

static void fill_passes(builder_t *b)
{
    for (int32_t i = 0; i < b->plan->commands.npasses; i++) {
        const dp__step_pass_t *from = &b->plan->commands.passes[i];
        dp__pass_t *pass = &b->plan->passes[i];

        pass->microbatch = microbatch_of(b, from->chunk, from->microbatch);
        pass->half = dp__half_of(b->p, pass->microbatch);
        pass->source = from->source >= 0 ? b->plan->link[from->source] : -1;
        pass->dest = from->dest >= 0 ? b->plan->link[from->dest] : -1;
    }
}

/* ---- spans ---- */

static int32_t call_span(builder_t *b, const dp__command_t *c)
{
    const dp__step_pass_t *pass = &b->plan->commands.passes[c->at];
    const dp_segment_t *segment = b->p->chunks[pass->chunk].stage->segments[c->segment].segment;

    return new_span(b, (dp_span_t){.kind = DP_SPAN_COMPUTE,
                                   .lane = c->stream,
                                   .pass = c->op,
                                   .pair = dp__span_pair(pass->beside),
                                   .microbatch = b->plan->passes[c->at].microbatch,
                                   .chunk = pass->chunk,
                                   .stage = stage_of(b, pass->chunk),
                                   .segment = c->segment,
                                   .name = (uint16_t)(1 + dp__name_index(b->p, segment->name))});
}

static int32_t transfer_span(builder_t *b, int sends, int32_t channel, int32_t number, int32_t chunk,
                             int32_t microbatch)
{
    int32_t link = b->plan->link[channel];

    b->plan->messages[link]++;
    return new_span(b, (dp_span_t){.kind = sends ? DP_SPAN_SEND : DP_SPAN_RECV,
                                   .lane = DP_LANE_P2P,
                                   .pass = b->plan->program->channels[channel].op,
                                   .microbatch = microbatch_of(b, chunk, microbatch),
                                   .chunk = (int16_t)chunk,
                                   .stage = stage_of(b, chunk),
                                   .segment = -1,
                                   .flow = flow_of(b, channel, number)});
}

static int32_t bundle_spans(builder_t *b, const dp__command_t *c)
{
    int32_t first = b->plan->nspans;

    for (int32_t i = 0; i < c->count; i++) {
        const dp_instr_t *t = &b->instrs[c->at + i];

        (void)transfer_span(b, t->kind == DP_INSTR_SEND, t->channel, t->number, t->chunk, t->microbatch);
    }
    return first;
}

static int32_t reduce_span(builder_t *b, int32_t chunk)
{
    return new_span(b, (dp_span_t){.kind = DP_SPAN_REDUCE,
                                   .lane = DP_LANE_REDUCE,
                                   .microbatch = -1,
                                   .chunk = (int16_t)chunk,
                                   .stage = stage_of(b, chunk),
                                   .segment = -1});
}

static int32_t span_of(builder_t *b, const dp__command_t *c)
{
    const dp__step_pass_t *pass = &b->plan->commands.passes[c->at];

    switch (c->kind) {
    case DP__CALL:
        return call_span(b, c);
    case DP__RECV:
        return transfer_span(b, 0, pass->source, pass->source_at, pass->chunk, pass->microbatch);
    case DP__SEND:
        return transfer_span(b, 1, pass->dest, pass->dest_at, pass->chunk, pass->microbatch);
    case DP__BUNDLE:
        return bundle_spans(b, c);
    case DP__REDUCE:
        return reduce_span(b, c->at);
    default:
        return -1;
    }
}

/* Commands name transfer streams by their number in their own program. */
static void find_transfer_stream(const builder_t *b, dp__command_t *c)
{
    const dp__transfer_stream_t *transfer = &b->plan->commands.transfer_streams[c->stream - DP_LANE_COUNT];

    c->stream = (uint8_t)(DP_LANE_COUNT + dp__transfer_stream_find(b->p->transfer_streams.at, b->p->transfer_streams.n,
                                                                   transfer->peer, transfer->sends));
}

static void fill_commands(builder_t *b)
{
    new_span(
        b,
        (dp_span_t){
            .kind = DP_SPAN_STEP, .lane = DP_LANE_COMPUTE, .microbatch = -1, .chunk = -1, .stage = -1, .segment = -1});
    for (int32_t c = 0; c < b->p->nchunks && dp__zero_is_on(b->p); c++)
        b->plan->spans[reduce_span(b, c)].name = (uint16_t)(1 + dp__name_index(b->p, DP__GATHER));
    for (int64_t i = 0; i < b->plan->commands.count; i++) {
        dp__command_t *c = &b->plan->commands.at[i];

        b->plan->span[i] = span_of(b, c);
        if (c->stream >= DP_LANE_COUNT)
            find_transfer_stream(b, c);
    }
    for (int32_t i = 0; i < b->p->ties.n && b->plan == &b->p->plans.training; i++) {
        dp__tie_t *tie = &b->p->ties.at[i];

        if (tie->rank[0] >= 0 && !b->p->schedule->forward_only)
            tie->span = reduce_span(b, tie->chunk[tie->chunk[0] >= 0 ? 0 : 1]);
    }
}

/* ---- the whole ---- */

static dp_status_t write_commands(builder_t *b)
{
    dp_pipeline_t *p = b->p;
    const dp_program_t *program = b->plan->program;
    uint8_t *in_lane = dp__calloc((size_t)program->nchannels + 1, 1);
    dp__stage_shape_t stages[DP_MAX_CHUNKS];
    dp_status_t status;

    if (in_lane == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a plan of %d channels", program->nchannels);
    for (int32_t c = 0; c < program->nchannels; c++) {
        int32_t l = find_link(p, &program->channels[c]);

        in_lane[c] = l >= 0 && p->links.at[l].in_lane;
    }
    for (int32_t c = 0; c < p->nchunks; c++)
        stages[c] = (dp__stage_shape_t){.nsegments = p->chunks[c].stage->nsegments,
                                        .segments = p->chunks[c].stage->shapes,
                                        .backward_buffer = p->chunks[c].stage->info.backward_buffer_bytes > 0};
    status = dp__commands_write(program, p->grid.p, stages, in_lane, &b->plan->commands);
    dp__free(in_lane);
    return status;
}

static dp_status_t allocate_plan(builder_t *b)
{
    dp__plan_t *plan = b->plan;
    const dp_program_t *program = plan->program;
    size_t n = (size_t)(program->first[b->p->grid.p + 1] - program->first[b->p->grid.p]);

    const size_t spans = (size_t)plan->commands.ncalls + n + (size_t)b->p->ties.n + (size_t)b->p->nchunks + 1;

    return dp__arrays(DP__ARRAY(plan->passes, plan->commands.npasses), DP__ARRAY(plan->span, plan->commands.count),
                      DP__ARRAY(plan->spans, spans), DP__ARRAY(plan->messages, b->p->links.n),
                      DP__ARRAY(plan->link, program->nchannels))
               ? DP_OK
               : dp_fail(DP_ERR_NOMEM, "no memory for a plan of %zu instructions", n);
}

static dp_status_t build_plan(dp_pipeline_t *p, const dp_program_t *program, dp__plan_t *plan)
{
    builder_t b = {.p = p, .plan = plan, .instrs = program->instrs + program->first[p->grid.p]};

    *plan = (dp__plan_t){.program = program};
    DO(write_commands(&b));
    DO(allocate_plan(&b));
    find_links(&b);
    fill_passes(&b);
    fill_commands(&b);
    return watch_order(&b);
}

static void free_plan(dp__plan_t *plan)
{
    dp__commands_clear(&plan->commands);
    dp__free(plan->passes);
    *plan = (dp__plan_t){.program = NULL};
}

dp_status_t dp__plans_build(dp_pipeline_t *p)
{
    DO(build_plan(p, p->programs.training, &p->plans.training));
    if (p->programs.forward != NULL)
        DO(build_plan(p, p->programs.forward, &p->plans.forward));
    return DP_OK;
}

void dp__plans_free(dp_pipeline_t *p)
{
    free_plan(&p->plans.training);
    free_plan(&p->plans.forward);
}
