/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * product.h: c = alpha op(a) op(b) + beta c on row-major matrices, by BLAS or, where the product is
 * small, by a loop of vectors: BLAS libraries copy both matrices first, which costs as much as a
 * small product. The choice depends on the shape and the processor alone, so bits do not depend on
 * what else is computed. */
#ifndef PLUGINS_CPU_PRODUCT_H
#define PLUGINS_CPU_PRODUCT_H

#include <cblas.h>
#include <stddef.h>

/* beta: 0 or 1 */
void cpu_product_f32(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, size_t m, size_t n, size_t k, float alpha, const float *a,
                     size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc);
void cpu_product_f64(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, size_t m, size_t n, size_t k, double alpha,
                     const double *a, size_t lda, const double *b, size_t ldb, double beta, double *c, size_t ldc);

#endif
