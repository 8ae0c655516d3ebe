/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * stage.h: what one stage of the model computes. A trainer who reads one header reads this one.
 *
 * Three ways to a stage, from least to most work for the trainer: MoE layers out of plugins
 * (moe_block.h) with custom first and last parts (embedding, head); custom parts; one part with one
 * segment that is the whole stage. examples/smallest is a trainer of the last kind in some 150
 * lines.
 *
 * A stage is a chain of parts (a layer, an embedding, a head): the output of one is the input of
 * the next. A part is a chain of segments that share parameters and memory. It has one segment, or
 * one for each resource that a layer uses in turn: attention, dispatch, MLP, combine. The engine
 * overlaps them with those of another micro-batch.
 *
 * Passes. For every micro-batch each segment is called once for each of
 *   F  forward          y = f(x), in the order of the chain
 *   I  backward_input   dx = gradient of x, from dy, in the opposite order
 *   W  backward_weight  grads += gradient of the parameters. Right after I, or much later: other
 *                       micro-batches may go forward and backward in between. It has nothing but
 *                       the parameters and what was saved
 * Not every micro-batch is at the same place: between F and I of one, F and I of others run. A
 * segment that would rather compute once more than keep has
 *   R  recompute        right before I: makes again, out of what F saved, what I and W need
 *
 * What each pass may read and write (r read, w overwritten, + added to, - is NULL):
 *
 *               F   R   I   W
 *   params      r   r   r   r   the part's parameters, [sizes.param_count] of the stage's dtype
 *   grads       -   -   +   +   gradients so far, the same elements, of
 *                               dp_dtype_accumulator(dtype). In I: NULL for segments of the
 *                               all-to-all lane. Add to one tensor in one of the passes only: then
 *                               all schedules give the same bits
 *   saved       w   r   rw  rw  this micro-batch's own, from its F to its W: [sizes.saved_bytes].
 *                               Holds anything before F. R reads what segments up to its own left
 *                               there in F
 *   backward_buffer
 *               rw  w   rw  rw  [sizes.backward_buffer_bytes], NULL where that is 0. In F as work.
 *                               Then, other memory, this micro-batch's own from its first R or I to
 *                               its W. Holds anything before
 *   work        rw  -   rw  -   shared by the segments of the part within one pass:
 *                               [sizes.work_bytes]. Holds anything before the first of them
 *   scratch     rw  rw  rw  rw  of one call: [sizes.scratch_bytes]. Holds anything before
 *   x           r   -   -   -   the part's input, boundary_bytes. NULL at the first part of the
 *                               first stage (`input`)
 *   y           w   -   -   -   the part's output. NULL at the last part of the last stage
 *                               (`output`)
 *   dy          -   -   r   -   gradient of y. NULL at the last part of the last stage (`target`,
 *                               loss_scale)
 *   dx          -   -   w   -   gradient of x. NULL at the first part of the first stage
 *   input       r   r   r   r   this micro-batch's of dp_step_t.inputs. At the first part of the
 *                               first stage, else NULL
 *   target      r   r   r   r   this micro-batch's of dp_step_t.targets. At the last part of the
 *                               last stage, else NULL
 *   output      w   -   -   -   the place for it in dp_step_t.outputs; NULL: not wanted. There too
 *   loss        +   -   -   -   add this micro-batch's loss. There too
 *   aux_loss    +   -   -   -   add this micro-batch's auxiliary loss, if the part has one;
 *                               host-visible device memory
 *
 * Memory that is not kept from F to its backward costs less. A rank has `saved` for every
 * micro-batch between F and W, backward_buffer for those between I and W alone
 * (dp_verify_report_t.peak_backward_buffers). R waits for its lane and for nothing else: it may run
 * before dy has come, and beside the I of segments behind its own.
 *
 * y and dx hold the values of another micro-batch, or anything, when a pass begins. Write them with
 * =, never with +=, and write all of them: call.boundary_bytes, which is less than the pipeline's
 * for a micro-batch with fewer tokens (dp_step_t.tokens). A forward_only step makes F alone, and
 * nobody reads what it leaves in saved.
 *
 * Several tensors may cross from part to part, one behind the other in x, y, dy and dx, and so in
 * one message between stages: a residual stream, a skip to a later part, the states of heads that
 * predict further tokens. dp_boundary_offsets says where each lies. dp_part_t.boundary_bytes makes
 * those that a part does not know go past it.
 *
 * A part's segments all get the same x, y, dy and dx. Any segment may read x (in F) or dy (in I)
 * until the part ends, and some segment writes y or dx.
 *
 * Alignment: params, grads, saved, backward_buffer, work and scratch begin at multiples of 64
 * bytes, x, y, dy and dx at those of 16. All of it is device memory of the pipeline (on device_cpu:
 * ordinary memory), and no two of these overlap.
 *
 * How the functions run. The engine puts the work of a step on streams. It calls forward,
 * backward_input, backward_weight and recompute to put theirs on stream `s`: they enqueue (kernels,
 * dp_device_vt_t.launch) and return, long before the data that `call` points to are there. A
 * function that computes at once, on the thread that called it, reads what is not there yet.
 * host_forward and the other host functions are for computing in plain C. The engine runs them when
 * the stream gets there, with x, saved and all else ready; what they wrote is there when they
 * return. They need a device that runs host functions (DP_DEVICE_CAP_LAUNCH, as device_cpu). They
 * may block (for a file, a lock), but not for another rank. They may use OpenMP and start
 * threads. They must not call the pipeline. An error is `return dp_fail(DP_ERR_..., "...")`: the
 * step fails on all ranks with rank, stage, segment and micro-batch in front. No C++ exception may
 * leave a function given to the library; dualpipe.hpp has a wrapper that turns one into an error.
 *
 * Threads. forward, backward_input, backward_weight and recompute are called by the thread that is
 * in dp_pipeline_step, one at a time. Host functions run on threads of the device plugin, one for
 * each lane. Those of segments on DP_LANE_COMPUTE, and all of pass W, never run two at once. Those
 * of F and I of segments on DP_LANE_ALL_TO_ALL never run two at once either, but beside those of
 * the compute lane. So with all segments on the compute lane, two functions of a rank never run at
 * the same time, and may share variables. Ranks that are threads of one process (dp_group_local)
 * have separate lanes.
 *
 * Shared parameters. Two tensors of the model with the same dp_param_t.shared, in one stage or in
 * two, are one parameter: an embedding that is the head's matrix as well. They have the same count
 * and kind, each its own memory, and each part reads and adds to its own. The trainer gives both
 * the same first values; the first step refuses others with DP_ERR_MISMATCH. After a step both have
 * the sum of the two gradients, so that one optimizer, which does the same to both, keeps them
 * equal. The sum is made on the reduce lane, behind half 0 + half 1 and before the sum over data
 * groups. On V and bidirectional placements it mostly needs no message: one rank holds the first
 * and the last stage. At most 16 in a model.
 *
 * DUALPIPE_GUARD=1 (pipeline.h) finds writes beyond saved, backward_buffer, work, scratch, y, dx
 * and grads, and writes to x, dy, params, input and target. It also finds outputs that are not
 * overwritten, and functions that compute before their turn. Use it on every new segment.
 *
 * Since 0.2: dp_segment_t.recompute, .host_recompute; dp_segment_call_t.backward_buffer,
 * .boundary_bytes, .tokens, .documents, .document_ends, .cache, .slots, .past;
 * dp_part_t.boundary_bytes, dp_boundary_offsets. */
#ifndef DUALPIPE_STAGE_H
#define DUALPIPE_STAGE_H

#include <dualpipe/block.h>

#ifdef __cplusplus
extern "C" {
#endif

/** One call of a segment; the table above says which members a pass gets. The struct is borrowed
 *  during the call (copy it to keep it), the memory it points to until the work put on the stream
 *  is done. */
typedef struct dp_segment_call {
    uint32_t struct_size;

    /* ---- which call ---- */

    int32_t rank, stage, chunk; /* pipeline rank, the stage of the model, the chunk on this rank */
    int32_t microbatch;         /* of the step: 0 <= microbatch < M */
    /* of the step that it is in, 0 or 1: which accumulator `grads` is, where there are two */
    int32_t half;
    uint32_t step;        /* number of the step, from 0 */
    int32_t forward_only; /* 1: the step has no backward */

    /* ---- the part's memory ---- */

    const void *params;
    void *grads;
    void *saved, *backward_buffer, *work, *scratch;

    /* ---- what crosses between parts ---- */

    const void *x;
    void *y;
    const void *dy;
    void *dx;
    size_t boundary_bytes; /* of x, y, dy and dx in this call; what lies behind is not read */

    /* ---- the ends of the model ---- */

    const void *input, *target;
    void *output;
    double *loss, *aux_loss;
    /* Multiply the gradient of the loss by this where it begins, at the last stage, and that of an
     * auxiliary loss; not the losses themselves. The step's, weighted (dp_step_t.tokens). */
    double loss_scale;

    /* ---- micro-batches of different length (dp_pipeline_options_t.tokens) ---- */

    uint32_t tokens;    /* of this micro-batch; 0 without options.tokens */
    uint32_t documents; /* of it; 0: none */
    /* [documents] where each ends (dp_documents_t), in memory that host and device reach, valid
     * during the step */
    const uint32_t *document_ends;

    /* ---- inference (dp_step_t.requests); NULL where the micro-batch has none ---- */

    void *cache;           /* the part's, sizes.cache_bytes; in F alone */
    const uint32_t *slots; /* [documents] as document_ends */
    const uint32_t *past;  /* the same */
} dp_segment_call_t;
enum { DP_SEGMENT_CALL_MIN = DP_SIZE_TO(dp_segment_call_t, document_ends) };

/** Puts the work of one call on `s` and returns. */
typedef dp_status_t (*dp_segment_fn)(void *self, const dp_segment_call_t *call, dp_stream_t *s);
/** Does the work of one call. */
typedef dp_status_t (*dp_segment_host_fn)(void *self, const dp_segment_call_t *call);

/** A part of a layer on one lane. Each pass has at most one of its two functions. F and I have
 *  one. A segment without either for W has no parameters, or adds to grads in I. One without either
 *  for R recomputes nothing. Zero is no special role, and the compute lane. */
typedef struct dp_segment {
    uint32_t struct_size;
    const char *name; /* "attention": in messages and traces. Copied */
    /* decides the order in which an overlapped pair is enqueued, see types.h */
    dp_segment_role_t role;
    /* of F and I: DP_LANE_COMPUTE or DP_LANE_ALL_TO_ALL. W runs on the compute lane */
    dp_lane_t lane;
    void *self; /* given to the functions */
    dp_segment_fn forward, backward_input, backward_weight;
    dp_segment_host_fn host_forward, host_backward_input, host_backward_weight;
    /* R, of segments on DP_LANE_COMPUTE alone */
    dp_segment_fn recompute;
    dp_segment_host_fn host_recompute;
} dp_segment_t;
enum { DP_SEGMENT_MIN = DP_SIZE_TO(dp_segment_t, host_recompute) };

/** A part: segments that share parameters, saved and work memory: a layer, an embedding, a head. */
typedef struct dp_part {
    uint32_t struct_size;
    int32_t nsegments;
    /* [nsegments] in forward order; all of one struct_size, the stride. Copied */
    const dp_segment_t *segments;
    const dp_block_sizes_t *sizes; /* copied; NULL: no parameters, no memory */
    /* [sizes->nparams], copied. They do not overlap, no two of a stage have one name */
    const dp_param_t *param_list;
    const char *prefix; /* put before the parameters' names: "layer3."; NULL: nothing. Copied */
    /* NULL, or what is left to do for the part's gradients once they are summed over halves,
     * mirrors and data groups: puts it on s, the reduce lane. grads: the part's, in the
     * accumulator's dtype; those of shared parameters are not done yet. Called once a training
     * step, while other stages still compute. All ranks of an expert group call it for the same
     * stages in the same order. [enqueue s] */
    dp_status_t (*reduce)(void *self, void *grads, dp_stream_t *s);
    void *reduce_self;
    /* NULL, or a number that grows whenever the part would put other work on the streams than
     * before. A captured step is then captured anew. Read between steps. */
    const uint64_t *revision;
    /* NULL, or where sharded parameters are those of replicas: the expert that each replica
     * (dp_param_t.expert) is of. So dp_pipeline_gradient_norm counts it once. Read between steps;
     * not copied. */
    const int32_t *placement;
    /* So many of x, y, dy and dx, their first, are the part's. What lies behind goes past it
     * unchanged, x to y and dy to dx, or is zero where x or dy is NULL. 0: all. */
    size_t boundary_bytes;
} dp_part_t;
enum { DP_PART_MIN = DP_SIZE_TO(dp_part_t, boundary_bytes) };

typedef struct dp_stage dp_stage_t;

/**
 * Chains parts into a stage. parts: [nparts], all of one struct_size, which is the stride. Nothing
 * of them is kept but what `self`, `reduce_self`, `revision` and `placement` point to.
 * boundary_bytes: size of the tensor between two parts, and between stages. dtype: of parameters
 * (DP_F32, DP_F64, DP_BF16); gradients are of dp_dtype_accumulator(dtype). Both are those of the
 * pipeline's options. The caller frees the stage, after the pipeline is closed. DP_ERR_INVALID
 * names the part, and the segment or parameter at fault: a function is missing, sizes cannot be,
 * parameters overlap, lie outside or have one name. [any]
 */
DP_API DP_CHECKED dp_status_t dp_stage_create(const dp_part_t *parts, int32_t nparts, size_t boundary_bytes,
                                              dp_dtype_t dtype, dp_stage_t **stage_out);
/** Frees a stage, after dp_pipeline_close. NULL is allowed. [any] */
DP_API void dp_stage_free(dp_stage_t *stage);

/** A tensor among those that cross the boundary between parts: a row of `width` elements for each
 * token. Frozen. */
typedef struct dp_boundary_tensor {
    const char *name; /* "skip": for messages */
    dp_dtype_t dtype;
    uint32_t width; /* a row is a multiple of 16 bytes */
} dp_boundary_tensor_t;

/** Where tensors lie that cross a boundary in the order of the list, for a micro-batch of `tokens`
 *  tokens. offsets_out: [count] in bytes; NULL: not wanted. *bytes_out: of all of them. With the
 *  most tokens that there are this is boundary_bytes of the pipeline; with fewer, the size of a
 *  message. DP_ERR_INVALID names the tensor whose row is no multiple of 16 bytes, or that no
 *  address space holds. [any] */
DP_API DP_CHECKED dp_status_t dp_boundary_offsets(const dp_boundary_tensor_t *tensors, int32_t count, uint32_t tokens,
                                                  size_t *offsets_out, size_t *bytes_out);

#ifdef __cplusplus
}
#endif
#endif
