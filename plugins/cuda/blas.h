/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * blas.h: the part of cuBLASLt that gemm.c uses, as a table of functions. */
#ifndef PLUGINS_CUDA_BLAS_H
#define PLUGINS_CUDA_BLAS_H

#include <dualpipe/plugin.h>

#include <cublasLt.h>

#define CUBLASLT_SYMBOLS(X)                                                                                            \
    X(cublasLtGetVersion)                                                                                              \
    X(cublasLtGetStatusString)                                                                                         \
    X(cublasLtCreate)                                                                                                  \
    X(cublasLtDestroy)                                                                                                 \
    X(cublasLtMatmulDescCreate)                                                                                        \
    X(cublasLtMatmulDescDestroy)                                                                                       \
    X(cublasLtMatmulDescSetAttribute)                                                                                  \
    X(cublasLtMatrixLayoutCreate)                                                                                      \
    X(cublasLtMatrixLayoutDestroy)                                                                                     \
    X(cublasLtMatrixLayoutSetAttribute)                                                                                \
    X(cublasLtMatmulPreferenceCreate)                                                                                  \
    X(cublasLtMatmulPreferenceDestroy)                                                                                 \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                            \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                                  \
    X(cublasLtMatmul)

typedef struct cuda_blas {
#define X(name) __typeof__(name) *name;
    CUBLASLT_SYMBOLS(X)
#undef X
} cuda_blas_t;

/** Fills the table from libcublasLt.so.13, or lib.cublaslt. DP_ERR_UNSUPPORTED: what is missing. */
dp_status_t cuda_blas_load(const dp_host_t *host, cuda_blas_t *blas);

#endif
