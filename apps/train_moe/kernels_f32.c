/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * kernels_f32.c: the kernels in single precision. */
#define REAL_BITS 32
#include "kernels.inc"
