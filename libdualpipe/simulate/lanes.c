/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * lanes.c: runs the commands of all ranks, each stream with its own clock. A rank goes through
 * its list in order and stops where it needs a time that another rank has not found yet; that one
 * wakes it. What verify accepts completes even when every rank does one thing after the other, so
 * it completes here. */
#include "simulate/lanes.h"

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

/* BUNDLES: when each end came to a message. */
typedef struct ends {
    double sent, posted;
} ends_t;

typedef struct rank_state {
    int64_t at;           /* next command */
    double time[STREAMS]; /* each stream is free from then on */
    double *event;
    bool queued, posted, started;
} rank_state_t;

typedef struct lanes_run {
    const dp__lanes_model_t *lanes;
    const dp__model_t *model;
    const dp_program_t *program;
    dp_timeline_t *timeline;
    dp__rank_result_t *results;
    uint16_t names[DP_ROLE_COMBINE + 1]; /* by role */
    message_t *messages;
    ends_t *ends;      /* of each message; NULL under CREDITS */
    double *link_free; /* by link */
    rank_state_t *ranks;
    double *events; /* of all ranks */
    int32_t *queue; /* ring of ranks to look at; each is in it at most once */
    int32_t head, queued;
} lanes_run_t;

/* fmax() of numbers that are none but numbers: without a call. */
static inline double later_of(double a, double b)
{
    return a > b ? a : b;
}

static void wake_rank(lanes_run_t *run, int32_t rank)
{
    if (run->ranks[rank].queued)
        return;
    run->ranks[rank].queued = true;
    run->queue[(run->head + run->queued++) % run->program->ranks] = rank;
}

static message_t *message_of(const lanes_run_t *run, int32_t channel, int32_t number)
{
    return &run->messages[run->model->first_message[channel] + number];
}

/* When the slot of a message is free; negative: not known yet. */
static double slot_free(const lanes_run_t *run, int32_t channel, int32_t number)
{
    int32_t slots = run->program->channels[channel].slots;

    return number >= slots ? message_of(run, channel, number - slots)->released : 0.0;
}

/* ---- spans ---- */

static void keep_span(lanes_run_t *run, int32_t rank, dp_span_t span, double start, double end, int32_t chunk,
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

static void keep_transfer(lanes_run_t *run, int32_t rank, int kind, int32_t channel, int32_t number, int32_t chunk,
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

/* ---- commands ---- */

static void run_call(lanes_run_t *run, int32_t rank, const dp__command_t *c, const dp__step_pass_t *pass)
{
    rank_state_t *state = &run->ranks[rank];
    dp__rank_result_t *result = &run->results[rank];
    const dp__stage_costs_t *stage = &run->lanes->stages.at[dp__model_chunk(run->model, rank, pass->chunk)->stage];
    const dp_segment_cost_t *cost = &stage->list[c->segment];
    double takes = (c->op == DP_OP_F   ? cost->f
                    : c->op == DP_OP_I ? cost->i
                    : c->op == DP_OP_W ? cost->w
                                       : stage->r[c->segment]) *
                   stage->scale;
    double start = state->time[c->stream], end = start + takes;

    state->time[c->stream] = end;
    if (!state->started || start < result->first_start)
        result->first_start = start;
    state->started = true;
    result->last_end = later_of(result->last_end, end);
    if (c->stream == DP_LANE_COMPUTE)
        result->busy += takes;
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

static double transfer_time(const lanes_run_t *run, int32_t channel)
{
    return run->model->link_time[channel] + run->model->hop[channel];
}

static bool run_recv(lanes_run_t *run, int32_t rank, const dp__command_t *c, const dp__step_pass_t *pass)
{
    double *time = &run->ranks[rank].time[c->stream], ready = *time;
    double begun = message_of(run, pass->source, pass->source_at)->begun;

    if (begun < 0.0)
        return false;
    *time = later_of(*time, begun + transfer_time(run, pass->source));
    keep_transfer(run, rank, DP_SPAN_RECV, pass->source, pass->source_at, pass->chunk, pass->microbatch, ready, *time);
    return true;
}

static void run_release(lanes_run_t *run, int32_t rank, const dp__command_t *c, const dp__step_pass_t *pass)
{
    message_of(run, pass->source, pass->source_at)->released = run->ranks[rank].time[c->stream];
    wake_rank(run, run->program->channels[pass->source].src);
}

/* When a message that is ready at `time` leaves; the link is then in use for its length. */
static double take_link(lanes_run_t *run, int32_t channel, double time)
{
    double *link_free = &run->link_free[run->model->link[channel]];
    double leaves = later_of(time, *link_free);

    *link_free = leaves + run->model->link_time[channel];
    return leaves;
}

static bool run_send_command(lanes_run_t *run, int32_t rank, const dp__command_t *c, const dp__step_pass_t *pass)
{
    double *time = &run->ranks[rank].time[c->stream], slot = slot_free(run, pass->dest, pass->dest_at), leaves;

    if (slot < 0.0)
        return false;
    leaves = take_link(run, pass->dest, later_of(*time, slot));
    *time = leaves + run->model->link_time[pass->dest];
    message_of(run, pass->dest, pass->dest_at)->begun = leaves;
    keep_transfer(run, rank, DP_SPAN_SEND, pass->dest, pass->dest_at, pass->chunk, pass->microbatch, leaves,
                  leaves + transfer_time(run, pass->dest));
    wake_rank(run, run->program->channels[pass->dest].dst);
    return true;
}

/* The messages of a link meet in its order, as both sides list them in it. */
static bool post_bundle(lanes_run_t *run, int32_t rank, const dp__command_t *c, const dp_instr_t *t)
{
    double time = run->ranks[rank].time[c->stream];

    for (int32_t i = 0; i < c->count; i++) {
        double slot = t[i].kind == DP_INSTR_RECV ? slot_free(run, t[i].channel, t[i].number) : 0.0;

        if (slot < 0.0)
            return false;
        time = later_of(time, slot);
    }
    for (int32_t i = 0; i < c->count; i++) {
        message_t *message = message_of(run, t[i].channel, t[i].number);
        ends_t *ends = &run->ends[message - run->messages];

        *(t[i].kind == DP_INSTR_SEND ? &ends->sent : &ends->posted) = time;
        if (ends->sent >= 0.0 && ends->posted >= 0.0)
            message->begun = take_link(run, t[i].channel, later_of(ends->sent, ends->posted));
        wake_rank(run, t[i].peer);
    }
    return run->ranks[rank].posted = true;
}

static bool run_bundle(lanes_run_t *run, int32_t rank, const dp__command_t *c)
{
    const dp_instr_t *t = &run->program->instrs[run->program->first[rank] + c->at];
    double *time = &run->ranks[rank].time[c->stream], over = 0.0, ready = *time;

    if (!run->ranks[rank].posted && !post_bundle(run, rank, c, t))
        return false;
    for (int32_t i = 0; i < c->count; i++) {
        double begun = message_of(run, t[i].channel, t[i].number)->begun;

        if (begun < 0.0)
            return false;
        over = later_of(over, begun + transfer_time(run, t[i].channel));
    }
    for (int32_t i = 0; i < c->count; i++) {
        bool sends = t[i].kind == DP_INSTR_SEND;
        double begun = message_of(run, t[i].channel, t[i].number)->begun;

        keep_transfer(run, rank, sends ? DP_SPAN_SEND : DP_SPAN_RECV, t[i].channel, t[i].number, t[i].chunk,
                      t[i].microbatch, sends ? begun : ready, over);
    }
    *time = over;
    run->ranks[rank].posted = false;
    return true;
}

/* False: it needs a time that is not known yet. */
static bool run_command(lanes_run_t *run, int32_t rank, const dp__command_t *c)
{
    rank_state_t *state = &run->ranks[rank];
    const dp__step_pass_t *passes = run->lanes->commands[rank].passes;

    switch (c->kind) {
    case DP__CALL:
        run_call(run, rank, c, &passes[c->at]);
        return true;
    case DP__WAIT:
        state->time[c->stream] = later_of(state->time[c->stream], state->event[c->at]);
        return true;
    case DP__RECORD:
        state->event[c->at] = state->time[c->stream];
        return true;
    case DP__RECV:
        return run_recv(run, rank, c, &passes[c->at]);
    case DP__RELEASE:
        run_release(run, rank, c, &passes[c->at]);
        return true;
    case DP__SEND:
        return run_send_command(run, rank, c, &passes[c->at]);
    case DP__BUNDLE:
        return run_bundle(run, rank, c);
    default:
        return true; /* sums take no time */
    }
}

static void advance_rank(lanes_run_t *run, int32_t rank)
{
    const dp__commands_t *commands = &run->lanes->commands[rank];
    int64_t at = run->ranks[rank].at;

    while (at < commands->count && run_command(run, rank, &commands->at[at]))
        at++;
    run->ranks[rank].at = at;
}

/* ---- the whole ---- */

/* Most stage inputs held at once, in the order of the list. */
static double peak_activations(const dp__model_t *model, int32_t rank)
{
    const dp_program_t *program = model->program;
    double held = 0.0, peak = 0.0;

    for (int64_t i = program->first[rank]; i < program->first[rank + 1]; i++) {
        const dp_instr_t *instr = &program->instrs[i];
        dp__instr_pass_t pass[2];
        int n = instr->kind == DP_INSTR_COMPUTE || instr->kind == DP_INSTR_START ? dp__instr_passes(instr, pass) : 0;

        for (int k = 0; k < n; k++) {
            double share = dp__model_chunk(model, rank, pass[k].chunk)->share;
            bool last = program->schedule->forward_only ? pass[k].kind == DP_OP_F
                                                        : pass[k].kind == DP_OP_B || pass[k].kind == DP_OP_W;

            if (pass[k].kind == DP_OP_F && dp__instr_begins(instr))
                held += share;
            peak = later_of(peak, held);
            if (last && instr->kind == DP_INSTR_COMPUTE)
                held -= share;
        }
    }
    return peak;
}

static dp_status_t report_stuck_rank(const lanes_run_t *run, int32_t rank)
{
    const dp__commands_t *commands = &run->lanes->commands[rank];
    const dp__command_t *c = &commands->at[run->ranks[rank].at];
    const dp__step_pass_t *pass = &commands->passes[c->kind == DP__BUNDLE ? 0 : c->at];

    if (c->kind == DP__BUNDLE)
        return dp_fail(DP_ERR_REJECTED,
                       "simulate: the program cannot finish: rank %d: the transfers at line %d never end", rank, c->at);
    return dp_fail(DP_ERR_REJECTED,
                   "simulate: the program cannot finish: rank %d: the %s of %s of chunk %d, micro-batch %d never ends",
                   rank, c->kind == DP__SEND ? "send" : "receive", dp_op_kind_name(pass->op), pass->chunk,
                   pass->microbatch);
}

static dp_status_t name_segments(lanes_run_t *run)
{
    dp_status_t status = DP_OK;

    for (int role = DP_ROLE_OTHER; role <= DP_ROLE_COMBINE && status >= 0 && run->timeline != NULL; role++)
        status = dp_timeline_name(run->timeline, role == DP_ROLE_OTHER ? "other" : dp__segment_names[role - 1],
                                  &run->names[role]);
    return status;
}

static dp_status_t prepare_lanes(lanes_run_t *run)
{
    const dp_program_t *program = run->program;
    int64_t messages = run->model->first_message[program->nchannels];
    size_t events = 0, first = 0;

    for (int32_t r = 0; r < program->ranks; r++)
        events += (size_t)run->lanes->commands[r].nevents;
    run->messages = dp__calloc((size_t)messages + 1, sizeof(*run->messages));
    run->ranks = dp__calloc((size_t)program->ranks, sizeof(*run->ranks));
    run->queue = dp__calloc((size_t)program->ranks, sizeof(*run->queue));
    run->link_free = dp__calloc((size_t)program->nchannels + 1, sizeof(*run->link_free));
    run->events = dp__calloc(events + 1, sizeof(*run->events));
    if (program->transport == DP_TRANSPORT_BUNDLES)
        run->ends = dp__calloc((size_t)messages + 1, sizeof(*run->ends));
    if (run->messages == NULL || run->ranks == NULL || run->queue == NULL || run->link_free == NULL ||
        run->events == NULL || (program->transport == DP_TRANSPORT_BUNDLES && run->ends == NULL))
        return dp_fail(DP_ERR_NOMEM, "simulate: no memory for %lld messages", (long long)messages);
    for (int64_t m = 0; m < messages; m++)
        run->messages[m] = (message_t){-1.0, -1.0};
    for (int64_t m = 0; m < messages && run->ends != NULL; m++)
        run->ends[m] = (ends_t){-1.0, -1.0};
    for (int32_t r = 0; r < program->ranks; r++) {
        run->ranks[r].event = run->events + first;
        first += (size_t)run->lanes->commands[r].nevents;
        run->results[r] = (dp__rank_result_t){.peak_activations = peak_activations(run->model, r)};
        wake_rank(run, r);
    }
    return name_segments(run);
}

dp_status_t dp__lanes_run(const dp__lanes_model_t *lanes, dp__rank_result_t *results, dp_timeline_t *timeline)
{
    lanes_run_t run = {.lanes = lanes,
                       .model = lanes->model,
                       .program = lanes->model->program,
                       .timeline = timeline,
                       .results = results};
    dp_status_t status = prepare_lanes(&run);

    while (status >= 0 && run.queued > 0) {
        int32_t rank = run.queue[run.head];

        run.head = (run.head + 1) % run.program->ranks;
        run.queued--;
        run.ranks[rank].queued = false;
        advance_rank(&run, rank);
    }
    for (int32_t r = 0; r < run.program->ranks && status >= 0; r++)
        if (run.ranks[r].at < lanes->commands[r].count)
            status = report_stuck_rank(&run, r);
    dp__free(run.events);
    dp__free(run.messages);
    dp__free(run.ends);
    dp__free(run.ranks);
    dp__free(run.queue);
    dp__free(run.link_free);
    return status;
}

int64_t dp__lanes_spans(const dp__lanes_model_t *lanes)
{
    const dp_program_t *program = lanes->model->program;
    int64_t most = 0;

    for (int32_t r = 0; r < program->ranks; r++) {
        int64_t spans = 1 + lanes->commands[r].ncalls;

        for (int64_t i = program->first[r]; i < program->first[r + 1]; i++)
            spans += program->instrs[i].kind == DP_INSTR_SEND || program->instrs[i].kind == DP_INSTR_RECV;
        most = spans > most ? spans : most;
    }
    return most;
}

dp_status_t dp__lanes_make(const dp__model_t *model, dp__lanes_model_t *out)
{
    const dp_program_t *program = model->program;
    const dp_segment_costs_t *segments = model->costs.segments;
    uint8_t *in_lane = dp__calloc((size_t)program->nchannels + 1, 1);
    dp__stage_shape_t stages[DP_MAX_CHUNKS];
    dp_status_t status;

    *out = (dp__lanes_model_t){.model = model, .commands = dp__calloc((size_t)program->ranks, sizeof(*out->commands))};
    status = dp__stages_make(program->schedule, &model->costs, &out->stages);
    if (status >= 0 && (in_lane == NULL || out->commands == NULL))
        status = dp_fail(DP_ERR_NOMEM, "simulate: no memory for the commands of %d ranks", program->ranks);
    for (int32_t c = 0; c < program->nchannels && status >= 0; c++)
        in_lane[c] = segments != NULL && segments->inline_messages;
    for (int32_t r = 0; r < program->ranks && status >= 0; r++) {
        for (int32_t c = 0; c < program->chunks; c++)
            stages[c] = out->stages.at[dp__model_chunk(model, r, c)->stage].shape;
        status = dp__commands_write(program, r, stages, in_lane, &out->commands[r]);
    }
    dp__free(in_lane);
    return status;
}

void dp__lanes_clear(dp__lanes_model_t *lanes)
{
    for (int32_t r = 0; lanes->commands != NULL && r < lanes->model->program->ranks; r++)
        dp__commands_clear(&lanes->commands[r]);
    dp__free(lanes->commands);
    dp__stages_clear(&lanes->stages);
    *lanes = (dp__lanes_model_t){.model = NULL};
}
