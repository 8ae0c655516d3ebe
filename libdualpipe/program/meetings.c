/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * meetings.c: lists for backends whose transfers end only when both sides have come.
 *
 * A message has one moment, known to both ends: in the replay, when it is made and the slot for it has been read. A rank
 * lists its transfers and reductions by (moment, from rank, to rank, channel), each before the first operation that starts no earlier. So an
 * operation is followed by moments later than its start and precedes those up to its successor's start: (time,
 * meetings before operations, the rest) orders all instructions of all ranks, every rank's list follows it, and ranks that
 * do one thing after the other cannot wait in a circle. Messages of one moment from one rank to another (an overlapped
 * pair makes two) form a group, the same on both sides. */
#include "program/lower.h"

#include "base/memory.h"

static int64_t end_of(const dp__lowering_t *w, int32_t rank, int32_t chunk, int op, int32_t mb)
{
    const int32_t *table = op == DP_OP_F ? w->index.forward : w->index.backward;

    return w->end[w->schedule->first[rank] + table[dp__index_at(&w->index, rank, chunk, mb)]];
}

dp_status_t dp__lower_moments(dp__lowering_t *w)
{
    const dp_schedule_t *s = w->schedule;
    size_t slots = (size_t)(w->slots < w->microbatches ? w->slots : w->microbatches);
    int64_t *read = dp__calloc((size_t)w->program->nchannels * slots + 1, sizeof(*read)); /* when each slot was last read */
    dp__part_t part[2];

    if (read == NULL)
        return dp_fail(DP_ERR_NOMEM, "program: no memory for the slots of %d channels", w->program->nchannels);
    for (int32_t r = 0; r < s->ranks; r++)
        for (int64_t i = s->first[r]; i < s->first[r + 1]; i++)
            for (int p = 0, n = dp__op_parts(&s->ops[i], part); p < n; p++) {
                int32_t in = dp__edges_in(&w->edges, r, part[p].chunk, part[p].op);
                const dp_channel_t *channel = in >= 0 ? &w->program->channels[in] : NULL;
                size_t at = dp__index_at(&w->index, r, part[p].chunk, part[p].mb);
                int64_t made, *slot;

                if (channel == NULL || channel->src == r)
                    continue;
                made = end_of(w, channel->src, channel->src_chunk, channel->op, part[p].mb);
                slot = &read[(size_t)in * slots + (size_t)w->sequence[part[p].op == DP_OP_B][at] % slots];
                w->moment[part[p].op == DP_OP_B][at] = made > *slot ? made : *slot;
                *slot = w->end[i];
            }
    dp__free(read);
    return DP_OK;
}

static void add(dp__lowering_t *w, dp_instr_kind_t kind, int32_t channel, int32_t chunk, int32_t mb)
{
    const dp_channel_t *c = &w->program->channels[channel];
    size_t at = dp__index_at(&w->index, c->dst, c->dst_chunk, mb);

    w->meetings[w->meeting_count++] = (dp__meeting_t){.moment = w->moment[c->op == DP_OP_B][at],
                                                      .kind = (uint8_t)kind,
                                                      .src = c->src,
                                                      .dst = c->dst,
                                                      .channel = channel,
                                                      .sequence = w->sequence[c->op == DP_OP_B][at],
                                                      .chunk = chunk,
                                                      .mb = mb};
}

static void collect_part(dp__lowering_t *w, int32_t rank, const dp__part_t *part)
{
    int32_t in = dp__edges_in(&w->edges, rank, part->chunk, part->op);
    int32_t out = dp__edges_out(&w->edges, rank, part->chunk, part->op);

    if (in >= 0 && w->program->channels[in].src != rank)
        add(w, DP_INSTR_RECV, in, part->chunk, part->mb);
    if (out >= 0 && w->program->channels[out].dst != rank)
        add(w, DP_INSTR_SEND, out, part->chunk, part->mb);
}

static void collect_reductions(dp__lowering_t *w, int32_t rank)
{
    const dp_schedule_t *s = w->schedule;
    const int64_t *moment = w->reduce_moment + (size_t)rank * (size_t)s->chunks;
    const int32_t *order = w->reduce_order + (size_t)rank * (size_t)s->chunks;

    for (int32_t k = 0; k < s->chunks && !s->forward_only; k++)
        w->meetings[w->meeting_count++] = (dp__meeting_t){.moment = moment[order[k]],
                                                          .kind = DP_INSTR_REDUCE,
                                                          .src = s->ranks,
                                                          .dst = k,
                                                          .channel = -1,
                                                          .chunk = order[k],
                                                          .mb = -1};
}

static bool comes_first(const dp__meeting_t *a, const dp__meeting_t *b)
{
    if (a->moment != b->moment)
        return a->moment < b->moment;
    if (a->src != b->src)
        return a->src < b->src;
    return a->dst != b->dst ? a->dst < b->dst : a->channel < b->channel;
}

static void sort(dp__lowering_t *w)
{
    int32_t count = w->meeting_count;

    for (int32_t run = 1; run < count; run *= 2) {
        dp__meeting_t *from = w->meetings, *to = w->spare_meetings;

        for (int32_t low = 0; low < count; low += 2 * run) {
            int32_t a = low, a_end = low + run < count ? low + run : count;
            int32_t b = a_end, b_end = a_end + run < count ? a_end + run : count;

            for (int32_t k = low; k < b_end; k++)
                to[k] = a < a_end && (b >= b_end || !comes_first(&from[b], &from[a])) ? from[a++] : from[b++];
        }
        w->meetings = to;
        w->spare_meetings = from;
    }
}

void dp__lower_meetings(dp__lowering_t *w, int32_t rank)
{
    const dp_schedule_t *s = w->schedule;
    int32_t ops = dp__rank_ops(s, rank), position = 0;
    dp__part_t part[2];

    w->meeting_count = 0;
    for (int32_t i = 0; i < ops; i++)
        for (int p = 0, n = dp__op_parts(&s->ops[s->first[rank] + i], part); p < n; p++)
            collect_part(w, rank, &part[p]);
    collect_reductions(w, rank);
    sort(w);
    for (int32_t m = 0; m < w->meeting_count; m++) {
        while (position < ops && dp__lowering_start(w, rank, position) < w->meetings[m].moment)
            position++;
        w->meetings[m].before = position;
    }
}
