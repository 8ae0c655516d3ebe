/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * strict.c: a program as a flow of ranks that do one thing at a time.
 *
 * One lane per rank and two steps per instruction: it comes to it, it is over with it. A transfer is over when the other end
 * has come to it and the slot has been read, a sum of mirrors when the mirror has. Real runs have streams beside each other, and queues; everything in
 * them that waits, waits for something that stands earlier in the same list or for the other end of a transfer. So what ends
 * here ends there, whatever the number of streams, the length of queues, and the resources that waiting kernels hold. */
#include "program/proof.h"

#include "base/memory.h"

#include <stdio.h>

static bool strict_need(const void *context, int32_t rank, int32_t step, int32_t k, dp__need_t *need)
{
    const dp__proof_t *p = context;
    int32_t position = step / 2, nth;
    const dp_instr_t *i = dp__instr(p->v->program, rank, position);
    const int32_t *there = i->kind == DP_INSTR_SEND ? p->v->recv_at : p->v->send_at;

    if (step % 2 == 0 || k > 1 || i->kind == DP_INSTR_COMPUTE || i->peer < 0)
        return false;
    if (k == 1) {
        int32_t slots = i->kind == DP_INSTR_RECV ? dp__slots_of(p, i->channel) : 0;

        if (i->kind != DP_INSTR_RECV || i->sequence < slots)
            return false;
        *need = (dp__need_t){rank, 2 * p->v->release_at[dp__message_of(p->v, i) - slots] + 1};
        return true;
    }
    if (i->kind != DP_INSTR_REDUCE) {
        *need = (dp__need_t){i->peer, 2 * there[dp__message_of(p->v, i)]};
        return true;
    }
    for (nth = 0; p->reduce_at[rank * p->v->program->chunks + nth] != position;)
        nth++;
    *need = (dp__need_t){i->peer, 2 * p->reduce_at[i->peer * p->v->program->chunks + nth]};
    return true;
}

static void strict_name(const void *context, int32_t rank, int32_t step, char *text, size_t bytes)
{
    dp__instr_print(((const dp__proof_t *)context)->v->program, rank, step / 2, text, bytes);
}

/* Both holders of a stage list their reductions in the same order: the n-th of one is the n-th of the other. */
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

dp_status_t dp__strict_flow(dp__proof_t *p, dp__flow_t *flow_out)
{
    for (int32_t r = 0; r < p->v->program->ranks; r++)
        p->length[r] = 2 * dp__rank_instrs(p->v->program, r);
    *flow_out = (dp__flow_t){.lanes = p->v->program->ranks,
                             .length = p->length,
                             .context = p,
                             .need = strict_need,
                             .name = strict_name};
    return find_reductions(p);
}
