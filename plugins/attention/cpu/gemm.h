/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * gemm.h: C = alpha op(A) op(B) + beta C on row-major matrices, by plugins/cpu/product.h. */
#ifndef PLUGINS_ATTENTION_CPU_GEMM_H
#define PLUGINS_ATTENTION_CPU_GEMM_H

#include "plugins/cpu/product.h"
#include "plugins/cpu/real.h"

static inline void gemm(enum CBLAS_TRANSPOSE ta, enum CBLAS_TRANSPOSE tb, size_t m, size_t n, size_t k, real_t alpha,
                        const real_t *a, size_t lda, const real_t *b, size_t ldb, real_t beta, real_t *c, size_t ldc)
{
    REAL(cpu_product)(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

#endif
