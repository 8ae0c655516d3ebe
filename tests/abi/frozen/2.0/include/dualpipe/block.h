/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * block.h: what every part of a layer (attention, MoE, a trainer's own segment) is called with, and
 * its parameters.
 *
 * A block is a function of (parameters, input, saved, work, scratch). It allocates nothing in a
 * step and keeps nothing between calls: the host owns all memory and knows every byte before the
 * first step. An instance is opened once for a rank and serves all layers of that rank: each layer
 * has its own parameters, saved and work memory.
 *
 * Memory. params, grads, saved, backward_buffer, work and scratch begin at multiples of 64 bytes:
 * the host rounds the sizes which a block asks for up as needed. x, y, dy and dx begin at multiples
 * of 16 bytes. All of it is device memory of the device in the block's configuration. No two of
 * these regions overlap. What a block finds there: params and grads what they hold; saved what the
 * calls before of the same micro-batch left; work the same within one forward or one backward;
 * backward_buffer the same within one forward, and then from recompute to the weight gradient;
 * anything else may hold anything, NaN included, and outputs (y, dx) are overwritten, never added
 * to.
 *
 * Threads. All calls of an instance come from one thread at a time, and put their work on the
 * stream they are given: the work of two calls on different streams may run at the same time (a
 * forward of one micro-batch beside a backward of another), and such calls never share work or
 * scratch memory.
 *
 * Errors. A call that refuses says why through the host's fail() (plugin.h) and returns the
 * negative status. The host gives a call all pointers that it needs; a block that checks refuses a
 * NULL one with DP_ERR_INVALID and its name.
 *
 * Since 0.2: dp_param_t.shared, dp_recompute_t, dp_block_sizes_t.backward_buffer_bytes,
 * .recomputes, .apart, .cache_bytes, .posted; dp_io_t.backward_buffer, .tokens, .documents,
 * .document_ends, .cache, .slots, .past. */
#ifndef DUALPIPE_BLOCK_H
#define DUALPIPE_BLOCK_H

#include <dualpipe/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** How the optimizer treats a parameter, and over whom its gradient is summed. */
typedef enum dp_param_kind {
    DP_PARAM_MATRIX = 0, /* weight decay applies */
    DP_PARAM_VECTOR = 1, /* norms, biases: no weight decay */
    /* no gradient: its "gradient" counts the tokens that each expert was chosen for. The trainer
     * nudges it by the sign of (mean - count): DeepSeek-V3 report, section 2.1.2 */
    DP_PARAM_ROUTER_BIAS = 2
} dp_param_kind_t;

/**
 * One parameter tensor inside a block's parameter memory. Tensors do not overlap, and no two
 * have the same name. Frozen: never grows; `reserved` is zero.
 */
typedef struct dp_param {
    /* "wq", "experts.3.w_up" (the expert's number in the whole layer); the block's, until it
     * closes */
    const char *name;
    dp_param_kind_t kind;
    /* in elements from the start of the block's parameters; gradients have the same layout */
    size_t offset;
    size_t count;    /* elements */
    uint32_t fan_in; /* for initialisation: matrices are normal(0, 1/sqrt(fan_in)) */
    float start;     /* first value of vectors: 1 for norms, 0 for biases */
    /* 1: belongs to number `expert`, and one rank of the expert group has it; 0: the same on all */
    uint32_t sharded;
    /* number of the expert in the whole layer (of the replica, see moe.h); 0 unless sharded */
    int32_t expert;
    /* NULL, or "wte": two tensors of the model that have the same name here are one parameter
     * (stage.h). 1 to 63 bytes; the block's, as `name`. Not of `sharded` ones and biases of
     * routers. Plugins of layers leave it NULL */
    const char *shared;
    uint64_t reserved[2];
} dp_param_t;

/** Memory and parameters that a block needs. Bytes may be any number, 0 included. */
typedef struct dp_block_sizes {
    uint32_t struct_size;
    /* bytes per in-flight micro-batch: written by forward and by backward_input, valid until the
     * micro-batch's weight gradient is done */
    size_t saved_bytes;
    size_t work_bytes;    /* from the first to the last call of one forward, or of one backward */
    size_t scratch_bytes; /* within one call */
    size_t param_count;   /* elements of the parameter memory, gaps between tensors included */
    uint32_t nparams;     /* tensors in it */
    /* Bytes that a backward alone keeps: not valid from a forward to its backward, so the host has
     * fewer of them than of saved_bytes. In a forward they are there from its first to its last
     * call */
    size_t backward_buffer_bytes;
    uint32_t recomputes; /* 1: backward_input needs the block's recompute before it */
    /* 1: the instance was opened with the configuration's `apart`, and is called so */
    uint64_t apart; /* 64 bits: behind what was padding */
    /* Bytes of dp_io_t.cache: what a layer keeps of all requests from step to step; 0: nothing */
    size_t cache_bytes;
    uint64_t posted; /* 1: as `apart`, of the configuration's `posted` */
} dp_block_sizes_t;
enum { DP_BLOCK_SIZES_MIN = DP_SIZE_TO(dp_block_sizes_t, recomputes) };

/** What a block keeps of a forward for its backward, and what it computes once more instead.
 *  Outputs and gradients are the same to the last bit. Each level does what the one before it does.
 *  Nothing is sent between ranks once more. */
typedef enum dp_recompute {
    /* all memory of a micro-batch is there from its forward to its weight gradient */
    DP_RECOMPUTE_NONE = 0,
    /* norms and activation functions; and what a backward makes for the weight gradient has no
     * memory before */
    DP_RECOMPUTE_CHEAP = 1,
    DP_RECOMPUTE_MLP = 2, /* the products into an expert's inner width: gate and up */
    DP_RECOMPUTE_FULL = 3 /* all between what a segment takes in and what it gives out */
} dp_recompute_t;

/** Sizes that all blocks of a model share. */
typedef struct dp_block_shape {
    uint32_t struct_size;
    /* of activations, their gradients and parameters: DP_F32, DP_F64 or DP_BF16; gradients of
     * parameters are kept in dp_dtype_accumulator(dtype) */
    dp_dtype_t dtype;
    uint32_t batch; /* sequences per micro-batch */
    /* tokens per sequence; tokens T = batch * sequence, those of a sequence one after the other */
    uint32_t sequence;
    uint32_t hidden; /* width d of the residual stream */
    float norm_eps;  /* of RMSNorm; 0: 1e-6 */
} dp_block_shape_t;
enum { DP_BLOCK_SHAPE_MIN = DP_SIZE_TO(dp_block_shape_t, norm_eps) };

/**
 * One call. Pointers that a call does not use are NULL (the calls of attention.h and moe.h say
 * which they use). All tensors are row-major and contiguous, in the shape's dtype (grads: its
 * accumulator); x, y, dy and dx are [T, d]. The struct is borrowed during the call, the memory it
 * points to until the work put on the stream is done.
 */
typedef struct dp_io {
    uint32_t struct_size;
    uint32_t step;      /* number of the training step; for messages */
    int32_t microbatch; /* of the step: 0 <= microbatch < M, over both directions */
    const void *params; /* the block's parameters */
    /* accumulator, the same elements as params, of dp_dtype_accumulator(shape.dtype): added to */
    void *grads;
    void *saved; /* see dp_block_sizes_t */
    void *work;
    void *scratch;
    const void *x;         /* input of a forward */
    void *y;               /* output of a forward, overwritten */
    const void *dy;        /* gradient of y, input of a backward */
    void *dx;              /* gradient of x, overwritten; NULL: not wanted (at the first stage) */
    void *backward_buffer; /* see dp_block_sizes_t. NULL where that is 0 */
    /* a micro-batch that is not what the shape says. The same in all calls of a micro-batch; only
     * where the configuration asks for it (variable_tokens, documents) */
    /* it has so many, 1 to T: x, y, dy and dx are [tokens, d], and nothing behind them is read or
     * written. 0: T */
    uint32_t tokens;
    /* attention alone: document i is tokens document_ends[i-1] (of the first: 0) to
     * document_ends[i] - 1, and a token attends to its document alone. 0: sequences of
     * shape.sequence tokens, of which the last one ends with `tokens` */
    uint32_t documents;
    /* [documents] rising from 1, the last one `tokens`; a document has at most shape.sequence
     * tokens. In memory that host and device reach, there when the call is made and unchanged until
     * its work is done */
    const uint32_t *document_ends;
    /* attention alone, in a forward that no backward follows; NULL: nothing is kept. Document i is
     * what comes next of the request in slot slots[i], of which the cache has past[i] tokens: it
     * begins at position past[i], and its tokens attend to those before it too. The call writes
     * their keys and values behind them. DP_NO_SLOT: a document as ever, with past[i] 0 */
    void *cache;           /* the layer's, sizes.cache_bytes */
    const uint32_t *slots; /* [documents], in memory as document_ends; no slot stands there twice */
    const uint32_t *past;  /* [documents], the same */
} dp_io_t;

/** Not a slot of the cache (dp_io_t.slots). */
#define DP_NO_SLOT UINT32_MAX

enum { DP_IO_MIN = DP_SIZE_TO(dp_io_t, document_ends) };

#ifdef __cplusplus
}
#endif
#endif
