/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * lower.c: from lists of operations to what every rank does, transfers included. */
#include "program/lower.h"
#include "base/do.h"

#include "base/memory.h"
#include "base/sized.h"

/* ---- a look at all operations: messages, slots of local edges, instructions ---- */

typedef struct dp__survey {
    dp__lowering_t *w;
    int32_t *sent, *consumed; /* [channel] messages so far */
} dp__survey_t;

/* Numbers the messages of every channel in the order in which their receiver consumes them. */
static void number_messages(dp__lowering_t *w)
{
    const dp_schedule_t *s = w->schedule;
    dp__part_t part[2];

    for (int32_t r = 0; r < s->ranks; r++)
        for (int64_t i = s->first[r]; i < s->first[r + 1]; i++)
            for (int p = 0, n = dp__op_parts(&s->ops[i], part); p < n; p++) {
                int32_t channel = dp__edges_in(&w->edges, r, part[p].chunk, part[p].op);
                size_t at = dp__index_at(&w->replay.index, r, part[p].chunk, part[p].microbatch);

                if (channel >= 0)
                    w->number[part[p].op == DP_OP_B][at] = w->program->channels[channel].messages++;
            }
}

/* A part makes a message, to a rank or into a local edge with as many slots as are full at once. */
static dp_status_t survey_output(dp__survey_t *x, int32_t rank, const dp__part_t *part, int64_t *count)
{
    int32_t out = dp__edges_out(&x->w->edges, rank, part->chunk, part->op);
    dp_channel_t *channel;
    int32_t number;

    if (out < 0)
        return DP_OK;
    channel = &x->w->program->channels[out];
    number = dp__number_of(x->w, channel->dst, channel->dst_chunk, part->op, part->microbatch);
    if (channel->src == channel->dst) {
        int32_t filled = number - x->consumed[out] + 1;

        channel->slots = filled > channel->slots ? filled : channel->slots;
        return DP_OK;
    }
    ++*count;
    if (number == x->sent[out]++)
        return DP_OK;
    return dp_fail(DP_ERR_REJECTED,
                   "program: rank %d makes %s chunk %d mb %d as message %d of its channel, rank %d consumes it as "
                   "message %d: both must have the same order",
                   rank, dp_op_kind_name(part->op), part->chunk, part->microbatch, x->sent[out] - 1, channel->dst,
                   number);
}

/* A braid's pass takes its slot of a local edge when it begins. */
static void survey_start(dp__survey_t *x, int32_t rank, const dp_op_t *op)
{
    dp__part_t part[2];
    int64_t none = 0;

    if (dp__op_starts(op) && dp__parts(op->kind % DP__OP_START, op->chunk, op->microbatch, -1, -1, part) > 0) {
        int32_t out = dp__edges_out(&x->w->edges, rank, part->chunk, part->op);

        if (out >= 0 && x->w->program->channels[out].src == x->w->program->channels[out].dst)
            (void)survey_output(x, rank, part, &none);
    }
}

/* Counts the instructions of a rank. */
static dp_status_t survey_rank(dp__survey_t *x, int32_t rank, int64_t *count)
{
    const dp_schedule_t *s = x->w->schedule;
    dp_status_t status = DP_OK;
    dp__part_t part[2];

    *count = dp__rank_ops(s, rank) + (s->forward_only ? 0 : s->chunks);
    for (int64_t i = s->first[rank]; i < s->first[rank + 1] && status >= 0; i++) {
        int n = dp__op_parts(&s->ops[i], part);

        survey_start(x, rank, &s->ops[i]);
        for (int p = 0; p < n && status >= 0; p++)
            status = survey_output(x, rank, &part[p], count);
        for (int p = 0; p < n; p++) {
            int32_t in = dp__edges_in(&x->w->edges, rank, part[p].chunk, part[p].op);

            if (in < 0)
                continue;
            x->consumed[in]++;
            *count += x->w->program->channels[in].src != rank;
        }
    }
    return status;
}

static dp_status_t survey_ranks(dp__survey_t *x)
{
    dp_program_t *program = x->w->program;
    dp_status_t status = DP_OK;

    for (int32_t r = 0; r < program->ranks && status >= 0; r++) {
        int64_t count;

        status = survey_rank(x, r, &count);
        program->first[r + 1] = program->first[r] + count;
    }
    return status;
}

static dp_status_t survey_schedule(dp__lowering_t *w)
{
    dp_program_t *program = w->program;
    size_t channels = (size_t)program->nchannels;
    dp__survey_t x = {.w = w};
    size_t places = (size_t)program->ranks * (size_t)program->chunks * (size_t)w->microbatches;
    dp_status_t status;

    if (!dp__arrays(DP__ARRAY(w->number[0], places), DP__ARRAY(w->number[1], places)) ||
        !dp__arrays(DP__ARRAY(x.sent, channels), DP__ARRAY(x.consumed, channels)))
        return dp_fail(DP_ERR_NOMEM, "program: no memory for the messages of %d ranks", program->ranks);
    for (size_t c = 0; c < channels; c++)
        program->channels[c].slots = program->channels[c].src == program->channels[c].dst ? 1 : w->slots;
    number_messages(w);
    status = survey_ranks(&x);
    dp__free(x.sent);
    return status;
}

/* ---- the whole ---- */

static dp_status_t create_program(dp__lowering_t *w, dp_transport_t transport)
{
    const dp_schedule_t *s = w->schedule;
    size_t places = (size_t)s->ranks * (size_t)s->chunks;
    dp_program_t *program = dp__calloc(1, sizeof(*program));

    w->program = program;
    if (program == NULL)
        return dp_fail(DP_ERR_NOMEM, "program: no memory");
    program->schedule = s;
    program->transport = transport;
    program->ranks = s->ranks;
    program->chunks = s->chunks;
    program->first = dp__calloc((size_t)s->ranks + 1, sizeof(*program->first));
    program->channels = dp__calloc(2 * places, sizeof(*program->channels));
    program->activation_slots = dp__calloc(places, sizeof(*program->activation_slots));
    if (program->first == NULL || program->channels == NULL || program->activation_slots == NULL)
        return dp_fail(DP_ERR_NOMEM, "program: no memory for %d ranks", s->ranks);
    return dp__edges_create(s, &w->edges, program->channels, &program->nchannels);
}

static void clear_lowering(dp__lowering_t *w)
{
    dp__free(w->number[0]);
    dp__free(w->logical_time[0]);
    dp__free(w->reductions.after);
    dp__edges_clear(&w->edges);
    dp__replay_clear(&w->replay);
}

static dp_status_t lower_schedule(dp__lowering_t *w, dp_transport_t transport)
{
    dp_status_t status = dp__replay_run(w->schedule, &w->replay);

    if (status >= 0)
        status = create_program(w, transport);
    if (status >= 0)
        status = survey_schedule(w);
    if (status >= 0 && !w->schedule->forward_only)
        status = dp__reductions_find(w);
    if (status >= 0 && transport == DP_TRANSPORT_BUNDLES)
        status = dp__logical_times_find(w);
    return status < 0 ? status : dp__instructions_write(w);
}

/* The smallest K that divides the messages of a channel and is not below `least`. */
static int32_t slots_that_divide(int32_t messages, int32_t least)
{
    for (int32_t slots = least; slots < messages; slots++)
        if (messages % slots == 0)
            return slots;
    return messages;
}

dp_status_t dp__program_lower(const dp_schedule_t *schedule, const dp_lower_options_t *options,
                              dp_program_t **program_out)
{
    dp__lowering_t w = {.microbatches = dp_schedule_path_microbatches(schedule, 0)};
    dp_status_t status;

    if (options->slots < 0 || options->slots > DP_MAX_MICROBATCHES)
        return dp_fail(DP_ERR_INVALID, "program: %d slots per channel; 1 to %d are possible", options->slots,
                       DP_MAX_MICROBATCHES);
    if (options->transport != DP_TRANSPORT_CREDITS && options->transport != DP_TRANSPORT_BUNDLES)
        return dp_fail(DP_ERR_INVALID, "program: there is no transport %d", (int)options->transport);
    w.slots = options->slots > 0 ? options->slots : DP__USUAL_SLOTS;
    if (options->replayable && w.microbatches % w.slots != 0)
        w.slots = slots_that_divide(w.microbatches, w.slots);
    status = dp__schedule_plain(schedule, &w.schedule);
    if (status < 0)
        return status;
    status = lower_schedule(&w, options->transport);
    clear_lowering(&w);
    dp__schedule_plain_free(schedule, w.schedule);
    if (status < 0) {
        dp_program_free(w.program);
        return status;
    }
    w.program->schedule = schedule;
    *program_out = w.program;
    return DP_OK;
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
