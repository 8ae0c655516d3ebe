/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * credits.c: one-sided puts with credits as a flow.
 *
 * One lane per rank: operations and sends in the order of the list. Sends really leave beside
 * computing, but a small message may be sent inline, so the stricter order has to be safe. An
 * operation waits for the sends of its inputs; receives wait for nothing. Send n of a channel waits
 * for the operation that consumes message n - K of that channel. */
#include "program/proof.h"

/* What an input of an operation waits for: that it was sent. */
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
    int32_t slots = dp__slots_of(p, send->channel);

    if (send->number >= slots)
        *need = (dp__need_t){send->peer, p->v->release_at[dp__message_of(p->v, send) - slots]};
}

static bool credit_need(const void *context, int32_t rank, int32_t position, int32_t k, dp__need_t *need)
{
    const dp__proof_t *p = context;
    const dp_instr_t *i = dp__instr(p->v->program, rank, position);

    *need = (dp__need_t){rank, -1}; /* nothing */
    if ((i->kind == DP_INSTR_COMPUTE || i->kind == DP_INSTR_START) && k < 2)
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

void dp__credit_flow(dp__proof_t *p, dp__flow_t *flow_out)
{
    const dp_program_t *program = p->v->program;

    for (int32_t r = 0; r < program->ranks; r++)
        p->length[r] = dp__rank_instrs(program, r);
    *flow_out = (dp__flow_t){
        .lanes = program->ranks, .length = p->length, .context = p, .need = credit_need, .name = credit_name};
}
