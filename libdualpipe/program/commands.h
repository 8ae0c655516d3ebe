/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * commands.h: what a rank puts on its streams in one step, in the order in which it does: the one
 * list that the engine enqueues and the simulator runs.
 *
 * Order on one stream is the order of the list. Between streams these events are the whole
 * contract:
 *   hop[segment]  a segment ended; the next segment of the same pass, on another lane, starts after
 *                 it
 *   work_end      a pass ended; the pass that uses the same work memory next starts after it
 *   slot_end      the last pass that uses an activation slot ended: W, or F in a forward-only
 *                 program; the next forward in that slot starts after it
 *   buffer_end    the last pass that uses a backward buffer ended: W; the next backward in that
 *                 memory starts after it
 *   ready[buffer] a pass ended that wrote the buffer; the send, or the other side of a
 *                 local edge, reads after it
 *   free[buffer]  the reader of a buffer has finished; the next writer starts after it. The first
 *                 segment of the part that writes may do so, which need not run on the lane of the
 *                 last
 *   mark          what a lane was given so far: a weight gradient runs after its segment, a sum
 *                 after the weight gradients
 * A step begins with all streams idle, so nothing is waited for that was not recorded in it; and
 * nothing is recorded that no other stream waits for.
 *
 * A receive waits on the lane of the segment that reads the message, so that nothing else is held
 * up. Where the backend completes transfers in bundles only, each peer and direction has its own
 * transfer stream instead: its bundles go there in the order of the program, a send behind
 * ready[buffer], and a receive records ready[buffer] for the segment that reads. */
#ifndef DP_PROGRAM_COMMANDS_H
#define DP_PROGRAM_COMMANDS_H

#include "program/pair.h"

#include <dualpipe/program.h>

typedef enum dp__command_kind {
    DP__CALL,    /* a segment of a pass */
    DP__WAIT,    /* for an event */
    DP__RECORD,  /* an event */
    DP__RECV,    /* CREDITS: the input of a pass */
    DP__RELEASE, /* ... or of BUNDLES: its slot is free */
    DP__SEND,    /* CREDITS: the output of a pass */
    DP__BUNDLE,  /* BUNDLES: the transfers of one */
    DP__REDUCE   /* the gradients of a chunk */
} dp__command_kind_t;

/* 8 bytes: a simulation walks millions of them. */
typedef struct dp__command {
    uint8_t kind : 4;
    uint8_t op : 4; /* CALL: DP_OP_F, R, I or W */
    uint8_t stream; /* a lane, or DP_LANE_COUNT + a transfer stream */
    union {
        int16_t segment; /* CALL */
        int16_t count;   /* BUNDLE: transfers, which follow one another in the rank's list */
    };
    /* pass; of WAIT, RECORD: event; BUNDLE: instruction of its first transfer; REDUCE: chunk */
    int32_t at;
} dp__command_t;

enum { DP__FORWARD = 0, DP__BACKWARD = 1, DP__KINDS = 2 }; /* of passes that need work memory */
enum { DP__WORKS = DP_BRAID_PASSES };                      /* most work memories of one of them */
enum { DP__TRANSFER_STREAMS = 4 };                         /* two neighbours, to and from each */

/* A pass of the step, with all that it touches. */
typedef struct dp__step_pass {
    uint8_t op;         /* F, B, I or W */
    uint8_t kind, work; /* which of the work memories of its kind; a W uses none */
    int16_t chunk;
    int32_t microbatch; /* of its path */
    /* number of the operation, from 1, in which others run beside it; 0: alone */
    int32_t beside;
    int32_t slot;            /* activation slot */
    int32_t backward_buffer; /* which memory of those of backwards; -1: none */
    /* channel that its input comes from, -1: none; message, or buffer of a local edge */
    int32_t source, source_at;
    int32_t dest, dest_at; /* channel that its result goes to */
} dp__step_pass_t;

/* A stream for the bundles to or from one peer. */
typedef struct dp__transfer_stream {
    int32_t peer, sends;
} dp__transfer_stream_t;

typedef struct dp__commands {
    int64_t count;
    dp__command_t *at;
    int32_t npasses;
    dp__step_pass_t *passes; /* in the order in which they begin */
    int32_t nevents, ncalls;
    /* how many work memories it takes: as many as are alive at once, 2 or more */
    int32_t works[DP__KINDS];
    /* how many memories of backwards: as many as are alive at once, from I or B to W or B, of
     * stages that have some */
    int32_t backward_buffers;
    /* [nchannels] of this rank: a source's outputs, slots of a local edge or of a receiver of
     * bundles; message n lies in buffer n mod that */
    int32_t *buffers;
    int32_t ntransfer_streams;
    dp__transfer_stream_t transfer_streams[DP__TRANSFER_STREAMS];
} dp__commands_t;

/* stages: [chunks] of this rank. in_lane: [nchannels], or NULL for none: 1 where a message leaves
 * from the lane that made it instead of the p2p lane. Clear with dp__commands_clear, also after
 * failure. DP_ERR_REJECTED: the program is not one that lowering makes, or the order of a braid is
 * not one of these stages. */
dp_status_t dp__commands_write(const dp_program_t *program, int32_t rank, const dp__stage_shape_t *stages,
                               const uint8_t *in_lane, dp__commands_t *out);
void dp__commands_clear(dp__commands_t *commands);

/* The transfer streams of a rank, in the order of channels: how many; -1: too many. */
int32_t dp__transfer_streams_of(const dp_program_t *program, int32_t rank,
                                dp__transfer_stream_t transfer_streams[DP__TRANSFER_STREAMS]);
int32_t dp__transfer_stream_find(const dp__transfer_stream_t *transfer_streams, int32_t n, int32_t peer, int32_t sends);

#endif
