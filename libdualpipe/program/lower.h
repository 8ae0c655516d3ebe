/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * lower.h: what the steps of lowering share. */
#ifndef DP_PROGRAM_LOWER_H
#define DP_PROGRAM_LOWER_H

#include "program/edges.h"
#include "schedule/index.h"

#include <stdbool.h>

/* A message on its way into the rank that is being written. Its RECV stands before operation `before`. */
typedef struct dp__arrival {
    int64_t made; /* time of the replay at which its operation ends */
    int32_t channel, sequence, before, consumer;
    int32_t chunk, mb;
} dp__arrival_t;

/* GROUPS: something that takes two ranks to end, at its moment. */
typedef struct dp__meeting {
    int64_t moment;
    uint8_t kind; /* DP_INSTR_SEND, RECV or REDUCE */
    int32_t src, dst; /* behind all ranks for REDUCE: its turn */
    int32_t channel, sequence, chunk, mb, before;
} dp__meeting_t;

typedef struct dp__lowering {
    const dp_schedule_t *schedule;
    dp_program_t *program;
    int32_t slots, prefetch, microbatches;
    bool grouped; /* for DP_TRANSPORT_GROUPS */
    dp__index_t index;
    dp__dataflow_t dataflow;
    int64_t *end; /* [operations] of the replay */
    dp__edges_t edges;
    int32_t *sequence[2];  /* [place] number of the message that F, or B or I, consumes */
    int64_t *moment[2];    /* the same places: when that message is made and has a slot; grouped only */
    int32_t *sent;         /* [channel] messages sent so far */
    int32_t *consumed;     /* [channel] messages consumed so far */
    int32_t *reduce_after; /* [rank * chunks + chunk] operation that its REDUCE follows */
    int32_t *reduce_order; /* [rank * chunks ...] chunks of a rank in the order of their reductions */
    int64_t *reduce_moment; /* [rank * chunks + chunk] when all holders are ready */

    /* Of the rank being written; a row of [microbatches] per chunk where there are micro-batches. */
    dp__arrival_t *arrivals, *spare;
    int32_t arrival_count;
    dp__meeting_t *meetings, *spare_meetings; /* grouped only */
    int32_t meeting_count;
    int32_t *releases;   /* row per channel-in: operation that consumed message number n; see arrivals.c */
    int32_t *not_before; /* [rank] of the receives from one source */
    int32_t *recv_at[2]; /* row per chunk: instruction that receives for F, for B or I */
    int32_t *slot_of;    /* row per chunk */
    int32_t *free_slots; /* row per chunk, a stack */
    int32_t *free_count; /* [chunk] */
} dp__lowering_t;

static inline int32_t dp__rank_ops(const dp_schedule_t *s, int32_t rank)
{
    return (int32_t)(s->first[rank + 1] - s->first[rank]);
}

static inline int dp__op_parts(const dp_op_t *op, dp__part_t part[2])
{
    return dp__parts(op->kind, op->chunk, op->mb, op->chunk2, op->mb2, part);
}

/* arrivals.c: fills w->arrivals with the receives of a rank in the order of the list. */
void dp__lower_arrivals(dp__lowering_t *w, int32_t rank);

/* When an operation starts in the replay. */
int64_t dp__lowering_start(const dp__lowering_t *w, int32_t rank, int32_t position);

/* meetings.c: the moments of all messages; what a rank has to do with others, in the order of the list. */
dp_status_t dp__lower_moments(dp__lowering_t *w);
void dp__lower_meetings(dp__lowering_t *w, int32_t rank);

/* reductions.c: orders the reductions of a rank, the same way on both holders of a stage. */
void dp__lower_reductions(dp__lowering_t *w, int32_t rank);

/* instructions.c: writes the instructions of a rank. */
void dp__lower_rank(dp__lowering_t *w, int32_t rank);

#endif
