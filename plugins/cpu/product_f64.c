/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * product_f64.c: products in double precision. Compiled with -ffp-contract=fast. */
#undef REAL_BITS
#define REAL_BITS 64
#include "product.inc"
