/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * program.h: a schedule lowered to what each rank does: computations, transfers, slots, gradient sums.
 *
 * Lowering is a pure function of the schedule and the transport, so every rank computes the same program and none is
 * sent around.
 *
 * Channels. Each directed edge between two chunks is a channel of its own for activations (F) and another for gradients
 * (B): messages of a channel keep the order in which the receiver consumes them; message i lies in slot i mod K. Send i
 * waits until message i - K was released, which happens when the receiver's operation that consumes it has ended. A
 * bend of a V (next stage on the same rank) is a channel with src == dst: no message, but slots all the same.
 *
 * The list of a rank depends on how the transport completes a transfer:
 * - DP_TRANSPORT_CREDITS: puts into slots that the receiver gave back. A send stands right behind the operation that
 *   makes its data, a receive right before the one that consumes them, a reduction behind the last weight gradient.
 * - DP_TRANSPORT_BUNDLES: a transfer ends when both sides have come to it. Every transfer and reduction has one moment,
 *   known to both sides: when, in a replay on equal devices (F = I = W = 1, B = 2), its data are made and its slot is
 *   free. Ranks list them where that moment falls between their operations. So all ranks follow one total order: the
 *   program completes even when every rank does one thing after the other, hence also with a stream for each direction
 *   between two ranks, queues of any length, and kernels that hold resources; and between any two ranks the n-th send
 *   meets the n-th receive, without tags. Messages of one moment from one rank to one other (an overlapped pair makes
 *   two) are a bundle: they are posted together, and end together.
 *
 * A program for bundles completes as well where some of its channels, or all, are one-sided. In the rank-by-rank run
 * that verify looks at, the receiver has released message i - K before it comes to receive i (or the run would stop
 * there). So the credit that a one-sided send waits for is there when a matched send would still wait for its receiver,
 * and a one-sided receive ends with the send, as the matched one does: every transfer ends no later than in the matched
 * run. The other way round does not hold: a list for credits may wait for ever on a matched channel. So where both
 * kinds carry one pipeline it runs the program for bundles.
 *
 * Who wants to see the lists reads them from dp_program_t or asks `dualpipe schedule --comm`; dp_simulate()
 * (simulate.h) and the engine run them. Errors of all functions here: DP_ERR_INVALID for arguments, DP_ERR_NOMEM; what
 * else one may return stands at it. */
#ifndef DUALPIPE_PROGRAM_H
#define DUALPIPE_PROGRAM_H

#include <dualpipe/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

/** How a backend completes transfers. */
typedef enum dp_transport {
    DP_TRANSPORT_CREDITS =
        0, /* one-sided puts, K slots per channel (dp_channel_t.slots); sends of a rank leave in order */
    DP_TRANSPORT_BUNDLES = 1 /* rendezvous: a bundle ends when all its transfers have met their other side */
} dp_transport_t;

typedef enum dp_instr_kind {
    DP_INSTR_COMPUTE = 0,
    DP_INSTR_SEND = 1,
    DP_INSTR_RECV = 2,
    DP_INSTR_REDUCE = 3, /* all gradients of `chunk` are complete: sum them with the mirror and the data group */
    DP_INSTR_START = 4   /* a pass of a braid begins: its input has come, an F has its activation slot. The COMPUTE of
                            the same pass, further below, is its end */
} dp_instr_kind_t;

/** One line of a rank's list. Frozen: never grows; `reserved` is zero. */
typedef struct dp_instr {
    uint8_t kind; /* dp_instr_kind_t */
    uint8_t op; /* COMPUTE, START: dp_op_kind_t, never BRAID. SEND, RECV: DP_OP_F (activation) or DP_OP_B (gradient) */
    int16_t chunk, chunk2; /* as in dp_op_t. SEND, RECV, REDUCE: the chunk on this rank that makes or uses it */
    uint16_t reserved;
    int32_t microbatch, microbatch2;
    int32_t peer;    /* SEND, RECV: the other rank. REDUCE: the mirror rank, -1 when the stage is single */
    int32_t channel; /* SEND, RECV: index into dp_program_t.channels; -1 otherwise */
    int32_t number;  /* SEND, RECV: number of the message in its channel within the step, from 0. START, and COMPUTE
                            behind it: number of the braid; -1 for other COMPUTE */
    int32_t slot,
        slot2;       /* COMPUTE, START: activation slot of (chunk, microbatch) and, for FB, of (chunk2, microbatch2) */
    int32_t in, in2; /* COMPUTE, START: index (in this rank's list) of the RECV it consumes; -1 when none: first stage,
                              last stage's loss, W, or a bend */
    int32_t bundle;  /* SEND, RECV under BUNDLES: neighbours with one number form a bundle, numbered from 0 on each
                            rank; -1 otherwise */
} dp_instr_t;

/** Frozen: never grows; `reserved` is zero. */
typedef struct dp_channel {
    int32_t src, src_chunk, dst, dst_chunk; /* src == dst: a bend inside one rank */
    uint8_t op;                             /* DP_OP_F or DP_OP_B */
    uint8_t reserved[3];
    int32_t messages; /* in one step */
    int32_t slots;    /* K. Bends: as many as the program needs */
} dp_channel_t;

/** Read only. The library alone makes one, so members may be appended. */
struct dp_program {
    const dp_schedule_t *schedule; /* borrowed; outlives the program */
    dp_transport_t transport;      /* that it was lowered for */
    int32_t ranks, chunks;
    int64_t *first; /* [ranks + 1] */
    dp_instr_t *instrs;
    int32_t nchannels;
    dp_channel_t *channels;
    int32_t *activation_slots; /* [ranks * chunks]: most micro-batches in flight (F until B, or until W) */
};

/** NULL or zeros: for CREDITS, with 2 slots. */
typedef struct dp_lower_options {
    uint32_t struct_size;
    dp_transport_t transport;
    int32_t slots; /* K of every channel between ranks; 0: 2 */
    /* 1: where K does not divide the messages of a channel, another K that does is taken (2 or more): a captured step
       that is replayed then finds the slots as its first run did */
    int32_t replayable;
} dp_lower_options_t;
#define DP_LOWER_OPTIONS_MIN DP_SIZE_TO(dp_lower_options_t, replayable)

/**
 * Lowers a schedule; the caller frees the program. Does all that dp_schedule_verify() does: there is no need to call
 * that before. DP_ERR_REJECTED: it refuses the schedule, or a channel's sender makes its messages in another order than
 * its receiver consumes them. [any]
 */
DP_API dp_status_t dp_program_lower(const dp_schedule_t *schedule, const dp_lower_options_t *options,
                                    dp_program_t **program_out);
/** NULL is allowed. The schedule stays the caller's. [any] */
DP_API void dp_program_free(dp_program_t *program);

/** Facts that verify found; valid also when it rejects, as far as it got. struct_size is set by the caller. */
typedef struct dp_verify_report {
    uint32_t struct_size;
    int32_t safe_slots;       /* CREDITS: smallest K for which the program completes; 0: no K is enough. BUNDLES: 0 */
    int64_t operations;       /* instructions checked */
    int32_t peak_activations; /* most activation slots in use on a rank, all chunks together */
    int32_t peak_deferred;    /* most weight gradients deferred at once on a rank */
    /* 1: every chunk finishes its weight gradients (B or W) in micro-batch order 0, 1, 2, ... */
    int32_t ordered_weights;
    /* since 1.1: most backwards alive at once on a rank, from the begin of an I or B to the end of the W or B: so much
     * memory `backward_buffer` of stage.h it has */
    int32_t peak_backward_buffers;
} dp_verify_report_t;
#define DP_VERIFY_REPORT_MIN DP_SIZE_TO(dp_verify_report_t, ordered_weights)

/**
 * Proves that the program completes under its transport (a run makes no choices, so acyclic is deadlock-free) and is
 * complete: exactly-once F, B or I+W; transfers after their producer and before their consumer; i-th send and i-th
 * receive of a channel are the same message; no slot reused before its last reader; REDUCE after the last weight
 * gradient of its chunk and in the same order on both holders; every id inside its bounds. BUNDLES: it completes even
 * when every rank does one instruction after the other, and transfers and sums of mirrors end only when both sides have
 * come to them.
 * DP_ERR_REJECTED: the message shows the offending operations or the shortest cycle. report_out may be NULL. [any]
 */
DP_API dp_status_t dp_program_verify(const dp_program_t *program, dp_verify_report_t *report_out);

#ifdef __cplusplus
}
#endif
#endif
