/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * machine.c: runs what all ranks do, each stream with its own clock. A rank goes through its list
 * in order and stops where it needs a time that another rank has not found yet; that one wakes it.
 * So the whole takes time linear in the length of the lists.
 *
 * With costs of segments a list is the commands that the engine enqueues. What verify accepts
 * completes even when every rank does one thing after the other, so it completes here. Without, an
 * operation is one command, a pair as well, and transfers never keep a rank from computing: each
 * stream of transfers has its own place in the list, never past that of the operations. */
#include "simulate/machine.h"

#include <math.h>
#include <stdbool.h>

#include "base/memory.h"
#include "program/passes.h"
#include "simulate/costs.h"
#include "timeline/pair.h"

enum { STREAMS = DP_LANE_COUNT + DP__TRANSFER_STREAMS };

/* Times of a message; negative: not known yet. */
typedef struct message {
    double begun; /* its bytes enter the link */
    double released;
} message_t;

/* The same of its ends. BUNDLES: when each end came to it, when the receiver's bundle was over. */
typedef struct ends {
    double made; /* operations: its data were computed */
    double sent, posted, over;
} ends_t;

typedef struct rank_state {
    int64_t at;           /* next command or line */
    double time[STREAMS]; /* each stream is free from then on */
    double *event;
    bool queued, started, posted[STREAMS];
    int64_t next[DP__TRANSFER_STREAMS]; /* operations: next line of each stream of transfers */
    dp__transfer_stream_t transfer_streams[DP__TRANSFER_STREAMS];
    int32_t ntransfer_streams;
} rank_state_t;

typedef struct run {
    const dp__machine_t *machine;
    const dp__model_t *model;
    const dp_program_t *program;
    dp_timeline_t *timeline;
    dp__rank_result_t *results;
    uint16_t names[DP_ROLE_SUM + 1]; /* by role */
    message_t *messages;
    ends_t *ends;      /* of each message; none for commands under CREDITS */
    double *link_free; /* by link */
    rank_state_t *ranks;
    double *events; /* of all ranks */
    int32_t *queue; /* ring of ranks to look at; each is in it at most once */
    int32_t head, queued;
} run_t;

/* fmax() of numbers that are none but numbers: without a call. */
static inline double later_of(double a, double b)
{
    return a > b ? a : b;
}

static void wake_rank(run_t *run, int32_t rank)
{
    if (run->ranks[rank].queued)
        return;
    run->ranks[rank].queued = true;
    run->queue[(run->head + run->queued++) % run->program->ranks] = rank;
}

static message_t *message_of(const run_t *run, int32_t channel, int32_t number)
{
    return &run->messages[run->model->first_message[channel] + number];
}

static ends_t *ends_of(const run_t *run, const dp_instr_t *transfer)
{
    return &run->ends[run->model->first_message[transfer->channel] + transfer->number];
}

/* When the slot of a message is free; negative: not known yet. */
static double slot_free(const run_t *run, int32_t channel, int32_t number)
{
    int32_t slots = run->program->channels[channel].slots;

    return number >= slots ? message_of(run, channel, number - slots)->released : 0.0;
}

/* When a message that is ready at `time` leaves; the link is then in use for its length. */
static double take_link(run_t *run, int32_t channel, double time)
{
    double *link_free = &run->link_free[run->model->link[channel]];
    double leaves = later_of(time, *link_free);

    *link_free = leaves + run->model->message_time[channel].link;
    return leaves;
}

static double transfer_time(const run_t *run, int32_t channel)
{
    return run->model->message_time[channel].link + run->model->message_time[channel].hop;
}

static void release_slot(run_t *run, int32_t channel, int32_t number, double time)
{
    message_of(run, channel, number)->released = time;
    wake_rank(run, run->program->channels[channel].src);
}

/* ---- spans ---- */

int64_t dp__model_ns(double time)
{
    return time >= 9.2e12 ? INT64_MAX - 1 : llround(time * 1e6);
}

static void keep_span(run_t *run, int32_t rank, dp_span_t span, double start, double end, int32_t chunk,
                      int32_t microbatch)
{
    int32_t stage = dp__model_chunk(run->model, rank, chunk)->stage;

    span.start_ns = dp__model_ns(start);
    span.end_ns = dp__model_ns(end);
    span.chunk = (int16_t)chunk;
    span.stage = stage <= INT16_MAX ? (int16_t)stage : -1;
    span.microbatch = microbatch;
    (void)dp_timeline_add(run->timeline, rank, &span);
}

static void keep_transfer(run_t *run, int32_t rank, int kind, int32_t channel, int32_t number, int32_t chunk,
                          int32_t microbatch, double start, double end)
{
    if (run->timeline != NULL)
        keep_span(run, rank,
                  (dp_span_t){.kind = (uint8_t)kind,
                              .lane = DP_LANE_P2P,
                              .pass = run->program->channels[channel].op,
                              .segment = -1,
                              .flow = (uint64_t)(message_of(run, channel, number) - run->messages) + 1},
                  start, end, chunk, microbatch);
}

/* ---- what both lists have ---- */

/* A stream works from `start` on. */
static double keep_busy(run_t *run, int32_t rank, int stream, double start, double takes)
{
    rank_state_t *state = &run->ranks[rank];
    dp__rank_result_t *result = &run->results[rank];
    double end = start + takes;

    state->time[stream] = end;
    if (!state->started || start < result->first_start)
        result->first_start = start;
    state->started = true;
    result->last_end = later_of(result->last_end, end);
    if (stream == DP_LANE_COMPUTE)
        result->busy += takes;
    return end;
}

/* CREDITS: the p2p stream of an operation's rank is free when a message has left, that of commands
 * when its last byte has. */
static bool send_message(run_t *run, int32_t rank, int stream, int32_t channel, int32_t number, int32_t chunk,
                         int32_t microbatch, double made)
{
    double *time = &run->ranks[rank].time[stream], slot = slot_free(run, channel, number), leaves;

    if (slot < 0.0)
        return false;
    leaves = take_link(run, channel, later_of(later_of(*time, made), slot));
    *time = leaves + (run->machine->commands != NULL ? run->model->message_time[channel].link : 0.0);
    message_of(run, channel, number)->begun = leaves;
    keep_transfer(run, rank, DP_SPAN_SEND, channel, number, chunk, microbatch, leaves,
                  leaves + transfer_time(run, channel));
    wake_rank(run, run->program->channels[channel].dst);
    return true;
}

/* The messages of a link meet in its order, as both sides list them in it. */
static bool post_bundle(run_t *run, int32_t rank, int stream, int32_t count, const dp_instr_t *t)
{
    double time = run->ranks[rank].time[stream];

    for (int32_t i = 0; i < count; i++) {
        double slot =
            t[i].kind == DP_INSTR_RECV ? slot_free(run, t[i].channel, t[i].number) : ends_of(run, &t[i])->made;

        if (slot < 0.0)
            return false;
        time = later_of(time, slot);
    }
    for (int32_t i = 0; i < count; i++) {
        message_t *message = message_of(run, t[i].channel, t[i].number);
        ends_t *ends = ends_of(run, &t[i]);

        *(t[i].kind == DP_INSTR_SEND ? &ends->sent : &ends->posted) = time;
        if (ends->sent >= 0.0 && ends->posted >= 0.0)
            message->begun = take_link(run, t[i].channel, later_of(ends->sent, ends->posted));
        wake_rank(run, t[i].peer);
    }
    return run->ranks[rank].posted[stream] = true;
}

/* An operation shows its receives itself, as long as it waits for them. */
static bool run_bundle(run_t *run, int32_t rank, int stream, int32_t count, const dp_instr_t *t)
{
    double *time = &run->ranks[rank].time[stream], over = 0.0, ready = *time;
    bool commands = run->machine->commands != NULL;

    if (!run->ranks[rank].posted[stream] && !post_bundle(run, rank, stream, count, t))
        return false;
    for (int32_t i = 0; i < count; i++) {
        double begun = message_of(run, t[i].channel, t[i].number)->begun;

        if (begun < 0.0)
            return false;
        over = later_of(over, begun + transfer_time(run, t[i].channel));
    }
    for (int32_t i = 0; i < count; i++) {
        bool sends = t[i].kind == DP_INSTR_SEND;
        double begun = message_of(run, t[i].channel, t[i].number)->begun;

        if (!sends)
            ends_of(run, &t[i])->over = over;
        if (sends || commands)
            keep_transfer(run, rank, sends ? DP_SPAN_SEND : DP_SPAN_RECV, t[i].channel, t[i].number, t[i].chunk,
                          t[i].microbatch, sends ? begun : ready,
                          commands ? over : begun + transfer_time(run, t[i].channel));
    }
    *time = over;
    run->ranks[rank].posted[stream] = false;
    return true;
}

/* ---- commands ---- */

static void run_call(run_t *run, int32_t rank, const dp__command_t *c, const dp__step_pass_t *pass)
{
    const dp__stage_costs_t *stage = &run->machine->stages.at[dp__model_chunk(run->model, rank, pass->chunk)->stage];
    const dp_segment_cost_t *cost = &stage->list[c->segment];
    double takes = (c->op == DP_OP_F   ? cost->f
                    : c->op == DP_OP_I ? cost->i
                    : c->op == DP_OP_W ? cost->w
                                       : stage->r[c->segment]) *
                   stage->scale * dp__rank_scale(&run->model->costs, rank);
    double start = run->ranks[rank].time[c->stream], end = keep_busy(run, rank, c->stream, start, takes);

    if (run->timeline != NULL)
        keep_span(run, rank,
                  (dp_span_t){.kind = DP_SPAN_COMPUTE,
                              .lane = c->stream,
                              .pass = c->op,
                              .pair = dp__span_pair(pass->beside),
                              .segment = c->segment,
                              .name = run->names[cost->role]},
                  start, end, pass->chunk, pass->microbatch);
}

static bool run_recv(run_t *run, int32_t rank, const dp__command_t *c, const dp__step_pass_t *pass)
{
    double *time = &run->ranks[rank].time[c->stream], ready = *time;
    double begun = message_of(run, pass->source, pass->source_at)->begun;

    if (begun < 0.0)
        return false;
    *time = later_of(*time, begun + transfer_time(run, pass->source));
    keep_transfer(run, rank, DP_SPAN_RECV, pass->source, pass->source_at, pass->chunk, pass->microbatch, ready, *time);
    return true;
}

/* False: it needs a time that is not known yet. */
static bool run_command(run_t *run, int32_t rank, const dp__command_t *c)
{
    rank_state_t *state = &run->ranks[rank];
    const dp__step_pass_t *pass = run->machine->commands[rank].passes;

    pass += c->kind == DP__WAIT || c->kind == DP__RECORD || c->kind == DP__BUNDLE ? 0 : c->at;
    switch (c->kind) {
    case DP__CALL:
        run_call(run, rank, c, pass);
        return true;
    case DP__WAIT:
        state->time[c->stream] = later_of(state->time[c->stream], state->event[c->at]);
        return true;
    case DP__RECORD:
        state->event[c->at] = state->time[c->stream];
        return true;
    case DP__RECV:
        return run_recv(run, rank, c, pass);
    case DP__RELEASE:
        release_slot(run, pass->source, pass->source_at, state->time[c->stream]);
        return true;
    case DP__SEND:
        return send_message(run, rank, c->stream, pass->dest, pass->dest_at, pass->chunk, pass->microbatch, 0.0);
    case DP__BUNDLE:
        return run_bundle(run, rank, c->stream, c->count, &run->program->instrs[run->program->first[rank] + c->at]);
    default:
        return true; /* sums take no time */
    }
}

static void advance_commands(run_t *run, int32_t rank)
{
    const dp__commands_t *commands = &run->machine->commands[rank];
    int64_t at = run->ranks[rank].at;

    while (at < commands->count && run_command(run, rank, &commands->at[at]))
        at++;
    run->ranks[rank].at = at;
}

/* ---- operations ---- */

static const dp_instr_t *recv_of(const run_t *run, int32_t rank, int32_t in)
{
    return in >= 0 ? &run->program->instrs[run->program->first[rank] + in] : NULL;
}

/* When an input has come; negative: not known yet. */
static double input_time(const run_t *run, int32_t rank, int32_t in)
{
    const dp_instr_t *recv = recv_of(run, rank, in);
    double begun;

    if (recv == NULL)
        return 0.0;
    if (run->program->transport == DP_TRANSPORT_BUNDLES)
        return ends_of(run, recv)->over;
    begun = message_of(run, recv->channel, recv->number)->begun;
    return begun < 0.0 ? begun : begun + transfer_time(run, recv->channel);
}

static void consume_input(run_t *run, int32_t rank, int32_t in, double ready, double end)
{
    const dp_instr_t *recv = recv_of(run, rank, in);

    if (recv == NULL)
        return;
    keep_transfer(run, rank, DP_SPAN_RECV, recv->channel, recv->number, recv->chunk, recv->microbatch, ready,
                  later_of(ready, input_time(run, rank, in)));
    release_slot(run, recv->channel, recv->number, end);
}

/* A pair is one command, and shown as F and B. */
static bool run_operation(run_t *run, int32_t rank, const dp_instr_t *instr)
{
    double ready = run->ranks[rank].time[DP_LANE_COMPUTE], start = ready, parts[2] = {0.0, 0.0}, end;
    dp__instr_pass_t pass[2];
    int n = dp__instr_passes(instr, pass);

    for (int k = 0; k < n; k++) {
        double come = input_time(run, rank, pass[k].in);

        if (come < 0.0)
            return false;
        start = later_of(start, come);
    }
    dp__costs_of(&run->model->costs, instr->op, dp__model_chunk(run->model, rank, pass[0].chunk)->scale,
                 dp__model_chunk(run->model, rank, pass[n - 1].chunk)->scale, parts);
    end = keep_busy(run, rank, DP_LANE_COMPUTE, start, parts[0] + parts[1]);
    for (int k = 0; k < n; k++) {
        if (run->timeline != NULL)
            keep_span(run, rank,
                      (dp_span_t){.pass = pass[k].kind,
                                  .pair = n > 1 ? dp__span_pair(instr - run->program->instrs + 1) : 0,
                                  .segment = -1},
                      start, start + parts[k], pass[k].chunk, pass[k].microbatch);
        start += parts[k];
    }
    for (int k = 0; k < n; k++)
        consume_input(run, rank, pass[k].in, ready, end);
    return true;
}

/* All up to what has to wait; sends learn when their data were made. */
static bool advance_compute(run_t *run, int32_t rank)
{
    rank_state_t *state = &run->ranks[rank];
    int64_t before = state->at, end = run->program->first[rank + 1];

    for (; state->at < end; state->at++) {
        const dp_instr_t *instr = &run->program->instrs[state->at];

        if (instr->kind == DP_INSTR_COMPUTE && !run_operation(run, rank, instr))
            break;
        if (instr->kind == DP_INSTR_SEND)
            ends_of(run, instr)->made = state->time[DP_LANE_COMPUTE];
    }
    return state->at != before;
}

/* Of one stream: CREDITS has one for the sends of a rank, whose receives take no time. */
static bool is_in_stream(const run_t *run, const rank_state_t *state, int32_t stream, const dp_instr_t *t)
{
    if (run->program->transport == DP_TRANSPORT_CREDITS)
        return t->kind == DP_INSTR_SEND;
    return (t->kind == DP_INSTR_SEND || t->kind == DP_INSTR_RECV) && t->peer == state->transfer_streams[stream].peer &&
           (t->kind == DP_INSTR_SEND) == state->transfer_streams[stream].sends;
}

static int32_t bundle_length(const dp_instr_t *t, int64_t most)
{
    int32_t n = 1;

    while (n < most && t[n].kind == t->kind && t[n].bundle == t->bundle && t[n].peer == t->peer)
        n++;
    return n;
}

static bool advance_transfers(run_t *run, int32_t rank, int32_t stream)
{
    rank_state_t *state = &run->ranks[rank];
    int64_t *next = &state->next[stream], before = *next;
    int32_t count;

    for (; *next < state->at; *next += count) {
        const dp_instr_t *t = &run->program->instrs[*next];

        count = 1;
        if (!is_in_stream(run, state, stream, t))
            continue;
        if (run->program->transport == DP_TRANSPORT_BUNDLES) {
            count = bundle_length(t, state->at - *next);
            if (!run_bundle(run, rank, DP_LANE_COUNT + stream, count, t))
                break;
        } else if (!send_message(run, rank, DP_LANE_P2P, t->channel, t->number, t->chunk, t->microbatch,
                                 ends_of(run, t)->made)) {
            break;
        }
    }
    return *next != before;
}

static void advance_operations(run_t *run, int32_t rank)
{
    for (bool moved = true; moved;) {
        moved = advance_compute(run, rank);
        for (int32_t k = 0; k < run->ranks[rank].ntransfer_streams; k++)
            moved = advance_transfers(run, rank, k) || moved;
    }
}

/* ---- the whole ---- */

static dp_status_t report_transfer(int32_t rank, bool sends, int op, int32_t chunk, int32_t microbatch)
{
    return dp_fail(DP_ERR_REJECTED,
                   "simulate: the program cannot finish: rank %d: the %s of %s of chunk %d, micro-batch %d never ends",
                   rank, sends ? "send" : "receive", dp_op_kind_name(op), chunk, microbatch);
}

static dp_status_t check_commands(const run_t *run, int32_t rank)
{
    const dp__commands_t *commands = &run->machine->commands[rank];
    const dp__command_t *c = &commands->at[run->ranks[rank].at];
    const dp_instr_t *t;

    if (run->ranks[rank].at == commands->count)
        return DP_OK;
    if (c->kind != DP__BUNDLE)
        return report_transfer(rank, c->kind == DP__SEND, commands->passes[c->at].op, commands->passes[c->at].chunk,
                               commands->passes[c->at].microbatch);
    t = &run->program->instrs[run->program->first[rank] + c->at];
    return report_transfer(rank, t->kind == DP_INSTR_SEND, t->op, t->chunk, t->microbatch);
}

/* Names what never starts: an operation where there is one, else a transfer. */
static dp_status_t check_operations(const run_t *run, int32_t rank)
{
    const rank_state_t *state = &run->ranks[rank];
    int64_t end = run->program->first[rank + 1];
    const dp_instr_t *instr = &run->program->instrs[state->at];

    if (state->at < end)
        return dp_fail(DP_ERR_REJECTED,
                       "simulate: the program cannot finish: rank %d: %s of chunk %d, micro-batch %d never starts: %s",
                       rank, dp_op_kind_name(instr->op), instr->chunk, instr->microbatch,
                       input_time(run, rank, instr->in) < 0.0 ? "its input does not arrive"
                                                              : "the input of its backward side does not arrive");
    for (int32_t k = 0; k < state->ntransfer_streams; k++) {
        instr = &run->program->instrs[state->next[k]];
        if (state->next[k] < end)
            return report_transfer(rank, instr->kind == DP_INSTR_SEND, instr->op, instr->chunk, instr->microbatch);
    }
    return DP_OK;
}

static dp_status_t name_segments(run_t *run)
{
    dp_status_t status = DP_OK;

    for (int role = DP_ROLE_OTHER; role <= DP_ROLE_SUM && status >= 0 && run->timeline != NULL; role++)
        status = dp_timeline_name(run->timeline, role == DP_ROLE_OTHER ? "other" : dp__segment_names[role - 1],
                                  &run->names[role]);
    return status;
}

static dp_status_t prepare_rank(run_t *run, int32_t rank)
{
    rank_state_t *state = &run->ranks[rank];

    run->results[rank] = (dp__rank_result_t){.busy = 0.0};
    wake_rank(run, rank);
    if (run->machine->commands != NULL)
        return DP_OK;
    state->at = run->program->first[rank];
    state->ntransfer_streams = run->program->transport == DP_TRANSPORT_CREDITS
                                   ? 1
                                   : dp__transfer_streams_of(run->program, rank, state->transfer_streams);
    for (int32_t k = 0; k < DP__TRANSFER_STREAMS; k++)
        state->next[k] = state->at;
    return state->ntransfer_streams >= 0
               ? DP_OK
               : dp_fail(DP_ERR_REJECTED, "simulate: rank %d of the pipeline has more than two neighbours", rank);
}

static dp_status_t prepare_run(run_t *run)
{
    const dp_program_t *program = run->program;
    const dp__commands_t *commands = run->machine->commands;
    int64_t messages = run->model->first_message[program->nchannels];
    bool has_ends = commands == NULL || program->transport == DP_TRANSPORT_BUNDLES;
    double made = commands == NULL ? -1.0 : 0.0; /* a send waits for an event */
    size_t events = 0, first = 0;
    dp_status_t status;

    for (int32_t r = 0; r < program->ranks && commands != NULL; r++)
        events += (size_t)commands[r].nevents;
    if (!dp__arrays(DP__ARRAY(run->ranks, program->ranks), DP__ARRAY(run->queue, program->ranks),
                    DP__ARRAY(run->link_free, program->nchannels), DP__ARRAY(run->events, events),
                    DP__ARRAY(run->messages, messages), DP__ARRAY(run->ends, has_ends ? messages : 0)))
        return dp_fail(DP_ERR_NOMEM, "simulate: no memory for %lld messages", (long long)messages);
    for (int64_t m = 0; m < messages; m++)
        run->messages[m] = (message_t){-1.0, -1.0};
    for (int64_t m = 0; m < messages && has_ends; m++)
        run->ends[m] = (ends_t){made, -1.0, -1.0, -1.0};
    status = name_segments(run);
    for (int32_t r = 0; r < program->ranks && status >= 0; r++) {
        run->ranks[r].event = run->events + first;
        first += commands != NULL ? (size_t)commands[r].nevents : 0;
        status = prepare_rank(run, r);
    }
    return status;
}

dp_status_t dp__machine_run(const dp__machine_t *machine, dp__rank_result_t *results, dp_timeline_t *timeline)
{
    run_t run = {.machine = machine,
                 .model = machine->model,
                 .program = machine->model->program,
                 .timeline = timeline,
                 .results = results};
    bool commands = machine->commands != NULL;
    dp_status_t status = prepare_run(&run);

    while (status >= 0 && run.queued > 0) {
        int32_t rank = run.queue[run.head];

        run.head = (run.head + 1) % run.program->ranks;
        run.queued--;
        run.ranks[rank].queued = false;
        (commands ? advance_commands : advance_operations)(&run, rank);
    }
    for (int32_t r = 0; r < run.program->ranks && status >= 0; r++)
        status = (commands ? check_commands : check_operations)(&run, r);
    dp__free(run.ranks);
    return status;
}

int64_t dp__machine_spans(const dp__machine_t *machine)
{
    const dp_program_t *program = machine->model->program;
    int64_t most = 0;

    for (int32_t r = 0; r < program->ranks; r++) {
        int64_t spans = 1 + (machine->commands != NULL ? machine->commands[r].ncalls : 0);

        for (int64_t i = program->first[r]; i < program->first[r + 1]; i++) {
            const dp_instr_t *instr = &program->instrs[i];

            if (instr->kind == DP_INSTR_SEND || instr->kind == DP_INSTR_RECV)
                spans++;
            else if (instr->kind == DP_INSTR_COMPUTE && machine->commands == NULL)
                spans += instr->op == DP_OP_FB ? 2 : 1;
        }
        most = spans > most ? spans : most;
    }
    return most;
}

dp_status_t dp__machine_make(const dp__model_t *model, dp__machine_t *out)
{
    const dp_program_t *program = model->program;
    const dp_segment_costs_t *segments = model->costs.segments;
    dp__stage_shape_t stages[DP_MAX_CHUNKS];
    uint8_t *in_lane;
    dp_status_t status;

    *out = (dp__machine_t){.model = model};
    if (segments == NULL)
        return DP_OK;
    in_lane = dp__calloc((size_t)program->nchannels + 1, 1);
    out->commands = dp__calloc((size_t)program->ranks, sizeof(*out->commands));
    status = dp__stages_make(program->schedule, &model->costs, &out->stages);
    if (status >= 0 && (in_lane == NULL || out->commands == NULL))
        status = dp_fail(DP_ERR_NOMEM, "simulate: no memory for the commands of %d ranks", program->ranks);
    for (int32_t c = 0; c < program->nchannels && status >= 0; c++)
        in_lane[c] = segments->inline_messages != 0;
    for (int32_t r = 0; r < program->ranks && status >= 0; r++) {
        for (int32_t c = 0; c < program->chunks; c++)
            stages[c] = out->stages.at[dp__model_chunk(model, r, c)->stage].shape;
        status = dp__commands_write(program, r, stages, in_lane, &out->commands[r]);
    }
    dp__free(in_lane);
    return status;
}

void dp__machine_clear(dp__machine_t *machine)
{
    for (int32_t r = 0; machine->commands != NULL && r < machine->model->program->ranks; r++)
        dp__commands_clear(&machine->commands[r]);
    dp__free(machine->commands);
    dp__stages_clear(&machine->stages);
    *machine = (dp__machine_t){.model = NULL};
}
