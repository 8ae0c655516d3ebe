/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * multiply.h: products of matrices without BLAS. Every element is a sum in the order of the inner
 * index, whatever the width of vectors and the other sizes. */
#ifndef PLUGINS_CPU_MULTIPLY_H
#define PLUGINS_CPU_MULTIPLY_H

#include "real.h"

#include <stdbool.h>
#include <stddef.h>

/* Six sums of a vector each hide the latency of an addition, and fit into the registers of AVX2. */
enum { TILE_ROWS = 6, TILE_COLUMNS = 64 / sizeof(real_t), TURN_BLOCK = 16 };

typedef real_t tile_row_t __attribute__((vector_size(64), aligned(sizeof(real_t)), may_alias));

/* `rows` is a constant, so that the sums stay in registers. */
INLINED void multiply_tile(size_t rows, size_t inner, const real_t *a, size_t a_row, size_t a_inner, const real_t *b,
                           size_t b_row, bool add, real_t *c, size_t c_row)
{
    tile_row_t sum[TILE_ROWS];

#pragma GCC unroll 6
    for (size_t i = 0; i < rows; i++)
        sum[i] = (tile_row_t){0};
    for (size_t p = 0; p < inner; p++) {
        const tile_row_t row = *(const tile_row_t *)(b + p * b_row);

#pragma GCC unroll 6
        for (size_t i = 0; i < rows; i++)
            sum[i] += a[i * a_row + p * a_inner] * row;
    }
#pragma GCC unroll 6
    for (size_t i = 0; i < rows; i++) {
        tile_row_t *to = (tile_row_t *)(c + i * c_row);

        if (add)
            sum[i] += *to;
        *to = sum[i];
    }
}

/* The columns behind the last whole tile. */
INLINED void multiply_rest(size_t rows, size_t columns, size_t inner, const real_t *a, size_t a_row, size_t a_inner,
                           const real_t *b, size_t b_row, bool add, real_t *c, size_t c_row)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++) {
            real_t sum = 0;

            for (size_t p = 0; p < inner; p++)
                sum += a[i * a_row + p * a_inner] * b[p * b_row + j];
            c[i * c_row + j] = add ? c[i * c_row + j] + sum : sum;
        }
}

/* c[rows, columns] = a b, or += where add. a(i, p) is a[i * a_row + p * a_inner], so that a may be
 * stored either way; rows of b and c are b_row and c_row apart. */
VECTORISED
static void cpu_multiply(size_t rows, size_t columns, size_t inner, const real_t *a, size_t a_row, size_t a_inner,
                         const real_t *b, size_t b_row, bool add, real_t *c, size_t c_row)
{
    size_t j = 0;

    for (; j + TILE_COLUMNS <= columns; j += TILE_COLUMNS)
        for (size_t i = 0; i < rows; i += TILE_ROWS) {
            const real_t *from = a + i * a_row;
            real_t *to = c + i * c_row + j;

            switch (rows - i) {
            case 1:
                multiply_tile(1, inner, from, a_row, a_inner, b + j, b_row, add, to, c_row);
                break;
            case 2:
                multiply_tile(2, inner, from, a_row, a_inner, b + j, b_row, add, to, c_row);
                break;
            case 3:
                multiply_tile(3, inner, from, a_row, a_inner, b + j, b_row, add, to, c_row);
                break;
            case 4:
                multiply_tile(4, inner, from, a_row, a_inner, b + j, b_row, add, to, c_row);
                break;
            case 5:
                multiply_tile(5, inner, from, a_row, a_inner, b + j, b_row, add, to, c_row);
                break;
            default:
                multiply_tile(TILE_ROWS, inner, from, a_row, a_inner, b + j, b_row, add, to, c_row);
            }
        }
    multiply_rest(rows, columns - j, inner, a, a_row, a_inner, b + j, b_row, add, c + j, c_row);
}

/* out [columns, rows] = the transpose of x [rows, columns]. */
static inline void cpu_transpose(const real_t *restrict x, size_t rows, size_t columns, real_t *restrict out)
{
    for (size_t i = 0; i < rows; i += TURN_BLOCK)
        for (size_t j = 0; j < columns; j++)
            for (size_t r = i; r < i + TURN_BLOCK && r < rows; r++)
                out[j * rows + r] = x[r * columns + j];
}

#endif
