/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * library_none.c: a build without cublasLt.h makes all products itself. */
#include "library.h"

dp_status_t moe_library_open(dp_moe_t *moe)
{
    return DP_FAIL(moe->host, DP_ERR_UNSUPPORTED,
                   "moe_cuda: DUALPIPE_MOE_PRODUCTS=cublaslt: this build had no cublasLt.h");
}

void moe_library_close(dp_moe_t *moe)
{
    (void)moe;
}

bool moe_library_knows(const dp_moe_t *moe, moe_form_t form, const moe_product_t *product)
{
    (void)moe, (void)form, (void)product;
    return false;
}

dp_status_t moe_library_multiply(dp_moe_t *moe, moe_form_t form, const moe_product_t *product, CUstream s)
{
    (void)form, (void)product, (void)s;
    return moe_library_open(moe);
}
