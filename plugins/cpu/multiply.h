/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * multiply.h: products of matrices by loops of vectors, without copies of the matrices. Every
 * element is a sum in the order of the inner index, whatever the width of vectors and the other
 * sizes. Whether sums are of fused multiply-adds is the includer's -ffp-contract. */
#ifndef PLUGINS_CPU_MULTIPLY_H
#define PLUGINS_CPU_MULTIPLY_H

#include "real.h"

#include <stdbool.h>
#include <stddef.h>

enum { COLUMNS = 64 / sizeof(real_t) /* of a vector */, MOST_ROWS = 12 };

typedef real_t vector_t __attribute__((vector_size(64), aligned(sizeof(real_t)), may_alias));

/* c = alpha a b, or += where add. a(i, p) is a[i * a_row + p * a_inner], so that a may be stored
 * either way; rows of b and c are b_row and c_row apart. */
typedef struct product {
    size_t inner, a_row, a_inner, b_row, c_row;
    real_t alpha;
    bool add;
} product_t;

/* `rows` and `vectors` are constants, so that the sums stay in registers. Four pointers and a
 * distance reach twelve rows. */
INLINED void multiply_tile(product_t x, size_t rows, size_t vectors, const real_t *a, const real_t *b, real_t *c)
{
    vector_t sum[MOST_ROWS][2];

#pragma GCC unroll 12
    for (size_t i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (size_t v = 0; v < vectors; v++)
            sum[i][v] = (vector_t){0};
    for (size_t p = 0; p < x.inner; p++, a += x.a_inner, b += x.b_row) {
        const real_t *const thirds[] = {a, a + 3 * x.a_row, a + 6 * x.a_row, a + 9 * x.a_row};
        vector_t row[2];

#pragma GCC unroll 2
        for (size_t v = 0; v < vectors; v++)
            row[v] = *(const vector_t *)(b + v * COLUMNS);
#pragma GCC unroll 12
        for (size_t i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (size_t v = 0; v < vectors; v++)
                sum[i][v] += thirds[i / 3][i % 3 * x.a_row] * row[v];
    }
#pragma GCC unroll 12
    for (size_t i = 0; i < rows; i++, c += x.c_row)
#pragma GCC unroll 2
        for (size_t v = 0; v < vectors; v++) {
            vector_t *to = (vector_t *)(c + v * COLUMNS);

            *to = x.add ? x.alpha * sum[i][v] + *to : x.alpha * sum[i][v];
        }
}

#define ROWS(number)                                                                                                   \
    case number:                                                                                                       \
        multiply_tile(x, number, vectors, a, b, c);                                                                    \
        break

/* rows: 1 to `most` */
INLINED void multiply_rows(product_t x, size_t rows, size_t vectors, const real_t *a, const real_t *b, real_t *c)
{
    switch (rows) {
        ROWS(1);
        ROWS(2);
        ROWS(3);
        ROWS(4);
        ROWS(5);
        ROWS(6);
        ROWS(7);
        ROWS(8);
        ROWS(9);
        ROWS(10);
        ROWS(11);
        ROWS(12);
    }
}

/* Columns that make no vector. */
INLINED void multiply_rest(product_t x, size_t m, size_t n, const real_t *a, const real_t *b, real_t *c)
{
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            real_t *to = &c[i * x.c_row + j], sum = 0;

            for (size_t p = 0; p < x.inner; p++)
                sum += a[i * x.a_row + p * x.a_inner] * b[p * x.b_row + j];
            *to = x.add ? x.alpha * sum + *to : x.alpha * sum;
        }
}

/* Tiles of nearly as many rows each: a low one would not hide the latency of its sums. */
INLINED void multiply(product_t x, size_t most_rows, size_t most_vectors, size_t m, size_t n, const real_t *a,
                      const real_t *b, real_t *c)
{
    const size_t whole = n / COLUMNS * COLUMNS;

    for (size_t j = 0, columns; j < whole; j += columns) {
        columns = most_vectors * COLUMNS <= whole - j ? most_vectors * COLUMNS : COLUMNS;
        for (size_t left = m, i = 0, rows; left > 0; left -= rows, i += rows) {
            const size_t tiles = (left + most_rows - 1) / most_rows;

            rows = (left + tiles - 1) / tiles;
            if (columns == COLUMNS)
                multiply_rows(x, rows, 1, a + i * x.a_row, b + j, c + i * x.c_row + j);
            else
                multiply_rows(x, rows, 2, a + i * x.a_row, b + j, c + i * x.c_row + j);
        }
    }
    multiply_rest(x, m, n - whole, a, b + whole, c + whole);
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma"))) static void
cpu_multiply_avx512(product_t x, size_t m, size_t n, const real_t *a, const real_t *b, real_t *c)
{
    multiply(x, 12, 2, m, n, a, b, c);
}

/* Sixteen registers hold six rows. */
__attribute__((target("avx2,fma"))) static void cpu_multiply_avx2(product_t x, size_t m, size_t n, const real_t *a,
                                                                  const real_t *b, real_t *c)
{
    multiply(x, 6, 1, m, n, a, b, c);
}
#endif

/* The level of this processor: 0 has no fused multiply-adds. */
static inline int cpu_multiply_level(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return 1;
#endif
    return 0;
}

/* a [m, x.inner], b [x.inner, n], c [m, n] */
static inline void cpu_multiply(product_t x, size_t m, size_t n, const real_t *a, const real_t *b, real_t *c)
{
    switch (cpu_multiply_level()) {
#if defined(__x86_64__) && defined(__GNUC__)
    case 2:
        cpu_multiply_avx512(x, m, n, a, b, c);
        break;
    case 1:
        cpu_multiply_avx2(x, m, n, a, b, c);
        break;
#endif
    default:
        multiply(x, 3, 1, m, n, a, b, c);
    }
}

/* GCC has shuffles of two vectors by that name since 12. */
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLES
#endif
#endif

#ifndef SHUFFLES
enum { BLOCK = 1 };

INLINED void turn_block(const real_t *b, size_t b_row, real_t *to, size_t row)
{
    (void)b_row, (void)row;
    *to = *b;
}
#elif REAL_BITS == 32
enum { BLOCK = 4 };
typedef real_t block_row_t __attribute__((vector_size(16), aligned(4), may_alias));

INLINED void turn_block(const real_t *b, size_t b_row, real_t *to, size_t row)
{
    const block_row_t b0 = *(const block_row_t *)b, b1 = *(const block_row_t *)(b + b_row);
    const block_row_t b2 = *(const block_row_t *)(b + 2 * b_row), b3 = *(const block_row_t *)(b + 3 * b_row);
    const block_row_t low01 = __builtin_shufflevector(b0, b1, 0, 4, 1, 5);
    const block_row_t low23 = __builtin_shufflevector(b2, b3, 0, 4, 1, 5);
    const block_row_t high01 = __builtin_shufflevector(b0, b1, 2, 6, 3, 7);
    const block_row_t high23 = __builtin_shufflevector(b2, b3, 2, 6, 3, 7);

    *(block_row_t *)to = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
    *(block_row_t *)(to + row) = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
    *(block_row_t *)(to + 2 * row) = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
    *(block_row_t *)(to + 3 * row) = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}
#else
enum { BLOCK = 2 };
typedef real_t block_row_t __attribute__((vector_size(16), aligned(8), may_alias));

INLINED void turn_block(const real_t *b, size_t b_row, real_t *to, size_t row)
{
    const block_row_t b0 = *(const block_row_t *)b, b1 = *(const block_row_t *)(b + b_row);

    *(block_row_t *)to = __builtin_shufflevector(b0, b1, 0, 2);
    *(block_row_t *)(to + row) = __builtin_shufflevector(b0, b1, 1, 3);
}
#endif

/* to [k, n] = the transpose of b [n, k], whose rows are b_row apart. */
static inline void cpu_transpose(const real_t *restrict b, size_t b_row, size_t n, size_t k, real_t *restrict to)
{
    for (size_t j = 0; j < n; j += BLOCK)
        for (size_t p = 0; p < k; p += BLOCK) {
            if (n - j >= BLOCK && k - p >= BLOCK) {
                turn_block(b + j * b_row + p, b_row, to + p * n + j, n);
                continue;
            }
            for (size_t i = j; i < j + BLOCK && i < n; i++)
                for (size_t l = p; l < p + BLOCK && l < k; l++)
                    to[l * n + i] = b[i * b_row + l];
        }
}

#endif
