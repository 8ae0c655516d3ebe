/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * passes_f64.c: the passes for DP_F64. */
#define REAL_BITS 64
#include "passes.h"
