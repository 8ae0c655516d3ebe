/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * bundles.c: transfers that end when both sides have come to them, as a flow of ranks that do one
 * thing at a time.
 *
 * One lane per rank and two steps per instruction: it comes to it, it is over with it. A transfer
 * is over when the other end has come to it and the slot has been read, a sum of mirrors when the
 * mirror has come to it. Real runs have streams beside each other, and queues; everything in them
 * that waits, waits for something that stands earlier in the same list or for the other end of a
 * transfer. So what ends here ends there, whatever the number of streams, the length of queues, and
 * the resources that waiting kernels hold. A bundle adds nothing: its transfers are neighbours of
 * one direction between two ranks, so that nothing between them could wait. And two messages that
 * one end lists in the other order wait for each other here, so what ends also meets its other side
 * without tags. */
#include "program/proof.h"

#include "base/memory.h"

/* The transfer's slot was read: message n - K of its channel. */
static bool slot_need(const dp__proof_t *p, int32_t rank, const dp_instr_t *recv, dp__need_t *need)
{
    int32_t slots = dp__slots_of(p, recv->channel);

    if (recv->number < slots)
        return false;
    *need = (dp__need_t){rank, 2 * p->v->release_at[dp__message_of(p->v, recv) - slots] + 1};
    return true;
}

/* Both holders of a stage list their reductions in the same order. */
static void mirror_need(const dp__proof_t *p, int32_t rank, int32_t position, int32_t mirror, dp__need_t *need)
{
    int32_t chunks = p->v->program->chunks, nth = 0;

    while (p->reduce_at[rank * chunks + nth] != position)
        nth++;
    *need = (dp__need_t){mirror, 2 * p->reduce_at[mirror * chunks + nth]};
}

static bool bundle_need(const void *context, int32_t rank, int32_t step, int32_t k, dp__need_t *need)
{
    const dp__proof_t *p = context;
    const dp_instr_t *i = dp__instr(p->v->program, rank, step / 2);
    const int32_t *there = i->kind == DP_INSTR_SEND ? p->v->recv_at : p->v->send_at;

    if (step % 2 == 0 || k > 1 || i->kind == DP_INSTR_COMPUTE || i->peer < 0)
        return false;
    if (k == 1)
        return i->kind == DP_INSTR_RECV && slot_need(p, rank, i, need);
    if (i->kind == DP_INSTR_REDUCE)
        mirror_need(p, rank, step / 2, i->peer, need);
    else
        *need = (dp__need_t){i->peer, 2 * there[dp__message_of(p->v, i)]};
    return true;
}

static void bundle_name(const void *context, int32_t rank, int32_t step, char *text, size_t bytes)
{
    dp__instr_print(((const dp__proof_t *)context)->v->program, rank, step / 2, text, bytes);
}

static dp_status_t find_reductions(dp__proof_t *p)
{
    const dp_program_t *program = p->v->program;

    p->reduce_at = dp__calloc((size_t)program->ranks * (size_t)program->chunks, sizeof(*p->reduce_at));
    if (p->reduce_at == NULL)
        return dp_fail(DP_ERR_NOMEM, "verify: no memory for the reductions of %d ranks", program->ranks);
    for (int32_t r = 0; r < program->ranks; r++) {
        int32_t nth = 0;

        for (int32_t i = 0; i < dp__rank_instrs(program, r) && nth < program->chunks; i++)
            if (dp__instr(program, r, i)->kind == DP_INSTR_REDUCE)
                p->reduce_at[r * program->chunks + nth++] = i;
    }
    return DP_OK;
}

dp_status_t dp__bundle_flow(dp__proof_t *p, dp__flow_t *flow_out)
{
    for (int32_t r = 0; r < p->v->program->ranks; r++)
        p->length[r] = 2 * dp__rank_instrs(p->v->program, r);
    *flow_out = (dp__flow_t){
        .lanes = p->v->program->ranks, .length = p->length, .context = p, .need = bundle_need, .name = bundle_name};
    return find_reductions(p);
}
