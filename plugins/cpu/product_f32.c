/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * product_f32.c: products in single precision. Compiled with -ffp-contract=fast. */
#undef REAL_BITS
#define REAL_BITS 32
#include "product.inc"
