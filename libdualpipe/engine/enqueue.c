/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * enqueue.c: the actions of a plan put on the lanes. Nothing here waits.
 *
 * Order on one lane is the order of enqueueing. Between lanes these events are the whole contract:
 *   hop[segment]  a segment ended; the next segment of the same pass, on another lane, starts after it
 *   work_end      a pass ended; the pass that uses the same work memory next starts after it
 *   slot_end      forward-only: a pass ended; the next in the same activation slot starts after it. In training the
 *   slot's
 *                 last user is a weight gradient, on the compute lane: a forward that starts elsewhere waits for that
 *                 lane
 *   ready[slot]   a pass ended that wrote the slot; the send, or the other side of a turn, reads after it
 *   free[slot]    the reader of a slot has finished; the next writer starts after it. The first segment of the part
 *   that
 *                 writes may do so, which need not run on the lane of the last
 *   mark          what a lane was given so far: losses and gradients are zero before anything starts, a weight gradient
 *   runs
 *                 after its segment, a sum after the weight gradients
 * A receive waits on the lane of the segment that reads the message, so that nothing else is held up. Where the backend
 * completes transfers in bundles only, each peer and direction has a stream of its own instead: its bundles go
 * there in the program's order, a send behind ready[slot], and a receive records ready[slot] for the segment that
 * reads. */
#include "engine/engine.h"
#include "engine/guard.h"

#define DO(call)                                                                                                       \
    do {                                                                                                               \
        dp_status_t status_ = (call);                                                                                  \
        if (status_ < 0)                                                                                               \
            return status_;                                                                                            \
    } while (0)

/* What a pass found out while it is being enqueued. */
typedef struct running {
    const dp__pass_t *pass;
    const dp_step_t *step;
    dp_segment_call_t call;
} running_t;

static int lane_of(const dp_stage_t *stage, int32_t segment)
{
    return (int)stage->segments[segment].segment->lane;
}

static dp_message_tag_t tag_of(const dp_pipeline_t *p, const dp__engine_link_t *link, int32_t microbatch, int32_t at)
{
    return (dp_message_tag_t){
        .number = link->base + (uint32_t)at,
        .step = p->run.step,
        .microbatch = microbatch,
        .bytes = (uint32_t)p->options.boundary_bytes,
    };
}

static int32_t out_slot(const dp__engine_link_t *link, const dp__pass_t *pass)
{
    return link->end == NULL ? pass->dest_at : pass->dest_at % link->nslots; /* steps begin with all buffers free */
}

/* ---- the ends of a pass ---- */

static dp_status_t receive(dp_pipeline_t *p, const dp__pass_t *pass, dp_stream_t *s, const void **data_out)
{
    dp__engine_link_t *link = &p->links.at[pass->source];
    dp_message_tag_t tag = tag_of(p, link, pass->microbatch, pass->source_at);
    dp_status_t status;

    DO(p->device_vt->stamp(s, &p->trace.records[pass->recv_span].start_ns));
    dp__profile_begin(p, pass->recv_span);
    status = p->comms.vt->recv(link->end, &tag, data_out, s);
    dp__profile_end(p);
    return status < 0 ? status : p->device_vt->stamp(s, &p->trace.records[pass->recv_span].end_ns);
}

/* Makes lane `lane` ready for the first segment of a pass and finds its input. */
static dp_status_t begin_pass(dp_pipeline_t *p, running_t *run, int lane)
{
    const dp__pass_t *pass = run->pass;
    dp_stream_t *s = p->lanes.stream[lane];
    const void *data = NULL;

    if (run->call.forward_only) {
        dp__engine_chunk_t *chunk = &p->chunks[pass->chunk];

        if (chunk->slot_lane[pass->slot] != lane)
            DO(p->device_vt->stream_wait(s, chunk->slot_end[pass->slot]));
    } else if (pass->kind == DP__FORWARD && lane != DP_LANE_COMPUTE) {
        /* the activation slot may still be read by weight gradients of its last micro-batch */
        DO(p->device_vt->event_record(p->lanes.mark[DP_LANE_COMPUTE], p->lanes.stream[DP_LANE_COMPUTE]));
        DO(p->device_vt->stream_wait(s, p->lanes.mark[DP_LANE_COMPUTE]));
    }
    if (p->work[pass->kind][pass->work].lane != lane)
        DO(p->device_vt->stream_wait(s, p->work[pass->kind][pass->work].end));
    if (pass->source >= 0 && p->links.at[pass->source].end != NULL && p->programs.bundled) {
        dp__engine_link_t *link = &p->links.at[pass->source];
        int32_t slot = pass->source_at % link->nslots;

        DO(p->device_vt->stream_wait(s, link->ready[slot]));
        data = link->arrived[slot];
    } else if (pass->source >= 0 && p->links.at[pass->source].end != NULL) {
        DO(receive(p, pass, s, &data));
    } else if (pass->source >= 0) {
        dp__engine_link_t *turn = &p->links.at[pass->source];

        if (turn->writer_lane[pass->source_at] != lane)
            DO(p->device_vt->stream_wait(s, turn->ready[pass->source_at]));
        data = turn->slot[pass->source_at];
    }
    if (pass->kind == DP__FORWARD)
        run->call.x = data;
    else
        run->call.dy = data;
    return DP_OK;
}

/* Before the first segment that writes the pass's result: its place must have been read by the last reader. */
static dp_status_t claim_result(dp_pipeline_t *p, running_t *run, int lane)
{
    const dp__pass_t *pass = run->pass;
    dp__engine_link_t *link;
    int32_t slot;

    if (pass->dest < 0)
        return DP_OK;
    link = &p->links.at[pass->dest];
    slot = out_slot(link, pass);
    link->claim_lane = (uint8_t)lane;
    if (!link->in_lane || link->writer_lane[slot] != lane)
        DO(p->device_vt->stream_wait(p->lanes.stream[lane], link->free[slot]));
    if (pass->kind == DP__FORWARD)
        run->call.y = link->slot[slot];
    else
        run->call.dx = link->slot[slot];
    return DP_OK;
}

/* After the last segment that reads the pass's input. */
static dp_status_t release_input(dp_pipeline_t *p, const dp__pass_t *pass, int lane)
{
    dp__engine_link_t *link;

    if (pass->source < 0)
        return DP_OK;
    link = &p->links.at[pass->source];
    if (link->end != NULL)
        return p->comms.vt->release(link->end, link->base + (uint32_t)pass->source_at, p->lanes.stream[lane]);
    return p->device_vt->event_record(link->free[pass->source_at], p->lanes.stream[lane]);
}

static dp_status_t end_pass(dp_pipeline_t *p, const running_t *run, int lane)
{
    const dp__pass_t *pass = run->pass;

    p->work[pass->kind][pass->work].lane = (uint8_t)lane;
    if (!p->lanes.one)
        DO(p->device_vt->event_record(p->work[pass->kind][pass->work].end, p->lanes.stream[lane]));
    if (run->call.forward_only && !p->lanes.one) {
        dp__engine_chunk_t *chunk = &p->chunks[pass->chunk];

        chunk->slot_lane[pass->slot] = (uint8_t)lane;
        DO(p->device_vt->event_record(chunk->slot_end[pass->slot], p->lanes.stream[lane]));
    }
    if (pass->dest >= 0) {
        dp__engine_link_t *link = &p->links.at[pass->dest];
        int32_t slot = out_slot(link, pass);

        link->writer_lane[slot] = (uint8_t)lane;
        if (!link->in_lane)
            DO(p->device_vt->event_record(link->ready[slot], p->lanes.stream[lane]));
    }
    return DP_OK;
}

static dp_status_t send(dp_pipeline_t *p, const dp__pass_t *pass)
{
    dp__engine_link_t *link = &p->links.at[pass->dest];
    dp_message_tag_t tag = tag_of(p, link, pass->microbatch, pass->dest_at);
    int32_t slot = out_slot(link, pass);
    dp_stream_t *s = p->lanes.stream[link->in_lane ? link->writer_lane[slot] : DP_LANE_P2P];
    dp_status_t status;

    p->run.enqueueing = pass->send_span;
    if (!link->in_lane)
        DO(p->device_vt->stream_wait(s, link->ready[slot]));
    DO(p->device_vt->stamp(s, &p->trace.records[pass->send_span].start_ns));
    dp__profile_begin(p, pass->send_span);
    status = p->comms.vt->send(link->end, link->slot[slot], &tag, s);
    dp__profile_end(p);
    DO(status);
    DO(p->device_vt->stamp(s, &p->trace.records[pass->send_span].end_ns));
    if (link->in_lane && link->writer_lane[slot] == link->claim_lane)
        return DP_OK;
    return p->device_vt->event_record(link->free[slot], s);
}

/* ---- bundles ---- */

static dp_status_t put_transfer(dp_pipeline_t *p, const dp__transfer_t *t, dp_stream_t *s)
{
    dp__engine_link_t *link = &p->links.at[t->link];
    int32_t slot = t->at % link->nslots;
    dp_message_tag_t tag = tag_of(p, link, t->microbatch, t->at);

    p->run.enqueueing = t->span;
    if (link->sends)
        return p->comms.vt->send(link->end, link->slot[slot], &tag, s);
    return p->comms.vt->recv(link->end, &tag, &link->arrived[slot], s);
}

static dp_status_t put_transfers(dp_pipeline_t *p, const dp__transfer_t *t, int32_t n, dp_stream_t *s)
{
    DO(p->comms.vt->bundle_begin(p->comms.pipeline, s));
    for (int32_t i = 0; i < n; i++)
        DO(put_transfer(p, &t[i], s));
    return p->comms.vt->bundle_end(p->comms.pipeline, s);
}

static dp_status_t put_bundle(dp_pipeline_t *p, const dp__action_t *action)
{
    dp_stream_t *s = p->ways.at[action->way].stream;
    const dp__transfer_t *t = action->transfers;
    int32_t n = action->ntransfers;
    dp_status_t status;

    for (int32_t i = 0; i < n; i++) {
        dp__engine_link_t *link = &p->links.at[t[i].link];

        p->run.enqueueing = t[i].span;
        if (link->sends)
            DO(p->device_vt->stream_wait(s, link->ready[t[i].at % link->nslots]));
    }
    for (int32_t i = 0; i < n; i++)
        DO(p->device_vt->stamp(s, &p->trace.records[t[i].span].start_ns));
    dp__profile_begin(p, t[0].span); /* one kernel moves them all */
    status = put_transfers(p, t, n, s);
    dp__profile_end(p);
    DO(status);
    for (int32_t i = 0; i < n; i++) {
        dp__engine_link_t *link = &p->links.at[t[i].link];
        int32_t slot = t[i].at % link->nslots;

        DO(p->device_vt->stamp(s, &p->trace.records[t[i].span].end_ns));
        DO(p->device_vt->event_record(link->sends ? link->free[slot] : link->ready[slot], s));
    }
    return DP_OK;
}

/* ---- segments ---- */

/* Where a segment stands in the chain of its pass. */
typedef struct chain {
    int first, last;        /* of the pass */
    int first_out, last_in; /* first to write the result, last to read the input */
    int32_t before, after;  /* neighbours */
} chain_t;

static chain_t chain_of(const dp_stage_t *stage, int32_t index, int forward)
{
    const dp__stage_segment_t *s = &stage->segments[index];
    int32_t n = stage->nsegments;

    if (forward)
        return (chain_t){index == 0,
                         index == n - 1,
                         s->part == stage->nparts - 1 && s->first_of_part,
                         s->part == 0 && s->last_of_part,
                         index - 1,
                         index + 1};
    return (chain_t){
        index == n - 1, index == 0, s->part == 0 && s->last_of_part, s->part == stage->nparts - 1 && s->first_of_part,
        index + 1,      index - 1};
}

static dp_status_t put(dp_pipeline_t *p, const dp_stage_t *stage, const dp__call_t *call, running_t *run, int lane)
{
    dp_stream_t *s = p->lanes.stream[lane];
    dp_segment_call_t own;
    dp_status_t status;

    run->call.scratch = p->lanes.scratch[lane];
    DO(p->device_vt->stamp(s, &p->trace.records[call->span].start_ns));
    DO(dp__meter_begin(p, lane));
    dp__profile_begin(p, call->span);
    dp__stage_call(stage, call->segment, (dp_op_kind_t)call->op, &run->call, &own);
    status = p->guard.on ? dp__guard_put(p, stage, call, &own, s)
                         : dp__stage_put(stage, call->segment, (dp_op_kind_t)call->op, &own, p->device_vt, s);
    dp__profile_end(p);
    DO(status);
    DO(dp__meter_end(p, lane, call->span));
    return p->device_vt->stamp(s, &p->trace.records[call->span].end_ns);
}

static dp_status_t put_weight(dp_pipeline_t *p, const dp_stage_t *stage, const dp__call_t *call, running_t *run)
{
    int made_on = lane_of(stage, call->segment);

    if (made_on != DP_LANE_COMPUTE) {
        DO(p->device_vt->event_record(p->lanes.mark[made_on], p->lanes.stream[made_on]));
        DO(p->device_vt->stream_wait(p->lanes.stream[DP_LANE_COMPUTE], p->lanes.mark[made_on]));
    }
    return put(p, stage, call, run, DP_LANE_COMPUTE);
}

static dp_status_t put_segment(dp_pipeline_t *p, const dp__call_t *call, running_t *run)
{
    const dp__pass_t *pass = run->pass;
    const dp_stage_t *stage = p->chunks[pass->chunk].stage;
    int lane = lane_of(stage, call->segment);
    dp_event_t **hop = p->work[pass->kind][pass->work].hop;
    chain_t chain;

    p->run.enqueueing = call->span;
    if (call->op == DP_OP_W)
        return put_weight(p, stage, call, run);
    chain = chain_of(stage, call->segment, call->op == DP_OP_F);
    if (chain.first)
        DO(begin_pass(p, run, lane));
    else if (lane_of(stage, chain.before) != lane)
        DO(p->device_vt->stream_wait(p->lanes.stream[lane], hop[chain.before]));
    if (chain.first_out)
        DO(claim_result(p, run, lane));
    DO(put(p, stage, call, run, lane));
    if (chain.last_in)
        DO(release_input(p, pass, lane));
    if (chain.last)
        return end_pass(p, run, lane);
    if (lane_of(stage, chain.after) != lane)
        DO(p->device_vt->event_record(hop[call->segment], p->lanes.stream[lane]));
    return DP_OK;
}

static void prepare(dp_pipeline_t *p, const dp__pass_t *pass, const dp_step_t *step, running_t *run)
{
    const dp__engine_chunk_t *chunk = &p->chunks[pass->chunk];
    int first = chunk->place.prev_rank < 0, last = chunk->place.next_rank < 0;

    *run = (running_t){.pass = pass, .step = step};
    run->call = (dp_segment_call_t){
        .struct_size = sizeof(run->call),
        .rank = p->grid.p,
        .stage = chunk->place.stage,
        .chunk = pass->chunk,
        .microbatch = pass->microbatch,
        .half = pass->half,
        .step = p->run.step,
        .forward_only = step->forward_only,
        .params = chunk->params,
        .grads = chunk->grads[pass->half],
        .saved = chunk->saved + (size_t)pass->slot * chunk->stage->info.saved_bytes,
        .work = pass->op == DP_OP_W ? NULL : p->work[pass->kind][pass->work].memory,
        .input = first && step->inputs != NULL ? step->inputs[pass->microbatch] : NULL,
        .target = last && step->targets != NULL ? step->targets[pass->microbatch] : NULL,
        .output = last && step->outputs != NULL ? step->outputs[pass->microbatch] : NULL,
        .loss = last ? &p->sums.losses[pass->microbatch] : NULL,
        .loss_scale = step->loss_scale,
        .aux_loss = p->sums.losses + p->schedule->microbatches + 2 * chunk->first_part + pass->half,
    };
}

static dp_status_t compute(dp_pipeline_t *p, const dp__action_t *action, const dp_step_t *step)
{
    running_t run[2];

    for (int i = 0; i < action->npasses; i++)
        prepare(p, &action->passes[i], step, &run[i]);
    for (int32_t i = 0; i < action->ncalls; i++)
        DO(put_segment(p, &action->calls[i], &run[action->calls[i].pass]));
    for (int i = 0; i < action->nsends; i++)
        DO(send(p, &action->passes[action->sends[i]]));
    return DP_OK;
}

/* ---- all of a step ---- */

static dp_status_t zero(dp_pipeline_t *p, int forward_only)
{
    dp_stream_t *s = p->lanes.stream[DP_LANE_COMPUTE];

    DO(p->device_vt->zero(s, p->sums.losses, dp__losses_count(p) * sizeof(double)));
    for (int32_t c = 0; c < p->nchunks && !forward_only; c++)
        for (int half = 0; half < 2; half++)
            if (p->chunks[c].grads[half] != NULL)
                DO(p->device_vt->zero(s, p->chunks[c].grads[half], p->chunks[c].grad_bytes));
    if (p->lanes.one)
        return DP_OK;
    DO(p->device_vt->event_record(p->lanes.mark[DP_LANE_COMPUTE], s));
    return p->device_vt->stream_wait(p->lanes.stream[DP_LANE_ALL_TO_ALL], p->lanes.mark[DP_LANE_COMPUTE]);
}

/* Losses are made where a path ends, auxiliary losses where a part is; everywhere else they are zero. */
static dp_status_t share_losses(dp_pipeline_t *p)
{
    dp_stream_t *s = p->lanes.stream[DP_LANE_REDUCE];
    size_t count = dp__losses_count(p), bytes = count * sizeof(*p->sums.losses);

    if (p->grid.pp == 1)
        return DP_OK;
    for (int lane = DP_LANE_COMPUTE; lane <= DP_LANE_ALL_TO_ALL; lane++) {
        DO(p->device_vt->event_record(p->lanes.mark[lane], p->lanes.stream[lane]));
        DO(p->device_vt->stream_wait(s, p->lanes.mark[lane]));
    }
    if (p->sums.losses_there != p->sums.losses)
        DO(p->device_vt->copy(s, p->sums.losses_there, p->sums.losses, bytes));
    DO(p->comms.vt->all_reduce(p->comms.pipeline, p->sums.losses_there, count, DP_F64, s));
    return p->sums.losses_there != p->sums.losses ? p->device_vt->copy(s, p->sums.losses, p->sums.losses_there, bytes)
                                                  : DP_OK;
}

dp_status_t dp__step_put(dp_pipeline_t *p, const dp__plan_t *plan, const dp_step_t *step)
{
    p->run.enqueueing = -1;
    DO(zero(p, step->forward_only));
    for (int64_t i = 0; i < plan->nactions; i++) {
        const dp__action_t *action = &plan->actions[i];

        if (action->kind == DP_INSTR_COMPUTE)
            DO(compute(p, action, step));
        else if (action->kind == DP_INSTR_REDUCE)
            DO(dp__reduce(p, action->chunk, action->span));
        else
            DO(put_bundle(p, action));
    }
    p->run.enqueueing = -1;
    return share_losses(p);
}
