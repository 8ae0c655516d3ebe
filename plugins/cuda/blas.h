/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * blas.h: the part of cuBLASLt that gemm.c uses, as a table of functions. */
#ifndef DP_CUDA_BLAS_H
#define DP_CUDA_BLAS_H

#include <dualpipe/plugin.h>

#include <cublasLt.h>

#define DP_CUBLASLT_SYMBOLS(X)                                                                               \
    X(cublasLtGetVersion)                                                                                    \
    X(cublasLtGetStatusString)                                                                               \
    X(cublasLtCreate)                                                                                        \
    X(cublasLtDestroy)                                                                                       \
    X(cublasLtMatmulDescCreate)                                                                              \
    X(cublasLtMatmulDescDestroy)                                                                             \
    X(cublasLtMatmulDescSetAttribute)                                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                            \
    X(cublasLtMatrixLayoutDestroy)                                                                           \
    X(cublasLtMatrixLayoutSetAttribute)                                                                      \
    X(cublasLtMatmulPreferenceCreate)                                                                        \
    X(cublasLtMatmulPreferenceDestroy)                                                                       \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                  \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                        \
    X(cublasLtMatmul)

typedef struct dp_blas {
#define X(name) __typeof__(name) *name;
    DP_CUBLASLT_SYMBOLS(X)
#undef X
} dp_blas_t;

/** Fills the table from $DUALPIPE_CUBLASLT or libcublasLt.so.13. DP_ERR_UNSUPPORTED names what is missing. */
dp_status_t dp_blas_load(const dp_host_t *host, dp_blas_t *blas);

#endif
