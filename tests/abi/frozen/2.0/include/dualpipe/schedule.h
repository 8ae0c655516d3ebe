/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * schedule.h: which micro-batch is computed when, on every rank of a pipeline.
 *
 * A schedule is an ordered list of operations for each rank. An operation computes on a chunk,
 * which is one stage as held by a rank. DualPipe ranks hold two chunks: stage r of direction 0 and
 * stage P-1-r of direction 1. Ranks of a V hold two, interleaved ranks v. The list does not say
 * where data go: the placement says it, and lowering (program.h) derives the transfers.
 *
 *     dp_schedule_request_t request = {.struct_size = sizeof(request), .method = "dualpipe",
 *                                      .ranks = 4, .microbatches = 8};
 *     dp_schedule_generate(&request, &schedule);       // or dp_schedule_read_tsv(): a custom one
 *     dp_program_lower(schedule, NULL, &program);      // program.h; dp_pipeline_open() does both
 *     dp_program_free(program);
 *     dp_schedule_free(schedule);
 *
 * A trainer that runs a built-in method needs none of this: dp_pipeline_options_t.method names the
 * method. All functions here return DP_ERR_INVALID for wrong arguments and DP_ERR_NOMEM. Each names
 * its other errors. When a function fails, its result pointer is NULL.
 *
 * Since 0.2: DP_OP_R, the orders prefill and decode, `+` in written ones, dp_forwards_t,
 * dp_divide_requests, dp_schedule_request_t.microbatch_group, dp_schedule_memory,
 * dp_memory_bytes_t, dp_memory_peaks_t. */
#ifndef DUALPIPE_SCHEDULE_H
#define DUALPIPE_SCHEDULE_H

#include <dualpipe/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What an operation computes. */
typedef enum dp_op_kind {
    DP_OP_F = 0, /* forward */
    DP_OP_B = 1, /* full backward = I then W */
    DP_OP_I = 2, /* backward for the input only */
    DP_OP_W = 3, /* backward for the weights */
    /* one F and one B of any two micro-batches, overlapped: the braid {F, B} in canonical order */
    DP_OP_FB = 4,
    /* up to DP_BRAID_PASSES passes, overlapped: number `microbatch` of dp_schedule_t.braids */
    DP_OP_BRAID = 5,
    /* of spans alone (timeline.h): a segment's forward done once more for its I. In no schedule: I
     * and B have it in them */
    DP_OP_R = 6
} dp_op_kind_t;

/** One operation. For FB, chunk and microbatch name the forward side, chunk2 and microbatch2 the
 * backward side. Otherwise those two are -1. A BRAID has no chunk: -1. Frozen: never grows. */
typedef struct dp_op {
    uint8_t kind;
    /* model chunk on this rank: direction of dualpipe, leg of a V, chunk of interleaved ones */
    int16_t chunk, chunk2;
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

/** Passes whose segments are enqueued in one merged order, so that transfers of one run beside
 * computation of another. A B is I and W of every segment. The order is a name, or written out:
 * - "canonical": one F and one B (or I) as a layer pair of the published profile (types.h). Other
 *   sets of passes: "turns".
 * - "prefill", "decode": two F, merged as DeepSeek's published profiles have them, layer by layer
 *   of types.h. Other sets of passes: "turns". The first pass is ahead (a) of the other (b), l is a
 *   layer; what a layer is not cut into is left out. More F of one chunk follow these two in turn:
 *   the third begins where the first ends, as if its layers were more layers of it.
 *     prefill  compute     attn(a,l) shared(b,l-1) attn(b,l) mlp(a,l) mlp(b,l) shared(a,l)
 *              all-to-all  combine(b,l-1) dispatch(a,l) dispatch(b,l) combine(a,l)
 *     decode   compute     attn(a,l) shared(a,l) project(b,l) mlp(a,l) attn(b,l) shared(b,l)
 *                          project(a,l+1) mlp(b,l)
 *              all-to-all  dispatch(a,l) combine(a,l) dispatch(b,l) combine(b,l)
 *   sum(a,l) stands right before layer l+1 of its pass. Source: deepseek-ai/profile-data.
 * - "turns": a segment of each pass in turn, in the order of the passes. A B does an I, then the W
 *   of the same segment.
 * - letters, one for each segment call: `a` is the next segment of pass 0, `b` of pass 1, and so
 *   on. F goes from the first segment to the last, I and W from the last to the first. A B has `a`
 *   for its I and `A` for its W. Every pass has one letter for every segment of its stage (a B one
 *   of each kind), whether that segment has weights or not. `+a` is the next SHARED segment
 *   (types.h) of an F or I, wherever its layer lets it run; `a` then passes over them.
 * The input of a pass must be there at its first letter, and its output is there behind its last.
 * Under a name, all passes begin at once and end at once; of more than two F under "prefill" and
 * "decode" only two at once. Passes of one chunk do their F, their I
 * and their W in the order in which they are listed, at every segment. Frozen: never grows. */
typedef struct dp_braid {
    int32_t npasses;
    const dp_pass_t *passes;
    const char *order; /* NULL: "canonical" */
} dp_braid_t;

/** Where the stages are. A path is what one stream of micro-batches walks: stage 0 to stages-1. */
typedef enum dp_placement {
    DP_PLACE_LINE = 0, /* 1 path, P stages, stage s on rank s */
    DP_PLACE_LOOP = 1, /* 1 path, v*P stages, stage s on rank s mod P as chunk s / P */
    DP_PLACE_V = 2,    /* 1 path, 2P stages: down (chunk 0), then back up (chunk 1) */
    /* 2 paths over the same P stages: path 0 down (chunk 0), path 1 up (chunk 1) */
    DP_PLACE_BIDIRECTIONAL = 3
} dp_placement_t;

#define DP_MAX_RANKS        4096
#define DP_MAX_MICROBATCHES 65536
#define DP_MAX_CHUNKS       64
#define DP_MAX_OPS          (64u << 20)

/** Only the library makes one, so members may be appended. After dp_schedule_create() the caller
 * fills in ops and forward_only before the first use. Otherwise it is read only. */
struct dp_schedule {
    char method[32];      /* "dualpipe"; "custom" for files that name none */
    int32_t ranks;        /* P */
    int32_t microbatches; /* M, all paths together */
    int32_t chunks;       /* model chunks per rank */
    dp_placement_t placement;
    int32_t forward_only; /* 1: no backward anywhere */
    /* [ranks + 1]: rank r's operations are ops[first[r]] ... ops[first[r + 1] - 1] */
    int64_t *first;
    dp_op_t *ops;
    /* [operations] of a schedule that was read from CSV: the cell of its row, from 1, that each
     * stood in; messages name operations by it. NULL for all others */
    int32_t *cells;
    int32_t nbraids; /* of dp_schedule_add_braid() */
    dp_braid_t *braids;
};

/** Place of a chunk on its path. Frozen: never grows; `reserved` is zero. */
typedef struct dp_place {
    int32_t path, stage;           /* stage counts along the path and names the model's layers */
    int32_t prev_rank, prev_chunk; /* where activations come from; -1 at the first stage */
    int32_t next_rank, next_chunk; /* where activations go; -1 at the last stage */
    /* rank that holds the other copy of this stage, -1 when single */
    int32_t mirror_rank;
    int32_t reserved[3];
} dp_place_t;

/** Number of paths: 2 for bidirectional, else 1. [any] */
DP_API int32_t dp_schedule_paths(const dp_schedule_t *schedule);
/** Number of stages of a path. [any] */
DP_API int32_t dp_schedule_stages(const dp_schedule_t *schedule);
/** Micro-batches of path `path`: M, or M/2 for each of two directions. [any] */
DP_API int32_t dp_schedule_path_microbatches(const dp_schedule_t *schedule, int32_t path);
/** Into how many chunks the share of a rank is split: `chunks` for a loop or a V, 1 for a line. It
 * is 1 for two directions as well, whose chunks are a whole share each. [any] */
DP_API int32_t dp_schedule_split(const dp_schedule_t *schedule);
/** Number within the step, 0 to M - 1, of micro-batch `microbatch` of a path. [any] */
DP_API int32_t dp_schedule_step_microbatch(const dp_schedule_t *schedule, int32_t path, int32_t microbatch);
/** Fills *place_out for a chunk of a rank. [any] */
DP_API void dp_schedule_place(const dp_schedule_t *schedule, int32_t rank, int32_t chunk, dp_place_t *place_out);

/** What dp_schedule_generate() makes. */
typedef struct dp_schedule_request {
    uint32_t struct_size;
    /* one of dp_schedule_methods(), also by the name that its paper or PyTorch has for it: "ZB-H1",
     * "ScheduleInterleavedZeroBubble", "Looped_BFS" */
    const char *method;
    int32_t ranks, microbatches;
    int32_t chunks; /* model chunks per rank of the interleaved methods; 0: the method's default */
    int32_t forward_only;
    /* most micro-batches that pass the chunks of a rank together, of interleaved methods; groups
     * are alike but for one micro-batch. Each needs `ranks` at least. Above that a channel needs as
     * many slots as the largest group is larger than `ranks`, or one more, but 1 at least. 0:
     * `ranks` */
    int32_t microbatch_group;
} dp_schedule_request_t;
enum { DP_SCHEDULE_REQUEST_MIN = DP_SIZE_TO(dp_schedule_request_t, forward_only) };

/** A built-in method. Frozen: never grows; `reserved` is zero. */
typedef struct dp_method {
    const char *name;    /* "dualpipe" */
    const char *summary; /* one line */
    const char *source;  /* paper or code it comes from */
    const char *limits;  /* "even ranks, even micro-batches >= 2 * ranks" */
    dp_placement_t placement;
    /** Generates a schedule; the method field of the request is ignored. DP_ERR_INVALID: sizes that
     * the method refuses, with the reason. [any] */
    dp_status_t (*generate)(const dp_schedule_request_t *request, dp_schedule_t **schedule_out);
    void *reserved[2];
} dp_method_t;

/** All built-in methods, oldest first; *count_out is their number. Static. [any] */
DP_API const dp_method_t *dp_schedule_methods(size_t *count_out);

/** Generates a schedule by the name of its method. The caller frees it. DP_ERR_INVALID: an unknown
 * method (the message lists them), or sizes that the method refuses, with the reason. [any] */
DP_API DP_CHECKED dp_status_t dp_schedule_generate(const dp_schedule_request_t *request, dp_schedule_t **schedule_out);

/** How dp_schedule_forwards() puts micro-batches 2k and 2k + 1 beside each other: not, or as a
 *  braid in the order of that name. Of "prefill" and "decode" a rank of one chunk has braids as
 *  long as they can be: nothing drains between pairs. */
typedef enum dp_forwards {
    DP_FORWARDS_SERIAL = 0,
    DP_FORWARDS_TURNS = 1,
    DP_FORWARDS_PREFILL = 2,
    DP_FORWARDS_DECODE = 3
} dp_forwards_t;

/** The forwards of a schedule alone, for forward-only steps. overlap: of dp_forwards_t. In a braid
 * the all-to-all of one micro-batch runs beside attention and experts of the other; a last one of
 * an odd number is alone. Braids stand in the order in which equal devices reach them. A braid
 * needs its first two inputs to begin, so a channel needs two slots. The caller frees the result.
 * DP_ERR_REJECTED: forwards are missing. DP_ERR_INVALID: another `overlap`. [any] */
DP_API DP_CHECKED dp_status_t dp_schedule_forwards(const dp_schedule_t *schedule, int overlap,
                                                   dp_schedule_t **forwards_out);

/** A part of a request in a step of inference: its tokens past .. past + count - 1. Frozen: never
 * grows. */
typedef struct dp_request_part {
    uint32_t request; /* its index */
    int32_t microbatch;
    uint32_t past, count;
} dp_request_part_t;

/** Divides the requests of a step among its micro-batches, so that each has the same load. A token
 * at position i of its request has the load i + 1 (the keys that it attends to) and per_token, what
 * else it costs, in keys. past, fresh: [requests] tokens before this step, and in it; 0 are legal.
 * Requests are cut, at most once for each micro-batch, and stay in their order: of two parts the
 * earlier one is in the lower micro-batch, as dp_step_t.requests wants it. parts_out: room for
 * requests + microbatches - 1; *count_out: how many there are. A micro-batch may have none.
 * tokens_most: of one. DP_ERR_INVALID: more tokens than fit, no micro-batch. [any] */
DP_API DP_CHECKED dp_status_t dp_divide_requests(const uint32_t *past, const uint32_t *fresh, uint32_t requests,
                                                 uint32_t per_token, int32_t microbatches, uint32_t tokens_most,
                                                 dp_request_part_t *parts_out, uint32_t *count_out);

/** The same schedule without overlap: every pair as its F, then its B. The caller frees it.
 * DP_ERR_INVALID: the schedule has braids, which do not say how their passes follow each other.
 * [any] */
DP_API DP_CHECKED dp_status_t dp_schedule_serial(const dp_schedule_t *schedule, dp_schedule_t **serial_out);

/** An empty schedule for a custom generator, with room for nops[r] operations on rank r; first[] is
 * filled in. method NULL: "custom". The caller frees it. DP_ERR_INVALID: sizes above the limits, or
 * chunks, ranks or micro-batches that the placement cannot have. [any] */
DP_API DP_CHECKED dp_status_t dp_schedule_create(const char *method, dp_placement_t placement, int32_t ranks,
                                                 int32_t microbatches, int32_t chunks, const int64_t *nops,
                                                 dp_schedule_t **schedule_out);
/** Copies a braid, passes and order, into a custom schedule. *number_out is its number, for the
 * operation {DP_OP_BRAID, -1, -1, number, -1}. DP_ERR_INVALID: no pass or too many, a kind that is
 * no pass, or an order that is neither a name nor letters of its passes. [main] */
DP_API DP_CHECKED dp_status_t dp_schedule_add_braid(dp_schedule_t *schedule, const dp_braid_t *braid,
                                                    int32_t *number_out);
/** Frees a schedule. NULL is allowed. [any] */
DP_API void dp_schedule_free(dp_schedule_t *schedule);

/** Checks the lists alone. Every F has exactly one B, or one I and then one W. On a rank, F comes
 * before B or I, and I before W. All ids are in range. Across ranks, the data dependencies have no
 * cycle. dp_program_lower() does the same; dp_program_verify() adds transfers and slots.
 * DP_ERR_REJECTED: the message names the operations, or prints the shortest cycle. [any] */
DP_API DP_CHECKED dp_status_t dp_schedule_verify(const dp_schedule_t *schedule);

/** Bytes on one device. Zeros: not counted. The caller sets struct_size. */
typedef struct dp_memory_bytes {
    uint32_t struct_size;
    /* messages that each channel from another rank has room for: dp_channel_t.slots */
    int32_t slots;
    double message;    /* of one of them, a boundary tensor */
    double activation; /* of a micro-batch's activations on a rank with mean stages, from F to W */
    double deferred;   /* that a weight gradient keeps besides, from I to W */
    double weights;    /* of a copy on a rank with mean stages: weights, gradients, optimizer */
    /* [stages] what each stage has of the last three beside the mean stage; NULL: stages are alike.
     * Borrowed during the call */
    const double *parts;
} dp_memory_bytes_t;
enum { DP_MEMORY_BYTES_MIN = DP_SIZE_TO(dp_memory_bytes_t, parts) };

/** What a rank holds at most, each at another time perhaps. A chunk counts what its rank is split
 * into: 1/C of C chunks of a loop or a V. Frozen: never grows. */
typedef struct dp_memory_peaks {
    double activations; /* micro-batches, from F until B or W */
    double deferred;    /* micro-batches, from I until W */
    double bytes;       /* of all together */
} dp_memory_peaks_t;

/** What each rank holds at most, in the order of its list, of a schedule that dp_schedule_verify()
 * accepts. peaks_out: [ranks]. bytes NULL: all of them 0. DP_ERR_INVALID: one is negative. [any] */
DP_API DP_CHECKED dp_status_t dp_schedule_memory(const dp_schedule_t *schedule, const dp_memory_bytes_t *bytes,
                                                 dp_memory_peaks_t *peaks_out);

/** Writes TSV: a comment line, a header line, and a row for each operation. The comment line is `#
 * method=dualpipe ranks=4 microbatches=20 chunks=2 placement=bidirectional`, with ` forward_only=1`
 * at its end where it is. The columns are rank, seq, op, dir, mb, dir2, mb2, peer, n; unused ones
 * hold -1, and dir is the chunk. A braid has its passes as op, "F0.8+B1.3" (kind and
 * chunk.microbatch), -1 in the columns dir to n, and its order in a tenth column. rank -1: all
 * ranks. A failure of `write` is returned. [any] */
DP_API DP_CHECKED dp_status_t dp_schedule_write_tsv(const dp_schedule_t *schedule, int32_t rank, dp_write_fn write,
                                                    void *user);
/** Reads TSV. Rows of kinds RF RB SF SB C (recorded transfers) are skipped: transfers are derived.
 * Without the comment line the shape is inferred. One chunk is a line. Two are a V, two directions
 * or a loop: the first of these whose data dependencies have no cycle. More are a loop. A file
 * without any backward is forward-only. text need not end with 0. name is used in messages
 * ("FILE:12: ..."). DP_ERR_INVALID: a malformed line, or no shape fits. The schedule may still be
 * one that dp_schedule_verify() rejects. [any] */
DP_API DP_CHECKED dp_status_t dp_schedule_read_tsv(const char *name, const char *text, size_t bytes,
                                                   dp_schedule_t **schedule_out);

/** Writes the format of torch.distributed.pipelining: one row of comma-separated cells per rank.
 * "2F0" is stage 2, forward, micro-batch 0; likewise I, W and B (full backward).
 * "(0F8;7B0)OVERLAP_F_B" is a pair. Stages count along the path. Micro-batches of the second
 * direction follow those of the first: micro-batch i of path 1 is number M/2 + i. Its stages are
 * those of the first, so every stage stands on two ranks. rank -1: all ranks; else one row, which
 * cannot be read back alone. Of braids the format has {F, B} in the canonical order.
 * DP_ERR_INVALID: another braid; the message names row and operation. A failure of `write` is
 * returned. Source: pytorch, torch/distributed/pipelining/schedules.py. [any] */
DP_API DP_CHECKED dp_status_t dp_schedule_write_csv(const dp_schedule_t *schedule, int32_t rank, dp_write_fn write,
                                                    void *user);
/** Reads that format. Ranks, micro-batches and placement are found from the cells. Empty cells are
 * skipped, and so are those of parameters (UNSHARD, RESHARD, REDUCE_GRAD, WAIT_REDUCE_GRAD). Cells
 * of transfers (SEND_F, RECV_F, SEND_B, RECV_B, WAIT_SEND_F, WAIT_SEND_B) are skipped as well:
 * dp_schedule_check_csv_transfers() checks those. Messages name row and cell: "FILE:2: cell 5 ...".
 * Errors as dp_schedule_read_tsv(). [any] */
DP_API DP_CHECKED dp_status_t dp_schedule_read_csv(const char *name, const char *text, size_t bytes,
                                                   dp_schedule_t **schedule_out);

/** Checks the cells of transfers in the text that `schedule` was read from. Each transfer is there
 * once, with its other end, between stages of different ranks. Nothing is sent before it is
 * computed or used before it is received. Messages from one rank to another are received in the
 * order in which they are sent. No ranks wait in a circle. A transfer runs beside what follows its
 * cell; F, B and I wait for their RECV, WAIT_SEND for its SEND. matched 0: a send ends by itself
 * (one-sided, or buffered). matched 1: transfers between two ranks meet one after the other, as
 * those of NCCL do, so both rows must list them in one order. *count_out: transfers in the file; 0
 * when it has none or the check fails. DP_ERR_REJECTED: the message names row and cell.
 * DP_ERR_INVALID: not the text of that schedule. [any] */
DP_API DP_CHECKED dp_status_t dp_schedule_check_csv_transfers(const dp_schedule_t *schedule, const char *name,
                                                              const char *text, size_t bytes, int matched,
                                                              int64_t *count_out);

/** "F", "B", "I", "W", "FB", "BRAID"; "?" for other values. Static. [any] */
DP_API const char *dp_op_kind_name(int kind);
/** "line", "loop", "v", "bidirectional"; "?" for other values. Static. [any] */
DP_API const char *dp_placement_name(dp_placement_t placement);

#ifdef __cplusplus
}
#endif
#endif
