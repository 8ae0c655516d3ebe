/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * gemm.h: matrix products for the CUDA plugins: row-major C[m, n] = alpha * op(A) op(B) + beta * C
 * through cuBLASLt.
 *
 * How to use it: in open(), cuda_gemm_open() and cuda_gemm_prepare() for every shape a step will
 * use; then ask cuda_gemm_workspace() once and put that many bytes into the scratch memory asked
 * for in sizes(); in a step, cuda_gemm_run(). A prepared product searches nothing and allocates
 * nothing; once it has run outside a step, it waits for nothing either, and may be captured. (With
 * lazy loading the first run of a kernel waits until the context is idle.)
 *
 * Products are sums in the accumulator's type: double for DP_F64, fp32 for DP_F32 (no TF32) and
 * DP_BF16. Split sums are added in that type and in a fixed order: the same pointers' alignment and
 * shape give the same bits. */
#ifndef PLUGINS_CUDA_GEMM_H
#define PLUGINS_CUDA_GEMM_H

#include <dualpipe/device.h>

#include <stdbool.h>

/* plans of one instance of a plugin; used by one thread at a time */
typedef struct cuda_gemm cuda_gemm_t;

/** One kind of product. Strides count elements; rows are contiguous. */
typedef struct cuda_gemm_shape {
    dp_dtype_t in; /* of A and B */
    /* of C: the same, or DP_F32 where `in` is DP_BF16 (weight gradients, logits) */
    dp_dtype_t out;
    /* A is [m, k], or [k, m] when transposed; B is [k, n], or [n, k] */
    bool transpose_a, transpose_b;
    uint32_t m, n, k;      /* at least 1 */
    uint32_t batch;        /* products of this shape in one call; 0: 1 */
    int64_t lda, ldb, ldc; /* from row to row; 0: as many as the matrix has columns */
    /* from product to product; stride_a or stride_b 0: all share one */
    int64_t stride_a, stride_b, stride_c;
} cuda_gemm_shape_t;

/** The memory of one call. All of it must stay until the work on the stream is done. */
typedef struct cuda_gemm_operands {
    double alpha, beta; /* beta 0: C is not read */
    const void *a, *b;
    void *c; /* shares no memory with a and b */
    /* cuda_gemm_workspace() bytes of device memory, any alignment; NULL when that is 0. Streams
     * that run at the same time need one each. */
    void *workspace;
} cuda_gemm_operands_t;

/**
 * Opens cuBLASLt (libcublasLt.so.13) for one instance. The device's context must be current. sms:
 * multiprocessors that products may count on, from dp_host_sm_t; 0: all of the device.
 * workspace_limit: most bytes that one product may ask for; 0: 32 MiB, what NVIDIA recommends for
 * Hopper. DP_ERR_UNSUPPORTED names the library when it is missing.
 */
dp_status_t cuda_gemm_open(const dp_host_t *host, uint32_t sms, size_t workspace_limit, cuda_gemm_t **gemm_out);
void cuda_gemm_close(cuda_gemm_t *gemm);

/** Searches how to run this shape, for aligned pointers (16 bytes) and, if cuBLASLt can, for any
 *  others. A known shape costs a look-up. DP_ERR_UNSUPPORTED: cuBLASLt has nothing for it. */
dp_status_t cuda_gemm_prepare(cuda_gemm_t *gemm, const cuda_gemm_shape_t *shape);

/** Bytes of workspace that every product prepared so far can run with. */
size_t cuda_gemm_workspace(const cuda_gemm_t *gemm);

/** Products over the tokens of a micro-batch are prepared for eight lengths, the longest `most`:
 *  the least of them that holds `tokens`. Where tokens are summed over, what lies behind them has
 *  to be zeros. */
static inline uint32_t cuda_gemm_length(uint32_t tokens, uint32_t most)
{
    const uint32_t step = (most + 7) / 8, length = (tokens + step - 1) / step * step;

    return length < most ? length : most;
}

/**
 * Puts the product on a stream (a CUstream, from stream_native()). [enqueue s] [capture] when the
 * shape was prepared. A shape never seen is prepared first, within the workspace that the instance
 * has.
 */
dp_status_t cuda_gemm_run(cuda_gemm_t *gemm, const cuda_gemm_shape_t *shape, const cuda_gemm_operands_t *operands,
                          void *stream);

#endif
