/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * block.h: the attention block of the CUDA plugins: everything around the core, which is softmax(q
 * k^T) v and its gradient.
 *
 * attention_cuda and attention_cudnn differ in their core alone. The block normalises, projects,
 * rotates, adds the residual, and splits its backward pass into one for the input and one for the
 * weights. */
#ifndef PLUGINS_ATTENTION_CUDA_BLOCK_H
#define PLUGINS_ATTENTION_CUDA_BLOCK_H

#include "plugins/attention/attention.h"
#include "plugins/common/layout.h"
#include "plugins/cuda/gemm.h"
#include "plugins/cuda/launch.h"
#include "plugins/cuda/module.h"
#include "plugins/cuda/side.h"

enum {
    ATTN_ALIGN = 256,  /* of every array in saved and scratch memory, as an offset */
    ATTN_THREADS = 256 /* of a block of row kernels */
};

/** Tensors of one call, in device memory. All of the instance's dtype, [batch, sequence, heads,
 *  dim]; q and k rotated. delta[batch, heads, sequence], of documents [heads, T]: sum over
 *  value_dim of dout * out, in the type of sums; where the core makes it itself, room for it.
 *  Behind the micro-batch's tokens q, k, v and dout are zeros up to T. */
typedef struct attn_tensors {
    const void *q, *k, *v;
    void *out; /* forward: written. backward: what forward wrote */
    void *saved, *scratch;
    const void *dout;
    void *delta;
    void *dq, *dk, *dv;
} attn_tensors_t;

/** A pass over an instance. A rehearsal prepares the matrix products and puts nothing on a stream;
 *  pointers are made up. A warm-up runs on a stream that no step uses. Products are prepared for
 *  some lengths: they run over `rows`, the least of these that holds the micro-batch, and what lies
 *  behind its tokens are zeros. */
typedef struct attn_pass {
    dp_attention_t *attention;
    CUstream stream;
    bool rehearsal, warm_up;
    void *workspace;
    uint32_t tokens, rows;
    uint32_t documents; /* 0 in a rehearsal and a warm-up, which go through all that there can be */
    const uint32_t *ends;
    /* [T] on the device: where a token's document begins; NULL: there are sequences */
    uint32_t *starts;
} attn_pass_t;

/** What an instance of a plugin is made with. */
typedef struct attn_core {
    const char *plugin; /* its name, for messages */
    unsigned takes;     /* ATTN_TAKES_* */
    bool makes_delta;   /* writes delta itself */
    /** Checks what the core cannot do, makes plans, sets core and the core_*_bytes. */
    dp_status_t (*open)(dp_attention_t *a);
    /** After a failed open() too. */
    void (*close)(dp_attention_t *a);
    dp_status_t (*forward)(const attn_pass_t *pass, const attn_tensors_t *t);
    dp_status_t (*backward)(const attn_pass_t *pass, const attn_tensors_t *t);
} attn_core_t;

/** Kernels of the block; core kernels are the core's. */
typedef struct attn_kernels {
    CUfunction normalize, apply_gain, rotate, dot_rows, gain_gradient, normalize_backward, accumulate;
    CUfunction starts;
    CUfunction join_keys, split_keys; /* of latent attention */
} attn_kernels_t;

struct dp_attention {
    const dp_host_t *host;
    const cuda_driver_t *cu;
    const dp_device_vt_t *device_vt;
    dp_device_t *device;
    const attn_core_t *vt;
    void *core;
    size_t core_saved_bytes, core_scratch_bytes;
    bool deterministic;

    attn_dims_t n;           /* k_width: of keys as the core sees them, whole */
    uint32_t own_width;      /* of the keys' own parts: heads * key_dim */
    dp_dtype_t sums;         /* of norms, statistics, gradients of parameters */
    size_t bytes, sum_bytes; /* of one element */
    uint32_t sms;            /* that products may count on, 0: all */

    dp_recompute_t recompute;

    /* Bytes, of layout_find(). backward_input turns q, k, v into their gradients. */
    struct {
        size_t normalized; /* [T, d] */
        size_t inv_rms;    /* [T], sums */
        size_t q, k, v;    /* [T, heads, dim] */
        size_t heads_out;  /* [T, heads, value_dim] */
        size_t dy;         /* [T, d], from backward_input on */
        size_t dnorm;      /* [d], sums, from backward_input on */
        size_t core;       /* the core's */
        /* of latent attention, as in attention_cpu: normalized latents, 1 / rms (sums), products
         * with w*_down and then their gradients, gradients of the gains (sums). After
         * backward_input k holds gradients of own parts. */
        struct {
            size_t normalized, inv_rms, down, dgain;
        } q_latent, kv_latent;
        size_t bytes, backward_buffer_bytes;
    } saved;
    /* scratch, in bytes */
    struct {
        size_t shared;     /* n [T, d]; then the core's; then dn [T, d] of sums */
        size_t dheads;     /* [T, heads, value_dim] */
        size_t dq, dk, dv; /* gradients, not yet rotated back */
        size_t delta;      /* [batch, heads, sequence], sums */
        size_t latent;     /* [T, the larger rank] behind its norm; then its gradient, sums */
        size_t starts;     /* [T], with documents */
        size_t workspace;  /* of matrix products */
        size_t bytes;
    } scratch;

    cuda_gemm_t *gemm;
    CUmodule module;
    attn_kernels_t kernels;
    void *rope; /* [sequence, rope_dim] of sums: rope_dim / 2 cosines, then as many sines */
};

static inline size_t attn_larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/** Threads of a block that takes a row: one for each 16 bytes or each few of them. */
static inline unsigned attn_row_threads(const dp_attention_t *a, uint32_t width)
{
    const unsigned vectors = cuda_blocks(width * a->bytes, 16), each = cuda_blocks(vectors, ATTN_THREADS);

    return 32 * cuda_blocks(vectors, 32 * each);
}

/** The functions of dp_attention_vt_t, for both plugins. */
dp_status_t attn_block_open(const dp_host_t *host, const dp_attention_config_t *config, const attn_core_t *core,
                            dp_attention_t **attention_out);
void attn_block_close(dp_attention_t *a);
dp_status_t attn_block_sizes(const dp_attention_t *a, dp_block_sizes_t *sizes_out);
dp_status_t attn_block_params(const dp_attention_t *a, dp_param_t *params_out);
dp_status_t attn_block_forward(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s);
dp_status_t attn_block_backward_input(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s);
dp_status_t attn_block_backward_weight(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s);
dp_status_t attn_block_recompute(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s);

/** A pass over a micro-batch of so many tokens, 1 to T. */
attn_pass_t attn_pass(dp_attention_t *a, uint32_t tokens);

/** Where the core's tensors are in a call's memory. */
attn_tensors_t attn_view(const dp_attention_t *a, const dp_io_t *io);

/** C = alpha op(A) op(B) + beta C in this pass, or its preparation. */
dp_status_t attn_multiply(const attn_pass_t *pass, const cuda_gemm_shape_t *shape, double alpha, const void *a,
                          const void *b, double beta, void *c);

/** Kernels of an image, named attn_<what>_<dtype>, in order. */
dp_status_t attn_load_kernels(dp_attention_t *a, const unsigned char *image, const char *const names[],
                              CUfunction *const functions[], size_t count, CUmodule *module_out);

/** Walks through all passes of all lengths without a stream, so that every product is prepared. */
dp_status_t attn_rehearse(dp_attention_t *a);

/** Runs all passes of all lengths on its own zeroed memory, so that every kernel of a library is
 *  loaded before the first step. */
dp_status_t attn_warm_up(dp_attention_t *a);

#endif
