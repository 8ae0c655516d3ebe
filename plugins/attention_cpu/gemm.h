/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * gemm.h: C = alpha op(A) op(B) + beta C on row-major matrices, through CBLAS. */
#ifndef ATTENTION_CPU_GEMM_H
#define ATTENTION_CPU_GEMM_H

#include "../cpu/real.h"

#include <cblas.h>
#include <stddef.h>

static inline void gemm(enum CBLAS_TRANSPOSE ta, enum CBLAS_TRANSPOSE tb, size_t m, size_t n, size_t k, real_t alpha,
                        const real_t *a, size_t lda, const real_t *b, size_t ldb, real_t beta, real_t *c, size_t ldc)
{
#if REAL_BITS == 32
    cblas_sgemm(CblasRowMajor, ta, tb, (int)m, (int)n, (int)k, alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
#else
    cblas_dgemm(CblasRowMajor, ta, tb, (int)m, (int)n, (int)k, alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
#endif
}

#endif
