/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * reductions.h: what is summed over ranks: gradients, whole or in shards, shared parameters,
 * losses. */
#ifndef DP_ENGINE_REDUCTIONS_H
#define DP_ENGINE_REDUCTIONS_H

#include "engine/lanes.h"

enum { DP__SUM_COUNT = 4096 }; /* doubles that dp_pipeline_sum moves at once */

enum { DP__TIES = 16 }; /* parameters of a model that two stages share, at most */

/* norm.c: whether this replica is the first of its expert; placement NULL: there are no replicas */
bool dp__first_replica(const int32_t *placement, int32_t replica);

/* sums.c */
typedef struct dp__sums {
    /* Both the host and the device reach them. losses: [M], then auxiliary losses [nparts][2
     * halves]; a micro-batch, and half of a part's, is made on one rank, everywhere else it is
     * zero: sums over the pipeline are exact. staging: for dp_pipeline_sum. */
    double *losses, *staging;
    /* where sums are made: the same, or their twins in device memory */
    double *losses_there, *staging_there;
} dp__sums_t;

/* ties.c: one parameter in two places, its ends, in the order of the path. */
typedef struct dp__tie {
    char name[DP__SHARED_BYTES];
    int32_t ends; /* 2 once the table is made */
    int64_t kind;
    size_t count;
    int32_t stage[2];
    size_t offset[2]; /* elements, within the stage */
    int32_t chunk[2]; /* of this rank, -1: another's */
    /* between which pipeline ranks we sum: the same for both when we have both, -1 when none */
    int32_t rank[2];
    int32_t span; /* of the sum, in the plan for training */
} dp__tie_t;

typedef struct dp__ties {
    int32_t n;
    dp__tie_t at[DP__TIES]; /* the same on all ranks, but for what is said to be ours */
    bool any;               /* a rank has shared parameters */
    bool checked;           /* the ends have the same values */
} dp__ties_t;

/* sums.c */
dp_status_t dp__sums_open(dp_pipeline_t *p);
void dp__sums_close(dp_pipeline_t *p);

/* reduce.c */
dp_status_t dp__reduce(dp_pipeline_t *p, int32_t chunk, int32_t span);
char *dp__summed_grads(const dp__chunk_t *chunk);

/* shards.c; on: optimizers have shards, so that what a rank has of them nobody else has. */
bool dp__zero_is_on(const dp_pipeline_t *p);
bool dp__shard_is_cut(const dp_pipeline_t *p, const dp_part_t *part, const dp_param_t *param);
dp_status_t dp__shards_make(dp_pipeline_t *p);
void dp__shards_free(dp__chunk_t *chunk);
/* Over mirrors and data groups, on the reduce lane. */
dp_status_t dp__shards_sum(dp_pipeline_t *p, const dp__chunk_t *chunk, char *grads);
/* Before parameters are used: by a lane in a step; by anything else. */
dp_status_t dp__gather_wait(dp_pipeline_t *p, dp__chunk_t *chunk, int lane);
dp_status_t dp__gather_finish(dp_pipeline_t *p);

/* ties.c; nothing where no parameters are shared. find: makes the table and opens what sums need;
 * check: before the first step, whether both ends begin alike; both collective. put: the sums,
 * behind all else on the reduce lane. */
dp_status_t dp__ties_find(dp_pipeline_t *p);
dp_status_t dp__ties_check(dp_pipeline_t *p);
dp_status_t dp__ties_put(dp_pipeline_t *p);
/* Whether the parameter is the end that is neither counted nor saved. */
bool dp__tie_is_second(const dp_pipeline_t *p, int32_t stage, const dp_param_t *param);

#endif
