/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * lower.h: what the steps of lowering share, and which file fills it. */
#ifndef DP_PROGRAM_LOWER_H
#define DP_PROGRAM_LOWER_H

#include "program/edges.h"
#include "program/replay.h"
#include "schedule/passes.h"

/* When the gradients of chunks can be summed; rows of [chunks] by rank. */
typedef struct dp__reductions {
    int32_t *after; /* by chunk: operation that its REDUCE follows under CREDITS */
    /* chunks of a rank in the order of their reductions, the same on both holders of a stage */
    int32_t *order;
    int64_t *logical_time; /* by chunk: when all holders are ready */
} dp__reductions_t;

/* BUNDLES: something that takes two ranks to end, at its logical time. */
typedef struct dp__event {
    int64_t logical_time;
    uint8_t kind;     /* DP_INSTR_SEND, RECV or REDUCE */
    int32_t src, dst; /* REDUCE: behind all ranks, and its place in their order */
    int32_t channel, chunk, microbatch;
    int32_t before; /* operation of the rank that it stands before */
} dp__event_t;

typedef struct dp__lowering {
    const dp_schedule_t *schedule; /* without braids */
    dp_program_t *program;         /* lower.c; its instructions: instructions.c */
    int32_t slots, microbatches;   /* K between ranks; of a path */
    dp__replay_t replay;
    dp__edges_t edges;
    /* lower.c: [place] number of the message that F, or B or I, consumes */
    int32_t *number[2];
    /* logical_times.c: the same places: when that message is made and has a slot */
    int64_t *logical_time[2];
    dp__reductions_t reductions; /* reductions.c */
} dp__lowering_t;

static inline int32_t dp__rank_ops(const dp_schedule_t *s, int32_t rank)
{
    return (int32_t)(s->first[rank + 1] - s->first[rank]);
}

static inline int dp__op_parts(const dp_op_t *op, dp__part_t part[2])
{
    return dp__parts(op->kind, op->chunk, op->microbatch, op->chunk2, op->microbatch2, part);
}

/* Number of the message that the F (DP_OP_F) or backward of a chunk consumes. */
static inline int32_t dp__number_of(const dp__lowering_t *w, int32_t rank, int32_t chunk, int op, int32_t microbatch)
{
    return w->number[op == DP_OP_B][dp__index_at(&w->replay.index, rank, chunk, microbatch)];
}

enum { DP__USUAL_SLOTS = 2 };

/* lower.c: as dp_program_lower(), of options that are whole and slots that are a number. */
dp_status_t dp__program_lower(const dp_schedule_t *schedule, const dp_lower_options_t *options,
                              dp_program_t **program_out);

/* logical_times.c: the logical times of all messages; what a rank has to do with others in the
 * order of its list: returns how many, at most 4 * chunks * microbatches + chunks. */
dp_status_t dp__logical_times_find(dp__lowering_t *w);
int32_t dp__logical_times_of_rank(const dp__lowering_t *w, int32_t rank, dp__event_t *events);

/* reductions.c */
dp_status_t dp__reductions_find(dp__lowering_t *w);

/* instructions.c: writes the lists of all ranks. */
dp_status_t dp__instructions_write(dp__lowering_t *w);

#endif
