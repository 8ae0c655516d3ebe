/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * credits.c: one-sided puts with credits as a flow.
 *
 * One lane per rank: operations and sends in the order of the list. Sends really leave beside computing, but
 * a small message may be sent inline, so the stricter order has to be safe. An operation waits for the sends
 * of its inputs; receives wait for nothing. Send n of a channel waits for the operation that consumes message
 * n - K of that channel; when all channels from one rank to another share K slots, send n of them all waits
 * for the slot that is freed as number n - K. */
#include "program/proof.h"

#include "base/memory.h"

#include <string.h>

/* What the k-th input of an operation waits for. */
static void input_need(const dp__proof_t *p, int32_t rank, int32_t in, dp__need_t *need)
{
    const dp_instr_t *recv;

    if (in < 0)
        return;
    recv = dp__instr(p->v->program, rank, in);
    *need = (dp__need_t){recv->peer, p->v->send_at[dp__message_of(p->v, recv)]};
}

static void slot_need(const dp__proof_t *p, const dp_instr_t *send, dp__need_t *need)
{
    int64_t message = dp__message_of(p->v, send);
    int32_t slots = dp__slots_of(p, send->channel);

    if (p->release == NULL && send->sequence >= slots)
        *need = (dp__need_t){send->peer, p->v->release_at[message - slots]};
    if (p->release != NULL && p->sent_before[message] >= slots)
        *need = (dp__need_t){send->peer,
                             p->release[p->first_release[send->channel] + p->sent_before[message] - slots]};
}

static bool credit_need(const void *context, int32_t rank, int32_t position, int32_t k, dp__need_t *need)
{
    const dp__proof_t *p = context;
    const dp_instr_t *i = dp__instr(p->v->program, rank, position);

    *need = (dp__need_t){rank, -1}; /* nothing */
    if (i->kind == DP_INSTR_COMPUTE && k < 2)
        input_need(p, rank, k == 0 ? i->in : i->in2, need);
    else if (i->kind == DP_INSTR_SEND && k == 0)
        slot_need(p, i, need);
    else
        return false;
    return true;
}

static void credit_name(const void *context, int32_t rank, int32_t position, char *text, size_t bytes)
{
    dp__instr_print(((const dp__proof_t *)context)->v->program, rank, position, text, bytes);
}

/* Gives every pair of ranks its stretch of p->release. */
static void lay_out_pairs(dp__proof_t *p)
{
    const dp_channel_t *channels = p->v->program->channels;
    int64_t next = 0;

    for (int32_t dst = 0; dst < p->v->program->ranks; dst++) {
        int32_t into[2 * DP_MAX_CHUNKS];
        int32_t count = 0;

        for (int32_t chunk = 0; chunk < p->v->program->chunks; chunk++)
            for (int op = DP_OP_F; op <= DP_OP_B; op++) {
                int32_t channel = dp__edges_in(&p->v->edges, dst, chunk, op);

                if (channel >= 0 && channels[channel].src != dst)
                    into[count++] = channel;
            }
        for (int32_t a = 0; a < count; a++)
            p->first_release[into[a]] = -1;
        for (int32_t a = 0; a < count; a++) {
            int32_t shared = 0;

            if (p->first_release[into[a]] >= 0)
                continue;
            for (int32_t b = a; b < count; b++)
                if (channels[into[b]].src == channels[into[a]].src) {
                    p->first_release[into[b]] = next - (int64_t)shared++ * p->v->microbatches;
                    next += p->v->microbatches;
                }
        }
    }
}

static void note_release(dp__proof_t *p, int32_t rank, int32_t position, int32_t in, int32_t *count)
{
    const dp_instr_t *recv;

    if (in < 0)
        return;
    recv = dp__instr(p->v->program, rank, in);
    p->release[p->first_release[recv->channel] + count[recv->peer]++] = position;
}

/* `count` is [2 * ranks]: messages sent to, and slots freed for, every other rank. */
static void number_pairs(dp__proof_t *p, int32_t *count)
{
    const dp_program_t *program = p->v->program;

    lay_out_pairs(p);
    for (int32_t r = 0; r < program->ranks; r++) {
        memset(count, 0, 2 * (size_t)program->ranks * sizeof(*count));
        for (int32_t position = 0; position < dp__rank_instrs(program, r); position++) {
            const dp_instr_t *i = dp__instr(program, r, position);

            if (i->kind == DP_INSTR_SEND)
                p->sent_before[dp__message_of(p->v, i)] = count[i->peer]++;
            if (i->kind != DP_INSTR_COMPUTE)
                continue;
            note_release(p, r, position, i->in, count + program->ranks);
            note_release(p, r, position, i->in2, count + program->ranks);
        }
    }
}

dp_status_t dp__credit_flow(dp__proof_t *p, bool shared, dp__flow_t *flow_out)
{
    const dp_program_t *program = p->v->program;
    size_t messages = (size_t)p->v->message_first[program->nchannels];
    int32_t *count;

    for (int32_t r = 0; r < program->ranks; r++)
        p->length[r] = dp__rank_instrs(program, r);
    *flow_out = (dp__flow_t){
        .lanes = program->ranks, .length = p->length, .context = p, .need = credit_need, .name = credit_name};
    if (!shared)
        return DP_OK;
    count = dp__calloc(2 * (size_t)program->ranks, sizeof(*count));
    p->sent_before = dp__calloc(messages, sizeof(*p->sent_before));
    p->release = dp__calloc(messages, sizeof(*p->release));
    p->first_release = dp__calloc((size_t)program->nchannels, sizeof(*p->first_release));
    if (count == NULL || p->sent_before == NULL || p->release == NULL || p->first_release == NULL) {
        dp__free(count);
        return dp_fail(DP_ERR_NOMEM, "verify: no memory for %zu messages", messages);
    }
    number_pairs(p, count);
    dp__free(count);
    return DP_OK;
}
