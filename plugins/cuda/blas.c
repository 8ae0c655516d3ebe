/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * blas.c: opens cuBLASLt. */
#include "blas.h"
#include "import.h"

static const cuda_source_t source = {"cuBLASLt", "lib.cublaslt", {"libcublasLt.so.13", "libcublasLt.so"}};

dp_status_t cuda_blas_load(const dp_host_t *host, cuda_blas_t *blas)
{
    const cuda_symbol_t symbols[] = {
#define X(name) {#name, (void **)&blas->name},
        CUBLASLT_SYMBOLS(X)
#undef X
    };

    return cuda_import(host, &source, symbols, sizeof(symbols) / sizeof(symbols[0]));
}
