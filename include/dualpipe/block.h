/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * block.h: what every piece of a layer (attention, MoE, a trainer's own segment) is called with, and its parameters.
 *
 * A block is a function of (parameters, input, saved, work, scratch): it allocates nothing and keeps nothing between
 * calls. The engine owns the memory and knows every byte before the first step. */
#ifndef DUALPIPE_BLOCK_H
#define DUALPIPE_BLOCK_H

#include <dualpipe/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/** How the optimizer treats a parameter, and over whom its gradient is summed. */
typedef enum dp_param_kind {
    DP_PARAM_MATRIX = 0,      /* weight decay applies                                                                */
    DP_PARAM_VECTOR = 1,      /* norms, biases: no weight decay                                                      */
    DP_PARAM_ROUTER_BIAS = 2  /* no gradient: its "gradient" counts the tokens each expert was chosen for, and the
                                 trainer nudges it by the sign of (mean - count) (DeepSeek-V3 report, section 2.1.2)  */
} dp_param_kind_t;

/** One parameter tensor inside a block's parameter memory. */
typedef struct dp_param {
    const char *name;     /* "wq", "experts.3.w_up" (the expert's number in the whole layer); owned by the block         */
    dp_param_kind_t kind;
    size_t offset;        /* in elements from the start of the block's parameters; gradients have the same layout         */
    size_t count;         /* elements                                                                                     */
    uint32_t fan_in;      /* for initialisation: normal(0, 1/sqrt(fan_in)) for matrices; vectors start at `start`          */
    float start;          /* first value of vectors (1 for norms, 0 for biases)                                           */
    int32_t expert;       /* number of the expert (of the replica, see moe.h) it belongs to, sharded over the expert group;
                             -1: the same on all                                                                          */
} dp_param_t;

/** Bytes a block needs; all multiples of 64 after dp_block_sizes() rounding. */
typedef struct dp_block_sizes {
    uint32_t struct_size;
    size_t saved_bytes;    /* per in-flight micro-batch, written by forward, valid until its weight gradient is done      */
    size_t work_bytes;     /* from the first to the last segment call of one forward, or of one backward                  */
    size_t scratch_bytes;  /* within one call; its content means nothing before or after                                  */
    size_t param_count;    /* elements of the parameter memory                                                            */
    uint32_t nparams;      /* tensors in it                                                                               */
} dp_block_sizes_t;

/** Sizes that all blocks of a model share. */
typedef struct dp_block_shape {
    uint32_t struct_size;
    dp_dtype_t dtype;     /* of activations, their gradients and parameters; gradients of parameters are kept in
                             dp_dtype_accumulator(dtype)                                                          */
    uint32_t batch;       /* sequences per micro-batch                                                            */
    uint32_t sequence;    /* tokens per sequence; tokens T = batch * sequence                                     */
    uint32_t hidden;      /* width d of the residual stream                                                       */
    float norm_eps;       /* of RMSNorm; 0: 1e-6                                                                  */
} dp_block_shape_t;

/**
 * One call. Pointers not used by a pass are NULL. All tensors are row-major and contiguous, in the shape's dtype (grads: its accumulator);
 * boundary tensors are [T, d]. Borrowed until the work put on the stream is done.
 */
typedef struct dp_io {
    uint32_t struct_size;
    uint32_t step;
    int32_t microbatch;   /* 0 <= microbatch < M, over both directions                                            */
    int32_t half;         /* which gradient accumulator this micro-batch adds to: 0 first half, 1 second           */
    uint32_t sequence;    /* how many micro-batches this block forwarded (or sent backward) before, on this rank   */
    const void *params;   /* the block's parameters                                                               */
    void *grads;          /* accumulator, the same elements as params, of dp_dtype_accumulator(shape.dtype);
                             backward_weight adds to it                                                           */
    void *saved;          /* see dp_block_sizes_t                                                                 */
    void *work;
    void *scratch;
    const void *x;        /* forward: input. backward: the same only if the block saved it itself, else NULL        */
    void *y;              /* forward: output                                                                      */
    const void *dy;       /* backward_input: gradient of the output                                                */
    void *dx;             /* backward_input: gradient of the input, overwritten; may be NULL at the first stage     */
} dp_io_t;

#ifdef __cplusplus
}
#endif
#endif
