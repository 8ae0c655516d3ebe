/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * prove.c: a program's flow under its transport ends, and with how few slots. */
#include "program/proof.h"

#include "base/memory.h"

#include <stdio.h>

static dp_status_t ends_with(dp__proof_t *p, const dp__flow_t *flow, int32_t slots)
{
    int32_t *progress = NULL;
    dp_status_t status;

    p->slots = slots;
    status = dp__flow_run(flow, &progress);
    dp__free(progress);
    return status;
}

/* More slots never hurt: doubles K until the program ends, then halves the gap. 0 stays if no K is
 * enough. */
static dp_status_t find_safe_slots(dp__proof_t *p, const dp__flow_t *flow, int32_t most, int32_t *safe_out)
{
    int32_t low = 0, high = 1;
    dp_status_t status = ends_with(p, flow, high);

    while (status == DP_ERR_REJECTED && high < most) {
        low = high;
        high = high <= most / 2 ? 2 * high : most;
        status = ends_with(p, flow, high);
    }
    if (status < 0)
        return status == DP_ERR_REJECTED ? DP_OK : status;
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;

        status = ends_with(p, flow, middle);
        if (status < 0 && status != DP_ERR_REJECTED)
            return status;
        *(status < 0 ? &low : &high) = middle;
    }
    *safe_out = high;
    return DP_OK;
}

/* The smallest K of the program's own channels between ranks. */
static int32_t fewest_slots(const dp_program_t *program)
{
    int32_t fewest = INT32_MAX;

    for (int32_t c = 0; c < program->nchannels; c++)
        if (program->channels[c].src != program->channels[c].dst && program->channels[c].slots < fewest)
            fewest = program->channels[c].slots;
    return fewest;
}

/* The program's own slots are enough, or the cycle is shown. */
static dp_status_t prove_credits(dp__proof_t *p)
{
    int32_t *safe = &p->v->report.safe_slots;
    char what[96] = "verify";
    dp__flow_t flow;
    dp_status_t status;

    dp__credit_flow(p, &flow);
    status = find_safe_slots(p, &flow, p->v->microbatches, safe);
    if (status < 0 || (*safe > 0 && fewest_slots(p->v->program) >= *safe))
        return status;
    p->slots = 0;
    if (*safe > 0)
        snprintf(what, sizeof(what), "verify: completes with %d slots a channel, not with %d", *safe,
                 fewest_slots(p->v->program));
    return dp__flow_prove(&flow, what);
}

static dp_status_t prove_bundles(dp__proof_t *p)
{
    dp__flow_t flow;
    dp_status_t status = dp__bundle_flow(p, &flow);

    return status < 0 ? status : dp__flow_prove(&flow, "verify");
}

dp_status_t dp__prove(dp__verification_t *v)
{
    dp__proof_t p = {.v = v, .length = dp__calloc((size_t)v->program->ranks, sizeof(*p.length))};
    dp_status_t status;

    v->report.operations = v->program->first[v->program->ranks];
    if (p.length == NULL)
        status = dp_fail(DP_ERR_NOMEM, "verify: no memory for %d ranks", v->program->ranks);
    else
        status = v->program->transport == DP_TRANSPORT_BUNDLES ? prove_bundles(&p) : prove_credits(&p);
    dp__free(p.length);
    dp__free(p.reduce_at);
    return status;
}
