/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * passes_f32.c: the passes for DP_F32. */
#define REAL_BITS 32
#include "passes.h"
