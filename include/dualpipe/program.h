/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * program.h: a schedule lowered to what each rank does: computations, transfers, slots, reductions
 * of gradients.
 *
 * Lowering is a pure function of the schedule and the transport. So every rank computes the same
 * program, and none is sent.
 *
 * Channels. Each directed edge between two chunks is one channel for activations (F) and another
 * for gradients (B). Messages of a channel keep the order in which the receiver consumes them.
 * Message i lies in slot i mod K. Send i waits until message i - K was released, at the end of the
 * operation that consumes it. An edge whose two stages are on one rank, as where a V turns, is a
 * local edge: a channel with src == dst. It has no messages, but slots all the same.
 *
 * The list of a rank depends on how the transport completes a transfer:
 * - DP_TRANSPORT_CREDITS: one-sided puts into slots that the receiver gave back. A send stands
 *   right behind the operation that makes its data. A receive stands right before the operation
 *   that consumes them, a reduction behind the last weight gradient.
 * - DP_TRANSPORT_BUNDLES: a transfer ends when both sides have reached it. Every transfer and
 *   reduction has one logical time, known to both sides: when its data are made and its slot is
 *   free, in a replay on equal devices (F = I = W = 1, B = 2). Ranks list it where that time falls
 *   between their operations. So all ranks follow one total order, and the program completes even
 *   when every rank does one thing after the other. It then completes with a stream for each
 *   direction between two ranks, with queues of any length, and with kernels that hold resources.
 *   Between two ranks the n-th send meets the n-th receive, without tags. Messages of one logical
 *   time from one rank to another form a bundle: they are posted together and end together. An
 *   overlapped pair makes two.
 *
 * A program for bundles also completes where some or all of its channels are one-sided. In the
 * sequential run that verify proves, the receiver has released message i - K before it reaches
 * receive i. So a one-sided send has its credit while a matched one would still wait, and a
 * one-sided receive ends with the send, as a matched one does. Every transfer ends no later than in
 * the matched run. The reverse does not hold: a list for credits may wait for ever on a matched
 * channel. So a pipeline over both kinds of transport runs the program for bundles.
 *
 * To see the lists, read dp_program_t or use `dualpipe schedule --comm`. dp_simulate() (simulate.h)
 * and the engine run them. All functions here return DP_ERR_INVALID for wrong arguments and
 * DP_ERR_NOMEM. Each names its other errors. */
#ifndef DUALPIPE_PROGRAM_H
#define DUALPIPE_PROGRAM_H

#include <dualpipe/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

/** How a backend completes transfers. */
typedef enum dp_transport {
    DP_TRANSPORT_CREDITS =
        /* one-sided puts, K slots per channel (dp_channel_t.slots); sends of a rank leave in order
         * */
    0,
    /* rendezvous: a bundle ends when all its transfers have met their other side */
    DP_TRANSPORT_BUNDLES = 1
} dp_transport_t;

/** What a line of a list does. */
typedef enum dp_instr_kind {
    DP_INSTR_COMPUTE = 0,
    DP_INSTR_SEND = 1,
    DP_INSTR_RECV = 2,
    /* all gradients of `chunk` are complete: sum them with the mirror and the data group */
    DP_INSTR_REDUCE = 3,
    /* a pass of a braid begins: its input has come, an F has its activation slot. The COMPUTE of
     * the same pass, further below, is its end */
    DP_INSTR_START = 4
} dp_instr_kind_t;

/** One line of the list of a rank. Frozen: never grows; `reserved` is zero. */
typedef struct dp_instr {
    uint8_t kind; /* dp_instr_kind_t */
    /* COMPUTE, START: dp_op_kind_t, never BRAID. SEND, RECV: DP_OP_F (activation) or DP_OP_B
     * (gradient) */
    uint8_t op;
    /* as in dp_op_t. SEND, RECV, REDUCE: the chunk on this rank that makes or uses it */
    int16_t chunk, chunk2;
    uint16_t reserved;
    int32_t microbatch, microbatch2;
    /* SEND, RECV: the other rank. REDUCE: the mirror rank, -1 when the stage is single */
    int32_t peer;
    int32_t channel; /* SEND, RECV: index into dp_program_t.channels; -1 otherwise */
    /* SEND, RECV: number of the message in its channel within the step, from 0. START, and COMPUTE
     * behind it: number of the braid; -1 for other COMPUTE */
    int32_t number;
    int32_t slot,
        /* COMPUTE, START: activation slot of (chunk, microbatch) and, for FB, of (chunk2,
         * microbatch2) */
        slot2;
    /* COMPUTE, START: index (in this rank's list) of the RECV it consumes; -1 when none: first
     * stage, last stage's loss, W, or a local edge */
    int32_t in, in2;
    /* SEND, RECV under BUNDLES: neighbours with one number form a bundle, numbered from 0 on each
     * rank; -1 otherwise */
    int32_t bundle;
} dp_instr_t;

/** A directed edge between two chunks. Frozen: never grows; `reserved` is zero. */
typedef struct dp_channel {
    int32_t src, src_chunk, dst, dst_chunk; /* src == dst: a local edge */
    uint8_t op;                             /* DP_OP_F or DP_OP_B */
    uint8_t reserved[3];
    int32_t messages; /* in one step */
    int32_t slots;    /* K. Local edges: as many as the program needs */
} dp_channel_t;

/** Read only. Only the library makes one, so members may be appended. */
struct dp_program {
    const dp_schedule_t *schedule; /* borrowed; outlives the program */
    dp_transport_t transport;      /* that it was lowered for */
    int32_t ranks, chunks;
    int64_t *first; /* [ranks + 1] */
    dp_instr_t *instrs;
    int32_t nchannels;
    dp_channel_t *channels;
    /* [ranks * chunks]: most micro-batches in flight (F until B, or until W) */
    int32_t *activation_slots;
};

/** dp_lower_options_t.slots: as few as the schedule completes with, 2 at least. Groups of
 * micro-batches need more than 2. Lowering then proves the program as dp_program_verify() does,
 * with that one's errors. BUNDLES need none. Since 0.2. */
#define DP_SLOTS_NEEDED (-1)

/** How to lower. NULL or zeros: for CREDITS, with 2 slots. */
typedef struct dp_lower_options {
    uint32_t struct_size;
    dp_transport_t transport;
    int32_t slots; /* K of every channel between ranks; 0: 2; or DP_SLOTS_NEEDED */
    /* 1: where K does not divide the messages of a channel, the next larger K that does is taken:
     * a captured step that is replayed then finds the slots as its first run did */
    int32_t replayable;
} dp_lower_options_t;
enum { DP_LOWER_OPTIONS_MIN = DP_SIZE_TO(dp_lower_options_t, replayable) };

/** Lowers a schedule; the caller frees the program. It checks all that dp_schedule_verify() checks.
 * DP_ERR_REJECTED: that check fails, or the sender of a channel makes its messages in another order
 * than its receiver consumes them. [any] */
DP_API DP_CHECKED dp_status_t dp_program_lower(const dp_schedule_t *schedule, const dp_lower_options_t *options,
                                               dp_program_t **program_out);
/** Frees a program, not its schedule. NULL is allowed. [any] */
DP_API void dp_program_free(dp_program_t *program);

/** Facts that verify found. They are valid when it rejects as well, as far as it came. The caller
 * sets struct_size. */
typedef struct dp_verify_report {
    uint32_t struct_size;
    /* CREDITS: smallest K for which the program completes; 0: no K is enough. BUNDLES: 0 */
    int32_t safe_slots;
    int64_t operations;       /* instructions checked */
    int32_t peak_activations; /* most activation slots in use on a rank, all chunks together */
    int32_t peak_deferred;    /* most weight gradients deferred at once on a rank */
    /* 1: every chunk finishes its weight gradients (B or W) in micro-batch order 0, 1, 2, ... */
    int32_t ordered_weights;
    /* most backwards alive at once on a rank, from the begin of an I or B to the end of
     * the W or B: so much memory `backward_buffer` of stage.h it has */
    int32_t peak_backward_buffers;
} dp_verify_report_t;
enum { DP_VERIFY_REPORT_MIN = DP_SIZE_TO(dp_verify_report_t, peak_backward_buffers) };

/** Proves that the program is complete and completes under its transport. A run makes no choices,
 * so a program without cycles is free of deadlock. Checked are:
 * - every F, and every B or I + W, happens exactly once;
 * - transfers stand after their producer and before their consumer;
 * - the i-th send and the i-th receive of a channel are the same message;
 * - no slot is reused before its last reader has ended;
 * - REDUCE stands after the last weight gradient of its chunk, in the same order on both holders;
 * - every id is in its bounds.
 * BUNDLES: the program completes even when every rank does one instruction after the other, and
 * transfers and reductions of mirrors end only when both sides have reached them. report_out may be
 * NULL. DP_ERR_REJECTED: the message shows the operations or the shortest cycle. [any] */
DP_API DP_CHECKED dp_status_t dp_program_verify(const dp_program_t *program, dp_verify_report_t *report_out);

#ifdef __cplusplus
}
#endif
#endif
