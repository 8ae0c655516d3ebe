/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * pair.h: the order in which the segments of an overlapped forward and backward are enqueued. */
#ifndef DP_PROGRAM_PAIR_H
#define DP_PROGRAM_PAIR_H

#include <dualpipe/schedule.h>
#include <dualpipe/types.h>
#include <stdbool.h>

typedef struct dp__segment_shape {
    uint8_t role;        /* dp_segment_role_t */
    uint8_t lane;        /* dp_lane_t */
    uint8_t has_weight;  /* 1: it has a backward for weights */
    uint8_t begins_part; /* 1: the first of its part */
    uint8_t recomputes;  /* 1: it does R before its I; on the compute lane */
} dp__segment_shape_t;

typedef struct dp__stage_shape {
    int32_t nsegments;
    const dp__segment_shape_t *segments;
    bool backward_buffer; /* it has memory that only a backward has */
} dp__stage_shape_t;

/* One entry of a merged order: pass `pass` (DP_OP_F, DP_OP_I or DP_OP_W) of segment `segment`. */
typedef struct dp__pair_step {
    uint8_t pass;
    /* index in the forward's list (F) or in the backward's (I, W), both in forward order */
    int16_t segment;
} dp__pair_step_t;

enum { DP__LAYER_SEGMENTS = 7 }; /* at most */

/* How many of the first of n segments are a layer (types.h); 0: they are none. */
int32_t dp__layer_length(const dp__segment_shape_t *segments, int32_t n);
/* The segment of that role among n; -1: there is none. */
int32_t dp__layer_find(const dp__segment_shape_t *segments, int32_t n, int role);

/* The segment before another (step -1) or behind it (1) that a pass waits for or that waits for it.
 * SHARED ones are passed over: only their lane waits for them. */
int32_t dp__segment_next(const dp__segment_shape_t *segments, int32_t segment, int32_t step);
/* What a SHARED segment runs behind, and ahead of: ATTENTION and SUM in F, SUM and MLP in I. */
void dp__shared_place(const dp__stage_shape_t *stage, int32_t shared, bool forward, int32_t *behind_out,
                      int32_t *ahead_out);

/* Merges the segments of one forward and one full backward; nf or nb may be 0 (a lone F or B). The
 * order is that of dp_segment_role_t; leftover layers follow alone. steps_out has room for nf + 2 *
 * nb entries. Source: deepseek-ai/profile-data, training trace. */
int32_t dp__pair_order(const dp__segment_shape_t *forward, int32_t nf, const dp__segment_shape_t *backward, int32_t nb,
                       dp__pair_step_t *steps_out);

#endif
