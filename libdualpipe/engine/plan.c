/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * plan.c: turns this rank's list of a program into actions: every pass with its slots, links, order of segments and
 * span records, so that a step looks nothing up. */
#include "base/memory.h"
#include "engine/engine.h"
#include "program/pair.h"

#include <string.h>

/* State while a plan is built. */
typedef struct builder {
    dp_pipeline_t *p;
    dp__plan_t *plan;
    const dp_instr_t *instrs; /* of this rank */
    int64_t ninstrs;
    int32_t ncalls, room_calls, ntransfers;
    int32_t bundle;            /* of the latest transfer */
    int32_t passes[DP__KINDS]; /* so far: work memories are used in turn */
    int32_t **turn_slot;       /* [nlinks][M]: slot that holds a micro-batch's tensor, turns only */
    uint8_t **turn_used;       /* [nlinks][nslots] */
    dp__pair_step_t *order;    /* room for the longest order */
} builder_t;

static int32_t new_span(builder_t *b, dp_span_t span)
{
    span.step = 0;
    b->plan->spans[b->plan->nspans] = span;
    return b->plan->nspans++;
}

static uint64_t flow_of(const builder_t *b, int32_t channel, int32_t number)
{
    uint64_t pipeline = (uint64_t)(b->p->grid.d * b->p->grid.ep + b->p->grid.e);

    return 1 + ((pipeline & 0x7ff) << 37 | ((uint64_t)channel & 0xfffff) << 17 | ((uint64_t)number & 0x1ffff));
}

/* ---- turns: a slot from the pass that writes it to the pass that reads it ---- */

static dp_status_t take_turn_slot(builder_t *b, int32_t link, int32_t microbatch, int32_t *slot_out)
{
    for (int32_t i = 0; i < b->p->links.at[link].nslots; i++)
        if (!b->turn_used[link][i]) {
            b->turn_used[link][i] = 1;
            b->turn_slot[link][microbatch] = i;
            *slot_out = i;
            return DP_OK;
        }
    return dp_fail(DP_ERR_REJECTED, "the program needs more than the %d slots it announces for a turn of rank %d",
                   b->p->links.at[link].nslots, b->p->grid.p);
}

static int32_t give_turn_slot(builder_t *b, int32_t link, int32_t microbatch)
{
    int32_t slot = b->turn_slot[link][microbatch];

    b->turn_used[link][slot] = 0;
    return slot;
}

/* The link for the turn that `op` makes between two chunks of this rank. */
static int32_t find_turn(const builder_t *b, int op, int32_t src_chunk, int32_t dst_chunk)
{
    for (int32_t l = 0; l < b->p->links.n; l++) {
        const dp_channel_t *c = b->p->links.at[l].channel;

        if (c->src == c->dst && c->op == op && c->src_chunk == src_chunk && c->dst_chunk == dst_chunk)
            return l;
    }
    return -1;
}

/* The link of a transfer of `program`, which may be the forward-only one with channels of its own numbering. */
static int32_t find_link(const builder_t *b, int32_t channel)
{
    const dp_channel_t *wanted = &b->plan->program->channels[channel];

    for (int32_t l = 0; l < b->p->links.n; l++) {
        const dp_channel_t *c = b->p->links.at[l].channel;

        if (c->src == wanted->src && c->dst == wanted->dst && c->src_chunk == wanted->src_chunk &&
            c->dst_chunk == wanted->dst_chunk && c->op == wanted->op)
            return l;
    }
    return -1;
}

/* ---- passes ---- */

static dp_status_t set_source(builder_t *b, dp__pass_t *pass, const dp_place_t *place, int32_t in, int32_t path_mb)
{
    int forward = pass->op == DP_OP_F;
    int32_t rank = forward ? place->prev_rank : place->next_rank;
    int32_t chunk = forward ? place->prev_chunk : place->next_chunk;

    pass->source = pass->recv_span = -1;
    if (pass->op == DP_OP_W || rank < 0)
        return DP_OK;
    if (rank == b->p->grid.p) {
        pass->source = find_turn(b, forward ? DP_OP_F : DP_OP_B, chunk, pass->chunk);
        if (pass->source < 0)
            return dp_fail(DP_ERR_REJECTED, "the program has no channel for the turn of rank %d", rank);
        pass->source_at = give_turn_slot(b, pass->source, path_mb);
        return DP_OK;
    }
    if (in < 0 || in >= b->ninstrs || b->instrs[in].kind != DP_INSTR_RECV)
        return dp_fail(DP_ERR_REJECTED, "rank %d: %s of micro-batch %d has no receive", b->p->grid.p,
                       dp_op_kind_name(pass->op), pass->microbatch);
    pass->source = find_link(b, b->instrs[in].channel);
    pass->source_at = b->instrs[in].number;
    if (b->p->programs.bundled)
        return DP_OK; /* the receive is an action of its own */
    pass->recv_span = new_span(b, (dp_span_t){.kind = DP_SPAN_RECV,
                                              .lane = DP_LANE_P2P,
                                              .pass = b->instrs[in].op,
                                              .microbatch = pass->microbatch,
                                              .chunk = pass->chunk,
                                              .stage = (int16_t)place->stage,
                                              .segment = -1,
                                              .flow = flow_of(b, b->instrs[in].channel, b->instrs[in].number)});
    return DP_OK;
}

static dp_status_t set_turn_dest(builder_t *b, dp__pass_t *pass, const dp_place_t *place, int32_t path_mb)
{
    int forward = pass->op == DP_OP_F;
    int32_t rank = forward ? place->next_rank : place->prev_rank;
    int32_t chunk = forward ? place->next_chunk : place->prev_chunk;

    pass->dest = pass->send_span = -1;
    if (pass->op == DP_OP_W || rank != b->p->grid.p)
        return DP_OK;
    pass->dest = find_turn(b, forward ? DP_OP_F : DP_OP_B, pass->chunk, chunk);
    if (pass->dest < 0)
        return dp_fail(DP_ERR_REJECTED, "the program has no channel for the turn of rank %d", rank);
    return take_turn_slot(b, pass->dest, path_mb, &pass->dest_at);
}

static dp_status_t add_pass(builder_t *b, dp__action_t *action, int op, int32_t chunk, int32_t microbatch, int32_t slot,
                            int32_t in)
{
    dp__pass_t *pass = &action->passes[action->npasses++];
    const dp_place_t *place = &b->p->chunks[chunk].place;
    dp_status_t status;

    *pass = (dp__pass_t){.op = (uint8_t)op, .chunk = (int16_t)chunk, .slot = slot};
    pass->kind = op == DP_OP_F ? DP__FORWARD : DP__BACKWARD;
    if (op != DP_OP_W)
        pass->work = (uint8_t)(b->passes[pass->kind]++ % DP__WORKS);
    pass->microbatch = dp_schedule_step_microbatch(b->p->schedule, place->path, microbatch);
    pass->half = dp__half_of(b->p, pass->microbatch);
    if (slot < 0 || slot >= b->p->chunks[chunk].nslots)
        return dp_fail(DP_ERR_REJECTED, "rank %d: activation slot %d of chunk %d is outside the %d announced",
                       b->p->grid.p, slot, chunk, b->p->chunks[chunk].nslots);
    status = set_source(b, pass, place, in, microbatch);
    return status < 0 ? status : set_turn_dest(b, pass, place, microbatch);
}

/* Bits are the same for all schedules that finish weight gradients in micro-batch order. Others are legal, and said. */
static void watch_order(const dp_pipeline_t *p, const dp_instr_t *instr, int32_t *latest, int *warned)
{
    int32_t chunk = instr->op == DP_OP_FB ? instr->chunk2 : instr->chunk;
    int32_t microbatch = instr->op == DP_OP_FB ? instr->microbatch2 : instr->microbatch;

    if (instr->kind != DP_INSTR_COMPUTE || instr->op == DP_OP_F || instr->op == DP_OP_I)
        return;
    if (microbatch < latest[chunk] && !*warned) {
        dp_log(
            DP_LOG_WARN, "engine",
            "schedule %s adds the weight gradient of micro-batch %d after that of %d on rank %d: its sums may differ from "
            "other schedules' in the last bits",
            p->schedule->method, microbatch, latest[chunk], p->grid.p);
        *warned = 1;
    }
    latest[chunk] = microbatch;
}

/* ---- the order of an action's segments ---- */

static void add_call(builder_t *b, dp__action_t *action, int which, int op, int32_t segment)
{
    const dp__pass_t *pass = &action->passes[which];
    const dp_stage_t *stage = b->p->chunks[pass->chunk].stage;
    const dp_segment_t *s = stage->segments[segment].segment;
    dp__call_t *call = &b->plan->calls[b->ncalls++];

    call->pass = (uint8_t)which;
    call->op = (uint8_t)op;
    call->segment = (int16_t)segment;
    call->span = new_span(b, (dp_span_t){.kind = DP_SPAN_COMPUTE,
                                         .lane = (uint8_t)(op == DP_OP_W ? DP_LANE_COMPUTE : s->lane),
                                         .pass = (uint8_t)op,
                                         .pair = action->npasses == 2,
                                         .microbatch = pass->microbatch,
                                         .chunk = pass->chunk,
                                         .stage = (int16_t)b->p->chunks[pass->chunk].place.stage,
                                         .segment = (int16_t)segment,
                                         .name = (uint16_t)(1 + dp__name_index(b->p, s->name))});
    action->ncalls++;
}

static void order_calls(builder_t *b, dp__action_t *action)
{
    const dp__pass_t *last = &action->passes[action->npasses - 1];
    const dp_stage_t *forward = action->passes[0].op == DP_OP_F ? b->p->chunks[action->passes[0].chunk].stage : NULL;
    const dp_stage_t *backward = last->op != DP_OP_F ? b->p->chunks[last->chunk].stage : NULL;
    int32_t n;

    action->calls = &b->plan->calls[b->ncalls];
    if (last->op == DP_OP_W) {
        for (int32_t s = backward->nsegments - 1; s >= 0; s--)
            if (backward->shapes[s].has_weight)
                add_call(b, action, 0, DP_OP_W, s);
        return;
    }
    n = dp__pair_order(forward != NULL ? forward->shapes : NULL, forward != NULL ? forward->nsegments : 0,
                       backward != NULL ? backward->shapes : NULL, backward != NULL ? backward->nsegments : 0,
                       b->order);
    for (int32_t i = 0; i < n; i++)
        if (b->order[i].pass == DP_OP_F)
            add_call(b, action, 0, DP_OP_F, b->order[i].segment);
        else if (b->order[i].pass == DP_OP_I || last->op == DP_OP_B)
            add_call(b, action, action->npasses - 1, b->order[i].pass, b->order[i].segment);
}

/* ---- instructions ---- */

static dp_status_t add_compute(builder_t *b, const dp_instr_t *instr)
{
    dp__action_t *action = &b->plan->actions[b->plan->nactions++];
    dp_status_t status;

    action->kind = DP_INSTR_COMPUTE;
    if (instr->op == DP_OP_FB) {
        status = add_pass(b, action, DP_OP_F, instr->chunk, instr->microbatch, instr->slot, instr->in);
        if (status >= 0)
            status = add_pass(b, action, DP_OP_B, instr->chunk2, instr->microbatch2, instr->slot2, instr->in2);
    } else {
        status = add_pass(b, action, instr->op, instr->chunk, instr->microbatch, instr->slot, instr->in);
    }
    if (status >= 0)
        order_calls(b, action);
    return status;
}

/* A send belongs to the pass that made its data: the latest one of this chunk, micro-batch and kind. */
static dp_status_t add_send(builder_t *b, const dp_instr_t *instr)
{
    const dp_place_t *place = &b->p->chunks[instr->chunk].place;
    int32_t microbatch = dp_schedule_step_microbatch(b->p->schedule, place->path, instr->microbatch);

    for (int64_t a = b->plan->nactions - 1; a >= 0; a--)
        for (int i = 0; i < b->plan->actions[a].npasses; i++) {
            dp__pass_t *pass = &b->plan->actions[a].passes[i];
            int made = instr->op == DP_OP_F ? pass->op == DP_OP_F : pass->op == DP_OP_B || pass->op == DP_OP_I;

            if (!made || pass->chunk != instr->chunk || pass->microbatch != microbatch)
                continue;
            pass->dest = find_link(b, instr->channel);
            pass->dest_at = instr->number;
            pass->send_span = -1;
            if (b->p->programs.bundled)
                return pass->dest >= 0 ? DP_OK
                                       : dp_fail(DP_ERR_REJECTED, "rank %d: a send has no channel", b->p->grid.p);
            b->plan->actions[a].sends[b->plan->actions[a].nsends++] = (uint8_t)i;
            pass->send_span = new_span(b, (dp_span_t){.kind = DP_SPAN_SEND,
                                                      .lane = DP_LANE_P2P,
                                                      .pass = instr->op,
                                                      .microbatch = microbatch,
                                                      .chunk = instr->chunk,
                                                      .stage = (int16_t)place->stage,
                                                      .segment = -1,
                                                      .flow = flow_of(b, instr->channel, instr->number)});
            if (pass->dest >= 0)
                b->plan->messages[pass->dest]++;
            return pass->dest >= 0 ? DP_OK : dp_fail(DP_ERR_REJECTED, "rank %d: a send has no channel", b->p->grid.p);
        }
    return dp_fail(DP_ERR_REJECTED, "rank %d: the send of %s of micro-batch %d stands before its data are made",
                   b->p->grid.p, dp_op_kind_name(instr->op), microbatch);
}

/* The transfers of a bundle share an action. */
static dp_status_t add_transfer(builder_t *b, const dp_instr_t *instr)
{
    const dp_place_t *place = &b->p->chunks[instr->chunk].place;
    int32_t link = find_link(b, instr->channel), sends = instr->kind == DP_INSTR_SEND;
    dp__action_t *action;
    dp__transfer_t *t = &b->plan->transfers[b->ntransfers++];

    if (link < 0)
        return dp_fail(DP_ERR_REJECTED, "rank %d: a transfer has no channel", b->p->grid.p);
    if (instr->bundle != b->bundle)
        b->plan->nactions++;
    action = &b->plan->actions[b->plan->nactions - 1];
    if (instr->bundle != b->bundle) {
        action->kind = instr->kind;
        action->transfers = t;
        action->way = b->p->links.at[link].way;
    }
    b->bundle = instr->bundle;
    action->ntransfers++;
    *t = (dp__transfer_t){.link = link,
                          .at = instr->number,
                          .microbatch = dp_schedule_step_microbatch(b->p->schedule, place->path, instr->microbatch)};
    t->span = new_span(b, (dp_span_t){.kind = sends ? DP_SPAN_SEND : DP_SPAN_RECV,
                                      .lane = DP_LANE_P2P,
                                      .pass = instr->op,
                                      .microbatch = t->microbatch,
                                      .chunk = instr->chunk,
                                      .stage = (int16_t)place->stage,
                                      .segment = -1,
                                      .flow = flow_of(b, instr->channel, instr->number)});
    b->plan->messages[link]++;
    return DP_OK;
}

static void add_reduce(builder_t *b, const dp_instr_t *instr)
{
    dp__action_t *action = &b->plan->actions[b->plan->nactions++];

    action->kind = DP_INSTR_REDUCE;
    action->chunk = instr->chunk;
    action->span = new_span(b, (dp_span_t){.kind = DP_SPAN_REDUCE,
                                           .lane = DP_LANE_REDUCE,
                                           .microbatch = -1,
                                           .chunk = instr->chunk,
                                           .stage = (int16_t)b->p->chunks[instr->chunk].place.stage,
                                           .segment = -1});
}

static dp_status_t add_all(builder_t *b)
{
    int32_t latest[DP_MAX_CHUNKS] = {0};
    dp_status_t status = DP_OK;
    int warned = 0;

    new_span(
        b,
        (dp_span_t){
            .kind = DP_SPAN_STEP, .lane = DP_LANE_COMPUTE, .microbatch = -1, .chunk = -1, .stage = -1, .segment = -1});
    for (int64_t i = 0; i < b->ninstrs && status >= 0; i++) {
        const dp_instr_t *instr = &b->instrs[i];

        watch_order(b->p, instr, latest, &warned);
        if (instr->kind == DP_INSTR_COMPUTE)
            status = add_compute(b, instr);
        else if (instr->kind == DP_INSTR_SEND)
            status = add_send(b, instr);
        if (b->p->programs.bundled && status >= 0 && (instr->kind == DP_INSTR_SEND || instr->kind == DP_INSTR_RECV))
            status = add_transfer(b, instr);
        else if (instr->kind == DP_INSTR_REDUCE)
            add_reduce(b, instr);
        else if (instr->kind == DP_INSTR_RECV && !b->p->programs.bundled && find_link(b, instr->channel) >= 0)
            b->plan->messages[find_link(b, instr->channel)]++;
    }
    return status;
}

static dp_status_t allocate(builder_t *b)
{
    dp_pipeline_t *p = b->p;
    size_t n = (size_t)b->ninstrs;
    size_t calls = n * 3 * (size_t)p->max_segments;

    b->plan->actions = dp__calloc(n + 1, sizeof(dp__action_t));
    b->plan->calls = dp__calloc(calls + 1, sizeof(dp__call_t));
    b->plan->transfers = dp__calloc(n + 1, sizeof(dp__transfer_t));
    b->plan->spans = dp__calloc(calls + 2 * n + 2, sizeof(dp_span_t));
    b->plan->messages = dp__calloc((size_t)p->links.n + 1, sizeof(int32_t));
    b->order = dp__calloc(3 * (size_t)p->max_segments + 1, sizeof(*b->order));
    b->turn_slot = dp__calloc((size_t)p->links.n + 1, sizeof(*b->turn_slot));
    b->turn_used = dp__calloc((size_t)p->links.n + 1, sizeof(*b->turn_used));
    if (b->plan->transfers == NULL || b->plan->actions == NULL || b->plan->calls == NULL || b->plan->spans == NULL ||
        b->plan->messages == NULL || b->order == NULL || b->turn_slot == NULL || b->turn_used == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a plan of %zu instructions", n);
    for (int32_t l = 0; l < p->links.n; l++) {
        if (p->links.at[l].channel->src != p->links.at[l].channel->dst)
            continue;
        b->turn_slot[l] = dp__calloc((size_t)p->schedule->microbatches, sizeof(int32_t));
        b->turn_used[l] = dp__calloc((size_t)p->links.at[l].nslots, 1);
        if (b->turn_slot[l] == NULL || b->turn_used[l] == NULL)
            return dp_fail(DP_ERR_NOMEM, "no memory for the slots of a turn");
    }
    return DP_OK;
}

static void free_builder(builder_t *b)
{
    for (int32_t l = 0; l < b->p->links.n; l++) {
        if (b->turn_slot != NULL)
            dp__free(b->turn_slot[l]);
        if (b->turn_used != NULL)
            dp__free(b->turn_used[l]);
    }
    dp__free(b->turn_slot);
    dp__free(b->turn_used);
    dp__free(b->order);
}

static dp_status_t build(dp_pipeline_t *p, const dp_program_t *program, dp__plan_t *plan)
{
    int64_t first = program->first[p->grid.p];
    builder_t b = {
        .p = p,
        .plan = plan,
        .instrs = program->instrs + first,
        .ninstrs = program->first[p->grid.p + 1] - first,
        .bundle = -1,
    };
    dp_status_t status;

    *plan = (dp__plan_t){.program = program};
    status = allocate(&b);
    if (status >= 0)
        status = add_all(&b);
    free_builder(&b);
    return status;
}

static void free_plan(dp__plan_t *plan)
{
    dp__free(plan->actions);
    dp__free(plan->calls);
    dp__free(plan->transfers);
    dp__free(plan->spans);
    dp__free(plan->messages);
    *plan = (dp__plan_t){.program = NULL};
}

dp_status_t dp__plans_build(dp_pipeline_t *p)
{
    dp_status_t status = build(p, p->programs.training, &p->plans.training);

    if (status >= 0 && p->programs.forward != NULL)
        status = build(p, p->programs.forward, &p->plans.forward);
    return status;
}

void dp__plans_free(dp_pipeline_t *p)
{
    free_plan(&p->plans.training);
    free_plan(&p->plans.forward);
}
