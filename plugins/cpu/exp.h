/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * exp.h: e^x for x <= 1 without branches or calls, so that compilers vectorise loops over it.
 *
 * x = n ln 2 + r with |r| <= ln 2 / 2, and the Taylor sum of e^r (its rest is below half a unit in
 * the last place) is scaled by 2^n. n comes out of the low bits of x / ln 2 + 1.5 * 2^mantissa.
 * Error at most 2 units in the last place; cpu_exp(0) is exactly 1. Below EXP_LOWEST, where 2^n
 * would be subnormal, the result is 0. NaN stays NaN. */
#ifndef PLUGINS_CPU_EXP_H
#define PLUGINS_CPU_EXP_H

#include "real.h"

#if REAL_BITS == 32
#define EXP_LOWEST -86.0f
#else
#define EXP_LOWEST -707.0
#endif

typedef union real_word {
    real_t value;
    real_bits_t bits;
} real_word_t;

#if REAL_BITS == 32

INLINED real_t cpu_exp(real_t x)
{
    const real_word_t shifted = {.value = x * 0x1.715476p+0f + 0x1.8p+23f};
    const real_word_t power = {.bits = (shifted.bits << 23) + 0x3f800000u};
    const real_t n = shifted.value - 0x1.8p+23f;
    const real_t r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    real_t sum = 1.0f / 5040;

    sum = sum * r + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 0.5f;
    sum = sum * r * r + r + 1.0f;
    return x < EXP_LOWEST ? 0 : sum * power.value;
}

#else

INLINED real_t cpu_exp(real_t x)
{
    const real_word_t shifted = {.value = x * 0x1.71547652b82fep+0 + 0x1.8p+52};
    const real_word_t power = {.bits = (shifted.bits << 52) + 0x3ff0000000000000u};
    const real_t n = shifted.value - 0x1.8p+52;
    const real_t r = (x - n * 0x1.62e42fefa2p-1) - n * 0x1.9ef35793c7673p-41;
    real_t sum = 1.0 / 6227020800;

    sum = sum * r + 1.0 / 479001600;
    sum = sum * r + 1.0 / 39916800;
    sum = sum * r + 1.0 / 3628800;
    sum = sum * r + 1.0 / 362880;
    sum = sum * r + 1.0 / 40320;
    sum = sum * r + 1.0 / 5040;
    sum = sum * r + 1.0 / 720;
    sum = sum * r + 1.0 / 120;
    sum = sum * r + 1.0 / 24;
    sum = sum * r + 1.0 / 6;
    sum = sum * r + 0.5;
    sum = sum * r * r + r + 1.0;
    return x < EXP_LOWEST ? 0 : sum * power.value;
}

#endif
#endif
