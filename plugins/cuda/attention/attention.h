/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention.h: the attention block of the CUDA plugins: everything around the core, which is softmax(q k^T) v and its gradient.
 *
 * attention_cuda and attention_cudnn differ in their core alone. The block normalises, projects, rotates, adds the residual,
 * and splits its backward pass into one for the input and one for the weights. */
#ifndef DP_CUDA_ATTENTION_H
#define DP_CUDA_ATTENTION_H

#include "../gemm.h"
#include "../launch.h"
#include "../module.h"

#include <dualpipe/attention.h>

enum { DP_ATTENTION_ALIGN = 256 }; /* of every array in saved and scratch memory, as an offset */

/** Tensors of one call, in device memory. All of the instance's dtype, [batch, sequence, heads, dim]; q and k rotated.
 *  delta[batch, heads, sequence]: sum over value_dim of dout * out, in the type of sums; where the core makes it itself, room
 *  for it. */
typedef struct dp_attention_tensors {
    const void *q, *k, *v;
    void *out; /* forward: written. backward: what forward wrote       */
    void *saved, *scratch;
    const void *dout;
    void *delta;
    void *dq, *dk, *dv;
} dp_attention_tensors_t;

/** A pass over an instance. A rehearsal prepares the matrix products and puts nothing on a stream; pointers are made up. */
typedef struct dp_attention_pass {
    dp_attention_t *attention;
    CUstream stream;
    bool rehearsal;
    void *workspace;
} dp_attention_pass_t;

/** What an instance of a plugin is made with. */
typedef struct dp_attention_core {
    const char *plugin; /* its name, for messages */
    bool makes_delta;   /* writes delta itself    */
    /** Checks what the core cannot do, makes its plans; sets core, core_saved_bytes and core_scratch_bytes. */
    dp_status_t (*open)(dp_attention_t *a);
    /** After a failed open() too. */
    void (*close)(dp_attention_t *a);
    dp_status_t (*forward)(const dp_attention_pass_t *pass, const dp_attention_tensors_t *t);
    dp_status_t (*backward)(const dp_attention_pass_t *pass, const dp_attention_tensors_t *t);
} dp_attention_core_t;

/** Kernels of the block; core kernels are the core's. */
typedef struct dp_attention_kernels {
    CUfunction normalize, apply_gain, rotate, dot_rows, gain_gradient, normalize_backward, accumulate;
} dp_attention_kernels_t;

struct dp_attention {
    const dp_host_t *host;
    const dp_cuda_driver_t *cu;
    const dp_device_vt_t *device_vt;
    dp_device_t *device;
    const dp_attention_core_t *vt;
    void *core;
    size_t core_saved_bytes, core_scratch_bytes;
    bool deterministic;

    dp_dtype_t dtype, sums;  /* of tensors; of norms, statistics, gradients of parameters */
    size_t bytes, sum_bytes; /* of one element */
    uint32_t batch, sequence, tokens, hidden;
    uint32_t heads, kv_heads, group; /* group = heads / kv_heads */
    uint32_t head_dim, value_dim;
    uint32_t q_width, k_width, v_width, o_width; /* heads x dim of one token */
    uint32_t sms;                                /* that products may count on, 0: all */
    double norm_eps, rope_theta, scale;

    /* parameters, in elements */
    struct {
        size_t norm, wq, wk, wv, wo, count;
    } params;
    /* saved, in bytes. backward_input turns q, k, v into their gradients. */
    struct {
        size_t normalized; /* [T, d]                                           */
        size_t inv_rms;    /* [T], sums                                        */
        size_t q, k, v;    /* [T, heads, dim]                                  */
        size_t heads_out;  /* [T, heads, value_dim]                            */
        size_t dy;         /* [T, d], from backward_input on                   */
        size_t dnorm;      /* [d], sums, from backward_input on                */
        size_t core;       /* the core's                                       */
        size_t bytes;
    } saved;
    /* scratch, in bytes */
    struct {
        size_t shared;     /* n [T, d]; then the core's; then dn [T, d] of sums */
        size_t dheads;     /* [T, heads, value_dim]                             */
        size_t dq, dk, dv; /* gradients, not yet rotated back                   */
        size_t delta;      /* [batch, heads, sequence], sums                    */
        size_t workspace;  /* of matrix products                                */
        size_t bytes;
    } scratch;

    dp_gemm_t *gemm;
    CUmodule module;
    dp_attention_kernels_t kernels;
    void *rope; /* [sequence, head_dim] of sums: head_dim / 2 cosines, then as many sines */
};

/** The functions of dp_attention_vt_t, for both plugins. */
dp_status_t dp_attention_block_open(const dp_host_t *host, const dp_attention_config_t *config,
                                    const dp_attention_core_t *core, dp_attention_t **attention_out);
void dp_attention_block_close(dp_attention_t *a);
dp_status_t dp_attention_block_sizes(const dp_attention_t *a, dp_block_sizes_t *sizes_out);
dp_status_t dp_attention_block_params(const dp_attention_t *a, dp_param_t *params_out);
dp_status_t dp_attention_block_forward(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s);
dp_status_t dp_attention_block_backward_input(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s);
dp_status_t dp_attention_block_backward_weight(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s);

/** Checks every field of the configuration and sets all sizes; asks no device. */
dp_status_t dp_attention_configure(dp_attention_t *a, const dp_attention_config_t *config);

/** Where the core's tensors are in a call's memory. */
dp_attention_tensors_t dp_attention_view(const dp_attention_t *a, const dp_io_t *io);

/** C = alpha op(A) op(B) + beta C in this pass, or its preparation. */
dp_status_t dp_attention_multiply(const dp_attention_pass_t *pass, const dp_gemm_shape_t *shape, double alpha,
                                  const void *a, const void *b, double beta, void *c);

/** Arrays one after the other, each aligned; false from then on when they outgrow an address space. */
typedef struct dp_attention_layout {
    size_t end;
    bool overflow;
} dp_attention_layout_t;
size_t dp_attention_append(dp_attention_layout_t *l, size_t rows, size_t columns, size_t element_bytes);

/** Kernels of an image, named dp_attention_<what>_<dtype>, in order. */
dp_status_t dp_attention_load_kernels(dp_attention_t *a, const unsigned char *image,
                                      const char *const names[], CUfunction *const functions[], size_t count,
                                      CUmodule *module_out);

#endif
