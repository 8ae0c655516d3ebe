/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * model.c: checks the ids of a program and numbers its messages. */
#include "simulate/model.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "program/passes.h"
#include "simulate/costs.h"

static void make_chunks(dp__model_t *model)
{
    const dp_schedule_t *schedule = model->program->schedule;
    int32_t chunks = schedule->chunks;
    const double *scale = model->costs.stage_scale;

    for (int32_t r = 0; r < schedule->ranks; r++) {
        for (int32_t c = 0; c < chunks; c++) {
            dp__model_chunk_t *chunk = &model->chunks[(int64_t)r * chunks + c];
            dp_place_t place;

            dp_schedule_place(schedule, r, c, &place);
            chunk->stage = place.stage;
            chunk->share = 1.0 / dp_schedule_split(schedule);
            chunk->scale = chunk->share * (scale != NULL ? scale[place.stage] : 1.0) * dp__rank_scale(&model->costs, r);
            chunk->prev_here = place.prev_rank == r ? (int16_t)place.prev_chunk : -1;
            chunk->next_here = place.next_rank == r ? (int16_t)place.next_chunk : -1;
        }
    }
}

static dp_status_t number_messages(dp__model_t *model)
{
    const dp_program_t *program = model->program;

    for (int32_t c = 0; c < program->nchannels; c++) {
        const dp_channel_t *channel = &program->channels[c];

        if (channel->src < 0 || channel->src >= program->ranks || channel->dst < 0 || channel->dst >= program->ranks ||
            channel->messages < 0 || (channel->slots < 1 && channel->src != channel->dst))
            return dp_fail(DP_ERR_INVALID,
                           "simulate: channel %d (rank %d to %d, %d messages, %d slots) is out of bounds", c,
                           channel->src, channel->dst, channel->messages, channel->slots);
        model->first_message[c + 1] = model->first_message[c] + (channel->src == channel->dst ? 0 : channel->messages);
    }
    return DP_OK;
}

/* A link is named by the two ranks; sorted, channels of one link are neighbours. */
typedef struct link_key {
    int32_t src, dst, channel;
} link_key_t;

static int by_ranks(const void *a, const void *b)
{
    const link_key_t *x = a, *y = b;

    if (x->src != y->src)
        return x->src < y->src ? -1 : 1;
    return x->dst < y->dst ? -1 : x->dst > y->dst;
}

static dp_status_t number_links(dp__model_t *model)
{
    const dp_program_t *program = model->program;
    size_t n = (size_t)program->nchannels;
    link_key_t *keys = dp__calloc(n + 1, sizeof(*keys));
    int32_t link = -1;

    if (keys == NULL)
        return dp_fail(DP_ERR_NOMEM, "simulate: no memory for %zu channels", n);
    for (size_t c = 0; c < n; c++)
        keys[c] = (link_key_t){program->channels[c].src, program->channels[c].dst, (int32_t)c};
    qsort(keys, n, sizeof(*keys), by_ranks);
    for (size_t k = 0; k < n; k++) {
        if (k == 0 || by_ranks(&keys[k - 1], &keys[k]) != 0)
            link++;
        model->link[keys[k].channel] = link;
    }
    dp__free(keys);
    return DP_OK;
}

/* By where the two ranks of each channel live. */
static dp_status_t time_links(dp__model_t *model)
{
    const dp_topology_t *t = model->costs.topology;

    if (t != NULL && t->ranks != model->program->ranks)
        return dp_fail(DP_ERR_INVALID, "simulate: the topology has %d ranks, the schedule %d", t->ranks,
                       model->program->ranks);
    for (int32_t c = 0; c < model->program->nchannels; c++) {
        const dp_channel_t *channel = &model->program->channels[c];

        model->message_time[c] = dp__costs_message(&model->costs, channel->src, channel->dst);
    }
    return DP_OK;
}

static bool is_transfer_instr(const dp_instr_t *instr)
{
    return instr->kind == DP_INSTR_SEND || instr->kind == DP_INSTR_RECV;
}

static bool consumes_recv(const dp_program_t *program, int32_t rank, int32_t in)
{
    int64_t index = program->first[rank] + in;

    return in == -1 || (in >= 0 && index < program->first[rank + 1] && program->instrs[index].kind == DP_INSTR_RECV);
}

static bool side_in_bounds(const dp__model_t *model, int32_t rank, int32_t chunk, int32_t microbatch, int32_t in)
{
    return chunk >= 0 && chunk < model->program->chunks && microbatch >= 0 && microbatch < model->microbatches &&
           consumes_recv(model->program, rank, in);
}

/* seen[2c], seen[2c + 1]: sends and receives of channel c so far. bundle: the latest one. */
static bool instr_in_bounds(const dp__model_t *model, int32_t rank, const dp_instr_t *instr, int32_t *seen,
                            int32_t *bundle)
{
    const dp_program_t *program = model->program;

    if (instr->kind == DP_INSTR_REDUCE)
        return true;
    if (instr->kind == DP_INSTR_COMPUTE || instr->kind == DP_INSTR_START)
        return instr->op <= DP_OP_FB && side_in_bounds(model, rank, instr->chunk, instr->microbatch, instr->in) &&
               (instr->op != DP_OP_FB || side_in_bounds(model, rank, instr->chunk2, instr->microbatch2, instr->in2));
    if (is_transfer_instr(instr) && instr->channel >= 0 && instr->channel < program->nchannels && instr->chunk >= 0 &&
        instr->chunk < program->chunks && instr->op <= DP_OP_FB && instr->bundle >= *bundle) {
        const dp_channel_t *channel = &program->channels[instr->channel];
        bool is_recv = instr->kind == DP_INSTR_RECV;

        *bundle = instr->bundle;
        return (is_recv ? channel->dst : channel->src) == rank && channel->src != channel->dst &&
               instr->peer == (is_recv ? channel->src : channel->dst) && instr->number < channel->messages &&
               instr->number == seen[2 * (int64_t)instr->channel + is_recv]++;
    }
    return false;
}

/* What an operation takes from its own rank stands above it. done: by chunk and micro-batch, bits 1
 * of F and 2 of B or I. */
static bool has_own_inputs(const dp__model_t *model, int32_t rank, const dp_instr_t *instr, uint8_t *done)
{
    dp__instr_pass_t pass[2];
    int n = instr->kind == DP_INSTR_COMPUTE ? dp__instr_passes(instr, pass) : 0;
    uint8_t *own[2];

    for (int k = 0; k < n; k++) {
        const dp__model_chunk_t *chunk = dp__model_chunk(model, rank, pass[k].chunk);
        bool forward = pass[k].kind == DP_OP_F;
        int32_t before = forward ? chunk->prev_here : chunk->next_here;
        const uint8_t *made = &done[(before >= 0 ? before : 0) * model->microbatches + pass[k].microbatch];

        own[k] = &done[pass[k].chunk * model->microbatches + pass[k].microbatch];
        if (pass[k].kind == DP_OP_W ? *own[k] < 2
                                    : (!forward && *own[k] == 0) || (before >= 0 && (*made & (forward ? 1 : 2)) == 0))
            return false;
    }
    for (int k = 0; k < n; k++)
        *own[k] |= pass[k].kind == DP_OP_F ? 1 : pass[k].kind == DP_OP_W ? 0 : 2;
    return true;
}

static dp_status_t check_rank(const dp__model_t *model, int32_t rank, int32_t *seen, uint8_t *done)
{
    const dp_program_t *program = model->program;
    int32_t bundle = -1;

    memset(done, 0, (size_t)program->chunks * (size_t)model->microbatches);
    for (int64_t i = program->first[rank]; i < program->first[rank + 1]; i++) {
        const dp_instr_t *instr = &program->instrs[i];

        if (!instr_in_bounds(model, rank, instr, seen, &bundle))
            return dp_fail(DP_ERR_INVALID, "simulate: rank %d: instruction %lld has an id out of bounds or order", rank,
                           (long long)(i - program->first[rank]));
        if (!has_own_inputs(model, rank, instr, done))
            return dp_fail(DP_ERR_REJECTED,
                           "simulate: the program cannot finish: rank %d: %s of chunk %d, micro-batch %d never starts: "
                           "the rank has not computed what it takes",
                           rank, dp_op_kind_name(instr->op), instr->chunk, instr->microbatch);
    }
    return DP_OK;
}

static dp_status_t check_instrs(const dp__model_t *model)
{
    const dp_program_t *program = model->program;
    int32_t *seen = dp__calloc(2 * (size_t)program->nchannels, sizeof(*seen));
    uint8_t *done = dp__calloc((size_t)program->chunks, (size_t)model->microbatches);
    dp_status_t status = DP_OK;

    if (seen == NULL || done == NULL)
        status = dp_fail(DP_ERR_NOMEM, "simulate: no memory for %d channels", program->nchannels);
    for (int32_t r = 0; r < program->ranks && status >= 0; r++)
        status = check_rank(model, r, seen, done);
    dp__free(seen);
    dp__free(done);
    return status;
}

dp_status_t dp__model_make(const dp_program_t *program, const dp_costs_t *costs, dp__model_t *model)
{
    const dp_schedule_t *schedule = program->schedule;
    dp_status_t status;

    *model = (dp__model_t){.program = program};
    if (schedule == NULL || program->ranks != schedule->ranks || program->chunks != schedule->chunks)
        return dp_fail(DP_ERR_INVALID, "simulate: the program is not one of its schedule");
    model->microbatches = dp_schedule_path_microbatches(schedule, 0);
    status = dp__costs_resolve(costs, schedule, &model->costs);
    if (status >= 0 && !dp__arrays(DP__ARRAY(model->chunks, (size_t)program->ranks * (size_t)program->chunks),
                                   DP__ARRAY(model->first_message, program->nchannels + 1),
                                   DP__ARRAY(model->link, program->nchannels + 1),
                                   DP__ARRAY(model->message_time, program->nchannels + 1)))
        status = dp_fail(DP_ERR_NOMEM, "simulate: no memory for %d ranks", program->ranks);
    if (status < 0)
        return status;
    make_chunks(model);
    status = number_messages(model);
    if (status >= 0)
        status = number_links(model);
    if (status >= 0)
        status = time_links(model);
    return status >= 0 ? check_instrs(model) : status;
}

void dp__model_clear(dp__model_t *model)
{
    dp__free(model->chunks);
    model->chunks = NULL;
}
