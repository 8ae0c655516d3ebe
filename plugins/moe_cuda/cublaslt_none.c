/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cublaslt_none.c: for a build without cublasLt.h. */
#include "library.h"

static dp_status_t refuse_cublaslt(dp_moe_t *moe)
{
    return DP_FAIL(moe->host, DP_ERR_UNSUPPORTED,
                   "moe_cuda: DUALPIPE_DEBUG=moe_cuda.products=cublaslt: this build had no cublasLt.h");
}

static void close_nothing(dp_moe_t *moe)
{
    (void)moe;
}

const moe_maker_t moe_cublaslt = {.open = refuse_cublaslt, .close = close_nothing};
