/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * program.h: a schedule lowered to what each rank does: transfers, channels, slots, groups, reductions.
 *
 * Lowering is a pure function of the schedule, so every rank computes the same program and none is sent around.
 *
 * Channels. Each directed edge between two chunks is a channel of its own for activations (F) and another for gradients
 * (B): messages of a channel keep the order in which the receiver consumes them; message i lies in slot i mod K. A turn of
 * a V (next stage on the same rank) is a channel with src == dst: no message, but slots all the same. Send i waits
 * until message i - K was released, which happens when the receiver's operation that consumes it has ended.
 *
 * Groups. For backends that complete transfers only in matched groups: transfers of a rank with the same group number are
 * posted together, groups in rising order from 0. Sends stand in the list right after the operation that makes their data,
 * receives (prefetch 1) where that moment falls in the receiver's list in a replay on equal devices (F = I = W = 1, B = 2),
 * or as soon after it as a slot is free, and before their use at the latest. So both sides list their messages in one
 * common order of time: no two groups wait for each other in a circle, and between any two ranks the n-th send meets the
 * n-th receive even without tags.
 * Lowered for DP_TRANSPORT_GROUPS, a group holds only messages of one moment from one rank to one other, so that none waits
 * for a message that comes later, and both sides list it at that moment of the replay: when the message is made and a slot
 * is free for it. Sends then need not stand right behind their operation, nor reductions. So all ranks follow one total order, and the program
 * completes even when every rank does its list strictly in order, one thing at a time (dp_verify_report_t.in_order); hence
 * also with a stream for each direction between two ranks, queues of any length, and kernels that hold resources. */
#ifndef DUALPIPE_PROGRAM_H
#define DUALPIPE_PROGRAM_H

#include <dualpipe/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dp_instr_kind {
    DP_INSTR_COMPUTE = 0,
    DP_INSTR_SEND = 1,
    DP_INSTR_RECV = 2,
    DP_INSTR_REDUCE = 3  /* all gradients of `chunk` are complete: sum them with the mirror and the data group */
} dp_instr_kind_t;

typedef struct dp_instr {
    uint8_t kind;          /* dp_instr_kind_t                                                                    */
    uint8_t op;            /* COMPUTE: dp_op_kind_t. SEND, RECV: DP_OP_F (activation) or DP_OP_B (gradient)      */
    int16_t chunk, chunk2; /* as in dp_op_t. SEND, RECV, REDUCE: the chunk on this rank that makes or uses it     */
    int32_t mb, mb2;
    int32_t peer;          /* SEND, RECV: the other rank. REDUCE: the mirror rank, -1 when the stage is single    */
    int32_t channel;       /* SEND, RECV: index into dp_program_t.channels; -1 otherwise                          */
    int32_t sequence;      /* SEND, RECV: number of the message in its channel within the step, from 0            */
    int32_t slot, slot2;   /* COMPUTE: activation slot of (chunk, mb) and, for FB, of (chunk2, mb2)               */
    int32_t in, in2;       /* COMPUTE: index (in this rank's list) of the RECV it consumes; -1 when none: first stage,
                              last stage's loss, W, or a local turn                                               */
    int32_t group;         /* SEND, RECV: posting group; -1 otherwise                                             */
} dp_instr_t;

typedef struct dp_channel {
    int32_t src, src_chunk, dst, dst_chunk; /* src == dst: a turn inside one rank                                  */
    uint8_t op;                             /* DP_OP_F or DP_OP_B                                                  */
    int32_t messages;                       /* in one step                                                         */
    int32_t slots;                          /* K. Turns: as many as the program needs                               */
} dp_channel_t;

typedef struct dp_program {
    const dp_schedule_t *schedule; /* borrowed; outlives the program                                             */
    int32_t ranks, chunks;
    int64_t *first;                /* [ranks + 1]                                                                */
    dp_instr_t *instrs;
    int32_t nchannels;
    dp_channel_t *channels;
    int32_t *activation_slots;     /* [ranks * chunks]: most micro-batches in flight (F until B, or until W)      */
} dp_program_t;

typedef struct dp_lower_options {
    uint32_t struct_size;
    int32_t slots;      /* K of every channel between ranks; 0: 2 */
    int32_t prefetch;   /* 1 (default when struct_size does not reach it or options NULL): receives stand where their message
                           is expected; 0: directly before their use, which is safe under CREDITS only */
    int32_t transport;  /* dp_transport_t that it is for; default DP_TRANSPORT_CREDITS. GROUPS: see above; prefetch is not looked at */
} dp_lower_options_t;

/**
 * Lowers a schedule; the caller frees the program. DP_ERR_REJECTED: dp_schedule_verify refuses the schedule, or a channel's
 * sender makes its messages in another order than its receiver consumes them. [any]
 */
DP_API dp_status_t dp_program_lower(const dp_schedule_t *schedule, const dp_lower_options_t *options,
                                    dp_program_t **program_out);
DP_API void dp_program_free(dp_program_t *program);

/** What a backend promises of its transfers. */
typedef enum dp_transport {
    DP_TRANSPORT_CREDITS = 0, /* one-sided puts, K slots per channel (dp_channel_t.slots); sends of a rank leave in order */
    DP_TRANSPORT_GROUPS = 1,  /* rendezvous: a group ends when all its transfers have met their counterpart; untagged: the
                                 n-th send from one rank to another meets the n-th receive                            */
    DP_TRANSPORT_SHARED_CREDITS = 2 /* as CREDITS, but all channels from one rank to another share K slots in one ring:
                                 stricter; K = 1 deadlocks DualPipe, 2 is enough for every built-in method            */
} dp_transport_t;

/** Facts that verify found; valid also when it rejects, as far as it got. */
typedef struct dp_verify_report {
    uint32_t struct_size;
    int32_t safe_slots;        /* smallest K for which the program completes under CREDITS or SHARED_CREDITS; 0: GROUPS, or
                                  no K is enough                                                                  */
    int64_t operations;        /* nodes checked                                                                  */
    int32_t peak_activations;  /* most activation slots in use on a rank, all chunks together                     */
    int32_t peak_deferred;     /* most weight gradients deferred at once on a rank                                */
    int32_t ordered_weights;   /* 1: every chunk finishes its weight gradients (B or W) in micro-batch order 0, 1, 2, ... */
    int32_t in_order;          /* GROUPS: 1: completes even when every rank does one instruction after the other and transfers
                                  and sums of mirrors end only when both sides have come to them                    */
} dp_verify_report_t;

/**
 * Proves that the program completes under the transport's semantics (a run makes no choices, so acyclic is
 * deadlock-free) and is complete: exactly-once F, B or I+W; transfers after their producer and before their consumer;
 * i-th send and i-th receive of a channel are the same message; no slot reused before its last reader; REDUCE after the last
 * weight gradient of its chunk and in the same order on both holders; every id inside its bounds.
 * DP_ERR_REJECTED: the message shows the offending operations or the shortest cycle. report_out may be NULL. [any]
 */
DP_API dp_status_t dp_program_verify(const dp_program_t *program, dp_transport_t transport, dp_verify_report_t *report_out);

/* ---- segments of an overlapped pair ---- */

/** What a segment is, for the canonical order; OTHER for a trainer's own. */
typedef enum dp_segment_role {
    DP_ROLE_OTHER = 0,
    DP_ROLE_ATTENTION = 1,
    DP_ROLE_DISPATCH = 2,
    DP_ROLE_MLP = 3,
    DP_ROLE_COMBINE = 4
} dp_segment_role_t;

typedef struct dp_segment_shape {
    uint8_t role;       /* dp_segment_role_t */
    uint8_t lane;       /* dp_lane_t         */
    uint8_t has_weight; /* 1: it has a backward for weights */
} dp_segment_shape_t;

/** One entry of a merged order: run pass `pass` (DP_OP_F, DP_OP_I or DP_OP_W) of segment `segment`. */
typedef struct dp_pair_step {
    uint8_t pass;
    int16_t segment; /* index in the forward list (F) or in the backward half's list (I, W), both in forward order */
} dp_pair_step_t;

/**
 * Merges the segments of one forward and one full backward into one order of enqueueing. nf or nb may be 0 (a lone F or B).
 * Layers of the shape ATTENTION, DISPATCH, MLP, COMBINE follow, layer pair by layer pair, the order of the published profile:
 * combine(B) attn(F) mlp(B) dispatch(F) dispatch(B) mlp(W) mlp(F) attn(B) attn(W) combine(F); other segments are merged
 * alternating, each list in its own order; leftover layers follow alone. steps_out has room for nf + 2 * nb entries.
 * Source: deepseek-ai/profile-data, training trace. [any]
 */
DP_API int32_t dp_pair_order(const dp_segment_shape_t *forward, int32_t nf, const dp_segment_shape_t *backward, int32_t nb,
                             dp_pair_step_t *steps_out);

#ifdef __cplusplus
}
#endif
#endif
