/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * products.c: which kernel makes a product, and with how many blocks. */
#include "library.h"

#include "plugins/common/debug.h"

#include <string.h>

/* Once in a process: without CUTLASS experts take twice as long. */
static bool said_slower;

dp_status_t moe_choose_products(dp_moe_t *moe)
{
    static const char *const names[MOE_PRODUCTS] = {"grouped", "plain", "cutlass"};
    char text[32];
    const char *wanted = debug_value("moe_cuda.products", text, sizeof(text));

    if (wanted == NULL) {
        dp_status_t status = DP_ERR_UNSUPPORTED;

        moe->products = MOE_CUTLASS;
        if (moe_uses_library(moe))
            status = moe_cutlass_find(moe);
        if (status != DP_ERR_UNSUPPORTED)
            return status;
        if (moe_uses_library(moe) && !__atomic_exchange_n(&said_slower, true, __ATOMIC_RELAXED))
            moe->host->log(moe->host, DP_LOG_WARN, "moe_cuda", moe->host->last_error(moe->host));
        moe->products = MOE_GROUPED;
        return DP_OK;
    }
    for (int i = 0; i < MOE_PRODUCTS; i++)
        if (strcmp(wanted, names[i]) == 0) {
            moe->products = (moe_products_t)i;
            return i == MOE_CUTLASS ? moe_cutlass_find(moe) : DP_OK;
        }
    return DP_FAIL(moe->host, DP_ERR_INVALID,
                   "moe_cuda: DUALPIPE_DEBUG=moe_cuda.products=%s: must be grouped, plain or cutlass", wanted);
}

static bool aligned(const void *p, size_t bytes)
{
    return (uintptr_t)p % bytes == 0;
}

/* Tensor cores read rows in vectors of 16 bytes and write pairs. */
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
    const int64_t down = by_rows ? p->m / m + (p->rows != NULL ? p->groups : 1) : (p->m + m - 1) / m * p->groups;

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
    if (tensor && moe_library_knows(moe, form, product))
        return moe_library_multiply(moe, form, product, s);
    if (tensor) {
        most = moe->sms;
        blocks = by_rows ? tiles(&p, true, MOE_ROWS_M, MOE_ROWS_N) : tiles(&p, false, MOE_CELLS_M, MOE_CELLS_N);
        shared = by_rows ? MOE_ROWS_SHARED : MOE_CELLS_SHARED;
    } else {
        function = moe->kernels.plain[form][sums];
        most = moe->sms * 2;
        blocks = tiles(&p, by_rows, MOE_PLAIN_TILE, MOE_PLAIN_TILE);
    }
    return cuda_launch(moe->host, moe->cu, function, CUDA_DIM(blocks < most ? blocks : most),
                       CUDA_DIM(MOE_PRODUCT_THREADS), shared, s, &p);
}
