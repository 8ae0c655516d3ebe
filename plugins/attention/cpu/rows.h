/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * rows.h: RMSNorm and RoPE, both ways, on rows of tokens. */
#ifndef PLUGINS_ATTENTION_CPU_ROWS_H
#define PLUGINS_ATTENTION_CPU_ROWS_H

#include "plugins/cpu/dot.h"

#include <math.h>
#include <stddef.h>

/* normalized = x / rms(x), inv_rms = 1 / rms(x), n = normalized * gain. stride: of rows of x. */
VECTORISED
static void normalize_rows(real_t *restrict normalized, real_t *restrict inv_rms, real_t *restrict n,
                           const real_t *restrict x, size_t stride, const real_t *restrict gain, size_t rows, size_t d,
                           double eps)
{
    for (size_t t = 0; t < rows; t++, x += stride, normalized += d, n += d) {
        const real_t inv = (real_t)(1 / sqrt(cpu_dot(x, x, d) / (double)d + eps));

        inv_rms[t] = inv;
        for (size_t i = 0; i < d; i++) {
            normalized[i] = x[i] * inv;
            n[i] = normalized[i] * gain[i];
        }
    }
}

/* normalized = x / rms(x), once more. */
VECTORISED
static void normalize_again(real_t *restrict normalized, const real_t *restrict inv_rms, const real_t *restrict x,
                            size_t stride, size_t rows, size_t d)
{
    for (size_t t = 0; t < rows; t++, x += stride, normalized += d)
        for (size_t i = 0; i < d; i++)
            normalized[i] = x[i] * inv_rms[t];
}

/* n = normalized * gain, once more. */
VECTORISED
static void apply_gain(real_t *restrict n, const real_t *restrict normalized, const real_t *restrict gain, size_t rows,
                       size_t d)
{
    for (size_t t = 0; t < rows; t++, n += d, normalized += d)
        for (size_t i = 0; i < d; i++)
            n[i] = normalized[i] * gain[i];
}

/* dgain = sum over the rows of dn * normalized. */
VECTORISED
static void gain_gradient(real_t *restrict dgain, const real_t *restrict dn, const real_t *restrict normalized,
                          size_t rows, size_t d)
{
    for (size_t i = 0; i < d; i++)
        dgain[i] = 0;
    for (size_t t = 0; t < rows; t++, dn += d, normalized += d)
        for (size_t i = 0; i < d; i++)
            dgain[i] += dn[i] * normalized[i];
}

/* dn becomes (g - normalized * mean(g * normalized)) / rms, g = dn * gain: RMSNorm's dx. */
VECTORISED
static void normalize_backward(real_t *restrict dn, const real_t *restrict gain, const real_t *restrict normalized,
                               const real_t *restrict inv_rms, size_t rows, size_t d)
{
    for (size_t t = 0; t < rows; t++, dn += d, normalized += d) {
        const real_t inv = inv_rms[t];
        real_t mean;

        for (size_t i = 0; i < d; i++)
            dn[i] *= gain[i];
        mean = (real_t)(cpu_dot(dn, normalized, d) / (double)d);
        for (size_t i = 0; i < d; i++)
            dn[i] = (dn[i] - normalized[i] * mean) * inv;
    }
}

/* dx = dy + r; dx may be dy. */
VECTORISED
static void add_residual(real_t *dx, const real_t *dy, const real_t *r, size_t count)
{
    for (size_t i = 0; i < count; i++)
        dx[i] = dy[i] + r[i];
}

VECTORISED
static void accumulate_row(real_t *restrict sum, const real_t *restrict term, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sum[i] += term[i];
}

/* out = sum of a * b over each vector of `dim` elements. */
VECTORISED
static void dot_rows(real_t *restrict out, const real_t *restrict a, const real_t *restrict b, size_t vectors,
                     size_t dim)
{
    for (size_t v = 0; v < vectors; v++, a += dim, b += dim)
        out[v] = (real_t)cpu_dot(a, b, dim);
}

INLINED void rotate_pairs(real_t *restrict low, real_t *restrict high, const real_t *restrict cosine,
                          const real_t *restrict sine, size_t half, real_t sign)
{
    for (size_t i = 0; i < half; i++) {
        const real_t a = low[i], b = high[i], s = sign * sine[i];

        low[i] = a * cosine[i] - b * s;
        high[i] = b * cosine[i] + a * s;
    }
}

/* Rotates `heads` vectors of 2 * half elements, which begin `stride` elements apart, at each of
 * `positions` positions, by +angle or, sign -1, back. rope: half cosines and half sines per
 * position. */
VECTORISED
static void rotate_rows(real_t *rows, size_t positions, size_t heads, size_t stride, const real_t *rope, size_t half,
                        real_t sign)
{
    for (size_t p = 0; p < positions; p++, rope += 2 * half)
        for (size_t h = 0; h < heads; h++, rows += stride)
            rotate_pairs(rows, rows + half, rope, rope + half, half, sign);
}

#endif
