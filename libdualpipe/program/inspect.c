/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * inspect.c: every line of a program against the lines before it.
 *
 * Exactly once, transfers between producer and consumer, both ends of a channel with the same
 * messages in the same order, slots not used twice at once, reductions after the last weight
 * gradient. */
#include "program/verify.h"

#include "base/memory.h"
#include "base/range.h"
#include "program/passes.h"
#include "schedule/passes.h"

#include <string.h>

typedef struct dp__inspection {
    dp__verification_t *v;
    int32_t *sent, *received, *consumed; /* [channels] messages so far */
    int64_t *slot_first;                 /* [ranks * chunks + 1] */
    int32_t *slot_owner;                 /* micro-batch in an activation slot, -1: free */
    uint8_t *begun;                      /* [places] passes of braids: bits F, B or I, W */
    int32_t *weights_left;               /* [ranks * chunks] */
    /* [ranks * chunks] chunks of a rank in the order of their REDUCE */
    int32_t *reduced;
    int32_t *reductions; /* [ranks] how many */
    /* of the rank being read */
    dp__alive_t alive;
    int32_t deferred, bundle, rank, position;
    const dp_instr_t *instr;
} dp__inspection_t;

static dp_status_t refuse_line(const dp__inspection_t *x, const char *why)
{
    char text[160];

    dp__instr_print(x->v->program, x->rank, x->position, text, sizeof(text));
    return dp_fail(DP_ERR_REJECTED, "verify: %s: %s", text, why);
}

static size_t chunk_at(const dp__inspection_t *x, int32_t chunk)
{
    return (size_t)x->rank * (size_t)x->v->schedule->chunks + (size_t)chunk;
}

/* ---- channels ---- */

/* The channels of a program are those of its placement, whatever their order. */
static dp_status_t check_channels(dp__verification_t *v, const dp_channel_t *expected, int32_t count)
{
    const dp_program_t *p = v->program;

    if (p->nchannels != count)
        return dp_fail(DP_ERR_REJECTED, "verify: %d channels; the placement has %d", p->nchannels, count);
    for (int32_t c = 0; c < count; c++) {
        const dp_channel_t *have = &p->channels[c], *want = &expected[c];

        if (have->src != want->src || have->src_chunk != want->src_chunk || have->dst != want->dst ||
            have->dst_chunk != want->dst_chunk || have->op != want->op)
            return dp_fail(DP_ERR_REJECTED,
                           "verify: channel %d goes from rank %d chunk %d to rank %d chunk %d; the "
                           "placement wants rank %d chunk %d to rank %d chunk %d",
                           c, have->src, have->src_chunk, have->dst, have->dst_chunk, want->src, want->src_chunk,
                           want->dst, want->dst_chunk);
        if (have->messages != v->microbatches)
            return dp_fail(DP_ERR_REJECTED, "verify: channel %d has %d messages for %d micro-batches", c,
                           have->messages, v->microbatches);
        if (have->slots < 1)
            return dp_fail(DP_ERR_REJECTED, "verify: channel %d has %d slots", c, have->slots);
    }
    return DP_OK;
}

static dp_status_t create_channels(dp__verification_t *v)
{
    size_t places = (size_t)v->schedule->ranks * (size_t)v->schedule->chunks;
    dp_channel_t *expected = dp__calloc(2 * places, sizeof(*expected));
    dp_status_t status;
    int32_t count;

    if (expected == NULL)
        return dp_fail(DP_ERR_NOMEM, "verify: no memory for %zu chunks", places);
    status = dp__edges_create(v->schedule, &v->edges, expected, &count);
    if (status >= 0)
        status = check_channels(v, expected, count);
    dp__free(expected);
    return status;
}

static dp_status_t create_messages(dp__verification_t *v)
{
    size_t channels = (size_t)v->program->nchannels, messages = channels * (size_t)v->microbatches;

    if (!dp__arrays(DP__ARRAY(v->send_at, messages), DP__ARRAY(v->recv_at, messages),
                    DP__ARRAY(v->release_at, messages), DP__ARRAY(v->message_first, channels + 1)))
        return dp_fail(DP_ERR_NOMEM, "verify: no memory for %zu messages", messages);
    for (size_t c = 0; c < channels; c++)
        v->message_first[c + 1] = v->message_first[c] + v->microbatches;
    memset(v->send_at, 0xff, messages * sizeof(int32_t));
    memset(v->recv_at, 0xff, messages * sizeof(int32_t));
    memset(v->release_at, 0xff, messages * sizeof(int32_t));
    return DP_OK;
}

/* Numbers of bundles rise by one; the transfers of one have one direction and two ranks. */
static dp_status_t check_bundle(dp__inspection_t *x)
{
    const dp_instr_t *i = x->instr;

    if (x->v->program->transport == DP_TRANSPORT_CREDITS)
        return i->bundle == -1 ? DP_OK : refuse_line(x, "it names a bundle, but one-sided transfers form none");
    if (i->bundle < 0 || i->bundle < x->bundle || i->bundle > x->bundle + 1)
        return refuse_line(x, "bundles must rise one by one from 0");
    if (i->bundle == x->bundle && (i[-1].bundle != i->bundle || i[-1].kind != i->kind || i[-1].peer != i->peer))
        return refuse_line(x, "its bundle holds something else than neighbours of one direction between two ranks");
    x->bundle = i->bundle;
    return DP_OK;
}

/* What SEND and RECV have in common. */
static dp_status_t check_transfer(dp__inspection_t *x, bool sends, int32_t *done, int32_t *at)
{
    const dp_instr_t *i = x->instr;
    const dp_program_t *p = x->v->program;
    const dp_channel_t *c;

    if (i->channel < 0 || i->channel >= p->nchannels)
        return refuse_line(x, "no such channel");
    c = &p->channels[i->channel];
    if (c->src == c->dst)
        return refuse_line(x, "its channel is a local edge, which has no transfers");
    if (x->rank != (sends ? c->src : c->dst) || i->chunk != (sends ? c->src_chunk : c->dst_chunk) || i->op != c->op)
        return refuse_line(x, "its channel belongs to another chunk");
    if (i->peer != (sends ? c->dst : c->src))
        return refuse_line(x, "its channel ends at another rank");
    if (i->microbatch < 0 || i->microbatch >= x->v->microbatches)
        return refuse_line(x, "micro-batch out of range");
    if (i->number != done[i->channel] || i->number >= c->messages)
        return refuse_line(x, "it is not the next message of its channel");
    done[i->channel]++;
    at[x->v->message_first[i->channel] + i->number] = x->position;
    return check_bundle(x);
}

static dp_status_t inspect_send(dp__inspection_t *x)
{
    const dp_instr_t *i = x->instr;
    const dp__index_t *index = &x->v->index;
    dp_status_t status = check_transfer(x, true, x->sent, x->v->send_at);

    if (status < 0)
        return status;
    if ((i->op == DP_OP_F ? index->forward : index->backward)[dp__index_at(index, x->rank, i->chunk, i->microbatch)] <
        0)
        return refuse_line(x, "the operation that makes its data has not run yet");
    return DP_OK;
}

static dp_status_t inspect_recv(dp__inspection_t *x)
{
    return check_transfer(x, false, x->received, x->v->recv_at);
}

/* ---- compute ---- */

/* A local edge hands data on inside the rank: the operation that makes them stands above. */
static dp_status_t consume_local(const dp__inspection_t *x, const dp_channel_t *c, const dp__part_t *part)
{
    const dp__index_t *index = &x->v->index;
    const int32_t *made = part->op == DP_OP_F ? index->forward : index->backward;
    int32_t at = made[dp__index_at(index, x->rank, c->src_chunk, part->microbatch)];

    if (at < 0 || at >= x->position)
        return refuse_line(x, "the operation of this rank that makes its input has not run yet");
    return DP_OK;
}

/* One input of an operation: nothing, a local edge, or a message that was received for it. */
static dp_status_t check_input(const dp__inspection_t *x, const dp__part_t *part, int32_t in)
{
    int32_t channel = dp__edges_in(&x->v->edges, x->rank, part->chunk, part->op);
    const dp_channel_t *c = channel >= 0 ? &x->v->program->channels[channel] : NULL;
    const dp_instr_t *recv;

    if (c == NULL)
        return in == -1 ? DP_OK : refuse_line(x, "it names a receive, but an end of the path has none");
    if (c->src == c->dst)
        return in == -1 ? consume_local(x, c, part)
                        : refuse_line(x, "it names a receive, but its input is made on this rank");
    if (in < 0 || in >= x->position)
        return refuse_line(x, "no receive stands above it for its input");
    recv = dp__instr(x->v->program, x->rank, in);
    if (recv->kind != DP_INSTR_RECV || recv->channel != channel || recv->microbatch != part->microbatch)
        return refuse_line(x, "the receive that it names carries something else");
    return DP_OK;
}

static dp_status_t consume_input(dp__inspection_t *x, const dp__part_t *part, int32_t in)
{
    int32_t channel = dp__edges_in(&x->v->edges, x->rank, part->chunk, part->op);
    dp_status_t status = check_input(x, part, in);

    if (status < 0 || channel < 0)
        return status;
    if (in >= 0 && dp__instr(x->v->program, x->rank, in)->number != x->consumed[channel])
        return refuse_line(x, "it consumes the messages of its channel out of order");
    if (in >= 0)
        x->v->release_at[x->v->message_first[channel] + x->consumed[channel]] = x->position;
    x->consumed[channel]++;
    return DP_OK;
}

/* A part that feeds a local edge fills one of its slots. */
static dp_status_t fill_local(dp__inspection_t *x, const dp__part_t *part)
{
    int32_t channel = dp__edges_out(&x->v->edges, x->rank, part->chunk, part->op);
    const dp_channel_t *c;

    if (channel < 0)
        return DP_OK;
    c = &x->v->program->channels[channel];
    if (c->src != c->dst)
        return DP_OK;
    if (++x->sent[channel] - x->consumed[channel] > c->slots)
        return refuse_line(x, "all slots of the local edge are still in use");
    return DP_OK;
}

static dp_status_t take_slot(dp__inspection_t *x, int32_t chunk, int32_t microbatch, int32_t slot)
{
    int64_t first = x->slot_first[chunk_at(x, chunk)];

    if (slot < 0 || slot >= x->slot_first[chunk_at(x, chunk) + 1] - first)
        return refuse_line(x, "activation slot out of range");
    if (x->slot_owner[first + slot] >= 0)
        return refuse_line(x, "its activation slot is still in use by an earlier micro-batch");
    x->slot_owner[first + slot] = microbatch;
    return DP_OK;
}

static dp_status_t check_slot(const dp__inspection_t *x, int32_t chunk, int32_t microbatch, int32_t slot)
{
    int64_t first = x->slot_first[chunk_at(x, chunk)];

    if (slot < 0 || slot >= x->slot_first[chunk_at(x, chunk) + 1] - first || x->slot_owner[first + slot] != microbatch)
        return refuse_line(x, "its activation slot does not hold its micro-batch");
    return DP_OK;
}

static void give_slot(dp__inspection_t *x, int32_t chunk, int32_t slot)
{
    x->slot_owner[x->slot_first[chunk_at(x, chunk)] + slot] = -1;
}

/* Takes, checks and gives back the activation slots of an operation. */
static dp_status_t use_slots(dp__inspection_t *x)
{
    const dp_instr_t *i = x->instr;
    /* a braid's has it from its start */
    bool forward = (i->op == DP_OP_F || i->op == DP_OP_FB) && i->number < 0;
    dp_status_t status =
        forward ? take_slot(x, i->chunk, i->microbatch, i->slot) : check_slot(x, i->chunk, i->microbatch, i->slot);

    if (status >= 0 && i->op == DP_OP_FB)
        status = check_slot(x, i->chunk2, i->microbatch2, i->slot2);
    if (status < 0)
        return status;
    if (i->op == DP_OP_FB)
        give_slot(x, i->chunk2, i->slot2);
    else if (i->op == DP_OP_B || i->op == DP_OP_W || x->v->schedule->forward_only)
        give_slot(x, i->chunk, i->slot);
    return DP_OK;
}

/* What is alive at once, as far as lines were read. */
static void count_alive(dp__inspection_t *x)
{
    const dp_instr_t *i = x->instr;
    dp_verify_report_t *report = &x->v->report;
    dp__instr_pass_t pass[2];

    for (int k = 0, n = dp__instr_passes(i, pass); k < n; k++)
        dp__alive_count(&x->alive, pass[k].kind, dp__instr_begins(i), i->kind == DP_INSTR_COMPUTE, 1.0);
    report->peak_activations = dp__max_int32(report->peak_activations, (int32_t)x->alive.most_inputs);
    report->peak_backward_buffers = dp__max_int32(report->peak_backward_buffers, (int32_t)x->alive.most_backwards);
}

static void finish_weight(dp__inspection_t *x, int32_t chunk, int32_t microbatch)
{
    int32_t *left = &x->weights_left[chunk_at(x, chunk)];

    if (microbatch != x->v->microbatches - (*left)--)
        x->v->report.ordered_weights = 0;
}

static void count_weights(dp__inspection_t *x)
{
    const dp_instr_t *i = x->instr;

    if (i->op == DP_OP_I && ++x->deferred > x->v->report.peak_deferred)
        x->v->report.peak_deferred = x->deferred;
    if (i->op == DP_OP_W)
        x->deferred--;
    if (i->op == DP_OP_B || i->op == DP_OP_W)
        finish_weight(x, i->chunk, i->microbatch);
    if (i->op == DP_OP_FB)
        finish_weight(x, i->chunk2, i->microbatch2);
}

/* A braid's pass begins once, and ends once after that. */
static dp_status_t mark_begun(dp__inspection_t *x)
{
    const dp_instr_t *i = x->instr;
    uint8_t *begun = &x->begun[dp__index_at(&x->v->index, x->rank, i->chunk, i->microbatch)];
    uint8_t bit = (uint8_t)(1 << (i->op == DP_OP_F ? 0 : i->op == DP_OP_W ? 2 : 1));
    bool starts = i->kind == DP_INSTR_START;

    if (i->op > DP_OP_W || i->number >= x->v->schedule->nbraids || i->number < 0)
        return refuse_line(x, "its braid has no such pass");
    if (starts != ((*begun & bit) == 0))
        return refuse_line(x, starts ? "it has begun before" : "it ends, but has not begun");
    *begun ^= bit;
    return DP_OK;
}

static dp_op_t op_of(const dp_instr_t *i)
{
    return (dp_op_t){(uint8_t)(i->op + (i->kind == DP_INSTR_START ? DP__OP_START : 0)), i->chunk, i->chunk2,
                     i->microbatch, i->number >= 0 ? i->number : i->microbatch2};
}

static dp_status_t inspect_start(dp__inspection_t *x)
{
    const dp_instr_t *i = x->instr;
    dp_op_t op = op_of(i);
    dp_status_t status = dp__index_enter(&x->v->index, x->v->schedule, x->rank, x->position, &op);
    dp__part_t part[2];
    int n;

    if (status >= 0)
        status = mark_begun(x);
    if (status < 0)
        return status;
    n = dp__parts(i->op, i->chunk, i->microbatch, -1, -1, part);
    if (n == 0 && i->in != -1)
        return refuse_line(x, "it names a receive that it has no use for");
    if (n > 0)
        status = fill_local(x, part);
    if (status >= 0 && n > 0)
        status = check_input(x, part, i->in);
    if (status < 0)
        return status;
    count_alive(x);
    return i->op == DP_OP_F ? take_slot(x, i->chunk, i->microbatch, i->slot)
                            : check_slot(x, i->chunk, i->microbatch, i->slot);
}

static dp_status_t inspect_compute(dp__inspection_t *x)
{
    const dp_instr_t *i = x->instr;
    dp_op_t op = op_of(i);
    dp_status_t status = dp__index_enter(&x->v->index, x->v->schedule, x->rank, x->position, &op);
    dp__part_t part[2];
    int n;

    if (status >= 0 && i->number != -1)
        status = mark_begun(x);
    if (status < 0)
        return status;
    n = dp__parts(i->op, i->chunk, i->microbatch, i->chunk2, i->microbatch2, part);
    if ((n < 1 && i->in != -1) || (n < 2 && i->in2 != -1))
        return refuse_line(x, "it names a receive that it has no use for");
    for (int p = 0; p < n && status >= 0 && i->number < 0; p++)
        status = fill_local(x, &part[p]);
    for (int p = 0; p < n && status >= 0; p++)
        status = consume_input(x, &part[p], p == 0 ? i->in : i->in2);
    if (status >= 0)
        status = use_slots(x);
    count_alive(x);
    count_weights(x);
    return status;
}

/* ---- reductions ---- */

static dp_status_t inspect_reduce(dp__inspection_t *x)
{
    const dp_instr_t *i = x->instr;
    const dp_schedule_t *s = x->v->schedule;
    int32_t *done = &x->reduced[(size_t)x->rank * (size_t)s->chunks];

    if (i->chunk < 0 || i->chunk >= s->chunks)
        return refuse_line(x, "no such chunk");
    if (s->forward_only)
        return refuse_line(x, "a forward-only program has no gradients");
    for (int32_t k = 0; k < x->reductions[x->rank]; k++)
        if (done[k] == i->chunk)
            return refuse_line(x, "its chunk was reduced before");
    if (x->weights_left[chunk_at(x, i->chunk)] > 0)
        return refuse_line(x, "weight gradients of its chunk are still to come");
    if (i->peer != x->v->edges.place[chunk_at(x, i->chunk)].mirror_rank)
        return refuse_line(x, "another rank holds the copy of its stage");
    done[x->reductions[x->rank]++] = i->chunk;
    return DP_OK;
}

/* All chunks reduced, and in the same order on both holders of a stage. */
static dp_status_t check_reductions(const dp__inspection_t *x)
{
    const dp_schedule_t *s = x->v->schedule;

    for (int32_t r = 0; r < s->ranks && !s->forward_only; r++) {
        const int32_t *done = &x->reduced[(size_t)r * (size_t)s->chunks];
        const dp_place_t *place = &x->v->edges.place[(size_t)r * (size_t)s->chunks];

        if (x->reductions[r] != s->chunks)
            return dp_fail(DP_ERR_REJECTED, "verify: rank %d reduces %d of its %d chunks", r, x->reductions[r],
                           s->chunks);
        for (int32_t k = 0; k < s->chunks; k++) {
            int32_t mirror = place[done[k]].mirror_rank;

            if (mirror >= 0 && done[k] != 1 - x->reduced[(size_t)mirror * (size_t)s->chunks + (size_t)k])
                return dp_fail(DP_ERR_REJECTED, "verify: ranks %d and %d reduce their stages in different orders", r,
                               mirror);
        }
    }
    return DP_OK;
}

/* ---- whole ---- */

/* The sender has all messages of a channel, and they are those that the receiver expects; every one
 * of these has been received and used, or an operation would have been refused. */
static dp_status_t check_messages(const dp__verification_t *v)
{
    const dp_program_t *p = v->program;

    for (int32_t c = 0; c < p->nchannels; c++) {
        const dp_channel_t *channel = &p->channels[c];

        for (int64_t m = v->message_first[c]; m < v->message_first[c + 1] && channel->src != channel->dst; m++) {
            int32_t number = (int32_t)(m - v->message_first[c]), sent, received;

            if (v->send_at[m] < 0)
                return dp_fail(DP_ERR_REJECTED,
                               "verify: rank %d never sends message %d of %s from its chunk %d to rank %d",
                               channel->src, number, dp_op_kind_name(channel->op), channel->src_chunk, channel->dst);
            sent = dp__instr(p, channel->src, v->send_at[m])->microbatch;
            received = dp__instr(p, channel->dst, v->recv_at[m])->microbatch;
            if (sent != received)
                return dp_fail(DP_ERR_REJECTED,
                               "verify: message %d of %s from rank %d to rank %d is mb %d for the "
                               "sender and mb %d for the receiver",
                               number, dp_op_kind_name(channel->op), channel->src, channel->dst, sent, received);
        }
    }
    return DP_OK;
}

static dp_status_t inspect_line(dp__inspection_t *x)
{
    switch (x->instr->kind) {
    case DP_INSTR_COMPUTE:
        return inspect_compute(x);
    case DP_INSTR_SEND:
        return inspect_send(x);
    case DP_INSTR_RECV:
        return inspect_recv(x);
    case DP_INSTR_REDUCE:
        return inspect_reduce(x);
    case DP_INSTR_START:
        return inspect_start(x);
    default:
        return dp_fail(DP_ERR_REJECTED, "verify: rank %d line %d has unknown kind %d", x->rank, x->position,
                       x->instr->kind);
    }
}

static dp_status_t inspect_lines(dp__inspection_t *x)
{
    const dp_program_t *p = x->v->program;
    dp_status_t status = DP_OK;

    for (x->rank = 0; x->rank < p->ranks && status >= 0; x->rank++) {
        x->alive = (dp__alive_t){.forward_only = p->schedule->forward_only != 0};
        x->deferred = 0;
        x->bundle = -1;
        for (x->position = 0; x->position < dp__rank_instrs(p, x->rank) && status >= 0; x->position++) {
            x->instr = dp__instr(p, x->rank, x->position);
            status = inspect_line(x);
        }
    }
    if (status >= 0)
        status = dp__index_complete(&x->v->index, x->v->schedule);
    if (status >= 0)
        status = check_messages(x->v);
    return status < 0 ? status : check_reductions(x);
}

static dp_status_t create_slots(dp__inspection_t *x)
{
    const dp_program_t *p = x->v->program;
    size_t places = (size_t)p->ranks * (size_t)p->chunks;

    for (size_t i = 0; i < places; i++) {
        if (p->activation_slots[i] < 0 || p->activation_slots[i] > x->v->microbatches)
            return dp_fail(DP_ERR_REJECTED, "verify: rank %zu chunk %zu has %d activation slots for %d micro-batches",
                           i / (size_t)p->chunks, i % (size_t)p->chunks, p->activation_slots[i], x->v->microbatches);
        x->slot_first[i + 1] = x->slot_first[i] + p->activation_slots[i];
        x->weights_left[i] = x->v->microbatches;
    }
    x->slot_owner = dp__allocate((size_t)x->slot_first[places] * sizeof(int32_t), 64);
    if (x->slot_owner == NULL)
        return dp_fail(DP_ERR_NOMEM, "verify: no memory for %lld slots", (long long)x->slot_first[places]);
    memset(x->slot_owner, 0xff, (size_t)x->slot_first[places] * sizeof(int32_t));
    return DP_OK;
}

static dp_status_t create_inspection(dp__inspection_t *x)
{
    dp__verification_t *v = x->v;
    size_t places = (size_t)v->schedule->ranks * (size_t)v->schedule->chunks;
    size_t channels = (size_t)v->program->nchannels;
    dp_status_t status = dp__index_create(v->schedule, v->program->first[v->program->ranks], &v->index);

    if (status >= 0)
        status = create_channels(v);
    if (status >= 0)
        status = create_messages(v);
    if (status < 0)
        return status;
    if (!dp__arrays(DP__ARRAY(x->sent, channels), DP__ARRAY(x->received, channels), DP__ARRAY(x->consumed, channels),
                    DP__ARRAY(x->begun, places * (size_t)v->microbatches), DP__ARRAY(x->slot_first, places + 1),
                    DP__ARRAY(x->weights_left, places), DP__ARRAY(x->reduced, places),
                    DP__ARRAY(x->reductions, v->schedule->ranks)))
        return dp_fail(DP_ERR_NOMEM, "verify: no memory for %zu chunks", places);
    return create_slots(x);
}

dp_status_t dp__inspect(dp__verification_t *v)
{
    dp__inspection_t x = {.v = v};
    dp_status_t status;

    v->microbatches = dp_schedule_path_microbatches(v->schedule, 0);
    if (v->program->ranks != v->schedule->ranks || v->program->chunks != v->schedule->chunks)
        return dp_fail(DP_ERR_REJECTED, "verify: a program for %d ranks x %d chunks, a schedule for %d x %d",
                       v->program->ranks, v->program->chunks, v->schedule->ranks, v->schedule->chunks);
    v->report.ordered_weights = 1;
    status = create_inspection(&x);
    if (status >= 0)
        status = inspect_lines(&x);
    dp__free(x.sent);
    dp__free(x.slot_owner);
    return status;
}
