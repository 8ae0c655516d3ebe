/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * instructions.c: the list of every rank. */
#include "program/lower.h"

#include "base/memory.h"

#include <string.h>

/* The list that is being written; rows of [microbatches] per chunk. */
typedef struct dp__list_writer {
    dp__lowering_t *w;
    int32_t rank, count, bundle;
    dp_instr_t *out;
    int32_t *recv_at[2];              /* instruction that receives for F, for B or I */
    int32_t *slot_of;                 /* activation slot of a micro-batch */
    int32_t *free_slots;              /* a ring: who takes one waits least for its last user */
    int32_t *free_count, *free_first; /* [chunk] */
    dp__event_t *events;              /* BUNDLES */
} dp__list_writer_t;

static dp_instr_t *add_instruction(dp__list_writer_t *x, dp_instr_kind_t kind, int op, int32_t chunk,
                                   int32_t microbatch)
{
    dp_instr_t *instr = &x->out[x->count++];

    *instr = (dp_instr_t){.kind = (uint8_t)kind,
                          .op = (uint8_t)op,
                          .chunk = (int16_t)chunk,
                          .chunk2 = -1,
                          .microbatch = microbatch,
                          .microbatch2 = -1,
                          .peer = -1,
                          .channel = -1,
                          .number = -1,
                          .slot = -1,
                          .slot2 = -1,
                          .in = -1,
                          .in2 = -1,
                          .bundle = -1};
    return instr;
}

static size_t place_of(const dp__list_writer_t *x, int32_t chunk, int32_t microbatch)
{
    return (size_t)chunk * (size_t)x->w->microbatches + (size_t)microbatch;
}

static dp_instr_t *add_transfer(dp__list_writer_t *x, dp_instr_kind_t kind, int32_t channel, int32_t chunk,
                                int32_t microbatch)
{
    const dp_channel_t *c = &x->w->program->channels[channel];
    dp_instr_t *instr = add_instruction(x, kind, c->op, chunk, microbatch);

    if (kind == DP_INSTR_RECV)
        x->recv_at[c->op == DP_OP_B][place_of(x, chunk, microbatch)] = x->count - 1;
    instr->peer = kind == DP_INSTR_SEND ? c->dst : c->src;
    instr->channel = channel;
    instr->number = dp__number_of(x->w, c->dst, c->dst_chunk, c->op, microbatch);
    return instr;
}

/* The slot that has been free for longest; a new one only when none is. */
static int32_t take_slot(dp__list_writer_t *x, int32_t chunk, int32_t microbatch)
{
    int32_t *made = &x->w->program->activation_slots[(size_t)x->rank * (size_t)x->w->schedule->chunks + (size_t)chunk];
    int32_t slot, first = x->free_first[chunk];

    if (x->free_count[chunk] == 0) {
        slot = (*made)++;
    } else {
        slot = x->free_slots[place_of(x, chunk, first)];
        x->free_first[chunk] = (first + 1) % x->w->microbatches;
        x->free_count[chunk]--;
    }
    x->slot_of[place_of(x, chunk, microbatch)] = slot;
    return slot;
}

static void give_slot(dp__list_writer_t *x, int32_t chunk, int32_t slot)
{
    x->free_slots[place_of(x, chunk, (x->free_first[chunk] + x->free_count[chunk]++) % x->w->microbatches)] = slot;
}

/* The channel from, or to, another rank that a part has to do with; -1: none. */
static int32_t channel_in(const dp__list_writer_t *x, const dp__part_t *part)
{
    int32_t in = dp__edges_in(&x->w->edges, x->rank, part->chunk, part->op);

    return in >= 0 && x->w->program->channels[in].src != x->rank ? in : -1;
}

static int32_t channel_out(const dp__list_writer_t *x, const dp__part_t *part)
{
    int32_t out = dp__edges_out(&x->w->edges, x->rank, part->chunk, part->op);

    return out >= 0 && x->w->program->channels[out].dst != x->rank ? out : -1;
}

static int32_t input_of(const dp__list_writer_t *x, const dp__part_t *part)
{
    return channel_in(x, part) < 0 ? -1 : x->recv_at[part->op == DP_OP_B][place_of(x, part->chunk, part->microbatch)];
}

static void add_compute(dp__list_writer_t *x, const dp_op_t *op)
{
    bool starts = dp__op_starts(op), braided = op->chunk2 < 0 && op->microbatch2 >= 0;
    int kind = op->kind % DP__OP_START;
    dp_instr_t *instr = add_instruction(x, starts ? DP_INSTR_START : DP_INSTR_COMPUTE, kind, op->chunk, op->microbatch);
    bool begins = (kind == DP_OP_F || kind == DP_OP_FB) && starts == braided;
    dp__part_t part[2];
    int parts = dp__parts(kind, op->chunk, op->microbatch, op->chunk2, op->microbatch2, part);

    instr->chunk2 = op->chunk2;
    instr->microbatch2 = braided ? -1 : op->microbatch2;
    instr->number = braided ? op->microbatch2 : -1;
    instr->slot = begins ? take_slot(x, op->chunk, op->microbatch) : x->slot_of[place_of(x, op->chunk, op->microbatch)];
    if (op->kind == DP_OP_FB)
        instr->slot2 = x->slot_of[place_of(x, op->chunk2, op->microbatch2)];
    if (parts > 0)
        instr->in = input_of(x, &part[0]);
    if (parts > 1)
        instr->in2 = input_of(x, &part[1]);
    /* what the operation needs stays taken while it runs */
    if (starts)
        return;
    if (op->kind == DP_OP_FB)
        give_slot(x, op->chunk2, instr->slot2);
    else if (op->kind == DP_OP_B || op->kind == DP_OP_W || x->w->schedule->forward_only)
        give_slot(x, op->chunk, instr->slot);
}

static void add_reduction(dp__list_writer_t *x, int32_t chunk)
{
    size_t place = (size_t)x->rank * (size_t)x->w->schedule->chunks + (size_t)chunk;

    add_instruction(x, DP_INSTR_REDUCE, 0, chunk, -1)->peer = x->w->edges.place[place].mirror_rank;
}

/* ---- CREDITS: transfers stand at the operations that make and use their data ---- */

static void add_receives(dp__list_writer_t *x, const dp_op_t *op)
{
    dp__part_t part[2];
    int n = dp__parts(op->kind % DP__OP_START, op->chunk, op->microbatch, op->chunk2, op->microbatch2, part);

    if (op->chunk2 < 0 && op->microbatch2 >= 0 && !dp__op_starts(op))
        return; /* they stand at its start */
    for (int p = 0; p < n; p++)
        if (channel_in(x, &part[p]) >= 0)
            (void)add_transfer(x, DP_INSTR_RECV, channel_in(x, &part[p]), part[p].chunk, part[p].microbatch);
}

/* By channel: both ends list what is made at the same logical time in one order. */
static void add_sends(dp__list_writer_t *x, const dp_op_t *op)
{
    dp__part_t part[2];
    int32_t channel[2] = {-1, -1};
    int n = dp__op_parts(op, part);

    for (int p = 0; p < n; p++)
        channel[p] = channel_out(x, &part[p]);
    for (int k = 0; k < n; k++) {
        int p = channel[0] > channel[1] && n == 2 ? 1 - k : k;

        if (channel[p] >= 0)
            (void)add_transfer(x, DP_INSTR_SEND, channel[p], part[p].chunk, part[p].microbatch);
    }
}

static void add_reductions(dp__list_writer_t *x, int32_t position, int32_t *next)
{
    const dp_schedule_t *s = x->w->schedule;
    size_t row = (size_t)x->rank * (size_t)s->chunks;
    const int32_t *order, *after;

    if (s->forward_only) /* there are no lists then */
        return;
    order = x->w->reductions.order + row;
    after = x->w->reductions.after + row;
    while (*next < s->chunks && after[order[*next]] == position)
        add_reduction(x, order[(*next)++]);
}

static void write_for_credits(dp__list_writer_t *x)
{
    const dp_schedule_t *s = x->w->schedule;
    int32_t reduced = 0;

    for (int32_t position = 0; position < dp__rank_ops(s, x->rank); position++) {
        const dp_op_t *op = &s->ops[s->first[x->rank] + position];

        add_receives(x, op);
        add_compute(x, op);
        add_sends(x, op);
        add_reductions(x, position, &reduced);
    }
}

/* ---- BUNDLES: whatever takes others to end stands where its logical time falls ---- */

static void add_event(dp__list_writer_t *x, const dp__event_t *event, bool with_the_one_before)
{
    if (event->kind == DP_INSTR_REDUCE) {
        add_reduction(x, event->chunk);
        return;
    }
    x->bundle += !with_the_one_before;
    add_transfer(x, (dp_instr_kind_t)event->kind, event->channel, event->chunk, event->microbatch)->bundle = x->bundle;
}

static void write_for_bundles(dp__list_writer_t *x)
{
    const dp_schedule_t *s = x->w->schedule;
    int32_t ops = dp__rank_ops(s, x->rank), count = dp__logical_times_of_rank(x->w, x->rank, x->events), next = 0;

    for (int32_t position = 0; position <= ops; position++) {
        for (; next < count && x->events[next].before == position; next++) {
            const dp__event_t *e = &x->events[next];

            add_event(x, e,
                      next > 0 && e[-1].logical_time == e->logical_time && e[-1].src == e->src && e[-1].dst == e->dst);
        }
        if (position < ops)
            add_compute(x, &s->ops[s->first[x->rank] + position]);
    }
}

/* ---- all ranks ---- */

static void write_all(dp__list_writer_t *x)
{
    dp_program_t *program = x->w->program;

    for (x->rank = 0; x->rank < program->ranks; x->rank++) {
        x->count = 0;
        x->bundle = -1;
        x->out = program->instrs + program->first[x->rank];
        memset(x->free_count, 0, 2 * (size_t)program->chunks * sizeof(*x->free_count));
        memset(x->recv_at[0], 0xff, 2 * (size_t)program->chunks * (size_t)x->w->microbatches * sizeof(int32_t));
        (program->transport == DP_TRANSPORT_BUNDLES ? write_for_bundles : write_for_credits)(x);
    }
}

dp_status_t dp__instructions_write(dp__lowering_t *w)
{
    dp_program_t *program = w->program;
    size_t chunks = (size_t)program->chunks, rows = chunks * (size_t)w->microbatches;
    size_t count = (size_t)program->first[program->ranks];
    size_t events = program->transport == DP_TRANSPORT_BUNDLES ? 4 * rows + chunks : 1;
    dp__list_writer_t x = {.w = w};

    program->instrs = dp__calloc(count, sizeof(*program->instrs));
    if (program->instrs == NULL ||
        !dp__arrays(DP__ARRAY(x.events, events), DP__ARRAY(x.recv_at[0], 2 * rows), DP__ARRAY(x.slot_of, rows),
                    DP__ARRAY(x.free_slots, rows), DP__ARRAY(x.free_count, 2 * chunks)))
        return dp_fail(DP_ERR_NOMEM, "program: no memory for %zu instructions", count);
    x.recv_at[1] = x.recv_at[0] + rows;
    x.free_first = x.free_count + chunks;
    write_all(&x);
    dp__free(x.events);
    return DP_OK;
}
