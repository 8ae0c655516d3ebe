/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * lower.c: from lists of operations to what every rank does, transfers included.
 *
 * A replay of the schedule on equal devices (F = I = W = 1, B = 2, a pair 3) tells when every message is
 * made. Its SEND stands behind the operation that makes it; its RECV where that moment falls in the
 * receiver's list, or as soon after it as a slot is free. So all ranks list the messages in one common order
 * of time, and matched groups never wait for each other in a circle. */
#include "program/lower.h"

#include "base/memory.h"

#include <string.h>

#define DEFAULT_SLOTS 2

static int32_t replay_cost(const void *context, int32_t rank, int32_t position)
{
    static const int32_t cost[] = {1, 2, 1, 1, 3};
    const dp_schedule_t *s = ((const dp__dataflow_t *)context)->schedule;

    return cost[s->ops[s->first[rank] + position].kind];
}

int64_t dp__lowering_start(const dp__lowering_t *w, int32_t rank, int32_t position)
{
    return w->end[w->schedule->first[rank] + position] - replay_cost(&w->dataflow, rank, position);
}

static dp_status_t replay(dp__lowering_t *w)
{
    const dp_schedule_t *s = w->schedule;
    dp_status_t st = dp__index_build(s, &w->index);

    if (st < 0)
        return st;
    st = dp__dataflow_create(s, &w->index, &w->dataflow);
    if (st < 0)
        return st;
    w->end = dp__calloc((size_t)s->first[s->ranks], sizeof(*w->end));
    if (w->end == NULL)
        return dp_fail(DP_ERR_NOMEM, "program: no memory for %lld operations", (long long)s->first[s->ranks]);
    w->dataflow.flow.cost = replay_cost;
    w->dataflow.flow.first = s->first;
    w->dataflow.flow.end = w->end;
    return dp__flow_prove(&w->dataflow.flow, "program");
}

/* Numbers the messages of every channel in the order in which their receiver consumes them. */
static void number_messages(dp__lowering_t *w)
{
    const dp_schedule_t *s = w->schedule;
    dp__part_t part[2];

    for (int32_t r = 0; r < s->ranks; r++)
        for (int64_t i = s->first[r]; i < s->first[r + 1]; i++)
            for (int p = 0, n = dp__op_parts(&s->ops[i], part); p < n; p++) {
                int32_t channel = dp__edges_in(&w->edges, r, part[p].chunk, part[p].op);
                size_t at = dp__index_at(&w->index, r, part[p].chunk, part[p].mb);

                if (channel >= 0)
                    w->sequence[part[p].op == DP_OP_B][at] = w->program->channels[channel].messages++;
            }
}

/* A part makes a message: to the next rank, or into a turn, which gets as many slots as fill at once. */
static dp_status_t survey_output(dp__lowering_t *w, int32_t rank, const dp__part_t *part, int64_t *count)
{
    int32_t out = dp__edges_out(&w->edges, rank, part->chunk, part->op);
    dp_channel_t *channel;
    int32_t sequence;

    if (out < 0)
        return DP_OK;
    channel = &w->program->channels[out];
    sequence =
        w->sequence[part->op == DP_OP_B][dp__index_at(&w->index, channel->dst, channel->dst_chunk, part->mb)];
    if (channel->src == channel->dst) {
        int32_t filled = sequence - w->consumed[out] + 1;

        channel->slots = filled > channel->slots ? filled : channel->slots;
        return DP_OK;
    }
    ++*count;
    if (sequence == w->sent[out]++)
        return DP_OK;
    return dp_fail(
        DP_ERR_REJECTED,
        "program: rank %d makes %s chunk %d mb %d as message %d of its channel, rank %d consumes it as "
        "message %d: both must have the same order",
        rank, dp_op_kind_name(part->op), part->chunk, part->mb, w->sent[out] - 1, channel->dst, sequence);
}

/* Counts the instructions of a rank. */
static dp_status_t survey_rank(dp__lowering_t *w, int32_t rank, int64_t *count)
{
    const dp_schedule_t *s = w->schedule;
    dp_status_t st = DP_OK;
    dp__part_t part[2];

    *count = dp__rank_ops(s, rank) + (s->forward_only ? 0 : s->chunks);
    for (int64_t i = s->first[rank]; i < s->first[rank + 1] && st >= 0; i++) {
        int n = dp__op_parts(&s->ops[i], part);

        for (int p = 0; p < n && st >= 0; p++)
            st = survey_output(w, rank, &part[p], count);
        for (int p = 0; p < n; p++) {
            int32_t in = dp__edges_in(&w->edges, rank, part[p].chunk, part[p].op);

            if (in < 0)
                continue;
            w->consumed[in]++;
            *count += w->program->channels[in].src != rank;
        }
    }
    return st;
}

static dp_status_t survey(dp__lowering_t *w)
{
    const dp_schedule_t *s = w->schedule;
    dp_program_t *program = w->program;
    dp_status_t st;

    for (int32_t c = 0; c < program->nchannels; c++)
        program->channels[c].slots = program->channels[c].src == program->channels[c].dst ? 1 : w->slots;
    number_messages(w);
    for (int32_t r = 0; r < s->ranks; r++) {
        int64_t count;

        st = survey_rank(w, r, &count);
        if (st < 0)
            return st;
        program->first[r + 1] = program->first[r] + count;
    }
    program->instrs = dp__calloc((size_t)program->first[s->ranks], sizeof(*program->instrs));
    if (program->instrs == NULL)
        return dp_fail(DP_ERR_NOMEM, "program: no memory for %lld instructions",
                       (long long)program->first[s->ranks]);
    memset(w->sent, 0, (size_t)program->nchannels * sizeof(*w->sent));
    return DP_OK;
}

static dp_status_t create_program(dp__lowering_t *w)
{
    const dp_schedule_t *s = w->schedule;
    size_t places = (size_t)s->ranks * (size_t)s->chunks;
    dp_program_t *program = dp__calloc(1, sizeof(*program));

    w->program = program;
    if (program == NULL)
        return dp_fail(DP_ERR_NOMEM, "program: no memory");
    program->schedule = s;
    program->ranks = s->ranks;
    program->chunks = s->chunks;
    program->first = dp__calloc((size_t)s->ranks + 1, sizeof(*program->first));
    program->channels = dp__calloc(2 * places, sizeof(*program->channels));
    program->activation_slots = dp__calloc(places, sizeof(*program->activation_slots));
    if (program->first == NULL || program->channels == NULL || program->activation_slots == NULL)
        return dp_fail(DP_ERR_NOMEM, "program: no memory for %d ranks", s->ranks);
    return dp__edges_create(s, &w->edges, program->channels, &program->nchannels);
}

/* Tables of the whole program, and rows for the rank being written. */
static dp_status_t allocate_tables(dp__lowering_t *w)
{
    const dp_schedule_t *s = w->schedule;
    size_t places = (size_t)s->ranks * (size_t)s->chunks, rows = (size_t)s->chunks * (size_t)w->microbatches;
    size_t channels = (size_t)w->program->nchannels;
    struct {
        int32_t **table;
        size_t count;
    } tables[] = {
        {&w->sequence[0], places * (size_t)w->microbatches},
        {&w->sequence[1], places * (size_t)w->microbatches},
        {&w->sent, channels},
        {&w->consumed, channels},
        {&w->reduce_after, places},
        {&w->reduce_order, places},
        {&w->releases, 2 * rows},
        {&w->not_before, (size_t)s->ranks},
        {&w->recv_at[0], rows},
        {&w->recv_at[1], rows},
        {&w->slot_of, rows},
        {&w->free_slots, rows},
        {&w->free_count, (size_t)s->chunks},
    };
    size_t most_meetings = 4 * rows + (size_t)s->chunks;
    size_t messages = w->grouped ? places * (size_t)w->microbatches : 0;

    w->arrivals = dp__calloc(2 * rows, sizeof(*w->arrivals));
    w->spare = dp__calloc(2 * rows, sizeof(*w->spare));
    w->meetings = dp__calloc(w->grouped ? most_meetings : 1, sizeof(*w->meetings));
    w->spare_meetings = dp__calloc(w->grouped ? most_meetings : 1, sizeof(*w->spare_meetings));
    w->reduce_moment = dp__calloc(places, sizeof(*w->reduce_moment));
    for (int op = 0; op < 2; op++)
        w->moment[op] = dp__calloc(messages + 1, sizeof(*w->moment[op]));
    if (w->meetings == NULL || w->spare_meetings == NULL || w->reduce_moment == NULL || w->moment[0] == NULL ||
        w->moment[1] == NULL)
        return dp_fail(DP_ERR_NOMEM, "program: no memory for the messages of %zu chunks", places);
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        *tables[i].table = dp__calloc(tables[i].count, sizeof(int32_t));
        if (*tables[i].table == NULL || w->arrivals == NULL || w->spare == NULL)
            return dp_fail(DP_ERR_NOMEM, "program: no memory for the tables of %zu chunks", places);
    }
    return DP_OK;
}

static void clear(dp__lowering_t *w)
{
    int32_t *tables[] = {w->sequence[0],  w->sequence[1], w->sent,       w->consumed,   w->reduce_after,
                         w->reduce_order, w->releases,    w->not_before, w->recv_at[0], w->recv_at[1],
                         w->slot_of,      w->free_slots,  w->free_count};

    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        dp__free(tables[i]);
    dp__free(w->arrivals);
    dp__free(w->spare);
    dp__free(w->meetings);
    dp__free(w->spare_meetings);
    dp__free(w->reduce_moment);
    dp__free(w->moment[0]);
    dp__free(w->moment[1]);
    dp__free(w->end);
    dp__edges_clear(&w->edges);
    dp__dataflow_clear(&w->dataflow);
    dp__index_clear(&w->index);
}

static dp_status_t lower(dp__lowering_t *w)
{
    dp_status_t st = replay(w);

    if (st >= 0)
        st = create_program(w);
    if (st >= 0)
        st = allocate_tables(w);
    if (st >= 0)
        st = survey(w);
    if (st >= 0 && w->grouped)
        st = dp__lower_moments(w);
    if (st < 0)
        return st;
    for (int32_t r = 0; r < w->schedule->ranks && !w->schedule->forward_only; r++)
        dp__lower_reductions(w, r);
    for (int32_t r = 0; r < w->schedule->ranks; r++)
        dp__lower_rank(w, r);
    return DP_OK;
}

dp_status_t dp_program_lower(const dp_schedule_t *schedule, const dp_lower_options_t *options,
                             dp_program_t **program_out)
{
    dp_lower_options_t o = {.slots = 0, .prefetch = 1};
    dp__lowering_t w = {.schedule = schedule, .microbatches = dp_schedule_path_microbatches(schedule, 0)};
    dp_status_t st;

    *program_out = NULL;
    if (options != NULL && options->struct_size > 0)
        memcpy(&o, options, options->struct_size < sizeof(o) ? options->struct_size : sizeof(o));
    if (o.slots < 0 || o.slots > DP_MAX_MICROBATCHES)
        return dp_fail(DP_ERR_INVALID, "program: %d slots per channel; 1 to %d are possible", o.slots,
                       DP_MAX_MICROBATCHES);
    if (o.transport < DP_TRANSPORT_CREDITS || o.transport > DP_TRANSPORT_SHARED_CREDITS)
        return dp_fail(DP_ERR_INVALID, "program: there is no transport %d", o.transport);
    w.slots = o.slots > 0 ? o.slots : DEFAULT_SLOTS;
    w.prefetch = o.prefetch != 0;
    w.grouped = o.transport == DP_TRANSPORT_GROUPS;
    st = lower(&w);
    clear(&w);
    if (st < 0)
        dp_program_free(w.program);
    else
        *program_out = w.program;
    return st;
}

void dp_program_free(dp_program_t *program)
{
    if (program == NULL)
        return;
    dp__free(program->first);
    dp__free(program->instrs);
    dp__free(program->channels);
    dp__free(program->activation_slots);
    dp__free(program);
}
