/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * stage.h: what one stage of the model computes: a list of segments over parameters.
 *
 * Three ways to a stage, from least to most work for the trainer: MoE layers out of plugins (dp_moe_layer_part) with the
 * trainer's own first and last parts (embedding, head); parts of the trainer's own; one whole-stage callback, which is a
 * stage of a single segment. */
#ifndef DUALPIPE_STAGE_H
#define DUALPIPE_STAGE_H

#include <dualpipe/attention.h>
#include <dualpipe/moe.h>
#include <dualpipe/program.h>

#ifdef __cplusplus
extern "C" {
#endif

/** One call of a segment. Everything is borrowed until the work put on the stream is done. backward_weight may run long after
 *  backward_input of the same segment: it gets no work, x, y, dy and dx (NULL), and reads what was left in saved. */
typedef struct dp_segment_call {
    uint32_t struct_size;
    int32_t rank, stage, chunk; /* pipeline rank, the stage of the model, the chunk on this rank                       */
    int32_t microbatch;         /* of the step: 0 <= microbatch < M                                                    */
    int32_t half;               /* gradient accumulator this micro-batch adds to                                       */
    uint32_t step;
    int32_t forward_only;
    const void *params;         /* the part's parameters, device memory                                                */
    void *grads;                /* accumulator of this half, the same elements, of dp_dtype_accumulator(dtype); add to it */
    void *saved, *work, *scratch;
    const void *x;              /* forward: the part's input; NULL at the first part of the first stage                */
    void *y;                    /* forward: the part's output; NULL at the last part of the last stage without outputs */
    const void *dy;             /* backward: gradient of y; NULL at the last part of the last stage                    */
    void *dx;                   /* backward: gradient of x; NULL at the first part of the first stage                  */
    const void *input, *target; /* what the trainer gave for this micro-batch (first stage, last stage), else NULL     */
    void *output;               /* where the trainer wants the last stage's output; NULL: nowhere                      */
    double *loss;               /* last stage: add this micro-batch's loss here (host-visible device memory)           */
    double loss_scale;          /* multiply the gradient of the loss by this                                           */
} dp_segment_call_t;

/** A piece of a layer on one lane. The functions put their work on `s` and return. */
typedef struct dp_segment {
    uint32_t struct_size;
    const char *name;           /* "attention"; kept by pointer */
    dp_segment_role_t role;
    dp_lane_t lane;
    void *self;
    dp_status_t (*forward)(void *self, const dp_segment_call_t *call, dp_stream_t *s);
    dp_status_t (*backward_input)(void *self, const dp_segment_call_t *call, dp_stream_t *s);
    dp_status_t (*backward_weight)(void *self, const dp_segment_call_t *call, dp_stream_t *s); /* NULL: no weights */
} dp_segment_t;

#define DP_PART_SEGMENTS 8

/** A part: segments that share parameters, saved and work memory: a layer, an embedding, a head. */
typedef struct dp_part {
    uint32_t struct_size;
    int32_t nsegments;
    dp_segment_t segments[DP_PART_SEGMENTS]; /* in forward order */
    dp_block_sizes_t sizes;
    const dp_param_t *params;  /* [sizes.nparams], copied by dp_stage_create                                     */
    const char *prefix;        /* put before the parameters' names: "layer3."; NULL: nothing. Copied             */
    /** NULL, or what is left to do for the part's gradients once they are summed over halves, mirrors and data groups: puts it
     *  on s, the reduce lane. grads: the part's, summed, accumulator's dtype. Once a training step, while other stages still
     *  compute; all ranks of an expert group call it for the same stages in the same order. [enqueue s] */
    dp_status_t (*reduce)(void *self, void *grads, dp_stream_t *s);
    void *reduce_self;
    const uint64_t *revision;  /* NULL, or a number that grows whenever the part would put other work on the streams than
                                  before: a captured step is then captured anew. Read between steps              */
} dp_part_t;

typedef struct dp_stage dp_stage_t;

/** The memory and parameters that a stage asks for. */
typedef struct dp_stage_info {
    int32_t nsegments;
    size_t saved_bytes;        /* per in-flight micro-batch                                                      */
    size_t work_bytes;         /* per running pass                                                               */
    size_t scratch_bytes;      /* per lane                                                                       */
    size_t param_count;        /* elements                                                                       */
    uint32_t nparams;
    const dp_param_t *params;  /* names with prefix, offsets within the stage's parameters; owned by the stage   */
} dp_stage_info_t;

/**
 * Chains parts into a stage: the output of one is the input of the next. boundary_bytes: size of the tensor between two
 * parts, and between stages. dtype: of parameters; gradients are of dp_dtype_accumulator(dtype). The caller frees it, after the pipeline is closed. [any]
 */
DP_API dp_status_t dp_stage_create(const dp_part_t *parts, int32_t nparts, size_t boundary_bytes, dp_dtype_t dtype,
                                   dp_stage_t **stage_out);
DP_API void dp_stage_free(dp_stage_t *stage);
DP_API void dp_stage_describe(const dp_stage_t *stage, dp_stage_info_t *info_out);

/**
 * A MoE transformer layer as a part: attention and route, dispatch, experts, combine, from one attention and one MoE
 * instance (both serve all layers of a rank). Their lanes and roles are those of the canonical order. *layer_out keeps
 * what the part needs and is freed with dp_moe_layer_free after the stage. [any]
 */
typedef struct dp_moe_layer dp_moe_layer_t;
DP_API dp_status_t dp_moe_layer_part(const dp_attention_vt_t *attention_vt, dp_attention_t *attention,
                                     const dp_moe_vt_t *moe_vt, dp_moe_t *moe, dp_dtype_t dtype, size_t boundary_bytes,
                                     dp_moe_layer_t **layer_out, dp_part_t *part_out);
DP_API void dp_moe_layer_free(dp_moe_layer_t *layer);

#ifdef __cplusplus
}
#endif
#endif
