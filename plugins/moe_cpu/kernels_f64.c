/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * kernels_f64.c: the kernels in double precision. */
#define MOE_REAL    double
#define MOE_EXP     exp
#define MOE_GEMM    cblas_dgemm
#define MOE_KERNELS moe_kernels_f64
#include "kernels.inc"
