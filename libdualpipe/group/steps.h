/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * steps.h: what each rank says when it begins a step or closes its pipeline. Nobody waits for an
 * answer; ranks that differ end the job at once. */
#ifndef DP_GROUP_STEPS_H
#define DP_GROUP_STEPS_H

#include <dualpipe/group.h>
#include <stdbool.h>

/* All members have 8 bytes, and are sent as they are. */
typedef struct dp__step_call {
    uint64_t pipeline; /* a number of the job's */
    uint64_t call;     /* steps that this pipeline began before */
    uint64_t step;     /* as the trainer counts */
    /* of this rank's step before: the least time of an attention F, I and W together; 0: none */
    uint64_t pace_ns;
    uint64_t closed, forward_only, round, rounds, microbatches;
    uint64_t first, count; /* the ranks of this copy of the model; what follows is equal on those */
    double loss_scale;
    uint64_t tokens, documents, lengths; /* how many in all, and a digest of both lists */
} dp__step_call_t;
enum { DP__STEP_WORDS = sizeof(dp__step_call_t) / sizeof(uint64_t) };

typedef dp__step_call_t dp__step_calls_t[2]; /* the latest of a rank, by call % 2 */

/* Keeps what `rank` of `size` ranks says in said[rank]. false: it differs from what another rank
 * has said, as `text` tells. */
bool dp__steps_hear(dp__step_calls_t *said, int32_t size, int32_t rank, const dp__step_call_t *call, char *text,
                    size_t bytes);

/* Says it. [main] */
void dp__group_tell_step(dp_group_t *group, const dp__step_call_t *call);

#endif
