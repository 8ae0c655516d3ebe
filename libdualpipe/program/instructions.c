/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * instructions.c: the instructions of one rank. */
#include "program/lower.h"

#include <string.h>

typedef struct dp__cursor {
    dp__lowering_t *w;
    int32_t rank, count, group;
    bool in_group; /* the instruction before belongs to `group` */
    dp_instr_t *out;
} dp__cursor_t;

static dp_instr_t *add(dp__cursor_t *c, dp_instr_kind_t kind, int op, int32_t chunk, int32_t mb)
{
    dp_instr_t *instr = &c->out[c->count++];

    *instr = (dp_instr_t){.kind = (uint8_t)kind,
                          .op = (uint8_t)op,
                          .chunk = (int16_t)chunk,
                          .chunk2 = -1,
                          .mb = mb,
                          .mb2 = -1,
                          .peer = -1,
                          .channel = -1,
                          .sequence = -1,
                          .slot = -1,
                          .slot2 = -1,
                          .in = -1,
                          .in2 = -1,
                          .group = -1};
    return instr;
}

static void add_transfer(dp__cursor_t *c, dp_instr_kind_t kind, int32_t channel, int32_t sequence,
                         int32_t chunk, int32_t mb)
{
    const dp_channel_t *description = &c->w->program->channels[channel];
    dp_instr_t *instr = add(c, kind, description->op, chunk, mb);

    instr->peer = kind == DP_INSTR_SEND ? description->dst : description->src;
    instr->channel = channel;
    instr->sequence = sequence;
    if (!c->in_group)
        c->group++;
    c->in_group = true;
    instr->group = c->group;
}

static size_t at(const dp__lowering_t *w, int32_t chunk, int32_t mb)
{
    return (size_t)chunk * (size_t)w->microbatches + (size_t)mb;
}

/* The lowest slots are taken first; a new one only when none is free. */
static int32_t take_slot(dp__cursor_t *c, int32_t chunk, int32_t mb)
{
    dp__lowering_t *w = c->w;
    int32_t *made =
        &w->program->activation_slots[(size_t)c->rank * (size_t)w->schedule->chunks + (size_t)chunk];
    int32_t slot = w->free_count[chunk] > 0 ? w->free_slots[at(w, chunk, --w->free_count[chunk])] : (*made)++;

    w->slot_of[at(w, chunk, mb)] = slot;
    return slot;
}

static void give_slot(dp__cursor_t *c, int32_t chunk, int32_t slot)
{
    c->w->free_slots[at(c->w, chunk, c->w->free_count[chunk]++)] = slot;
}

static int32_t input_of(const dp__cursor_t *c, const dp__part_t *part)
{
    const dp__lowering_t *w = c->w;
    int32_t in = dp__edges_in(&w->edges, c->rank, part->chunk, part->op);

    if (in < 0 || w->program->channels[in].src == c->rank)
        return -1;
    return w->recv_at[part->op == DP_OP_B][at(w, part->chunk, part->mb)];
}

static void add_compute(dp__cursor_t *c, const dp_op_t *op)
{
    dp__lowering_t *w = c->w;
    dp_instr_t *instr = add(c, DP_INSTR_COMPUTE, op->kind, op->chunk, op->mb);
    bool forward = op->kind == DP_OP_F || op->kind == DP_OP_FB;
    dp__part_t part[2];
    int parts = dp__op_parts(op, part);

    c->in_group = false;
    instr->chunk2 = op->chunk2;
    instr->mb2 = op->mb2;
    instr->slot = forward ? take_slot(c, op->chunk, op->mb) : w->slot_of[at(w, op->chunk, op->mb)];
    if (op->kind == DP_OP_FB)
        instr->slot2 = w->slot_of[at(w, op->chunk2, op->mb2)];
    if (parts > 0)
        instr->in = input_of(c, &part[0]);
    if (parts > 1)
        instr->in2 = input_of(c, &part[1]);
    /* what the operation needs stays taken while it runs */
    if (op->kind == DP_OP_FB)
        give_slot(c, op->chunk2, instr->slot2);
    else if (op->kind == DP_OP_B || op->kind == DP_OP_W || w->schedule->forward_only)
        give_slot(c, op->chunk, instr->slot);
}

/* By channel, as the receiver expects messages that are made at the same moment. */
static void add_sends(dp__cursor_t *c, const dp_op_t *op)
{
    dp__lowering_t *w = c->w;
    dp__part_t part[2];
    int n = dp__op_parts(op, part);
    int32_t channel[2] = {-1, -1};

    for (int p = 0; p < n; p++)
        channel[p] = dp__edges_out(&w->edges, c->rank, part[p].chunk, part[p].op);
    for (int k = 0; k < n; k++) {
        int p = n == 2 && channel[0] > channel[1] ? 1 - k : k;

        if (channel[p] >= 0 && w->program->channels[channel[p]].dst != c->rank)
            add_transfer(c, DP_INSTR_SEND, channel[p], w->sent[channel[p]]++, part[p].chunk, part[p].mb);
    }
}

static void add_reduction(dp__cursor_t *c, int32_t chunk)
{
    const dp__lowering_t *w = c->w;
    size_t place = (size_t)c->rank * (size_t)w->schedule->chunks + (size_t)chunk;

    add(c, DP_INSTR_REDUCE, 0, chunk, -1)->peer = w->edges.place[place].mirror_rank;
}

static void add_reductions(dp__cursor_t *c, int32_t position, int32_t *next)
{
    const dp__lowering_t *w = c->w;
    size_t base = (size_t)c->rank * (size_t)w->schedule->chunks;

    while (*next < w->schedule->chunks &&
           w->reduce_after[base + (size_t)w->reduce_order[base + (size_t)*next]] == position)
        add_reduction(c, w->reduce_order[base + (size_t)(*next)++]);
}

/* Whatever takes others to end stands where its moment falls. */
static void lower_grouped(dp__cursor_t *c)
{
    dp__lowering_t *w = c->w;
    const dp_schedule_t *s = w->schedule;
    int32_t ops = dp__rank_ops(s, c->rank), next = 0;

    dp__lower_meetings(w, c->rank);
    for (int32_t position = 0; position <= ops; position++) {
        for (; next < w->meeting_count && w->meetings[next].before == position; next++) {
            const dp__meeting_t *m = &w->meetings[next];

            if (m->kind == DP_INSTR_REDUCE) {
                add_reduction(c, m->chunk);
                continue;
            }
            if (m->kind == DP_INSTR_RECV)
                w->recv_at[w->program->channels[m->channel].op == DP_OP_B][at(w, m->chunk, m->mb)] = c->count;
            c->in_group = m != w->meetings && m[-1].moment == m->moment && m[-1].src == m->src && m[-1].dst == m->dst;
            add_transfer(c, (dp_instr_kind_t)m->kind, m->channel, m->sequence, m->chunk, m->mb);
        }
        if (position < ops)
            add_compute(c, &s->ops[s->first[c->rank] + position]);
    }
}

void dp__lower_rank(dp__lowering_t *w, int32_t rank)
{
    const dp_schedule_t *s = w->schedule;
    dp__cursor_t c = {.w = w, .rank = rank, .group = -1, .out = w->program->instrs + w->program->first[rank]};
    int32_t next = 0, reduced = s->forward_only ? s->chunks : 0;

    memset(w->free_count, 0, (size_t)s->chunks * sizeof(*w->free_count));
    if (w->grouped) {
        lower_grouped(&c);
        return;
    }
    dp__lower_arrivals(w, rank);
    for (int32_t position = 0; position < dp__rank_ops(s, rank); position++) {
        for (; next < w->arrival_count && w->arrivals[next].before == position; next++) {
            const dp__arrival_t *a = &w->arrivals[next];
            int part = w->program->channels[a->channel].op == DP_OP_B;

            w->recv_at[part][at(w, a->chunk, a->mb)] = c.count;
            add_transfer(&c, DP_INSTR_RECV, a->channel, a->sequence, a->chunk, a->mb);
        }
        add_compute(&c, &s->ops[s->first[rank] + position]);
        add_sends(&c, &s->ops[s->first[rank] + position]);
        add_reductions(&c, position, &reduced);
    }
}
