/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * kernels_f32.c: the kernels in single precision. */
#define MOE_REAL    float
#define MOE_EXP     expf
#define MOE_GEMM    cblas_sgemm
#define MOE_KERNELS moe_kernels_f32
#include "kernels.inc"
