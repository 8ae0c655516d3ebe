/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * real.h: the element type of one compilation of the CPU plugins' arithmetic: REAL_BITS is 32 or
 * 64.
 *
 * Loops marked VECTORISED are compiled for several vector widths and chosen when the plugin is
 * loaded. They are written so that the width does not show in the bits: elementwise, or with LANES
 * partial results that are folded in a fixed order; and nothing contracts a * b + c
 * (-ffp-contract=off). */
#ifndef PLUGINS_CPU_REAL_H
#define PLUGINS_CPU_REAL_H

#include <float.h>
#include <stdint.h>

#if REAL_BITS == 32
typedef float real_t;
typedef uint32_t real_bits_t;
#define REAL_MAX   FLT_MAX
#define REAL(base) base##_f32
#elif REAL_BITS == 64
typedef double real_t;
typedef uint64_t real_bits_t;
#define REAL_MAX   DBL_MAX
#define REAL(base) base##_f64
#else
#error "REAL_BITS must be 32 or 64"
#endif

enum { LANES = 16 };

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define VECTORISED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VECTORISED
#endif
#define INLINED static inline __attribute__((always_inline))

#endif
