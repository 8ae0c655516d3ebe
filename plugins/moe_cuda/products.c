/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * products.c: which kernel makes a product, and with how many blocks. */
#include "moe_cuda.h"

static bool aligned(const void *p, size_t bytes)
{
    return (uintptr_t)p % bytes == 0;
}

/* Tensor cores read rows in pieces of 16 bytes and write pairs. */
static bool fits_tensor(bool sums, const moe_product_t *p)
{
    const size_t pair = sums ? 8 : 4;
    int i;

    if (p->lda % 8 != 0 || p->ldb % 8 != 0 || p->group_b % 8 != 0 || p->n % 2 != 0 || p->ldc % 2 != 0 ||
        p->group_c % 2 != 0)
        return false;
    for (i = 0; i < p->parts; i++)
        if (!aligned(p->a[i], 16))
            return false;
    for (i = 0; i < p->parts + p->outputs - 1; i++)
        if (!aligned(p->b[i], 16))
            return false;
    for (i = 0; i < p->outputs; i++)
        if (!aligned(p->c[i], pair))
            return false;
    return true;
}

static int64_t tiles(const moe_product_t *p, bool by_rows, int32_t m, int32_t n)
{
    const int64_t down =
        by_rows ? p->m / m + (p->rows != NULL ? p->groups : 1) : (p->m + m - 1) / m * p->groups;

    return down * ((p->n + n - 1) / n) * p->outputs;
}

dp_status_t moe_multiply(dp_moe_t *moe, moe_form_t form, bool sums, const moe_product_t *product, CUstream s)
{
    const bool by_rows = form != MOE_TN;
    CUfunction function = moe->kernels.tensor[form][sums];
    const bool tensor = function != NULL && fits_tensor(sums, product);
    moe_product_t p = *product;
    int64_t blocks, most;
    size_t shared = 0;

    if (p.n == 0 || p.m == 0)
        return DP_OK;
    if (tensor && moe->shape.products == MOE_WGMMA) {
        most = moe->sms;
        blocks = tiles(&p, by_rows, MOE_ROWS_M, MOE_ROWS_N);
        shared = MOE_WGMMA_SHARED;
    } else if (tensor) {
        most = moe->sms * (by_rows ? 1 : 2);
        blocks =
            by_rows ? tiles(&p, true, MOE_ROWS_M, MOE_ROWS_N) : tiles(&p, false, MOE_CELLS_M, MOE_CELLS_N);
        shared = by_rows ? MOE_ROWS_SHARED : MOE_CELLS_SHARED;
    } else {
        function = moe->kernels.plain[form][sums];
        most = moe->sms * 2;
        blocks = tiles(&p, by_rows, MOE_PLAIN_TILE, MOE_PLAIN_TILE);
    }
    return dp_cuda_launch(moe->host, moe->cu, function, DP_DIM(blocks < most ? blocks : most),
                          DP_DIM(MOE_PRODUCT_THREADS), shared, s, &p);
}

/* The experts' products over `padded` rows each. */
static dp_gemm_shape_t padded_shape(const dp_moe_t *moe, moe_padded_product_t which)
{
    const moe_dims_t *n = &moe->shape.n;
    const uint32_t rows = (uint32_t)n->padded, d = (uint32_t)n->hidden, f = (uint32_t)n->ffn;
    const int64_t hidden = (int64_t)rows * d, wide = (int64_t)rows * f,
                  weights = (int64_t)moe->layout.expert_count;
    dp_gemm_shape_t g = {.in = moe->shape.dtype, .out = moe->shape.dtype, .batch = (uint32_t)n->local};

    switch (which) {
    case MOE_UP: /* x w_gate, x w_up */
        g.m = rows, g.n = f, g.k = d;
        g.stride_a = hidden, g.stride_b = weights, g.stride_c = wide;
        break;
    case MOE_DOWN: /* act w_down */
        g.m = rows, g.n = d, g.k = f;
        g.stride_a = wide, g.stride_b = weights, g.stride_c = hidden;
        break;
    case MOE_DOWN_BACKWARD: /* dy w_down^T */
        g.transpose_b = true;
        g.m = rows, g.n = f, g.k = d;
        g.stride_a = hidden, g.stride_b = weights, g.stride_c = wide;
        break;
    case MOE_UP_BACKWARD: /* dgate w_gate^T, dup w_up^T */
        g.transpose_b = true;
        g.m = rows, g.n = d, g.k = f;
        g.stride_a = wide, g.stride_b = weights, g.stride_c = hidden;
        break;
    case MOE_UP_WEIGHT: /* x^T dgate, x^T dup */
        g.out = dp_dtype_accumulator(g.in);
        g.transpose_a = true;
        g.m = d, g.n = f, g.k = rows;
        g.stride_a = hidden, g.stride_b = wide, g.stride_c = weights;
        break;
    case MOE_DOWN_WEIGHT: /* act^T dy */
        g.out = dp_dtype_accumulator(g.in);
        g.transpose_a = true;
        g.m = f, g.n = d, g.k = rows;
        g.stride_a = wide, g.stride_b = hidden, g.stride_c = weights;
        break;
    }
    return g;
}

dp_status_t moe_multiply_padded(dp_moe_t *moe, moe_padded_product_t which, const void *a, const void *b,
                                double beta, void *c, void *workspace, CUstream s)
{
    const dp_gemm_shape_t shape = padded_shape(moe, which);
    const dp_gemm_operands_t operands = {
        .alpha = 1, .beta = beta, .a = a, .b = b, .c = c, .workspace = workspace};

    return dp_gemm_run(moe->gemm, &shape, &operands, s);
}

dp_status_t moe_prepare_padded(dp_moe_t *moe)
{
    dp_status_t status = DP_OK;
    int which;

    for (which = MOE_UP; which <= MOE_DOWN_WEIGHT && status >= 0; which++) {
        const dp_gemm_shape_t shape = padded_shape(moe, (moe_padded_product_t)which);

        status = dp_gemm_prepare(moe->gemm, &shape);
    }
    return status;
}
