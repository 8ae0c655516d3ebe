/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * logical_times.c: where transfers and reductions stand when they end only after both sides have
 * come to them.
 *
 * A message has one logical time, known to both ends: in the replay, when it is made and the slot
 * for it has been read. A rank lists its transfers and reductions by (logical time, from rank, to
 * rank, channel), each before the first operation that starts no earlier. So an operation is
 * followed by logical times later than its start and precedes those up to its successor's start:
 * (time, events before operations, the rest) orders all instructions of all ranks, every rank's
 * list follows it, and ranks that do one thing after the other cannot wait in a circle. Messages of
 * one logical time from one rank to another (an overlapped pair makes two) form a bundle, the same
 * on both sides. */
#include "program/lower.h"

#include "base/memory.h"

#include <stdlib.h>

/* read: [channel * slots] when each slot was last read. */
static void time_messages_of_rank(dp__lowering_t *w, int32_t rank, int64_t *read, size_t slots)
{
    const dp_schedule_t *s = w->schedule;
    dp__part_t part[2];

    for (int64_t i = s->first[rank]; i < s->first[rank + 1]; i++)
        for (int p = 0, n = dp__op_parts(&s->ops[i], part); p < n; p++) {
            int32_t in = dp__edges_in(&w->edges, rank, part[p].chunk, part[p].op);
            const dp_channel_t *channel = in >= 0 ? &w->program->channels[in] : NULL;
            size_t at = dp__index_at(&w->replay.index, rank, part[p].chunk, part[p].microbatch);
            int64_t made, *slot;

            if (channel == NULL || channel->src == rank)
                continue;
            made = dp__replay_made(&w->replay, channel->src, channel->src_chunk, channel->op, part[p].microbatch);
            slot = &read[(size_t)in * slots + (size_t)w->number[part[p].op == DP_OP_B][at] % slots];
            w->logical_time[part[p].op == DP_OP_B][at] = made > *slot ? made : *slot;
            *slot = w->replay.end[i];
        }
}

dp_status_t dp__logical_times_find(dp__lowering_t *w)
{
    const dp_schedule_t *s = w->schedule;
    size_t places = (size_t)s->ranks * (size_t)s->chunks * (size_t)w->microbatches;
    size_t slots = (size_t)(w->slots < w->microbatches ? w->slots : w->microbatches);
    int64_t *read = dp__calloc((size_t)w->program->nchannels * slots + 1, sizeof(*read));

    if (read == NULL || !dp__arrays(DP__ARRAY(w->logical_time[0], places), DP__ARRAY(w->logical_time[1], places))) {
        dp__free(read);
        return dp_fail(DP_ERR_NOMEM, "program: no memory for the slots of %d channels", w->program->nchannels);
    }
    for (int32_t r = 0; r < s->ranks; r++)
        time_messages_of_rank(w, r, read, slots);
    dp__free(read);
    return DP_OK;
}

/* A transfer of the rank, when the part has one on that channel. */
static int32_t add_message_event(const dp__lowering_t *w, dp_instr_kind_t kind, int32_t channel, const dp__part_t *part,
                                 dp__event_t *event)
{
    const dp_channel_t *c = channel >= 0 ? &w->program->channels[channel] : NULL;

    if (c == NULL || c->src == c->dst)
        return 0;
    *event = (dp__event_t){
        .logical_time =
            w->logical_time[c->op == DP_OP_B][dp__index_at(&w->replay.index, c->dst, c->dst_chunk, part->microbatch)],
        .kind = (uint8_t)kind,
        .src = c->src,
        .dst = c->dst,
        .channel = channel,
        .chunk = part->chunk,
        .microbatch = part->microbatch};
    return 1;
}

static int32_t collect_reductions(const dp__lowering_t *w, int32_t rank, dp__event_t *events)
{
    const dp_schedule_t *s = w->schedule;
    size_t row = (size_t)rank * (size_t)s->chunks;

    if (s->forward_only)
        return 0;
    for (int32_t k = 0; k < s->chunks; k++) {
        int32_t chunk = w->reductions.order[row + (size_t)k];

        events[k] = (dp__event_t){.logical_time = w->reductions.logical_time[row + (size_t)chunk],
                                  .kind = DP_INSTR_REDUCE,
                                  .src = s->ranks,
                                  .dst = k,
                                  .channel = -1,
                                  .chunk = chunk,
                                  .microbatch = -1};
    }
    return s->chunks;
}

/* No two events of a rank are equal: the messages of a channel have different logical times. */
static int compare_events(const void *a, const void *b)
{
    const dp__event_t *x = a, *y = b;

    if (x->logical_time != y->logical_time)
        return x->logical_time < y->logical_time ? -1 : 1;
    if (x->src != y->src)
        return x->src < y->src ? -1 : 1;
    if (x->dst != y->dst)
        return x->dst < y->dst ? -1 : 1;
    return x->channel < y->channel ? -1 : x->channel > y->channel;
}

int32_t dp__logical_times_of_rank(const dp__lowering_t *w, int32_t rank, dp__event_t *events)
{
    const dp_schedule_t *s = w->schedule;
    int32_t ops = dp__rank_ops(s, rank), count = 0, position = 0;
    dp__part_t part[2];

    for (int32_t i = 0; i < ops; i++)
        for (int p = 0, n = dp__op_parts(&s->ops[s->first[rank] + i], part); p < n; p++) {
            int32_t in = dp__edges_in(&w->edges, rank, part[p].chunk, part[p].op);
            int32_t out = dp__edges_out(&w->edges, rank, part[p].chunk, part[p].op);

            count += add_message_event(w, DP_INSTR_RECV, in, &part[p], &events[count]);
            count += add_message_event(w, DP_INSTR_SEND, out, &part[p], &events[count]);
        }
    count += collect_reductions(w, rank, &events[count]);
    qsort(events, (size_t)count, sizeof(*events), compare_events);
    for (int32_t e = 0; e < count; e++) {
        while (position < ops && dp__replay_start(&w->replay, rank, position) < events[e].logical_time)
            position++;
        events[e].before = position;
    }
    return count;
}
