/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * pace.h: who takes longer than its peers for the same work, step after step. */
#ifndef DP_GROUP_PACE_H
#define DP_GROUP_PACE_H

#include "group/steps.h"

#define DP__PACE_STEPS 16

/* What a rank took in its latest steps. */
typedef struct dp__pace {
    uint64_t pipeline; /* of these steps */
    uint64_t ns[DP__PACE_STEPS];
    uint32_t count;
    uint32_t place, copies; /* its rank of the pipeline; copies of the model in the job */
} dp__pace_t;

typedef struct dp__straggler {
    int32_t rank; /* -1: none */
    double times; /* as long as its peers */
} dp__straggler_t;

/* Keeps what rank `rank` of `size` says of its step before. */
void dp__pace_hear(dp__pace_t *paces, int32_t size, int32_t rank, const dp__step_call_t *call);
/* Over DP__PACE_STEPS steps. named: who was it before, -1: none; to remain one takes less than to
 * become one. */
dp__straggler_t dp__pace_straggler(const dp__pace_t *paces, int32_t size, int32_t named);

#endif
