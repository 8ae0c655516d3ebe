/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * core_f64.c: the core for DP_F64. */
#define REAL_BITS 64
#include "core.h"
