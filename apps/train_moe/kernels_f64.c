/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * kernels_f64.c: the kernels in double precision. */
#define REAL_BITS 64
#include "kernels.inc"
