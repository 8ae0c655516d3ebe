/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * prove.c: a program's flow under a transport ends, and with how few slots. */
#include "program/proof.h"

#include "base/memory.h"

int32_t dp__fewest_slots(const dp_program_t *program)
{
    int32_t fewest = INT32_MAX;

    for (int32_t c = 0; c < program->nchannels; c++)
        if (program->channels[c].src != program->channels[c].dst && program->channels[c].slots < fewest)
            fewest = program->channels[c].slots;
    return fewest;
}

static dp_status_t ends_with(dp__proof_t *p, const dp__flow_t *flow, int32_t slots)
{
    int32_t *progress = NULL;
    dp_status_t st;

    p->slots = slots;
    st = dp__flow_run(flow, &progress);
    dp__free(progress);
    return st;
}

/* More slots never hurt: doubles K until the program ends, then halves the gap. 0 stays if no K is enough. */
static dp_status_t find_safe_slots(dp__proof_t *p, const dp__flow_t *flow, int32_t most, int32_t *safe_out)
{
    int32_t low = 0, high = 1;
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

/* The program's own slots are enough, or the cycle is shown. When channels share, their K is the smallest of
 * them. */
static dp_status_t prove_slots(dp__proof_t *p, const dp__flow_t *flow, bool shared)
{
    int32_t *safe = &p->v->report.safe_slots;
    int32_t own = dp__fewest_slots(p->v->program);
    int64_t most = (int64_t)p->v->microbatches * (shared ? 2 * p->v->program->chunks : 1);
    dp_status_t st = find_safe_slots(p, flow, most < INT32_MAX ? (int32_t)most : INT32_MAX, safe);

    if (st < 0 || (*safe > 0 && own >= *safe))
        return st;
    p->slots = shared ? own : 0;
    return dp__flow_prove(flow, "verify");
}

/* Groups that end need not end when every rank does one thing at a time; it is a fact to report. */
static dp_status_t look_whether_in_order(dp__proof_t *p)
{
    dp__flow_t flow;
    dp_status_t st = dp__strict_flow(p, &flow);

    if (st >= 0)
        st = ends_with(p, &flow, 0);
    p->v->report.in_order = st >= 0;
    return st == DP_ERR_REJECTED ? DP_OK : st;
}

static dp_status_t prove(dp__proof_t *p, dp_transport_t transport)
{
    bool shared = transport == DP_TRANSPORT_SHARED_CREDITS;
    dp__flow_t flow;
    dp_status_t st =
        transport == DP_TRANSPORT_GROUPS ? dp__group_flow(p, &flow) : dp__credit_flow(p, shared, &flow);

    if (st < 0)
        return st;
    for (int32_t lane = 0; lane < flow.lanes; lane++)
        p->v->report.operations += flow.length[lane];
    if (transport != DP_TRANSPORT_GROUPS)
        return prove_slots(p, &flow, shared);
    st = dp__flow_prove(&flow, "verify");
    return st < 0 ? st : look_whether_in_order(p);
}

dp_status_t dp__prove(dp__verification_t *v)
{
    dp__proof_t p = {.v = v};
    dp_status_t st;

    p.length = dp__calloc(2 * (size_t)v->program->ranks, sizeof(*p.length));
    if (p.length == NULL)
        st = dp_fail(DP_ERR_NOMEM, "verify: no memory for %d ranks", v->program->ranks);
    else
        st = prove(&p, v->transport);
    dp__free(p.length);
    dp__free(p.sent_before);
    dp__free(p.release);
    dp__free(p.first_release);
    dp__free(p.transfers);
    dp__free(p.transfer_first);
    dp__free(p.group_first);
    dp__free(p.reduce_at);
    return st;
}
