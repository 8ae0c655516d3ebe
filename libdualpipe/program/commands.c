/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * commands.c: a rank's instructions as commands for its streams.
 *
 * The instructions of a rank are one total order. Each operation is written as its segments in
 * their merged order (braid.c), each send, bundle and reduction where it stands:
 *
 *     find_passes, measure_plan    the passes; how many work memories and buffers are alive at once
 *     put_lines                    for each segment: waits, the call, records (put_segment)
 *     keep_needed                  drops records for which no stream waits before the next record
 *
 * Invariant: a WAIT names an event that was recorded further up in the list, by another stream.
 * Waits for the same stream, or for what no command of this step has recorded, are not written. So
 * the list itself is an execution, the sequential one that dp_program_verify() proves, and streams
 * that keep their order and these events may run it in any interleaving.
 *
 * Example: F of a layer with attention (compute), dispatch (all-to-all), mlp (compute) and combine
 * (all-to-all), whose output goes to another rank. The list is the columns read from left to right:
 *
 *     compute     RECV CALL attention; RECORD hop0          WAIT hop1; CALL mlp; RECORD hop2
 *     all-to-all             WAIT hop0; CALL dispatch; RECORD hop1     WAIT hop2; CALL combine; ...
 *     p2p                    after RECORD work_end, RECORD ready: WAIT ready; SEND; RECORD free */
#include "program/commands.h"

#include "base/memory.h"
#include "base/range.h"
#include "program/braid.h"
#include "program/passes.h"

#include <string.h>

#define NOWHERE 0xff /* stream of an event that was not recorded yet */

enum { FIRST_ROOM = 1 << 16 }; /* commands, at most */

typedef struct dp__writer {
    const dp_program_t *program;
    const dp_instr_t *instrs; /* of this rank */
    int32_t rank, ninstrs, microbatches, most_segments, npasses;
    const dp__stage_shape_t *stages;
    const uint8_t *in_lane;
    dp__commands_t *out;
    dp__command_t *at; /* [room] what was put so far, out->count of them */
    int64_t room;
    uint8_t idle[DP__KINDS][DP__WORKS]; /* work memories, longest idle first */
    int32_t nidle[DP__KINDS];
    int32_t *idle_buffers; /* [out->backward_buffers] a ring, longest idle first */
    int32_t first_idle, nidle_buffers;
    int32_t channel[2][DP__KINDS][DP_MAX_CHUNKS]; /* that a chunk reads, that it writes; -1: none */
    /* [nchannels] of its buffers: ready and free of each */
    int32_t *first_event;
    int32_t first_slot[DP_MAX_CHUNKS], first_work[DP__KINDS], first_buffer_event;
    uint8_t *recorded_on; /* [events] stream, NOWHERE */
    int32_t *made_by[2];  /* [chunks * microbatches] pass that made F, or the gradient; -1 */
    uint8_t *local_used;  /* [first_local[channel] + buffer] */
    int32_t *first_local; /* [nchannels] */
    bool no_memory;
    /* the operation that is being written */
    int32_t braid; /* -1: none, or one that is no braid */
    dp__braid_step_t *steps;
    dp__pair_step_t *scratch;
    int32_t nsteps, step;
    int32_t pass_of[DP_BRAID_PASSES]; /* pass by its place in the braid, -1: has not begun */
    int32_t last[DP_BRAID_PASSES];    /* its last step; -1: none */
} dp__writer_t;

/* ---- one command ---- */

static bool make_more_room(dp__writer_t *x)
{
    /* at first what most lists take: copying them as they grow takes longer than writing them */
    int64_t some = (int64_t)x->npasses * (4 * x->most_segments + 8);
    int64_t room = x->room > 0 ? 2 * x->room : some < FIRST_ROOM ? some + 1 : FIRST_ROOM;
    dp__command_t *grown = dp__allocate((size_t)room * sizeof(*grown), 64);

    if (grown == NULL) {
        x->no_memory = true;
        x->out->count = 0; /* goes on, to nowhere */
        return x->room > 0;
    }
    if (x->out->count > 0)
        memcpy(grown, x->at, (size_t)x->out->count * sizeof(*grown));
    dp__free(x->at);
    x->at = grown;
    x->room = room;
    return true;
}

static void put_command(dp__writer_t *x, dp__command_t command)
{
    if (x->out->count < x->room || make_more_room(x))
        x->at[x->out->count++] = command;
}

static void append_command(dp__writer_t *x, dp__command_kind_t kind, int stream, int32_t at)
{
    put_command(x, (dp__command_t){.kind = kind, .stream = (uint8_t)stream, .at = at});
}

static void put_record(dp__writer_t *x, int stream, int32_t event)
{
    append_command(x, DP__RECORD, stream, event);
    x->recorded_on[event] = (uint8_t)stream;
}

/* Nothing where the stream itself has recorded it last, or nobody has. */
static void put_wait(dp__writer_t *x, int stream, int32_t event)
{
    if (x->recorded_on[event] != NOWHERE && x->recorded_on[event] != stream)
        append_command(x, DP__WAIT, stream, event);
}

/* `stream` waits for all that `lane` was given so far. */
static void follow_lane(dp__writer_t *x, int stream, int lane)
{
    if (stream == lane)
        return;
    put_record(x, lane, lane); /* the first events are the marks */
    put_wait(x, stream, lane);
}

/* ---- events ---- */

static int32_t work_end(const dp__writer_t *x, const dp__step_pass_t *pass)
{
    return x->first_work[pass->kind] + pass->work * (x->most_segments + 1);
}

static int32_t hop_event(const dp__writer_t *x, const dp__step_pass_t *pass, int32_t segment)
{
    return work_end(x, pass) + 1 + segment;
}

static int32_t slot_end(const dp__writer_t *x, const dp__step_pass_t *pass)
{
    return x->first_slot[pass->chunk] + pass->slot;
}

static int32_t buffer_end(const dp__writer_t *x, const dp__step_pass_t *pass)
{
    return x->first_buffer_event + pass->backward_buffer;
}

static int32_t ready_event(const dp__writer_t *x, int32_t channel, int32_t message)
{
    return x->first_event[channel] + 2 * (message % x->out->buffers[channel]);
}

static int32_t free_again(const dp__writer_t *x, int32_t channel, int32_t message)
{
    return ready_event(x, channel, message) + 1;
}

/* ---- segments ---- */

/* Where in its stage a pass reads its input last, and where it begins to write its result. */
static int32_t last_of_first_part(const dp__stage_shape_t *stage)
{
    int32_t s = 1;

    while (s < stage->nsegments && !stage->segments[s].begins_part)
        s++;
    return s - 1;
}

static int32_t first_of_last_part(const dp__stage_shape_t *stage)
{
    int32_t s = stage->nsegments - 1;

    while (s > 0 && !stage->segments[s].begins_part)
        s--;
    return s;
}

static int lane_of_pass(const dp__stage_shape_t *stage, int32_t segment)
{
    return stage->segments[segment].lane;
}

static void put_call(dp__writer_t *x, int32_t pass, int op, int lane, int32_t segment)
{
    put_command(
        x, (dp__command_t){
               .kind = DP__CALL, .op = (uint8_t)op, .stream = (uint8_t)lane, .segment = (int16_t)segment, .at = pass});
    x->out->ncalls++;
}

static bool is_local(const dp__writer_t *x, int32_t channel)
{
    return x->program->channels[channel].src == x->program->channels[channel].dst;
}

static void begin_pass(dp__writer_t *x, int32_t number, const dp__step_pass_t *pass, int lane)
{
    if (pass->op == DP_OP_F)
        put_wait(x, lane, slot_end(x, pass));
    if (pass->backward_buffer >= 0)
        put_wait(x, lane, buffer_end(x, pass));
    put_wait(x, lane, work_end(x, pass));
    if (pass->source < 0)
        return;
    if (is_local(x, pass->source) || x->program->transport == DP_TRANSPORT_BUNDLES)
        put_wait(x, lane, ready_event(x, pass->source, pass->source_at));
    else
        append_command(x, DP__RECV, lane, number);
}

static void release_input(dp__writer_t *x, int32_t number, const dp__step_pass_t *pass, int lane)
{
    if (pass->source >= 0 && is_local(x, pass->source))
        put_record(x, lane, free_again(x, pass->source, pass->source_at));
    else if (pass->source >= 0)
        append_command(x, DP__RELEASE, lane, number);
}

static void end_pass(dp__writer_t *x, const dp__step_pass_t *pass, int lane)
{
    put_record(x, lane, work_end(x, pass));
    if (x->program->schedule->forward_only)
        put_record(x, lane, slot_end(x, pass));
    if (pass->dest >= 0)
        put_record(x, lane, ready_event(x, pass->dest, pass->dest_at));
}

static void put_segment(dp__writer_t *x, int32_t number, int op, int32_t segment)
{
    const dp__step_pass_t *pass = &x->out->passes[number];
    const dp__stage_shape_t *stage = &x->stages[pass->chunk];
    bool forward = op == DP_OP_F;
    int32_t last = stage->nsegments - 1, step = forward ? 1 : -1;
    int lane = lane_of_pass(stage, segment);

    if (op == DP_OP_W && !stage->segments[segment].has_weight)
        return;
    if (op == DP_OP_W) {
        follow_lane(x, DP_LANE_COMPUTE, lane);
        put_call(x, number, op, DP_LANE_COMPUTE, segment);
        return;
    }
    /* ahead of all waits for the gradient; in memory that a W on this lane was the last to use */
    if (!forward && stage->segments[segment].recomputes)
        put_call(x, number, DP_OP_R, lane, segment);
    if (segment == (forward ? 0 : last))
        begin_pass(x, number, pass, lane);
    else if (stage->segments[segment].role != DP_ROLE_SHARED) /* which needs its lane alone */
        put_wait(x, lane, hop_event(x, pass, dp__segment_next(stage->segments, segment, -step)));
    if (pass->dest >= 0 && segment == (forward ? first_of_last_part(stage) : last_of_first_part(stage)))
        put_wait(x, lane, free_again(x, pass->dest, pass->dest_at));
    put_call(x, number, op, lane, segment);
    if (segment == (forward ? last_of_first_part(stage) : first_of_last_part(stage)))
        release_input(x, number, pass, lane);
    if (segment == (forward ? last : 0))
        end_pass(x, pass, lane);
    else if (lane_of_pass(stage, dp__segment_next(stage->segments, segment, step)) != lane)
        put_record(x, lane, hop_event(x, pass, segment));
}

/* ---- passes ---- */

static int32_t *made_by(const dp__writer_t *x, int flow, int32_t chunk, int32_t microbatch)
{
    return &x->made_by[flow == DP_OP_B][(size_t)chunk * (size_t)x->microbatches + (size_t)microbatch];
}

static dp_status_t refuse_line(const dp__writer_t *x, int32_t instr, const char *why)
{
    return dp_fail(DP_ERR_REJECTED, "commands: rank %d, line %d: %s", x->rank, instr, why);
}

static dp_status_t find_source(dp__writer_t *x, int32_t at, const dp__instr_pass_t *use, dp__step_pass_t *pass)
{
    const dp_channel_t *channel;
    int32_t maker;

    if (pass->op == DP_OP_W || x->channel[0][pass->kind][pass->chunk] < 0)
        return DP_OK;
    pass->source = x->channel[0][pass->kind][pass->chunk];
    channel = &x->program->channels[pass->source];
    if (channel->src != x->rank) {
        if (use->in < 0 || use->in >= at || x->instrs[use->in].kind != DP_INSTR_RECV)
            return refuse_line(x, at, "an input has no receive above it");
        pass->source_at = x->instrs[use->in].number;
        return DP_OK;
    }
    maker = *made_by(x, channel->op, channel->src_chunk, pass->microbatch);
    if (maker < 0)
        return refuse_line(x, at, "what it takes from this rank was not made above it");
    pass->source_at = x->out->passes[maker].dest_at;
    return DP_OK;
}

static dp_status_t find_dest(dp__writer_t *x, int32_t at, dp__step_pass_t *pass)
{
    int32_t channel = pass->op == DP_OP_W ? -1 : x->channel[1][pass->kind][pass->chunk], buffer = 0;

    if (channel < 0 || !is_local(x, channel))
        return DP_OK; /* to another rank: known at its send */
    while (buffer < x->out->buffers[channel] && x->local_used[x->first_local[channel] + buffer])
        buffer++;
    if (buffer == x->out->buffers[channel])
        return refuse_line(x, at, "more slots than it announces are in use on a local edge");
    x->local_used[x->first_local[channel] + buffer] = 1;
    pass->dest = channel;
    pass->dest_at = buffer;
    return DP_OK;
}

/* Takes the work memory that has been idle for longest. */
static dp_status_t take_work(dp__writer_t *x, int32_t at, dp__step_pass_t *pass)
{
    uint8_t *idle = x->idle[pass->kind];

    if (x->nidle[pass->kind] == 0)
        return refuse_line(x, at, "more passes are alive than were counted");
    pass->work = idle[0];
    memmove(idle, idle + 1, (size_t)--x->nidle[pass->kind]);
    return DP_OK;
}

/* I or B takes the backward buffer that has been idle for longest, W has that of its I. */
static dp_status_t take_backward_buffer(dp__writer_t *x, int32_t at, dp__step_pass_t *pass)
{
    const int32_t backward = *made_by(x, DP_OP_B, pass->chunk, pass->microbatch);

    if (pass->op == DP_OP_F || !x->stages[pass->chunk].backward_buffer)
        return DP_OK;
    if (pass->op == DP_OP_W && backward < 0)
        return refuse_line(x, at, "a weight gradient stands before its backward for the input");
    if (pass->op == DP_OP_W) {
        pass->backward_buffer = x->out->passes[backward].backward_buffer;
        return DP_OK;
    }
    if (x->nidle_buffers == 0)
        return refuse_line(x, at, "more backwards are alive than were counted");
    pass->backward_buffer = x->idle_buffers[x->first_idle];
    x->first_idle = (x->first_idle + 1) % x->out->backward_buffers;
    x->nidle_buffers--;
    return DP_OK;
}

static dp_status_t open_pass(dp__writer_t *x, int32_t at, const dp__instr_pass_t *use, int32_t beside)
{
    dp__step_pass_t *pass = &x->out->passes[x->out->npasses];
    dp_status_t status = DP_OK;

    *pass = (dp__step_pass_t){.op = use->kind,
                              .kind = use->kind == DP_OP_F ? DP__FORWARD : DP__BACKWARD,
                              .beside = beside,
                              .chunk = use->chunk,
                              .microbatch = use->microbatch,
                              .slot = use->slot,
                              .backward_buffer = -1,
                              .source = -1,
                              .dest = -1};
    if (pass->slot < 0 ||
        pass->slot >= x->program->activation_slots[(size_t)x->rank * (size_t)x->program->chunks + (size_t)pass->chunk])
        return refuse_line(x, at, "its activation slot is outside those announced");
    status = take_backward_buffer(x, at, pass);
    if (pass->op != DP_OP_W && status >= 0) {
        status = take_work(x, at, pass);
        *made_by(x, dp__pass_flow(pass->op), pass->chunk, pass->microbatch) = x->out->npasses;
    }
    if (status >= 0)
        status = find_source(x, at, use, pass);
    if (status >= 0)
        status = find_dest(x, at, pass);
    x->out->npasses++;
    return status;
}

/* Its memory is idle, and so is the slot of a local edge that it has read. */
static void give_back_work(dp__writer_t *x, const dp__step_pass_t *pass)
{
    if (pass->op != DP_OP_W)
        x->idle[pass->kind][x->nidle[pass->kind]++] = pass->work;
    if (pass->source >= 0 && is_local(x, pass->source))
        x->local_used[x->first_local[pass->source] + pass->source_at] = 0;
}

static void give_backward_buffer(dp__writer_t *x, const dp__step_pass_t *backward)
{
    if (backward->backward_buffer >= 0)
        x->idle_buffers[(x->first_idle + x->nidle_buffers++) % x->out->backward_buffers] = backward->backward_buffer;
}

/* A send follows what made its data; which buffer that wrote is known from here on. */
static dp_status_t claim_operation(dp__writer_t *x, int32_t at)
{
    const dp_instr_t *instr = &x->instrs[at];
    int32_t maker = *made_by(x, instr->op, instr->chunk, instr->microbatch);

    if (maker < 0)
        return refuse_line(x, at, "a send stands before its data are made");
    x->out->passes[maker].dest = instr->channel;
    x->out->passes[maker].dest_at = instr->number;
    return DP_OK;
}

/* ---- operations ---- */

/* Finds the order of the segments of some passes, and where each pass ends in it. */
static dp_status_t open_operation(dp__writer_t *x, int32_t at, const char *order, const dp_pass_t *passes, int n)
{
    const dp__stage_shape_t *stages[DP_BRAID_PASSES];

    for (int i = 0; i < n; i++) {
        stages[i] = &x->stages[passes[i].chunk];
        x->pass_of[i] = x->last[i] = -1;
    }
    x->step = 0;
    x->nsteps = dp__braid_order(order, passes, n, stages, x->steps, x->scratch);
    if (x->nsteps < 0)
        return refuse_line(x, at, "the written order of its braid has not one letter for every segment of each pass");
    for (int32_t k = 0; k < x->nsteps; k++)
        x->last[x->steps[k].pass] = k;
    return DP_OK;
}

static dp_status_t put_steps(dp__writer_t *x, int32_t at, int32_t until)
{
    for (; x->step < until; x->step++) {
        int32_t pass = x->pass_of[x->steps[x->step].pass];

        if (pass < 0)
            return refuse_line(x, at, "a pass of its braid has not begun that comes before it in the order");
        put_segment(x, pass, x->steps[x->step].op, x->steps[x->step].segment);
    }
    return DP_OK;
}

static void end_slot(dp__writer_t *x, int32_t number)
{
    const dp__step_pass_t *pass = &x->out->passes[number];

    if (pass->op != DP_OP_B && pass->op != DP_OP_W)
        return;
    put_record(x, DP_LANE_COMPUTE, slot_end(x, pass));
    if (pass->backward_buffer < 0)
        return;
    /* where its I ended */
    follow_lane(x, DP_LANE_COMPUTE, lane_of_pass(&x->stages[pass->chunk], 0));
    put_record(x, DP_LANE_COMPUTE, buffer_end(x, pass));
}

/* A whole operation: its passes are the next ones. */
static dp_status_t put_whole(dp__writer_t *x, int32_t at, int32_t *next)
{
    dp__instr_pass_t use[2];
    dp_pass_t passes[2];
    int n = dp__instr_passes(&x->instrs[at], use);
    dp_status_t status;

    for (int i = 0; i < n; i++)
        passes[i] = (dp_pass_t){use[i].kind, 0, use[i].chunk, use[i].microbatch};
    status = open_operation(x, at, "canonical", passes, n);
    for (int i = 0; i < n; i++)
        x->pass_of[i] = (*next)++;
    if (status >= 0)
        status = put_steps(x, at, x->nsteps);
    for (int i = 0; i < n; i++)
        end_slot(x, x->pass_of[i]);
    x->braid = -1;
    return status;
}

static int place_in(const dp_braid_t *braid, const dp_instr_t *instr)
{
    for (int i = 0; i < braid->npasses; i++)
        if (braid->passes[i].kind == instr->op && braid->passes[i].chunk == instr->chunk &&
            braid->passes[i].microbatch == instr->microbatch)
            return i;
    return -1;
}

/* A line of a braid's pass. Segments are put at ends: all up to the last one of the pass. */
static dp_status_t put_line(dp__writer_t *x, int32_t at, int32_t *next)
{
    const dp_instr_t *instr = &x->instrs[at];
    const dp_schedule_t *schedule = x->program->schedule;
    const dp_braid_t *braid = instr->number < schedule->nbraids ? &schedule->braids[instr->number] : NULL;
    bool starts = instr->kind == DP_INSTR_START;
    int place = braid != NULL ? place_in(braid, instr) : -1;
    dp_status_t status = DP_OK;

    if (place < 0)
        return refuse_line(x, at, "its braid has no such pass");
    if (x->braid != instr->number)
        status = open_operation(x, at, braid->order, braid->passes, braid->npasses);
    x->braid = instr->number;
    if (status < 0)
        return status;
    if (starts != (x->pass_of[place] < 0))
        return refuse_line(x, at, starts ? "its pass has begun before" : "its pass has not begun");
    if (starts) {
        x->pass_of[place] = (*next)++;
        return DP_OK;
    }
    status = put_steps(x, at, x->last[place] + 1);
    end_slot(x, x->pass_of[place]);
    return status;
}

/* ---- instructions ---- */

static void put_send(dp__writer_t *x, const dp_instr_t *instr)
{
    int32_t maker = *made_by(x, instr->op, instr->chunk, instr->microbatch);
    const dp__step_pass_t *pass = &x->out->passes[maker];
    const dp__stage_shape_t *stage = &x->stages[pass->chunk];
    bool in_lane = x->in_lane != NULL && x->in_lane[pass->dest];
    int stream = in_lane ? lane_of_pass(stage, pass->op == DP_OP_F ? stage->nsegments - 1 : 0) : DP_LANE_P2P;

    put_wait(x, stream, ready_event(x, pass->dest, pass->dest_at));
    append_command(x, DP__SEND, stream, maker);
    put_record(x, stream, free_again(x, pass->dest, pass->dest_at));
}

static dp_status_t put_bundle(dp__writer_t *x, int32_t at, int32_t *count_out)
{
    const dp_instr_t *instr = &x->instrs[at];
    bool sends = instr->kind == DP_INSTR_SEND;
    int32_t transfer =
                dp__transfer_stream_find(x->out->transfer_streams, x->out->ntransfer_streams, instr->peer, sends),
            n = 0;
    int stream = DP_LANE_COUNT + transfer;

    if (transfer < 0)
        return refuse_line(x, at, "a transfer with a rank that is no neighbour");
    while (at + n < x->ninstrs && instr[n].kind == instr->kind && instr[n].bundle == instr->bundle &&
           instr[n].peer == instr->peer)
        n++;
    if (n > INT16_MAX)
        return refuse_line(x, at, "a bundle with more messages than there are channels");
    for (int32_t i = 0; i < n && sends; i++)
        put_wait(x, stream, ready_event(x, instr[i].channel, instr[i].number));
    put_command(x, (dp__command_t){.kind = DP__BUNDLE, .stream = (uint8_t)stream, .count = (int16_t)n, .at = at});
    for (int32_t i = 0; i < n; i++)
        put_record(x, stream, (sends ? free_again : ready_event)(x, instr[i].channel, instr[i].number));
    *count_out = n;
    return DP_OK;
}

static dp_status_t put_lines(dp__writer_t *x)
{
    int32_t next = 0, count;
    dp_status_t status = DP_OK;

    x->braid = -1;
    for (int32_t i = 0; i < x->ninstrs && status >= 0; i += count) {
        const dp_instr_t *instr = &x->instrs[i];

        count = 1;
        if (instr->kind == DP_INSTR_START || (instr->kind == DP_INSTR_COMPUTE && instr->number >= 0)) {
            status = put_line(x, i, &next);
        } else if (instr->kind == DP_INSTR_COMPUTE) {
            status = put_whole(x, i, &next);
        } else if (instr->kind == DP_INSTR_REDUCE) {
            follow_lane(x, DP_LANE_REDUCE, DP_LANE_COMPUTE);
            append_command(x, DP__REDUCE, DP_LANE_REDUCE, instr->chunk);
        } else if (x->program->transport == DP_TRANSPORT_BUNDLES) {
            status = put_bundle(x, i, &count);
        } else if (instr->kind == DP_INSTR_SEND) {
            put_send(x, instr);
        }
    }
    return status;
}

/* What no other stream waits for before it is recorded again need not be. What is left is copied to
 * where it just fits: a simulation has the lists of all ranks at once. */
static dp_status_t keep_needed(dp__writer_t *x)
{
    dp__commands_t *out = x->out;
    int64_t kept = out->count;

    memset(x->recorded_on, 0, (size_t)out->nevents); /* 1: somebody waits */
    for (int64_t i = out->count - 1; i >= 0; i--) {
        const dp__command_t *c = &x->at[i];
        bool needed = c->kind != DP__RECORD || x->recorded_on[c->at];

        if (c->kind == DP__WAIT || c->kind == DP__RECORD)
            x->recorded_on[c->at] = c->kind == DP__WAIT;
        if (needed)
            x->at[--kept] = *c;
    }
    out->count -= kept;
    out->at = dp__allocate((size_t)out->count * sizeof(*out->at), 64);
    if (out->at == NULL)
        return dp_fail(DP_ERR_NOMEM, "commands: no memory for those of rank %d", x->rank);
    if (out->count > 0)
        memcpy(out->at, x->at + kept, (size_t)out->count * sizeof(*out->at));
    return DP_OK;
}

/* ---- what there is ---- */

int32_t dp__transfer_stream_find(const dp__transfer_stream_t *transfer_streams, int32_t n, int32_t peer, int32_t sends)
{
    for (int32_t w = 0; w < n; w++)
        if (transfer_streams[w].peer == peer && transfer_streams[w].sends == sends)
            return w;
    return -1;
}

int32_t dp__transfer_streams_of(const dp_program_t *program, int32_t rank,
                                dp__transfer_stream_t transfer_streams[DP__TRANSFER_STREAMS])
{
    int32_t n = 0;

    for (int32_t c = 0; c < program->nchannels && program->transport == DP_TRANSPORT_BUNDLES; c++) {
        const dp_channel_t *channel = &program->channels[c];
        int32_t sends = channel->src == rank, peer = sends ? channel->dst : channel->src;

        if ((!sends && channel->dst != rank) || peer == rank ||
            dp__transfer_stream_find(transfer_streams, n, peer, sends) >= 0)
            continue;
        if (n == DP__TRANSFER_STREAMS)
            return -1;
        transfer_streams[n++] = (dp__transfer_stream_t){peer, sends};
    }
    return n;
}

/* What is used at once, in the order of the list. */
typedef struct dp__census {
    int32_t alive[DP__KINDS];
    int32_t *held;         /* [nchannels] outputs begun and not yet sent */
    int32_t *making;       /* [nchannels] outputs begun and not ended */
    dp__alive_t backwards; /* of stages that have memory for them */
} dp__census_t;

static void count_begin(dp__writer_t *x, dp__census_t *n, int kind, int32_t channel)
{
    int32_t *buffers = &x->out->buffers[channel >= 0 ? channel : 0];

    x->out->works[kind] = dp__max_int32(x->out->works[kind], ++n->alive[kind]);
    if (channel < 0 || is_local(x, channel))
        return;
    /* twice what is made at once, so that none waits for the transfer of the one before */
    *buffers = dp__max_int32(*buffers, dp__max_int32(++n->held[channel], 2 * ++n->making[channel]));
}

static dp_status_t count_line(dp__writer_t *x, int32_t at, dp__census_t *n)
{
    const dp_instr_t *instr = &x->instrs[at];
    dp__instr_pass_t use[2];
    int passes = dp__instr_passes(instr, use);

    if (instr->op > DP_OP_FB)
        return refuse_line(x, at, "no such operation");
    for (int k = 0; k < passes; k++)
        if (use[k].chunk < 0 || use[k].chunk >= x->program->chunks || use[k].microbatch < 0 ||
            use[k].microbatch >= x->microbatches)
            return refuse_line(x, at, "chunk or micro-batch out of range");
    for (int k = 0; k < passes; k++)
        if (x->stages[use[k].chunk].backward_buffer)
            dp__alive_count(&n->backwards, use[k].kind, dp__instr_begins(instr), instr->kind == DP_INSTR_COMPUTE, 1.0);
    x->out->backward_buffers = (int32_t)n->backwards.most_backwards;
    for (int k = 0; k < passes && dp__instr_begins(instr); k++) {
        x->npasses++;
        if (use[k].kind != DP_OP_W)
            count_begin(x, n, use[k].kind != DP_OP_F, x->channel[1][use[k].kind != DP_OP_F][use[k].chunk]);
    }
    for (int k = 0; k < passes && instr->kind == DP_INSTR_COMPUTE; k++) {
        if (use[k].kind != DP_OP_W) {
            int32_t channel = x->channel[1][use[k].kind != DP_OP_F][use[k].chunk];

            n->alive[use[k].kind != DP_OP_F]--;
            if (channel >= 0)
                n->making[channel] -= !is_local(x, channel);
        }
    }
    return DP_OK;
}

/* Work memories and buffers. */
static dp_status_t count_memory(dp__writer_t *x, dp__census_t *n)
{
    dp_status_t status = DP_OK;

    for (int32_t i = 0; i < x->ninstrs && status >= 0; i++) {
        const dp_instr_t *instr = &x->instrs[i];

        if (instr->kind == DP_INSTR_COMPUTE || instr->kind == DP_INSTR_START)
            status = count_line(x, i, n);
        else if (instr->kind == DP_INSTR_SEND)
            n->held[instr->channel]--;
    }
    for (int kind = 0; kind < DP__KINDS && status >= 0; kind++) {
        if (x->out->works[kind] > DP__WORKS)
            return dp_fail(DP_ERR_REJECTED,
                           "commands: rank %d has %d passes of one kind alive at once; %d are possible", x->rank,
                           x->out->works[kind], DP__WORKS);
        for (int32_t w = 0; w < x->out->works[kind]; w++)
            x->idle[kind][x->nidle[kind]++] = (uint8_t)w;
    }
    return status;
}

static dp_status_t measure_plan(dp__writer_t *x)
{
    const dp_program_t *p = x->program;
    int32_t *held = dp__calloc(2 * (size_t)p->nchannels + 1, sizeof(*held));
    dp_status_t status;

    x->out->buffers = dp__calloc((size_t)p->nchannels + 1, sizeof(*x->out->buffers));
    if (held == NULL || x->out->buffers == NULL) {
        dp__free(held);
        return dp_fail(DP_ERR_NOMEM, "commands: no memory for %d channels", p->nchannels);
    }
    memset(x->channel, 0xff, sizeof(x->channel));
    for (int32_t c = 0; c < p->nchannels; c++) {
        const dp_channel_t *channel = &p->channels[c];

        if (channel->dst == x->rank)
            x->channel[0][channel->op == DP_OP_B][channel->dst_chunk] = c;
        if (channel->src == x->rank)
            x->channel[1][channel->op == DP_OP_B][channel->src_chunk] = c;
        if (channel->dst == x->rank && (channel->src == x->rank || p->transport == DP_TRANSPORT_BUNDLES))
            x->out->buffers[c] = channel->slots;
    }
    x->out->works[DP__FORWARD] = x->out->works[DP__BACKWARD] = 2;
    status = count_memory(x, &(dp__census_t){.held = held, .making = held + p->nchannels});
    dp__free(held);
    return status;
}

static int32_t number_events(dp__writer_t *x)
{
    const dp_program_t *p = x->program;
    int32_t n = DP_LANE_COUNT, locals = 0;

    for (int kind = 0; kind < DP__KINDS; kind++) {
        x->first_work[kind] = n;
        n += x->out->works[kind] * (x->most_segments + 1);
    }
    for (int32_t c = 0; c < p->chunks; c++) {
        x->first_slot[c] = n;
        n += p->activation_slots[x->rank * p->chunks + c];
    }
    x->first_buffer_event = n;
    n += x->out->backward_buffers;
    for (int32_t c = 0; c < p->nchannels; c++) {
        x->first_event[c] = n;
        x->first_local[c] = locals;
        n += 2 * x->out->buffers[c];
        locals += x->out->buffers[c];
    }
    return n;
}

static dp_status_t allocate_plan(dp__writer_t *x)
{
    size_t channels = (size_t)x->program->nchannels + 1, places = (size_t)x->program->chunks * (size_t)x->microbatches;
    size_t buffers = 0;

    for (int32_t c = 0; c < x->program->nchannels; c++)
        buffers += (size_t)x->out->buffers[c];
    x->out->passes = dp__calloc((size_t)x->npasses + 1, sizeof(*x->out->passes));
    if (x->out->passes == NULL ||
        !dp__arrays(DP__ARRAY(x->first_event, channels), DP__ARRAY(x->first_local, channels),
                    DP__ARRAY(x->made_by[0], places), DP__ARRAY(x->made_by[1], places),
                    DP__ARRAY(x->local_used, buffers + 1), DP__ARRAY(x->idle_buffers, x->out->backward_buffers),
                    DP__ARRAY(x->steps, 2 * DP_BRAID_PASSES * (size_t)x->most_segments),
                    DP__ARRAY(x->scratch, 3 * (size_t)x->most_segments)))
        return dp_fail(DP_ERR_NOMEM, "commands: no memory for %d passes", x->npasses);
    for (int32_t r = 0; r < x->out->backward_buffers; r++)
        x->idle_buffers[x->nidle_buffers++] = r;
    memset(x->made_by[0], 0xff, places * sizeof(int32_t));
    memset(x->made_by[1], 0xff, places * sizeof(int32_t));
    x->out->nevents = number_events(x);
    x->recorded_on = dp__allocate((size_t)x->out->nevents, 64);
    if (x->recorded_on == NULL)
        return dp_fail(DP_ERR_NOMEM, "commands: no memory for %d events", x->out->nevents);
    memset(x->recorded_on, NOWHERE, (size_t)x->out->nevents);
    return DP_OK;
}

/* All passes in the order in which they begin; a send tells where the result of its pass goes. */
static dp_status_t find_passes(dp__writer_t *x)
{
    dp_status_t status = DP_OK;
    int32_t operation = 0, braid = -1;

    for (int32_t i = 0; i < x->ninstrs && status >= 0; i++) {
        const dp_instr_t *instr = &x->instrs[i];
        dp__instr_pass_t use[2];
        int n = dp__instr_passes(instr, use);
        bool starts = instr->kind == DP_INSTR_START;

        operation += dp__instr_begins(instr) && (!starts || instr->number != braid);
        braid = starts ? instr->number : dp__instr_begins(instr) ? -1 : braid;
        for (int k = 0; k < n && status >= 0 && dp__instr_begins(instr); k++)
            status = open_pass(x, i, &use[k], n > 1 || starts ? operation : 0);
        for (int k = 0; k < n && status >= 0 && instr->kind == DP_INSTR_COMPUTE; k++) {
            int32_t number = *made_by(x, use[k].kind == DP_OP_F ? DP_OP_F : DP_OP_B, use[k].chunk, use[k].microbatch);

            if (number < 0)
                return refuse_line(x, i, "it has not begun");
            if (use[k].kind != DP_OP_W)
                give_back_work(x, &x->out->passes[number]);
            if (use[k].kind == DP_OP_B || use[k].kind == DP_OP_W)
                give_backward_buffer(x, &x->out->passes[number]);
        }
        if (instr->kind == DP_INSTR_SEND)
            status = claim_operation(x, i);
    }
    return status;
}

dp_status_t dp__commands_write(const dp_program_t *program, int32_t rank, const dp__stage_shape_t *stages,
                               const uint8_t *in_lane, dp__commands_t *out)
{
    dp__writer_t x = {.program = program,
                      .instrs = program->instrs + program->first[rank],
                      .rank = rank,
                      .ninstrs = (int32_t)(program->first[rank + 1] - program->first[rank]),
                      .microbatches = dp_schedule_path_microbatches(program->schedule, 0),
                      .stages = stages,
                      .in_lane = in_lane,
                      .out = out};
    dp_status_t status;

    *out = (dp__commands_t){.count = 0};
    out->ntransfer_streams = dp__transfer_streams_of(program, rank, out->transfer_streams);
    if (out->ntransfer_streams < 0)
        return dp_fail(DP_ERR_REJECTED, "rank %d of the pipeline has more than two neighbours", rank);
    for (int32_t c = 0; c < program->chunks; c++)
        x.most_segments = stages[c].nsegments > x.most_segments ? stages[c].nsegments : x.most_segments;
    status = measure_plan(&x);
    if (status >= 0)
        status = allocate_plan(&x);
    if (status >= 0)
        status = find_passes(&x);
    if (status >= 0)
        status = put_lines(&x);
    if (status >= 0 && x.no_memory)
        status = dp_fail(DP_ERR_NOMEM, "commands: no memory for those of rank %d", rank);
    if (status >= 0)
        status = keep_needed(&x);
    dp__free(x.at);
    dp__free(x.first_event);
    dp__free(x.recorded_on);
    return status;
}

void dp__commands_clear(dp__commands_t *commands)
{
    dp__free(commands->at);
    dp__free(commands->passes);
    dp__free(commands->buffers);
    *commands = (dp__commands_t){.count = 0};
}
