/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * schedule.h: which micro-batch is computed when, on every rank of a pipeline.
 *
 * A schedule is, for each rank, an ordered list of computing operations over model chunks. A chunk is one stage held by
 * a rank: DualPipe ranks hold two (stage r of direction 0, stage P-1-r of direction 1), V placements two, interleaved
 * ones v. Where data go is not part of the list: the placement says it, and lowering (program.h) derives transfers.
 *
 *     dp_schedule_request_t request = {.struct_size = sizeof(request), .method = "dualpipe",
 *                                      .ranks = 4, .microbatches = 8};
 *     dp_schedule_generate(&request, &schedule);       // or dp_schedule_read_tsv(): a schedule of one's own
 *     dp_program_lower(schedule, NULL, &program);      // program.h; dp_pipeline_open() does both itself
 *     dp_program_free(program);
 *     dp_schedule_free(schedule);
 *
 * A trainer who runs a built-in method needs nothing of this: dp_pipeline_options_t.method names it.
 * Errors of all functions here: DP_ERR_INVALID for arguments, DP_ERR_NOMEM; what else one may return stands at it. When
 * a function fails, its result pointer is NULL. */
#ifndef DUALPIPE_SCHEDULE_H
#define DUALPIPE_SCHEDULE_H

#include <dualpipe/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What an operation computes. */
typedef enum dp_op_kind {
    DP_OP_F = 0,     /* forward */
    DP_OP_B = 1,     /* full backward = I then W */
    DP_OP_I = 2,     /* backward for the input only */
    DP_OP_W = 3,     /* backward for the weights */
    DP_OP_FB = 4,    /* one F and one B of any two micro-batches, overlapped: the braid {F, B} in canonical order */
    DP_OP_BRAID = 5, /* up to DP_BRAID_PASSES passes, overlapped: number `microbatch` of dp_schedule_t.braids */
    DP_OP_R = 6 /* of spans alone (timeline.h): a segment's forward done once more for its I. In no schedule: I and B
                        have it in them */
} dp_op_kind_t;

/** One operation. For FB, chunk and microbatch name the forward side, chunk2 and microbatch2 the backward side;
 *  otherwise those two are -1. A BRAID has no chunk: -1. Frozen: never grows. */
typedef struct dp_op {
    uint8_t kind;
    int16_t chunk, chunk2; /* model chunk on this rank: direction of dualpipe, leg of a V, chunk of interleaved ones */
    int32_t microbatch, microbatch2; /* micro-batch within its path, from 0 */
} dp_op_t;

#define DP_BRAID_PASSES 26 /* most passes of one braid */

/** One pass of a braid. Frozen: never grows; `reserved` is zero. */
typedef struct dp_pass {
    uint8_t kind; /* DP_OP_F, DP_OP_B, DP_OP_I or DP_OP_W */
    uint8_t reserved;
    int16_t chunk;
    int32_t microbatch; /* within its path */
} dp_pass_t;

/** Passes whose segments are enqueued in one merged order, so that transfers of one run beside computation of another.
 *  A B is I and W of every segment. The order is a name, or written out:
 *  - "canonical": one F and one B (or I) as a layer pair of the published profile (types.h); other sets: "turns";
 *  - "turns": a segment of each pass in turn, in the order of the passes (B: an I, then the W of the same segment);
 *  - one letter for each segment call: `a` for the next segment of pass 0, `b` of pass 1, ... F goes from the first
 *    segment to the last, I and W from the last to the first. A B has `a` for its I and `A` for its W. Every pass has
 *    one letter for every segment of its stage (B: one of each kind), whether that segment has weights or not.
 *  What a pass takes has to be there at its first letter, what it makes is there behind its last; under a name, all
 *  passes begin at once and end at once. Passes of one chunk do their F, their I and their W in the order in which they
 *  are listed, at every segment. Frozen: never grows. */
typedef struct dp_braid {
    int32_t npasses;
    const dp_pass_t *passes;
    const char *order; /* NULL: "canonical" */
} dp_braid_t;

/** Where the stages are. A path is what one stream of micro-batches walks: stage 0 ... stages-1. */
typedef enum dp_placement {
    DP_PLACE_LINE = 0,         /* 1 path, P stages, stage s on rank s */
    DP_PLACE_LOOP = 1,         /* 1 path, v*P stages, stage s on rank s mod P as chunk s / P */
    DP_PLACE_V = 2,            /* 1 path, 2P stages: down (chunk 0), then back up (chunk 1) */
    DP_PLACE_BIDIRECTIONAL = 3 /* 2 paths over the same P stages: path 0 down (chunk 0), path 1 up (chunk 1) */
} dp_placement_t;

#define DP_MAX_RANKS        4096
#define DP_MAX_MICROBATCHES 65536
#define DP_MAX_CHUNKS       64
#define DP_MAX_OPS          (64u << 20)

/** The library alone makes one, so members may be appended. Whoever called dp_schedule_create() fills ops and
 *  forward_only in before its first use; for everybody else it is read only. */
struct dp_schedule {
    char method[32];      /* "dualpipe"; "custom" for files that name none */
    int32_t ranks;        /* P */
    int32_t microbatches; /* M, all paths together */
    int32_t chunks;       /* model chunks per rank */
    dp_placement_t placement;
    int32_t forward_only; /* 1: no backward anywhere */
    int64_t *first;       /* [ranks + 1]: rank r's operations are ops[first[r]] ... ops[first[r + 1] - 1] */
    dp_op_t *ops;
    /* [operations] of a schedule that was read from CSV: the cell of its row, from 1, that each stood in; messages name
       operations by it. NULL for all others */
    int32_t *cells;
    int32_t nbraids; /* of dp_schedule_add_braid() */
    dp_braid_t *braids;
};

/** Place of a chunk on its path. Frozen: never grows; `reserved` is zero. */
typedef struct dp_place {
    int32_t path, stage;           /* stage counts along the path and names the model's layers */
    int32_t prev_rank, prev_chunk; /* where activations come from; -1 at the first stage */
    int32_t next_rank, next_chunk; /* where activations go; -1 at the last stage */
    int32_t mirror_rank;           /* rank that holds the other copy of this stage, -1 when single */
    int32_t reserved[3];
} dp_place_t;

/** Number of paths (2 for bidirectional, else 1) and stages per path. [any] */
DP_API int32_t dp_schedule_paths(const dp_schedule_t *schedule);
DP_API int32_t dp_schedule_stages(const dp_schedule_t *schedule);
/** Micro-batches of path `path`: M, or M/2 for each direction. [any] */
DP_API int32_t dp_schedule_path_microbatches(const dp_schedule_t *schedule, int32_t path);
/** Into how many chunks a rank's share of the model is split: `chunks` of a loop or a V; 1 of a line, and of two
 *  directions, whose chunks are a share each. [any] */
DP_API int32_t dp_schedule_split(const dp_schedule_t *schedule);
/** Number within the step, 0 to M - 1, of micro-batch `microbatch` of a path. [any] */
DP_API int32_t dp_schedule_step_microbatch(const dp_schedule_t *schedule, int32_t path, int32_t microbatch);
/** Fills *place_out for a chunk of a rank. [any] */
DP_API void dp_schedule_place(const dp_schedule_t *schedule, int32_t rank, int32_t chunk, dp_place_t *place_out);

typedef struct dp_schedule_request {
    uint32_t struct_size;
    const char *method; /* one of dp_schedule_methods() */
    int32_t ranks, microbatches;
    int32_t chunks; /* model chunks per rank of the interleaved methods; 0: the method's default */
    int32_t forward_only;
} dp_schedule_request_t;
#define DP_SCHEDULE_REQUEST_MIN DP_SIZE_TO(dp_schedule_request_t, forward_only)

/** A built-in method. Frozen: never grows; `reserved` is zero. */
typedef struct dp_method {
    const char *name;    /* "dualpipe" */
    const char *summary; /* one line */
    const char *source;  /* paper or code it comes from */
    const char *limits;  /* "even ranks, even micro-batches >= 2 * ranks" */
    dp_placement_t placement;
    /** Generates; the request's method field is not looked at. Refusals: DP_ERR_INVALID with the reason. */
    dp_status_t (*generate)(const dp_schedule_request_t *request, dp_schedule_t **schedule_out);
    void *reserved[2];
} dp_method_t;

/** All built-in methods, in order of age; *count_out of them. Static. [any] */
DP_API const dp_method_t *dp_schedule_methods(size_t *count_out);

/** Generates a schedule by name. DP_ERR_INVALID: unknown method (the message lists them), or sizes it refuses, with the
 *  reason. The caller frees it. [any] */
DP_API dp_status_t dp_schedule_generate(const dp_schedule_request_t *request, dp_schedule_t **schedule_out);

/** A schedule with nothing but its forwards, for steps that are forward-only: in their order; or, overlap 1, with
 *  micro-batches 2k and 2k + 1 as a braid in "turns", so that the all-to-all of one runs beside attention and experts
 *  of the other, in the order in which equal devices would come to them. Such a braid needs both its inputs to begin,
 *  so a channel needs two slots. DP_ERR_REJECTED: forwards are missing. The caller frees it. [any] */
DP_API dp_status_t dp_schedule_forwards(const dp_schedule_t *schedule, int overlap, dp_schedule_t **forwards_out);

/** The same schedule without overlap: every pair as its F, then its B. DP_ERR_INVALID: it has braids, which say nothing
 *  about the order of their passes apart. The caller frees it. [any] */
DP_API dp_status_t dp_schedule_serial(const dp_schedule_t *schedule, dp_schedule_t **serial_out);

/** An empty schedule with room for nops[r] operations on rank r, first[] filled: for generators of one's own. method
 *  NULL: "custom". DP_ERR_INVALID: sizes beyond the limits above, or chunks, ranks or micro-batches that the placement
 *  cannot have. [any] */
DP_API dp_status_t dp_schedule_create(const char *method, dp_placement_t placement, int32_t ranks, int32_t microbatches,
                                      int32_t chunks, const int64_t *nops, dp_schedule_t **schedule_out);
/** Copies a braid, passes and order, into a schedule of one's own; *number_out is its number, for the operation
 *  {DP_OP_BRAID, -1, -1, number, -1}. DP_ERR_INVALID: too many passes or none, a kind that no pass has, an order that
 *  is neither a name nor letters of its passes. [main] */
DP_API dp_status_t dp_schedule_add_braid(dp_schedule_t *schedule, const dp_braid_t *braid, int32_t *number_out);
/** NULL is allowed. [any] */
DP_API void dp_schedule_free(dp_schedule_t *schedule);

/**
 * Checks the lists alone: every F has exactly one B, or one I then one W; local order F before B or I before W; ids in
 * range; and across ranks, that the data dependencies have no cycle. DP_ERR_REJECTED names the offending operations, or
 * prints the shortest cycle. dp_program_lower() does the same by itself; dp_program_verify() adds transfers and slots.
 * [any]
 */
DP_API dp_status_t dp_schedule_verify(const dp_schedule_t *schedule);

/**
 * Writes our TSV: a comment line `# method=dualpipe ranks=4 microbatches=20 chunks=2 placement=bidirectional`
 * (` forward_only=1` behind it where it is), a header line, then rank, seq, op, dir, mb, dir2, mb2, peer, n, tab
 * separated; unused columns hold -1. dir is the chunk. A braid has its passes for op, "F0.8+B1.3" (kind and
 * chunk.microbatch), -1 in the columns dir to n, and its order in a tenth column. rank -1: all ranks. A failure of
 * `write` is returned. [any]
 */
DP_API dp_status_t dp_schedule_write_tsv(const dp_schedule_t *schedule, int32_t rank, dp_write_fn write, void *user);
/** Reads it back. Rows of kinds RF RB SF SB C (recorded transfers) are skipped: transfers are derived. Without the
 *  comment line the shape is inferred: one chunk is a line, two are a V, two directions or a loop, whichever of them,
 *  in this order, the data dependencies allow, more are a loop; without any backward it is forward-only. text need not
 *  end with 0; name goes into messages ("FILE:12: ..."). DP_ERR_INVALID: a line that is none, or a shape that cannot be
 *  found. The schedule may still be one that dp_schedule_verify() rejects. [any] */
DP_API dp_status_t dp_schedule_read_tsv(const char *name, const char *text, size_t bytes, dp_schedule_t **schedule_out);

/**
 * The format of torch.distributed.pipelining: one row of comma-separated cells per rank, "2F0" for stage 2, forward,
 * micro-batch 0, likewise I, W and B (full backward), and "(0F8;7B0)OVERLAP_F_B" for a pair. Stages count along the
 * path; the second direction's micro-batches follow the first's (micro-batch i of path 1 is number M/2 + i), and its
 * stages are those of the first, so that every stage stands on two ranks. Of braids it can say {F, B} in the canonical
 * order: others are refused (DP_ERR_INVALID), with row and operation.
 * Writing: rank -1 for all ranks, else the row of one alone (reading needs them all).
 * Reading finds out ranks, micro-batches and placement from the cells. Cells of parameters (UNSHARD, RESHARD,
 * REDUCE_GRAD, WAIT_REDUCE_GRAD) and empty cells are skipped, and so are those of transfers (SEND_F, RECV_F, SEND_B,
 * RECV_B, WAIT_SEND_F, WAIT_SEND_B): who wants to know whether these are right asks dp_schedule_check_csv_transfers().
 * Messages name row and cell: "FILE:2: cell 5 ...". Errors as for TSV. Source: pytorch,
 * torch/distributed/pipelining/schedules.py. [any]
 */
DP_API dp_status_t dp_schedule_write_csv(const dp_schedule_t *schedule, int32_t rank, dp_write_fn write, void *user);
DP_API dp_status_t dp_schedule_read_csv(const char *name, const char *text, size_t bytes, dp_schedule_t **schedule_out);

/**
 * Checks the cells of transfers in the text that `schedule` was read from: each is there once, with its other end,
 * between stages of different ranks; nothing is sent before it is computed or used before it was received; messages
 * from one rank to another are received in the order they are sent; and no rank waits in a circle. A transfer runs
 * beside what follows its cell; F, B and I wait for their RECV, WAIT_SEND for its SEND. matched: 0: a send ends by
 * itself (one-sided, or buffered), 1: transfers between two ranks meet one after the other, as those of NCCL do; both
 * rows must then list all of them in one order. *count_out: transfers in the file, 0 when it has none or the check
 * fails. DP_ERR_REJECTED: names row and cell. DP_ERR_INVALID: not the text of that schedule. [any]
 */
DP_API dp_status_t dp_schedule_check_csv_transfers(const dp_schedule_t *schedule, const char *name, const char *text,
                                                   size_t bytes, int matched, int64_t *count_out);

/** "F", "B", "I", "W", "FB", "BRAID"; "?" for other values. Static. [any] */
DP_API const char *dp_op_kind_name(int kind);
/** "line", "loop", "v", "bidirectional"; "?" for other values. Static. [any] */
DP_API const char *dp_placement_name(dp_placement_t placement);

#ifdef __cplusplus
}
#endif
#endif
