/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * blas.c: opens cuBLASLt. */
#include "blas.h"
#include "import.h"

dp_status_t dp_blas_load(const dp_host_t *host, dp_blas_t *blas)
{
    static const dp_cuda_source_t source = {
        "cuBLASLt", "DUALPIPE_CUBLASLT", {"libcublasLt.so.13", "libcublasLt.so"}};
    const dp_cuda_symbol_t symbols[] = {
#define X(name) {#name, (void **)&blas->name},
        DP_CUBLASLT_SYMBOLS(X)
#undef X
    };

    return dp_cuda_import(host, &source, symbols, sizeof(symbols) / sizeof(symbols[0]));
}
