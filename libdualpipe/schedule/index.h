/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * index.h: where each forward, backward and weight gradient stands in the list of its rank. */
#ifndef DP_SCHEDULE_INDEX_H
#define DP_SCHEDULE_INDEX_H

#include "schedule/flow.h"

#include <dualpipe/schedule.h>

typedef struct dp__index {
    int32_t chunks, microbatches; /* per rank; of one path */
    int32_t *forward;             /* position of F. -1: none. FB counts as both its sides */
    int32_t *backward;            /* of B or I */
    int32_t *weight;              /* of B or W */
} dp__index_t;

static inline size_t dp__index_at(const dp__index_t *x, int32_t rank, int32_t chunk, int32_t microbatch)
{
    return ((size_t)rank * (size_t)x->chunks + (size_t)chunk) * (size_t)x->microbatches + (size_t)microbatch;
}

/* Empty tables for a schedule's shape, all -1. `operations` bounds them: fewer operations than
 * places means that some are missing, DP_ERR_REJECTED. Clear with dp__index_clear, also after
 * failure. */
dp_status_t dp__index_create(const dp_schedule_t *schedule, int64_t operations, dp__index_t *x);
void dp__index_clear(dp__index_t *x);

/* Enters one operation of `rank` that stands at `position`, after all earlier ones of that rank:
 * ids in range, nothing twice, F before B or I, I before W. */
dp_status_t dp__index_enter(dp__index_t *x, const dp_schedule_t *schedule, int32_t rank, int32_t position,
                            const dp_op_t *op);

/* Every place is filled: each F, and unless forward_only each backward and weight gradient. */
dp_status_t dp__index_complete(const dp__index_t *x, const dp_schedule_t *schedule);

/* All of it for a schedule's own lists. */
dp_status_t dp__index_build(const dp_schedule_t *schedule, dp__index_t *x);

/* "rank 1 F chunk 0 mb 3"; returns what snprintf does. */
int dp__op_print(char *text, size_t bytes, int32_t rank, const dp_op_t *op);

/* The operation at `position` of a rank's list, with its place: "rank 1 F chunk 0 mb 3 (op 5)", or
 * in the words of the file that it was read from: "row 2, cell 6 (1F3)". */
void dp__op_name(const dp_schedule_t *schedule, int32_t rank, int32_t position, const dp_op_t *op, char *text,
                 size_t bytes);

/* The schedule's lists as a flow over data dependencies alone, one lane per rank. The arrays live
 * in the struct; clear it. */
typedef struct dp__dataflow {
    const dp_schedule_t *schedule;
    const dp__index_t *index;
    int32_t *length;
    dp_place_t *place; /* [ranks * chunks] */
    dp__flow_t flow;
} dp__dataflow_t;
dp_status_t dp__dataflow_create(const dp_schedule_t *schedule, const dp__index_t *index, dp__dataflow_t *d);
void dp__dataflow_clear(dp__dataflow_t *d);

#endif
