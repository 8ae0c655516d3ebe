/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * core_f32.c: the core for DP_F32. */
#define REAL_BITS 32
#include "core.h"
