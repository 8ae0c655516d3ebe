/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run.c: event-driven run. Each rank goes through its list with two cursors, one of the compute
 * lane and one of the transfers (BUNDLES: one for each peer and direction); a rank that waits is
 * looked at again when what it may wait for has come, so that the whole takes time linear in the
 * number of instructions. */
#include "simulate/run.h"

#include <math.h>
#include <stdbool.h>

#include "base/memory.h"
#include "simulate/costs.h"
#include "timeline/pair.h"

/* Times of a message; negative: not yet. */
typedef struct message {
    double made;     /* its data were computed */
    double sent;     /* CREDITS: it left. BUNDLES: the sender posted it */
    double posted;   /* BUNDLES: the receiver posted it */
    double begun;    /* BUNDLES: its bytes enter the link */
    double arrived;  /* its consumer can use it */
    double released; /* its consumer ended, so its slot is free */
} message_t;

typedef struct rank_state {
    int64_t at;       /* compute cursor: next instruction */
    int64_t transfer; /* CREDITS: transfer cursor, never past `at` */
    double lane_free; /* the compute lane's last operation ended */
    double comm_free; /* CREDITS: the last send left */
    double held;
    bool queued, started;
} rank_state_t;

/* BUNDLES: the transfers of a rank to, or from, one peer, which no others hold up. */
typedef struct stream {
    int32_t rank, link;
    uint8_t kind;
    bool posted;  /* the bundle at `next` */
    int64_t next; /* into run_t.transfers */
    int64_t end;
    double free; /* the bundle before was over */
} stream_t;

typedef struct run {
    const dp__model_t *model;
    const dp_program_t *program;
    dp_timeline_t *timeline;
    dp__rank_result_t *results;
    message_t *messages;
    rank_state_t *ranks;
    double *link_free;     /* [links]: the last byte so far left */
    stream_t *streams;     /* BUNDLES: by rank */
    int32_t *first_stream; /* [ranks + 1] */
    int64_t *transfers;    /* instructions, by stream */
    int32_t *queue;        /* ring of ranks to look at; each is in it at most once */
    int32_t head, queued;
    uint8_t *forward_done, *backward_done; /* bit per (rank, chunk, micro-batch) */
    /* [the same] when its result was there for other ranks */
    double *forward_left, *backward_left;
} run_t;

/* ---- bits, queue, lookup ---- */

static int64_t bit_of(const run_t *run, int32_t rank, int32_t chunk, int32_t microbatch)
{
    return ((int64_t)rank * run->program->chunks + chunk) * run->model->microbatches + microbatch;
}

static bool get_bit(const uint8_t *bits, int64_t at)
{
    return (bits[at / 8] >> (at % 8) & 1) != 0;
}

static void set_bit(uint8_t *bits, int64_t at)
{
    bits[at / 8] |= (uint8_t)(1u << (at % 8));
}

static void look_at_rank(run_t *run, int32_t rank)
{
    if (run->ranks[rank].queued)
        return;
    run->ranks[rank].queued = true;
    run->queue[(run->head + run->queued++) % run->program->ranks] = rank;
}

static message_t *message_of(const run_t *run, const dp_instr_t *transfer)
{
    return &run->messages[run->model->first_message[transfer->channel] + transfer->number];
}

/* The message that frees the slot for this one; NULL when the slot was never used. */
static message_t *slot_before(const run_t *run, const dp_instr_t *transfer)
{
    int32_t slots = run->program->channels[transfer->channel].slots;

    return transfer->number >= slots ? message_of(run, transfer) - slots : NULL;
}

static const dp_instr_t *recv_of(const run_t *run, int32_t rank, int32_t in)
{
    return in >= 0 ? &run->program->instrs[run->program->first[rank] + in] : NULL;
}

/* ---- spans ---- */

int64_t dp__model_ns(double time)
{
    return time >= 9.2e12 ? INT64_MAX - 1 : llround(time * 1e6);
}

static dp_span_t make_span(const run_t *run, int32_t rank, int32_t chunk, int32_t microbatch, double start, double end)
{
    int32_t stage = dp__model_chunk(run->model, rank, chunk)->stage;

    return (dp_span_t){.start_ns = dp__model_ns(start),
                       .end_ns = dp__model_ns(end),
                       .microbatch = microbatch,
                       .chunk = (int16_t)chunk,
                       .stage = stage <= INT16_MAX ? (int16_t)stage : -1,
                       .segment = -1};
}

static void keep_transfer(run_t *run, int32_t rank, const dp_instr_t *transfer, double start, double end)
{
    dp_span_t span;

    if (run->timeline == NULL)
        return;
    span = make_span(run, rank, transfer->chunk, transfer->microbatch, start, end);
    span.kind = transfer->kind == DP_INSTR_SEND ? DP_SPAN_SEND : DP_SPAN_RECV;
    span.lane = DP_LANE_P2P;
    span.pass = transfer->op;
    span.flow = (uint64_t)(message_of(run, transfer) - run->messages) + 1;
    (void)dp_timeline_add(run->timeline, rank, &span);
}

static void keep_compute(run_t *run, int32_t rank, const dp_instr_t *instr, double start, const double parts[2])
{
    bool pair = instr->op == DP_OP_FB;
    uint8_t number = pair ? dp__span_pair(instr - run->program->instrs + 1) : 0;
    dp_span_t span;

    if (run->timeline == NULL)
        return;
    span = make_span(run, rank, instr->chunk, instr->microbatch, start, start + parts[0]);
    span.pass = pair ? DP_OP_F : instr->op;
    span.pair = number;
    (void)dp_timeline_add(run->timeline, rank, &span);
    if (!pair)
        return;
    span = make_span(run, rank, instr->chunk2, instr->microbatch2, start + parts[0], start + parts[0] + parts[1]);
    span.pass = DP_OP_B;
    span.pair = number;
    (void)dp_timeline_add(run->timeline, rank, &span);
}

/* ---- compute lane ---- */

static bool forward_ready(const run_t *run, int32_t rank, int32_t chunk, int32_t microbatch)
{
    int32_t before = dp__model_chunk(run->model, rank, chunk)->prev_here;

    return before < 0 || get_bit(run->forward_done, bit_of(run, rank, before, microbatch));
}

static bool backward_ready(const run_t *run, int32_t rank, int32_t chunk, int32_t microbatch)
{
    int32_t after = dp__model_chunk(run->model, rank, chunk)->next_here;

    return get_bit(run->forward_done, bit_of(run, rank, chunk, microbatch)) &&
           (after < 0 || get_bit(run->backward_done, bit_of(run, rank, after, microbatch)));
}

/* What was computed before on the same rank. */
static bool own_inputs_ready(const run_t *run, int32_t rank, const dp_instr_t *instr)
{
    switch (instr->op) {
    case DP_OP_F:
        return forward_ready(run, rank, instr->chunk, instr->microbatch);
    case DP_OP_W:
        return get_bit(run->backward_done, bit_of(run, rank, instr->chunk, instr->microbatch));
    case DP_OP_FB:
        return forward_ready(run, rank, instr->chunk, instr->microbatch) &&
               backward_ready(run, rank, instr->chunk2, instr->microbatch2);
    default:
        return backward_ready(run, rank, instr->chunk, instr->microbatch);
    }
}

/* Raises *start to the arrival of what `in` names; false while it has not arrived. */
static bool input_arrived(const run_t *run, int32_t rank, int32_t in, double *start)
{
    const dp_instr_t *recv = recv_of(run, rank, in);

    if (recv == NULL)
        return true;
    if (message_of(run, recv)->arrived < 0.0)
        return false;
    *start = fmax(*start, message_of(run, recv)->arrived);
    return true;
}

static void consume_input(run_t *run, int32_t rank, int32_t in, double ready, double end)
{
    const dp_instr_t *recv = recv_of(run, rank, in);
    message_t *message;

    if (recv == NULL)
        return;
    message = message_of(run, recv);
    message->released = end;
    keep_transfer(run, rank, recv, ready, fmax(ready, message->arrived));
    look_at_rank(run, run->program->channels[recv->channel].src);
}

static void hold_activations(run_t *run, int32_t rank, double share)
{
    run->ranks[rank].held += share;
    run->results[rank].peak_activations = fmax(run->results[rank].peak_activations, run->ranks[rank].held);
}

static void count_activations(run_t *run, int32_t rank, const dp_instr_t *instr)
{
    double share = dp__model_chunk(run->model, rank, instr->chunk)->share;
    double share2 = instr->op == DP_OP_FB ? dp__model_chunk(run->model, rank, instr->chunk2)->share : 0.0;
    bool forward_only = run->program->schedule->forward_only != 0;

    if (instr->op == DP_OP_F || instr->op == DP_OP_FB)
        hold_activations(run, rank, share);
    if (instr->op == DP_OP_FB)
        run->ranks[rank].held -= share2;
    if (instr->op == DP_OP_B || instr->op == DP_OP_W || (instr->op == DP_OP_F && forward_only))
        run->ranks[rank].held -= share;
}

static void note_done(run_t *run, int32_t rank, const dp_instr_t *instr)
{
    int64_t bit = bit_of(run, rank, instr->chunk, instr->microbatch);

    if (instr->op == DP_OP_F || instr->op == DP_OP_FB)
        set_bit(run->forward_done, bit);
    if (instr->op == DP_OP_B || instr->op == DP_OP_I)
        set_bit(run->backward_done, bit);
    if (instr->op == DP_OP_FB)
        set_bit(run->backward_done, bit_of(run, rank, instr->chunk2, instr->microbatch2));
}

/* When one result of an operation is there for other ranks: after `share` of its time, 0: all. */
static double left_at(double start, double end, double share)
{
    return share > 0.0 ? start + (end - start) * share : end;
}

static void note_left(run_t *run, int32_t rank, const dp_instr_t *instr, double forward, double backward)
{
    int64_t bit = bit_of(run, rank, instr->chunk, instr->microbatch);

    if (instr->op == DP_OP_F || instr->op == DP_OP_FB)
        run->forward_left[bit] = forward;
    if (instr->op == DP_OP_B || instr->op == DP_OP_I)
        run->backward_left[bit] = backward;
    if (instr->op == DP_OP_FB)
        run->backward_left[bit_of(run, rank, instr->chunk2, instr->microbatch2)] = backward;
}

static bool run_compute(run_t *run, int32_t rank, const dp_instr_t *instr)
{
    rank_state_t *state = &run->ranks[rank];
    dp__rank_result_t *result = &run->results[rank];
    const dp_costs_t *costs = &run->model->costs;
    double ready = state->lane_free, start = ready, due = ready, begun, end, parts[2], forward, backward;
    bool pair = instr->op == DP_OP_FB;

    if (!own_inputs_ready(run, rank, instr) || !input_arrived(run, rank, instr->in, &due) ||
        (pair && !input_arrived(run, rank, instr->in2, &start)))
        return false;
    dp__costs_of(costs, instr->op, dp__model_chunk(run->model, rank, instr->chunk)->scale,
                 pair ? dp__model_chunk(run->model, rank, instr->chunk2)->scale : 0.0, parts);
    begun = start; /* the backward side of a pair need not wait for the input of the other */
    start = fmax(start, due - (pair ? costs->fb_forward_starts * (parts[0] + parts[1]) : 0.0));
    if (!pair || costs->fb_forward_starts <= 0.0)
        begun = start;
    end = start + (parts[0] + parts[1]);
    keep_compute(run, rank, instr, start, parts);
    forward = left_at(start, end, pair ? costs->fb_forward_leaves : 0.0);
    backward = left_at(begun, begun + (end - start),
                       pair                   ? costs->fb_backward_leaves
                       : instr->op == DP_OP_B ? costs->b_leaves
                                              : 0.0);
    note_left(run, rank, instr, forward, backward);
    consume_input(run, rank, instr->in, ready, pair || instr->op == DP_OP_F ? forward : backward);
    if (pair)
        consume_input(run, rank, instr->in2, ready, backward);
    count_activations(run, rank, instr);
    note_done(run, rank, instr);
    if (!state->started)
        result->first_start = start;
    state->started = true;
    state->lane_free = end;
    result->last_end = end;
    result->busy += parts[0] + parts[1];
    return true;
}

/* When the data of a send are there: at the end of the latest operation, or before. */
static double made_at(const run_t *run, int32_t rank, const dp_instr_t *send)
{
    const uint8_t *done = send->op == DP_OP_F ? run->forward_done : run->backward_done;
    const double *left = send->op == DP_OP_F ? run->forward_left : run->backward_left;
    int64_t bit = bit_of(run, rank, send->chunk, send->microbatch);
    const dp_costs_t *costs = &run->model->costs;
    bool at_end = costs->b_leaves <= 0.0 && costs->fb_forward_leaves <= 0.0 && costs->fb_backward_leaves <= 0.0;

    if (at_end || send->microbatch < 0 || send->microbatch >= run->model->microbatches || !get_bit(done, bit))
        return run->ranks[rank].lane_free;
    return fmin(left[bit], run->ranks[rank].lane_free);
}

static bool advance_compute(run_t *run, int32_t rank)
{
    rank_state_t *state = &run->ranks[rank];
    int64_t before = state->at, end = run->program->first[rank + 1];

    for (; state->at < end; state->at++) {
        const dp_instr_t *instr = &run->program->instrs[state->at];

        if (instr->kind == DP_INSTR_COMPUTE && !run_compute(run, rank, instr))
            break;
        if (instr->kind == DP_INSTR_SEND)
            message_of(run, instr)->made = made_at(run, rank, instr);
    }
    return state->at != before;
}

/* ---- links ---- */

/* When a message that is ready at `time` leaves; the link is then in use for its length. */
static double take_link(run_t *run, int32_t channel, double time)
{
    double *link_free = &run->link_free[run->model->link[channel]];
    double leaves = fmax(time, *link_free);

    *link_free = leaves + run->model->link_time[channel];
    return leaves;
}

/* From leaving to arriving. */
static double transfer_time(const run_t *run, int32_t channel)
{
    return run->model->link_time[channel] + run->model->hop[channel];
}

/* ---- transfers with credits ---- */

static bool run_send_line(run_t *run, int32_t rank, const dp_instr_t *instr)
{
    rank_state_t *state = &run->ranks[rank];
    message_t *message = message_of(run, instr), *before = slot_before(run, instr);
    double leaves = fmax(message->made, state->comm_free);

    if (before != NULL && before->released < 0.0)
        return false;
    if (before != NULL)
        leaves = fmax(leaves, before->released);
    leaves = take_link(run, instr->channel, leaves);
    state->comm_free = leaves;
    message->sent = leaves;
    message->arrived = leaves + transfer_time(run, instr->channel);
    keep_transfer(run, rank, instr, leaves, message->arrived);
    look_at_rank(run, run->program->channels[instr->channel].dst);
    return true;
}

static bool advance_sends(run_t *run, int32_t rank)
{
    rank_state_t *state = &run->ranks[rank];
    int64_t before = state->transfer;

    for (; state->transfer < state->at; state->transfer++) {
        const dp_instr_t *instr = &run->program->instrs[state->transfer];

        if (instr->kind == DP_INSTR_SEND && !run_send_line(run, rank, instr))
            break;
    }
    return state->transfer != before;
}

/* ---- transfers in bundles ---- */

/* The messages of a link meet in its order, as both sides list them in it. */
static void post_transfer(run_t *run, const dp_instr_t *transfer, double time)
{
    const dp_channel_t *channel = &run->program->channels[transfer->channel];
    message_t *message = message_of(run, transfer);

    *(transfer->kind == DP_INSTR_SEND ? &message->sent : &message->posted) = time;
    if (message->sent >= 0.0 && message->posted >= 0.0)
        message->begun = take_link(run, transfer->channel, fmax(message->sent, message->posted));
    look_at_rank(run, transfer->kind == DP_INSTR_SEND ? channel->dst : channel->src);
}

static stream_t *stream_of(run_t *run, int32_t rank, const dp_instr_t *transfer)
{
    for (int32_t k = run->first_stream[rank]; k < run->first_stream[rank + 1]; k++)
        if (run->streams[k].link == run->model->link[transfer->channel] && run->streams[k].kind == transfer->kind)
            return &run->streams[k];
    return NULL;
}

static bool is_transfer_line(const dp_instr_t *instr)
{
    return instr->kind == DP_INSTR_SEND || instr->kind == DP_INSTR_RECV;
}

/* Finds the streams of all ranks, then lays out their transfers side by side. */
static dp_status_t make_streams(run_t *run)
{
    const dp_program_t *program = run->program;
    size_t most = 2 * (size_t)program->nchannels + 1, count = (size_t)program->first[program->ranks];
    int64_t at = 0;

    run->streams = dp__calloc(most, sizeof(*run->streams));
    run->first_stream = dp__calloc((size_t)program->ranks + 1, sizeof(*run->first_stream));
    run->transfers = dp__calloc(count + 1, sizeof(*run->transfers));
    if (run->streams == NULL || run->first_stream == NULL || run->transfers == NULL)
        return dp_fail(DP_ERR_NOMEM, "simulate: no memory for %zu instructions", count);
    for (int32_t r = 0; r < program->ranks; r++) {
        run->first_stream[r + 1] = run->first_stream[r];
        for (int64_t i = program->first[r]; i < program->first[r + 1]; i++) {
            const dp_instr_t *t = &program->instrs[i];
            stream_t *stream = is_transfer_line(t) ? stream_of(run, r, t) : NULL;

            if (!is_transfer_line(t))
                continue;
            if (stream == NULL) {
                stream = &run->streams[run->first_stream[r + 1]++];
                *stream = (stream_t){.rank = r, .link = run->model->link[t->channel], .kind = t->kind};
            }
            stream->end++;
        }
        for (int32_t k = run->first_stream[r]; k < run->first_stream[r + 1]; k++) {
            run->streams[k].next = at;
            at += run->streams[k].end;
            run->streams[k].end = run->streams[k].next;
        }
        for (int64_t i = program->first[r]; i < program->first[r + 1]; i++)
            if (is_transfer_line(&program->instrs[i]))
                run->transfers[stream_of(run, r, &program->instrs[i])->end++] = i;
    }
    return DP_OK;
}

static const dp_instr_t *bundle_item(const run_t *run, int64_t at)
{
    return &run->program->instrs[run->transfers[at]];
}

static int64_t end_of_bundle(const run_t *run, const stream_t *stream)
{
    int64_t end = stream->next + 1;

    while (end < stream->end && bundle_item(run, end)->bundle == bundle_item(run, stream->next)->bundle)
        end++;
    return end;
}

static bool post_bundle(run_t *run, stream_t *stream, int64_t end)
{
    double time = stream->free;

    for (int64_t i = stream->next; i < end; i++) {
        const message_t *before = stream->kind == DP_INSTR_RECV ? slot_before(run, bundle_item(run, i)) : NULL;

        if (before != NULL && before->released < 0.0)
            return false;
        if (before != NULL)
            time = fmax(time, before->released);
        if (stream->kind == DP_INSTR_SEND)
            time = fmax(time, message_of(run, bundle_item(run, i))->made);
    }
    for (int64_t i = stream->next; i < end; i++)
        post_transfer(run, bundle_item(run, i), time);
    stream->posted = true;
    return true;
}

static bool finish_bundle(run_t *run, stream_t *stream, int64_t end)
{
    double over = 0.0;

    for (int64_t i = stream->next; i < end; i++) {
        if (message_of(run, bundle_item(run, i))->begun < 0.0)
            return false;
        over =
            fmax(over, message_of(run, bundle_item(run, i))->begun + transfer_time(run, bundle_item(run, i)->channel));
    }
    for (int64_t i = stream->next; i < end; i++) {
        message_t *message = message_of(run, bundle_item(run, i));

        if (stream->kind == DP_INSTR_RECV)
            message->arrived = over;
        else
            keep_transfer(run, stream->rank, bundle_item(run, i), message->begun,
                          message->begun + transfer_time(run, bundle_item(run, i)->channel));
    }
    stream->free = over;
    stream->posted = false;
    stream->next = end;
    return true;
}

static bool advance_bundles(run_t *run, int32_t rank)
{
    bool moved = false;

    for (int32_t k = run->first_stream[rank]; k < run->first_stream[rank + 1]; k++) {
        stream_t *stream = &run->streams[k];

        while (stream->next < stream->end && run->transfers[stream->next] < run->ranks[rank].at) {
            int64_t end = end_of_bundle(run, stream);

            if (run->transfers[end - 1] >= run->ranks[rank].at || (!stream->posted && !post_bundle(run, stream, end)) ||
                !finish_bundle(run, stream, end))
                break;
            moved = true;
        }
    }
    return moved;
}

/* The cursor of transfers, for what is said of a program that is stuck. */
static void settle_streams(run_t *run, int32_t rank)
{
    int64_t first = run->program->first[rank + 1];

    for (int32_t k = run->first_stream[rank]; k < run->first_stream[rank + 1]; k++)
        if (run->streams[k].next < run->streams[k].end && run->transfers[run->streams[k].next] < first)
            first = run->transfers[run->streams[k].next];
    run->ranks[rank].transfer = first;
}

/* ---- the whole ---- */

/* Says what never starts: the compute lane's operation where there is one, else the transfer. */
static dp_status_t report_stuck(const run_t *run, int32_t rank)
{
    static const char *const names[] = {"F", "B", "I", "W", "F&B"};
    const rank_state_t *state = &run->ranks[rank];
    bool in_transfer = state->at == run->program->first[rank + 1];
    const dp_instr_t *instr = &run->program->instrs[in_transfer ? state->transfer : state->at];
    double start = 0.0;

    if (in_transfer)
        return dp_fail(
            DP_ERR_REJECTED,
            "simulate: the program cannot finish: rank %d: the %s of %s of chunk %d, micro-batch %d, %s rank "
            "%d never ends",
            rank, instr->kind == DP_INSTR_SEND ? "send" : "receive", names[instr->op], instr->chunk, instr->microbatch,
            instr->kind == DP_INSTR_SEND ? "to" : "from", instr->peer);
    return dp_fail(DP_ERR_REJECTED,
                   "simulate: the program cannot finish: rank %d: %s of chunk %d, micro-batch %d never starts: %s",
                   rank, names[instr->op], instr->chunk, instr->microbatch,
                   !own_inputs_ready(run, rank, instr)            ? "the rank has not computed what it takes"
                   : !input_arrived(run, rank, instr->in, &start) ? "its input does not arrive"
                                                                  : "the input of its backward side does not arrive");
}

static dp_status_t prepare_run(run_t *run)
{
    const dp_program_t *program = run->program;
    int64_t messages = run->model->first_message[program->nchannels];
    size_t bits = (size_t)program->ranks * (size_t)program->chunks * (size_t)run->model->microbatches / 8 + 1;

    run->messages = dp__calloc((size_t)messages, sizeof(*run->messages));
    run->ranks = dp__calloc((size_t)program->ranks, sizeof(*run->ranks));
    run->queue = dp__calloc((size_t)program->ranks, sizeof(*run->queue));
    run->link_free = dp__calloc((size_t)program->nchannels + 1, sizeof(*run->link_free));
    run->forward_left = dp__calloc(8 * bits, sizeof(*run->forward_left));
    run->backward_left = dp__calloc(8 * bits, sizeof(*run->backward_left));
    run->forward_done = dp__calloc(bits, 1);
    run->backward_done = dp__calloc(bits, 1);
    if (run->messages == NULL || run->ranks == NULL || run->queue == NULL || run->link_free == NULL ||
        run->forward_done == NULL || run->backward_done == NULL || run->forward_left == NULL ||
        run->backward_left == NULL)
        return dp_fail(DP_ERR_NOMEM, "simulate: no memory for %lld messages", (long long)messages);
    for (int64_t m = 0; m < messages; m++)
        run->messages[m] = (message_t){-1.0, -1.0, -1.0, -1.0, -1.0, -1.0};
    for (int32_t r = 0; r < program->ranks; r++) {
        run->ranks[r].at = run->ranks[r].transfer = program->first[r];
        run->results[r] = (dp__rank_result_t){0.0, 0.0, 0.0, 0.0};
        look_at_rank(run, r);
    }
    return DP_OK;
}

dp_status_t dp__run(const dp__model_t *model, dp__rank_result_t *results, dp_timeline_t *timeline)
{
    run_t run = {.model = model, .program = model->program, .timeline = timeline, .results = results};
    bool bundles = model->program->transport == DP_TRANSPORT_BUNDLES;
    dp_status_t status = prepare_run(&run);

    if (status >= 0 && bundles)
        status = make_streams(&run);
    while (status >= 0 && run.queued > 0) {
        int32_t rank = run.queue[run.head];
        bool moved = true;

        run.head = (run.head + 1) % run.program->ranks;
        run.queued--;
        run.ranks[rank].queued = false;
        while (moved) {
            moved = advance_compute(&run, rank);
            moved = (bundles ? advance_bundles : advance_sends)(&run, rank) || moved;
        }
    }
    for (int32_t r = 0; r < run.program->ranks && status >= 0 && bundles; r++)
        settle_streams(&run, r);
    for (int32_t r = 0; r < run.program->ranks && status >= 0; r++)
        if (run.ranks[r].at < run.program->first[r + 1] || run.ranks[r].transfer < run.program->first[r + 1])
            status = report_stuck(&run, r);
    dp__free(run.messages);
    dp__free(run.ranks);
    dp__free(run.queue);
    dp__free(run.streams);
    dp__free(run.first_stream);
    dp__free(run.transfers);
    dp__free(run.link_free);
    dp__free(run.forward_done);
    dp__free(run.backward_done);
    dp__free(run.forward_left);
    dp__free(run.backward_left);
    return status;
}
