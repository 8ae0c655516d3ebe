/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * enqueue.c: the commands of a plan put on the streams. Nothing here waits; program/commands.h says
 * which order and which events there are. */
#include "base/do.h"
#include "engine/engine.h"
#include "engine/guard.h"

/* A command being enqueued. */
typedef struct putting {
    dp_pipeline_t *p;
    const dp__plan_t *plan;
    const dp_step_t *step;
    const dp__command_t *command;
    int32_t span; /* its record */
    dp_stream_t *stream;
} putting_t;

static dp_message_tag_t tag_of(const dp_pipeline_t *p, const dp__link_t *link, int32_t microbatch, int32_t at)
{
    return (dp_message_tag_t){
        .number = link->base + (uint32_t)at,
        .step = p->run.step,
        .microbatch = microbatch,
        .bytes = (uint32_t)dp__lengths_bytes(p, microbatch),
    };
}

static int32_t buffer_of(const dp__plan_t *plan, int32_t channel, int32_t at)
{
    return at % plan->commands.buffers[channel]; /* steps begin with all buffers free */
}

/* ---- passes ---- */

static void prepare_call(const putting_t *x, int32_t number, dp_segment_call_t *call)
{
    dp_pipeline_t *p = x->p;
    const dp__step_pass_t *pass = &x->plan->commands.passes[number];
    const dp__pass_t *own = &x->plan->passes[number];
    const dp__chunk_t *chunk = &p->chunks[pass->chunk];
    const dp_step_t *step = x->step;
    int first = chunk->place.prev_rank < 0, last = chunk->place.next_rank < 0;
    int32_t m = own->microbatch;

    *call = (dp_segment_call_t){
        .struct_size = sizeof(*call),
        .rank = p->grid.p,
        .stage = chunk->place.stage,
        .chunk = pass->chunk,
        .microbatch = m,
        .half = own->half,
        .step = p->run.step,
        .forward_only = step->forward_only,
        .params = chunk->params,
        .grads = chunk->grads[own->half] != NULL ? chunk->grads[own->half] : chunk->grads[0],
        .saved = chunk->saved + (size_t)pass->slot * chunk->stage->info.saved_bytes,
        .backward_buffer = pass->backward_buffer >= 0 ? p->backward_buffers[pass->backward_buffer] : NULL,
        .work = pass->op == DP_OP_W ? NULL : p->work[pass->kind][pass->work],
        .input = first && step->inputs != NULL ? step->inputs[m] : NULL,
        .target = last && step->targets != NULL ? step->targets[m] : NULL,
        .output = last && step->outputs != NULL ? step->outputs[m] : NULL,
        .loss = last ? &p->sums.losses[m] : NULL,
        .loss_scale = dp__lengths_weigh(p, m, step->loss_scale),
        .aux_loss = p->sums.losses + p->schedule->microbatches + 2 * chunk->first_part + own->half,
    };
    dp__lengths_set(p, call);
    dp__requests_set(p, chunk, call);
    if (own->dest >= 0)
        *(pass->op == DP_OP_F ? &call->y : &call->dx) =
            p->links.at[own->dest].buffer[buffer_of(x->plan, pass->dest, pass->dest_at)];
}

/* The call of a pass while its segments are enqueued. */
static dp_segment_call_t *running(const putting_t *x, int32_t number)
{
    dp__running_t *run = &x->p->run.running[number % DP__RUNNING];

    if (run->pass != number)
        prepare_call(x, number, &run->call);
    run->pass = number;
    return &run->call;
}

static void set_input(dp_segment_call_t *call, int op, const void *data)
{
    *(op == DP_OP_F ? &call->x : &call->dy) = data;
}

/* Where a pass begins whose input does not come by a separate receive. */
static void find_input(const putting_t *x, int32_t number, dp_segment_call_t *call)
{
    const dp__step_pass_t *pass = &x->plan->commands.passes[number];
    const dp__link_t *link;
    int32_t buffer;

    if (pass->source < 0)
        return;
    link = &x->p->links.at[x->plan->passes[number].source];
    if (link->end != NULL && !x->p->programs.bundled)
        return;
    buffer = buffer_of(x->plan, pass->source, pass->source_at);
    set_input(call, pass->op, link->end != NULL ? link->arrived[buffer] : link->buffer[buffer]);
}

/* ---- commands ---- */

static dp_status_t put_call(const putting_t *x)
{
    dp_pipeline_t *p = x->p;
    const dp__command_t *c = x->command;
    const dp_stage_t *stage = p->chunks[x->plan->commands.passes[c->at].chunk].stage;
    dp_segment_call_t *call = running(x, c->at), own;
    dp_status_t status;

    if ((c->op == DP_OP_F || c->op == DP_OP_I) && c->segment == (c->op == DP_OP_F ? 0 : stage->nsegments - 1))
        find_input(x, c->at, call);
    call->scratch = p->lanes.scratch[c->stream];
    DO(dp__gather_wait(p, &p->chunks[x->plan->commands.passes[c->at].chunk], c->stream));
    DO(p->device_vt->stamp(x->stream, &p->trace.records[x->span].start_ns));
    DO(dp__meter_begin(p, c->stream));
    dp__profile_begin(p, x->span);
    dp__stage_call(stage, c->segment, (dp_op_kind_t)c->op, call, &own);
    status = dp__stage_pass_by(stage, c->segment, (dp_op_kind_t)c->op, call, &own, p->device_vt, x->stream);
    if (status >= 0)
        status = p->guard.on ? dp__guard_put(p, stage, c, x->span, &own, x->stream)
                             : dp__stage_put(stage, c->segment, (dp_op_kind_t)c->op, &own, p->device_vt, x->stream);
    dp__profile_end(p);
    DO(status);
    if (p->finite)
        DO(dp__finite_put(p, stage, c, &own, x->stream));
    DO(dp__meter_end(p, c->stream, x->span));
    return p->device_vt->stamp(x->stream, &p->trace.records[x->span].end_ns);
}

static dp_status_t put_recv(const putting_t *x)
{
    dp_pipeline_t *p = x->p;
    const dp__step_pass_t *pass = &x->plan->commands.passes[x->command->at];
    const dp__pass_t *own = &x->plan->passes[x->command->at];
    dp__link_t *link = &p->links.at[own->source];
    dp_message_tag_t tag = tag_of(p, link, own->microbatch, pass->source_at);
    const void *data = NULL;
    dp_status_t status;

    DO(p->device_vt->stamp(x->stream, &p->trace.records[x->span].start_ns));
    dp__profile_begin(p, x->span);
    status = p->comms.vt->recv(link->end, &tag, &data, x->stream);
    dp__profile_end(p);
    DO(status);
    set_input(running(x, x->command->at), pass->op, data);
    return p->device_vt->stamp(x->stream, &p->trace.records[x->span].end_ns);
}

static dp_status_t put_release(const putting_t *x)
{
    const dp__link_t *link = &x->p->links.at[x->plan->passes[x->command->at].source];
    uint32_t number = link->base + (uint32_t)x->plan->commands.passes[x->command->at].source_at;

    return x->p->comms.vt->release(link->end, number, x->stream);
}

static dp_status_t put_send(const putting_t *x)
{
    dp_pipeline_t *p = x->p;
    const dp__step_pass_t *pass = &x->plan->commands.passes[x->command->at];
    const dp__pass_t *own = &x->plan->passes[x->command->at];
    dp__link_t *link = &p->links.at[own->dest];
    dp_message_tag_t tag = tag_of(p, link, own->microbatch, pass->dest_at);
    dp_status_t status;

    DO(p->device_vt->stamp(x->stream, &p->trace.records[x->span].start_ns));
    dp__profile_begin(p, x->span);
    status = p->comms.vt->send(link->end, link->buffer[buffer_of(x->plan, pass->dest, pass->dest_at)], &tag, x->stream);
    dp__profile_end(p);
    return status < 0 ? status : p->device_vt->stamp(x->stream, &p->trace.records[x->span].end_ns);
}

static int32_t microbatch_of(const dp_pipeline_t *p, const dp_instr_t *t)
{
    return dp_schedule_step_microbatch(p->schedule, p->chunks[t->chunk].place.path, t->microbatch);
}

static dp_status_t put_transfer(const putting_t *x, const dp_instr_t *t)
{
    dp_pipeline_t *p = x->p;
    dp__link_t *link = &p->links.at[x->plan->link[t->channel]];
    int32_t buffer = buffer_of(x->plan, t->channel, t->number);
    dp_message_tag_t tag = tag_of(p, link, microbatch_of(p, t), t->number);

    if (link->sends)
        return p->comms.vt->send(link->end, link->buffer[buffer], &tag, x->stream);
    return p->comms.vt->recv(link->end, &tag, &link->arrived[buffer], x->stream);
}

static dp_status_t put_transfers(const putting_t *x, const dp_instr_t *t)
{
    dp_pipeline_t *p = x->p;

    DO(p->comms.vt->bundle_begin(p->comms.pipeline, x->stream));
    for (int32_t i = 0; i < x->command->count; i++) {
        if (microbatch_of(p, &t[i]) >= x->step->microbatches)
            continue;
        p->run.enqueueing = x->span + i;
        DO(put_transfer(x, &t[i]));
    }
    return p->comms.vt->bundle_end(p->comms.pipeline, x->stream);
}

static dp_status_t put_bundle(const putting_t *x)
{
    dp_pipeline_t *p = x->p;
    const dp_program_t *program = x->plan->program;
    const dp_instr_t *t = &program->instrs[program->first[p->grid.p] + x->command->at];
    int32_t present = 0;
    dp_status_t status;

    for (int32_t i = 0; i < x->command->count; i++)
        present += microbatch_of(p, &t[i]) < x->step->microbatches;
    if (present == 0)
        return DP_OK;
    for (int32_t i = 0; i < x->command->count; i++)
        DO(p->device_vt->stamp(x->stream, &p->trace.records[x->span + i].start_ns));
    dp__profile_begin(p, x->span); /* one kernel moves them all */
    status = put_transfers(x, t);
    dp__profile_end(p);
    DO(status);
    for (int32_t i = 0; i < x->command->count; i++)
        DO(p->device_vt->stamp(x->stream, &p->trace.records[x->span + i].end_ns));
    return DP_OK;
}

static dp_status_t put_reduce(const putting_t *x)
{
    dp_pipeline_t *p = x->p;

    if (dp__last_round(x->step))
        return dp__reduce(p, x->command->at, x->span);
    DO(p->device_vt->stamp(x->stream, &p->trace.records[x->span].start_ns));
    return p->device_vt->stamp(x->stream, &p->trace.records[x->span].end_ns);
}

/* Of a micro-batch that this step does not have nothing is computed or sent. Waits and records of
 * its passes stay: others that use the same memory are ordered through them. */
static bool is_absent(const putting_t *x)
{
    const uint8_t kind = x->command->kind;

    return (kind == DP__CALL || kind == DP__RECV || kind == DP__RELEASE || kind == DP__SEND) &&
           x->plan->passes[x->command->at].microbatch >= x->step->microbatches;
}

static dp_status_t put_command(const putting_t *x)
{
    dp_pipeline_t *p = x->p;
    const dp__command_t *c = x->command;

    if (is_absent(x))
        return DP_OK;
    if (x->span >= 0)
        p->run.enqueueing = x->span;
    switch (c->kind) {
    case DP__WAIT:
        return p->device_vt->stream_wait(x->stream, p->events.at[c->at]);
    case DP__RECORD:
        return p->device_vt->event_record(p->events.at[c->at], x->stream);
    case DP__CALL:
        return put_call(x);
    case DP__RECV:
        return put_recv(x);
    case DP__RELEASE:
        return put_release(x);
    case DP__SEND:
        return put_send(x);
    case DP__BUNDLE:
        return put_bundle(x);
    default:
        return put_reduce(x);
    }
}

/* ---- all of a step ---- */

static dp_status_t zero(dp_pipeline_t *p, const dp_step_t *step)
{
    dp_stream_t *s = p->lanes.stream[DP_LANE_COMPUTE];

    DO(p->device_vt->zero(s, p->sums.losses, dp__losses_count(p) * sizeof(double)));
    for (int32_t c = 0; c < p->nchunks && !step->forward_only && step->round == 0; c++)
        for (int half = 0; half < 2; half++)
            if (p->chunks[c].grads[half] != NULL)
                DO(p->device_vt->zero(s, p->chunks[c].grads[half], p->chunks[c].grad_bytes));
    if (p->lanes.one)
        return DP_OK;
    DO(p->device_vt->event_record(p->lanes.mark[DP_LANE_COMPUTE], s));
    return p->device_vt->stream_wait(p->lanes.stream[DP_LANE_ALL_TO_ALL], p->lanes.mark[DP_LANE_COMPUTE]);
}

/* Losses are made where a path ends, auxiliary losses where a part is; everywhere else they are
 * zero. */
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
    const dp__commands_t *commands = &plan->commands;

    p->run.enqueueing = -1;
    for (int i = 0; i < DP__RUNNING; i++)
        p->run.running[i].pass = -1;
    DO(zero(p, step));
    for (int64_t i = 0; i < commands->count; i++) {
        const dp__command_t *c = &commands->at[i];
        const putting_t x = {p, plan, step, c, plan->span[i], dp__stream_at(p, c->stream)};

        DO(put_command(&x));
    }
    p->run.enqueueing = -1;
    if (!step->forward_only && dp__last_round(step))
        DO(dp__ties_put(p));
    return share_losses(p);
}
