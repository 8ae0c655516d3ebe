/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * groups.c: matched groups as a flow.
 *
 * Two lanes per rank. Groups are posted and finished one after the other, each as a posting and a finishing
 * step: posting waits for the operations whose data it sends and for those that free the slots it receives
 * into; finishing waits until the other side of every transfer is posted. An operation waits for the groups
 * that hold its inputs. */
#include "program/proof.h"

#include "base/memory.h"

#include <stdio.h>
#include <string.h>

static const dp_instr_t *member(const dp__proof_t *p, int32_t rank, int32_t group, int32_t k,
                                int32_t *position)
{
    const int32_t *first = p->group_first + p->transfer_first[rank] + rank + group;

    if (k >= first[1] - first[0])
        return NULL;
    *position = p->transfers[p->transfer_first[rank] + first[0] + k];
    return dp__instr(p->v->program, rank, *position);
}

/* Compute lane of a rank, and the lane of its groups. */
static int32_t compute_lane(int32_t rank)
{
    return 2 * rank;
}
static int32_t group_lane(int32_t rank)
{
    return 2 * rank + 1;
}

static bool operation_need(const dp__proof_t *p, int32_t rank, int32_t position, int32_t k, dp__need_t *need)
{
    const dp_instr_t *i = dp__instr(p->v->program, rank, position);
    int32_t in = k == 0 ? i->in : i->in2;

    if (i->kind != DP_INSTR_COMPUTE || k >= 2)
        return false;
    if (in >= 0)
        *need = (dp__need_t){group_lane(rank), 2 * dp__instr(p->v->program, rank, in)->group + 1};
    return true;
}

/* The operation that makes what a SEND carries. */
static int32_t producer_of(const dp__proof_t *p, int32_t rank, const dp_instr_t *send)
{
    const dp__index_t *index = &p->v->index;

    return (send->op == DP_OP_F ? index->forward
                                : index->backward)[dp__index_at(index, rank, send->chunk, send->mb)];
}

static void posting_need(const dp__proof_t *p, int32_t rank, const dp_instr_t *transfer, dp__need_t *need)
{
    int32_t slots = dp__slots_of(p, transfer->channel);

    if (transfer->kind == DP_INSTR_SEND)
        *need = (dp__need_t){compute_lane(rank), producer_of(p, rank, transfer)};
    else if (transfer->sequence >= slots)
        *need = (dp__need_t){compute_lane(rank), p->v->release_at[dp__message_of(p->v, transfer) - slots]};
}

static void finishing_need(const dp__proof_t *p, const dp_instr_t *transfer, dp__need_t *need)
{
    const int32_t *there = transfer->kind == DP_INSTR_SEND ? p->v->recv_at : p->v->send_at;
    const dp_instr_t *other = dp__instr(p->v->program, transfer->peer, there[dp__message_of(p->v, transfer)]);

    *need = (dp__need_t){group_lane(transfer->peer), 2 * other->group};
}

static bool group_need(const void *context, int32_t lane, int32_t position, int32_t k, dp__need_t *need)
{
    const dp__proof_t *p = context;
    const dp_instr_t *transfer;
    int32_t ignored;

    *need = (dp__need_t){lane, -1}; /* nothing */
    if (lane % 2 == 0)
        return operation_need(p, lane / 2, position, k, need);
    transfer = member(p, lane / 2, position / 2, k, &ignored);
    if (transfer == NULL)
        return false;
    if (position % 2 == 0)
        posting_need(p, lane / 2, transfer, need);
    else
        finishing_need(p, transfer, need);
    return true;
}

static void group_name(const void *context, int32_t lane, int32_t position, char *text, size_t bytes)
{
    const dp__proof_t *p = context;
    char first[112] = "";
    int32_t at;

    if (lane % 2 == 0) {
        dp__instr_print(p->v->program, lane / 2, position, text, bytes);
        return;
    }
    if (member(p, lane / 2, position / 2, 0, &at) != NULL)
        dp__instr_print(p->v->program, lane / 2, at, first, sizeof(first));
    snprintf(text, bytes, "%s of group %d from %s on", position % 2 == 0 ? "posting" : "end", position / 2,
             first);
}

static dp_status_t create_groups(dp__proof_t *p)
{
    const dp_program_t *program = p->v->program;
    int64_t count = 0;

    p->transfer_first = dp__calloc((size_t)program->ranks + 1, sizeof(*p->transfer_first));
    if (p->transfer_first == NULL)
        return dp_fail(DP_ERR_NOMEM, "verify: no memory for %d ranks", program->ranks);
    for (int32_t r = 0; r < program->ranks; r++) {
        for (int32_t i = 0; i < dp__rank_instrs(program, r); i++) {
            uint8_t kind = dp__instr(program, r, i)->kind;

            count += kind == DP_INSTR_SEND || kind == DP_INSTR_RECV;
        }
        p->transfer_first[r + 1] = count;
    }
    p->transfers = dp__calloc((size_t)count, sizeof(*p->transfers));
    p->group_first = dp__calloc((size_t)count + (size_t)program->ranks, sizeof(*p->group_first));
    if (p->transfers == NULL || p->group_first == NULL)
        return dp_fail(DP_ERR_NOMEM, "verify: no memory for %lld transfers", (long long)count);
    for (int32_t r = 0; r < program->ranks; r++) {
        int32_t *first = p->group_first + p->transfer_first[r] + r;
        int32_t seen = 0, groups = 0;

        for (int32_t i = 0; i < dp__rank_instrs(program, r); i++) {
            const dp_instr_t *instr = dp__instr(program, r, i);

            if (instr->kind != DP_INSTR_SEND && instr->kind != DP_INSTR_RECV)
                continue;
            if (instr->group == groups)
                first[groups++] = seen;
            p->transfers[p->transfer_first[r] + seen++] = i;
        }
        first[groups] = seen;
        p->length[group_lane(r)] = 2 * groups;
    }
    return DP_OK;
}

/* Without tags, the n-th transfer from a to b on one side meets the n-th on the other. */
static dp_status_t check_pair_order(const dp__proof_t *p)
{
    const dp_program_t *program = p->v->program;
    int64_t messages = p->v->message_first[program->nchannels];
    int32_t *count = dp__calloc((size_t)program->ranks, sizeof(*count));
    int32_t *turn = dp__calloc((size_t)messages, sizeof(*turn));
    dp_status_t st = DP_OK;
    char a[160];

    if (count == NULL || turn == NULL)
        st = dp_fail(DP_ERR_NOMEM, "verify: no memory for %lld messages", (long long)messages);
    for (int pass = 0; pass < 2 && st >= 0; pass++) /* sends, then receives */
        for (int32_t r = 0; r < program->ranks && st >= 0; r++) {
            memset(count, 0, (size_t)program->ranks * sizeof(*count));
            for (int64_t t = p->transfer_first[r]; t < p->transfer_first[r + 1] && st >= 0; t++) {
                const dp_instr_t *i = dp__instr(program, r, p->transfers[t]);

                if (i->kind != (pass == 0 ? DP_INSTR_SEND : DP_INSTR_RECV))
                    continue;
                if (pass == 0) {
                    turn[dp__message_of(p->v, i)] = count[i->peer]++;
                } else if (turn[dp__message_of(p->v, i)] != count[i->peer]++) {
                    dp__instr_print(program, r, p->transfers[t], a, sizeof(a));
                    st = dp_fail(DP_ERR_REJECTED,
                                 "verify: %s is number %d of that pair of ranks, but number %d for "
                                 "the sender: a transport of groups matches them in order",
                                 a, count[i->peer] - 1, turn[dp__message_of(p->v, i)]);
                }
            }
        }
    dp__free(count);
    dp__free(turn);
    return st;
}

dp_status_t dp__group_flow(dp__proof_t *p, dp__flow_t *flow_out)
{
    dp_status_t st;

    for (int32_t r = 0; r < p->v->program->ranks; r++)
        p->length[compute_lane(r)] = dp__rank_instrs(p->v->program, r);
    *flow_out = (dp__flow_t){.lanes = 2 * p->v->program->ranks,
                             .length = p->length,
                             .context = p,
                             .need = group_need,
                             .name = group_name};
    st = create_groups(p);
    return st < 0 ? st : check_pair_order(p);
}
