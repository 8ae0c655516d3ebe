/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * prove.c: the two transports as flows of lanes, and the proof that they end.
 *
 * CREDITS, one lane per rank: operations and sends in the order of the list, although sends really leave
 * beside computing; a small message may be sent inline, so the stricter order has to be safe. An operation
 * waits for the sends of its inputs; send n of a channel waits for the operation that consumes message n - K.
 * Receives wait for nothing.
 *
 * GROUPS, two lanes per rank. Groups are posted and finished one after the other, each as a posting and a
 * finishing step: posting waits for the operations whose data it sends and for those that free the slots it
 * receives into; finishing waits until the other side of every transfer is posted. An operation waits for the
 * groups that hold its inputs. */
#include "program/verify.h"

#include "base/memory.h"

#include <stdio.h>
#include <string.h>

typedef struct dp__proof {
    const dp__verification_t *v;
    int32_t slots; /* K of every channel between ranks; 0: the program's own */
    /* GROUPS: transfers of all ranks in order, and where each rank's and each group's begin. */
    int32_t *transfers;      /* instruction numbers */
    int64_t *transfer_first; /* [ranks + 1] */
    int32_t *group_first;    /* by transfer_first[rank] + rank + group: index among the rank's transfers */
    int32_t *length;         /* [lanes] */
} dp__proof_t;

static const dp__need_t nothing = {0, -1};

static int64_t message_of(const dp__verification_t *v, const dp_instr_t *transfer)
{
    return v->message_first[transfer->channel] + transfer->sequence;
}

static int32_t slots_of(const dp__proof_t *p, int32_t channel)
{
    return p->slots > 0 ? p->slots : p->v->program->channels[channel].slots;
}

/* The k-th input of an operation as the transfer that brings it, or NULL. */
static const dp_instr_t *input_of(const dp_program_t *program, int32_t rank, const dp_instr_t *i, int32_t k)
{
    int32_t in = k == 0 ? i->in : i->in2;

    return in >= 0 ? dp__instr(program, rank, in) : NULL;
}

/* ---- credits ---- */

static bool credit_need(const void *context, int32_t rank, int32_t position, int32_t k, dp__need_t *need)
{
    const dp__proof_t *p = context;
    const dp_program_t *program = p->v->program;
    const dp_instr_t *i = dp__instr(program, rank, position);

    *need = nothing;
    if (i->kind == DP_INSTR_COMPUTE) {
        const dp_instr_t *recv = k < 2 ? input_of(program, rank, i, k) : NULL;

        if (recv != NULL)
            *need = (dp__need_t){recv->peer, p->v->send_at[message_of(p->v, recv)]};
        return k < 2;
    }
    if (i->kind == DP_INSTR_SEND && i->sequence >= slots_of(p, i->channel))
        *need = (dp__need_t){i->peer, p->v->release_at[message_of(p->v, i) - slots_of(p, i->channel)]};
    return i->kind == DP_INSTR_SEND && k == 0;
}

static void credit_name(const void *context, int32_t rank, int32_t position, char *text, size_t bytes)
{
    dp__instr_print(((const dp__proof_t *)context)->v->program, rank, position, text, bytes);
}

/* ---- groups ---- */

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
    const dp_instr_t *recv;

    if (i->kind != DP_INSTR_COMPUTE || k >= 2)
        return false;
    recv = input_of(p->v->program, rank, i, k);
    if (recv != NULL)
        *need = (dp__need_t){group_lane(rank), 2 * recv->group + 1};
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
    int32_t slots = slots_of(p, transfer->channel);

    if (transfer->kind == DP_INSTR_SEND)
        *need = (dp__need_t){compute_lane(rank), producer_of(p, rank, transfer)};
    else if (transfer->sequence >= slots)
        *need = (dp__need_t){compute_lane(rank), p->v->release_at[message_of(p->v, transfer) - slots]};
}

static void finishing_need(const dp__proof_t *p, const dp_instr_t *transfer, dp__need_t *need)
{
    const int32_t *there = transfer->kind == DP_INSTR_SEND ? p->v->recv_at : p->v->send_at;
    const dp_instr_t *other = dp__instr(p->v->program, transfer->peer, there[message_of(p->v, transfer)]);

    *need = (dp__need_t){group_lane(transfer->peer), 2 * other->group};
}

static bool group_need(const void *context, int32_t lane, int32_t position, int32_t k, dp__need_t *need)
{
    const dp__proof_t *p = context;
    const dp_instr_t *transfer;
    int32_t ignored;

    *need = nothing;
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
                    turn[message_of(p->v, i)] = count[i->peer]++;
                } else if (turn[message_of(p->v, i)] != count[i->peer]++) {
                    dp__instr_print(program, r, p->transfers[t], a, sizeof(a));
                    st = dp_fail(DP_ERR_REJECTED,
                                 "verify: %s is number %d of that pair of ranks, but number %d for "
                                 "the sender: a transport of groups matches them in order",
                                 a, count[i->peer] - 1, turn[message_of(p->v, i)]);
                }
            }
        }
    dp__free(count);
    dp__free(turn);
    return st;
}

static void count_nodes(dp__verification_t *v, const dp__flow_t *flow)
{
    for (int32_t lane = 0; lane < flow->lanes; lane++)
        v->report.operations += flow->length[lane];
}

static dp_status_t prove_groups(dp__verification_t *v, dp__proof_t *p)
{
    dp__flow_t flow = {.lanes = 2 * v->program->ranks,
                       .length = p->length,
                       .context = p,
                       .need = group_need,
                       .name = group_name};
    dp_status_t st;

    for (int32_t r = 0; r < v->program->ranks; r++)
        p->length[compute_lane(r)] = dp__rank_instrs(v->program, r);
    st = create_groups(p);
    if (st >= 0)
        st = check_pair_order(p);
    if (st < 0)
        return st;
    count_nodes(v, &flow);
    return dp__flow_prove(&flow, "verify");
}

/* ---- smallest K ---- */

static dp_status_t ends_with(dp__proof_t *p, const dp__flow_t *flow, int32_t slots)
{
    int32_t *progress = NULL;
    dp_status_t st;

    p->slots = slots;
    st = dp__flow_run(flow, &progress);
    dp__free(progress);
    return st;
}

/* More slots never hurt: doubles K until the program ends, then halves the gap. 0 stays when no K is enough.
 * */
static dp_status_t find_safe_slots(dp__proof_t *p, const dp__flow_t *flow, int32_t *safe_out)
{
    int32_t most = p->v->microbatches, low = 0, high = 1;
    dp_status_t st = ends_with(p, flow, high);

    while (st == DP_ERR_REJECTED && high < most) {
        low = high;
        high = high <= most / 2 ? 2 * high : most;
        st = ends_with(p, flow, high);
    }
    if (st < 0)
        return st == DP_ERR_REJECTED ? DP_OK : st;
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;

        st = ends_with(p, flow, middle);
        if (st < 0 && st != DP_ERR_REJECTED)
            return st;
        *(st < 0 ? &low : &high) = middle;
    }
    *safe_out = high;
    return DP_OK;
}

/* The smallest K of the program's own channels between ranks. */
static int32_t fewest_slots(const dp__verification_t *v)
{
    int32_t fewest = INT32_MAX;

    for (int32_t c = 0; c < v->program->nchannels; c++)
        if (v->program->channels[c].src != v->program->channels[c].dst &&
            v->program->channels[c].slots < fewest)
            fewest = v->program->channels[c].slots;
    return fewest;
}

static dp_status_t prove_credits(dp__verification_t *v, dp__proof_t *p)
{
    dp__flow_t flow = {.lanes = v->program->ranks,
                       .length = p->length,
                       .context = p,
                       .need = credit_need,
                       .name = credit_name};
    dp_status_t st;

    for (int32_t r = 0; r < v->program->ranks; r++)
        p->length[r] = dp__rank_instrs(v->program, r);
    count_nodes(v, &flow);
    st = find_safe_slots(p, &flow, &v->report.safe_slots);
    if (st < 0 || (v->report.safe_slots > 0 && fewest_slots(v) >= v->report.safe_slots))
        return st;
    p->slots = 0;
    return dp__flow_prove(&flow, "verify");
}

dp_status_t dp__prove(dp__verification_t *v)
{
    dp__proof_t p = {.v = v};
    dp_status_t st;

    p.length = dp__calloc(2 * (size_t)v->program->ranks, sizeof(*p.length));
    if (p.length == NULL)
        return dp_fail(DP_ERR_NOMEM, "verify: no memory for %d ranks", v->program->ranks);
    st = v->transport == DP_TRANSPORT_GROUPS ? prove_groups(v, &p) : prove_credits(v, &p);
    dp__free(p.length);
    dp__free(p.transfers);
    dp__free(p.transfer_first);
    dp__free(p.group_first);
    return st;
}
