/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * problem.h: what is planned: chunks, segments, the order of passes, messages, memory. */
#ifndef DP_OVERLAP_PROBLEM_H
#define DP_OVERLAP_PROBLEM_H

#include <dualpipe/overlap.h>

#include <stdbool.h>

#include "simulate/stages.h"

/* Kinds of passes: a B is an I and a W here. */
enum { PASS_F, PASS_I, PASS_W, PASS_KINDS };
enum { LANE_COMPUTE, LANE_ALL_TO_ALL, LANES };

/* Of all ranks: that of rank r and chunk c has number r * chunks + c. */
typedef struct dp__overlap_chunk {
    int32_t rank, path, stage;
    int32_t prev, next; /* numbers of chunks, -1: none */
    double hop;         /* until what it makes is at the next chunk, or at the one before it */
    double back_hop;
    double share;         /* of a rank's stage inputs */
    int32_t first, count; /* its segments */
    /* last segment of its first part, first segment of its last one */
    int32_t part_end, part_begin;
    /* and those that have weights, from the last to the first; one at least */
    int32_t first_weight, weights;
    double work[PASS_KINDS][LANES]; /* sums */
    double chain[PASS_KINDS];       /* of what runs one after the other: without SHARED segments */
} dp__overlap_chunk_t;

typedef struct dp__overlap_segment {
    uint8_t lane;
    bool shared; /* of role SHARED */
    /* in F and in I: what it waits for, and what waits for a SHARED one; -1: nothing */
    int16_t behind[2], ahead[2];
    double cost[PASS_KINDS];
} dp__overlap_segment_t;

typedef struct dp__overlap_problem {
    int32_t ranks, chunks, stages, paths, microbatches; /* microbatches: of a path */
    int32_t slots;
    int kinds;                      /* of passes: PASS_KINDS, or F alone */
    double period;                  /* computation of a rank for one micro-batch */
    dp__overlap_chunk_t *chunk;     /* [ranks * chunks] */
    double *cap;                    /* [ranks] of memory; infinite: none */
    dp__overlap_segment_t *segment; /* by chunk */
    int32_t *weight;                /* numbers of segments within their chunk, by chunk */
} dp__overlap_problem_t;

/* costs: resolved, with segments. Clear with dp__overlap_problem_clear, also after failure. */
dp_status_t dp__overlap_problem_make(const dp_schedule_t *schedule, const dp_costs_t *costs, int32_t slots,
                                     dp__overlap_problem_t *out);
void dp__overlap_problem_clear(dp__overlap_problem_t *problem);

/* From the start of pass `kind`, F or I, at the chunk: down, or up, to the end of the path. */
double dp__overlap_chain(const dp__overlap_problem_t *problem, int32_t chunk, int kind);
/* Where its path begins, of kind F, or ends. */
int32_t dp__overlap_end(const dp__overlap_problem_t *problem, int32_t chunk, int kind);

/* Segments of all passes of a chunk. */
static inline int64_t dp__overlap_calls(const dp__overlap_problem_t *p, int32_t chunk)
{
    const dp__overlap_chunk_t *c = &p->chunk[chunk];

    return (int64_t)(p->kinds == PASS_KINDS ? 2 * c->count + c->weights : c->count) * p->microbatches;
}

#endif
