/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * proof.h: a program as a flow of lanes, one description per transport. */
#ifndef DP_PROGRAM_PROOF_H
#define DP_PROGRAM_PROOF_H

#include "program/verify.h"

typedef struct dp__proof {
    dp__verification_t *v;
    int32_t *length; /* [ranks] steps of each lane */
    int32_t slots;   /* K to assume everywhere; 0: the program's own */
    /* bundles.c: [ranks * chunks] instruction numbers of a rank's reductions, in order */
    int32_t *reduce_at;
} dp__proof_t;

static inline int64_t dp__message_of(const dp__verification_t *v, const dp_instr_t *transfer)
{
    return v->message_first[transfer->channel] + transfer->number;
}

/* K of a channel under the proof's assumption. */
static inline int32_t dp__slots_of(const dp__proof_t *p, int32_t channel)
{
    return p->slots > 0 ? p->slots : p->v->program->channels[channel].slots;
}

/* Fill *flow_out, whose lanes, lengths and context belong to the proof. */
void dp__credit_flow(dp__proof_t *p, dp__flow_t *flow_out);
dp_status_t dp__bundle_flow(dp__proof_t *p, dp__flow_t *flow_out);

#endif
