/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * proof.h: a program as a flow of lanes, one description per transport. */
#ifndef DP_PROGRAM_PROOF_H
#define DP_PROGRAM_PROOF_H

#include "program/verify.h"

typedef struct dp__proof {
    dp__verification_t *v;
    int32_t *length; /* [2 * ranks] steps of each lane */
    int32_t slots;   /* K to assume everywhere; 0: the program's own */

    /* credits.c, when all channels between two ranks share their slots. By message: how many its sender sent
     * to that rank before. By first_release[channel] + n: the operation that frees the n-th slot of that pair
     * of ranks. */
    int32_t *sent_before, *release;
    int64_t *first_release; /* [channels] */

    /* groups.c: transfers of all ranks in order, and where each rank's and each group's begin. */
    int32_t *transfers;      /* instruction numbers */
    int64_t *transfer_first; /* [ranks + 1] */
    int32_t *group_first;    /* by transfer_first[rank] + rank + group: index among the rank's transfers */

    int32_t *reduce_at; /* strict.c: [ranks * chunks] instruction numbers of a rank's reductions, in order */
} dp__proof_t;

static inline int64_t dp__message_of(const dp__verification_t *v, const dp_instr_t *transfer)
{
    return v->message_first[transfer->channel] + transfer->sequence;
}

/* K of a channel under the proof's assumption. */
static inline int32_t dp__slots_of(const dp__proof_t *p, int32_t channel)
{
    return p->slots > 0 ? p->slots : p->v->program->channels[channel].slots;
}

/* The smallest K of the program's own channels between ranks. */
int32_t dp__fewest_slots(const dp_program_t *program);

/* Fill *flow_out, whose lanes, lengths and context belong to the proof. */
dp_status_t dp__credit_flow(dp__proof_t *p, bool shared, dp__flow_t *flow_out);
dp_status_t dp__group_flow(dp__proof_t *p, dp__flow_t *flow_out);
dp_status_t dp__strict_flow(dp__proof_t *p, dp__flow_t *flow_out);

#endif
