/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * types.h: words that headers of trainers, plugins and reports share: element types, lanes, what a
 * segment is. */
#ifndef DUALPIPE_TYPES_H
#define DUALPIPE_TYPES_H

#include <dualpipe/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Objects and tables that many headers point to; what is in them is said where `struct` stands. */
typedef struct dp_host dp_host_t;           /* plugin.h: the services that a plugin gets */
typedef struct dp_device_vt dp_device_vt_t; /* device.h: the functions of a device plugin, */
typedef struct dp_device dp_device_t;       /* a device that is open: one for each rank, */
typedef struct dp_stream dp_stream_t;       /* and a queue of it, whose work runs in order */
typedef struct dp_comm_vt dp_comm_vt_t;     /* comm.h: the functions of a comm plugin, */
typedef struct dp_comm dp_comm_t;           /* and a backend that is open */
typedef struct dp_schedule dp_schedule_t;   /* schedule.h */
typedef struct dp_program dp_program_t;     /* program.h */
typedef struct dp_timeline dp_timeline_t;   /* timeline.h */

/** DP_U8 is for bytes that are kept, not computed with (state.h). */
typedef enum dp_dtype { DP_F32 = 0, DP_F64 = 1, DP_BF16 = 2, DP_I64 = 3, DP_U8 = 4 } dp_dtype_t;

/** Bytes of one element. */
static inline size_t dp_dtype_bytes(dp_dtype_t t)
{
    return t == DP_F32 ? 4 : t == DP_BF16 ? 2 : t == DP_U8 ? 1 : 8;
}

/** The type in which gradients and the optimizer's state are kept for parameters of type t: fp32
 *  for DP_BF16, t itself otherwise. */
static inline dp_dtype_t dp_dtype_accumulator(dp_dtype_t t)
{
    return t == DP_BF16 ? DP_F32 : t;
}

/** What work a stream carries, and so which partition it runs on. */
typedef enum dp_lane {
    DP_LANE_COMPUTE = 0,    /* attention, GEMMs: the compute partition */
    DP_LANE_ALL_TO_ALL = 1, /* dispatch, combine: the communication partition */
    DP_LANE_P2P = 2,        /* stage-to-stage transfers: the communication partition */
    DP_LANE_REDUCE = 3,     /* gradient sums: the communication partition */
    DP_LANE_COUNT = 4
} dp_lane_t;

/** What a segment is; OTHER for a trainer's own. Layers of an overlapped forward and backward that
 *  have the shape ATTENTION, DISPATCH, MLP, COMBINE are merged, layer pair by layer pair, into the
 *  order of DeepSeek's published profile: combine(B) attention(F) mlp(B) dispatch(F) dispatch(B)
 *  mlp(W) mlp(F) attention(B) attention(W) combine(F). Other segments are merged alternating, each
 *  list in its own order.
 *
 *  A layer may be cut finer: PROJECT, ATTENTION, DISPATCH, MLP, SHARED, COMBINE, SUM, without
 *  PROJECT or without SHARED and SUM. PROJECT is what attention does before its core, ATTENTION
 *  then the rest. SHARED needs no other segment of its layer but those up to ATTENTION (in I: SUM),
 *  and of the others SUM alone needs it (in I: MLP): so it runs beside dispatch or combine. SUM
 *  adds what COMBINE has brought and what SHARED has made. In the order above project(F) stands
 *  before attention(F), shared behind mlp, sum(B) before combine(B), sum(F) behind combine(F). */
typedef enum dp_segment_role {
    DP_ROLE_OTHER = 0,
    DP_ROLE_ATTENTION = 1,
    DP_ROLE_DISPATCH = 2,
    DP_ROLE_MLP = 3,
    DP_ROLE_COMBINE = 4,
    DP_ROLE_PROJECT = 5,
    /* in the middle of a part; on the compute lane, as the part's first and last segments */
    DP_ROLE_SHARED = 6,
    DP_ROLE_SUM = 7
} dp_segment_role_t;

#ifdef __cplusplus
}
#endif
#endif
