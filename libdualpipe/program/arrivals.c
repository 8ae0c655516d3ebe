/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * arrivals.c: where the receives of a rank stand.
 *
 * All messages of a program have one order of time: by the end of the operation that makes them (in a replay
 * on equal devices), then by channel. Senders list them in that order by themselves. A receiver does too,
 * unless a message must wait for a slot; then later messages of the same sender stand behind it, so that both
 * sides of a pair of ranks agree. */
#include "program/lower.h"

#include <string.h>

static int64_t made_at(const dp__lowering_t *w, const dp_channel_t *channel, int32_t mb)
{
    const int32_t *table = channel->op == DP_OP_F ? w->index.forward : w->index.backward;
    int32_t position = table[dp__index_at(&w->index, channel->src, channel->src_chunk, mb)];

    return w->end[w->schedule->first[channel->src] + position];
}

/* Row of w->releases for the messages that a part of a chunk consumes. */
static int32_t *releases_of(const dp__lowering_t *w, int32_t chunk, int op)
{
    return w->releases + (size_t)(2 * chunk + (op == DP_OP_B)) * (size_t)w->microbatches;
}

/* In the order of consumption. */
static void collect(dp__lowering_t *w, int32_t rank)
{
    const dp_schedule_t *s = w->schedule;
    int32_t ops = dp__rank_ops(s, rank);
    dp__part_t part[2];

    w->arrival_count = 0;
    for (int32_t position = 0; position < ops; position++)
        for (int p = 0, n = dp__op_parts(&s->ops[s->first[rank] + position], part); p < n; p++) {
            int32_t in = dp__edges_in(&w->edges, rank, part[p].chunk, part[p].op);
            const dp_channel_t *channel = in >= 0 ? &w->program->channels[in] : NULL;
            int32_t sequence;

            if (channel == NULL || channel->src == rank)
                continue;
            sequence =
                w->sequence[part[p].op == DP_OP_B][dp__index_at(&w->index, rank, part[p].chunk, part[p].mb)];
            releases_of(w, part[p].chunk, part[p].op)[sequence] = position;
            w->arrivals[w->arrival_count++] = (dp__arrival_t){
                made_at(w, channel, part[p].mb), in, sequence, position, position, part[p].chunk, part[p].mb};
        }
}

static bool made_first(const dp__arrival_t *a, const dp__arrival_t *b)
{
    return a->made != b->made ? a->made < b->made : a->channel < b->channel;
}

static bool stands_first(const dp__arrival_t *a, const dp__arrival_t *b)
{
    return a->before < b->before;
}

/* A stable merge sort, bottom up. */
static void sort(dp__lowering_t *w, bool (*first)(const dp__arrival_t *, const dp__arrival_t *))
{
    int32_t count = w->arrival_count;

    for (int32_t run = 1; run < count; run *= 2) {
        dp__arrival_t *from = w->arrivals, *to = w->spare;

        for (int32_t low = 0; low < count; low += 2 * run) {
            int32_t a = low, a_end = low + run < count ? low + run : count;
            int32_t b = a_end, b_end = a_end + run < count ? a_end + run : count;

            for (int32_t k = low; k < b_end; k++)
                to[k] = a < a_end && (b >= b_end || !first(&from[b], &from[a])) ? from[a++] : from[b++];
        }
        w->arrivals = to;
        w->spare = from;
    }
}

/* Moves receives from the operation that uses them to the moment at which the message is made. */
static void advance(dp__lowering_t *w, int32_t rank)
{
    const int64_t *end = w->end + w->schedule->first[rank];
    int32_t position = 0;

    memset(w->not_before, 0, (size_t)w->schedule->ranks * sizeof(*w->not_before));
    for (int32_t i = 0; i < w->arrival_count; i++) {
        dp__arrival_t *a = &w->arrivals[i];
        const dp_channel_t *channel = &w->program->channels[a->channel];
        int32_t *not_before = &w->not_before[channel->src];

        while (position < dp__rank_ops(w->schedule, rank) && end[position] <= a->made)
            position++;
        a->before = position > *not_before ? position : *not_before;
        if (a->sequence >= w->slots) {
            int32_t freed = 1 + releases_of(w, channel->dst_chunk, channel->op)[a->sequence - w->slots];

            a->before = freed > a->before ? freed : a->before;
        }
        if (a->before > a->consumer)
            a->before = a->consumer;
        *not_before = a->before;
    }
}

void dp__lower_arrivals(dp__lowering_t *w, int32_t rank)
{
    collect(w, rank);
    sort(w, made_first);
    if (w->prefetch)
        advance(w, rank);
    sort(w, stands_first);
}
