/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_product.c: matrix products of the plugins for CPU cores, those by vectors and those by BLAS,
 * beside plain loops. Compiled once per element type. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "plugins/cpu/multiply.h"
#include "plugins/cpu/product.h"
#include "tests/support/suite.h"

enum { MOST = 330, GAP = 5, EDGE = 7 };

static real_t a[MOST * MOST], b[MOST * MOST], c[MOST * MOST], before[MOST * MOST];

static void fill(real_t *x, size_t count, unsigned seed)
{
    uint32_t state = seed;

    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (real_t)((double)(int32_t)state / 2147483648.0);
    }
}

/* Of the product's definition, in double. */
static double element(bool turn_a, bool turn_b, size_t i, size_t j, size_t k, size_t lda, size_t ldb)
{
    double sum = 0;

    for (size_t p = 0; p < k; p++)
        sum += (double)a[turn_a ? p * lda + i : i * lda + p] * (double)b[turn_b ? j * ldb + p : p * ldb + j];
    return sum;
}

static void check_product(bool turn_a, bool turn_b, size_t m, size_t n, size_t k, real_t alpha, bool add)
{
    const size_t lda = (turn_a ? m : k) + GAP, ldb = (turn_b ? k : n) + GAP, ldc = n + GAP;
    const double most = 4 * (double)(k + 1) * (REAL_BITS == 32 ? (double)FLT_EPSILON : DBL_EPSILON);

    for (size_t i = 0; i < m * ldc + EDGE; i++)
        before[i] = c[i] = add || i % ldc >= n ? (real_t)(i % 13) : NAN;
    REAL(cpu_product)
    (turn_a ? CblasTrans : CblasNoTrans, turn_b ? CblasTrans : CblasNoTrans, m, n, k, alpha, a, lda, b, ldb,
     add ? 1 : 0, c, ldc);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            const double right =
                (add ? (double)before[i * ldc + j] : 0) + (double)alpha * element(turn_a, turn_b, i, j, k, lda, ldb);

            ck_assert_msg(fabs((double)c[i * ldc + j] - right) <= most * (add ? 13 : 1),
                          "%zu x %zu x %zu turned %d %d: [%zu, %zu] is %g, not %g", m, n, k, turn_a, turn_b, i, j,
                          (double)c[i * ldc + j], right);
        }
    for (size_t i = 0; i < m * ldc + EDGE; i++)
        if (i >= m * ldc || i % ldc >= n)
            ck_assert_msg(memcmp(&c[i], &before[i], sizeof(c[i])) == 0, "%zu x %zu x %zu writes beside c", m, n, k);
}

static void check_ways(size_t m, size_t n, size_t k)
{
    for (int way = 0; way < 12; way++)
        check_product(way % 3 == 1, way % 3 == 2, m, n, k, way % 2 == 0 ? 1 : (real_t)0.5, way >= 6);
}

START_TEST(products_are_those_of_the_definition)
{
    static const size_t columns[] = {1, 8, 15, 16, 24, 32, 33, 48, 80}, inner[] = {1, 3, 16, 21, 64};

    for (size_t m = 1; m <= 27; m++)
        for (size_t j = 0; j < sizeof(columns) / sizeof(columns[0]); j++)
            check_ways(m, columns[j], inner[(m + j) % 5]);
    check_product(true, true, 7, 16, 9, 1, true);
}
END_TEST

/* Where loops end and BLAS begins. */
START_TEST(large_products_too)
{
    static const size_t sizes[][3] = {{96, 64, 320},  {97, 64, 320},  {256, 64, 64},  {128, 128, 64},
                                      {128, 128, 65}, {64, 128, 128}, {64, 129, 128}, {40, 320, 304}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        check_ways(sizes[i][0], sizes[i][1], sizes[i][2]);
}
END_TEST

typedef void multiply_fn(product_t x, size_t m, size_t n, const real_t *left, const real_t *right, real_t *out);

static void multiply_narrow(product_t x, size_t m, size_t n, const real_t *left, const real_t *right, real_t *out)
{
    multiply(x, 3, 1, m, n, left, right, out);
}

/* To the last bit the plain loop in the order of the inner index. */
static void check_bits(multiply_fn *fn, size_t m, size_t n, size_t k, bool turn_a)
{
    const product_t x = {k, turn_a ? 1 : k, turn_a ? m : 1, n, n, 1, false};

    fn(x, m, n, a, b, c);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            real_t sum = 0;

            for (size_t p = 0; p < k; p++)
                sum += a[turn_a ? p * m + i : i * k + p] * b[p * n + j];
            ck_assert_msg(memcmp(&sum, &c[i * n + j], sizeof(sum)) == 0, "%zu x %zu x %zu [%zu, %zu]", m, n, k, i, j);
        }
}

START_TEST(width_does_not_show_in_the_bits)
{
    multiply_fn *const all[] = {
        multiply_narrow,
#if defined(__x86_64__) && defined(__GNUC__)
        cpu_multiply_level() >= 1 ? cpu_multiply_avx2 : multiply_narrow,
        cpu_multiply_level() >= 2 ? cpu_multiply_avx512 : multiply_narrow,
#endif
        cpu_multiply
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        for (size_t m = 1; m <= 26; m++) {
            check_bits(all[i], m, 16 * (1 + m % 4) + m % 3, 10 + m, false);
            check_bits(all[i], m, 16 * (1 + m % 4) + m % 3, 10 + m, true);
        }
}
END_TEST

START_TEST(a_transpose_has_the_rows_as_columns)
{
    for (size_t rows = 1; rows <= 19; rows++)
        for (size_t columns = 1; columns <= 19; columns++) {
            cpu_transpose(a, columns + GAP, rows, columns, c);
            for (size_t i = 0; i < rows * columns; i++)
                ck_assert(memcmp(&c[i % columns * rows + i / columns], &a[i / columns * (columns + GAP) + i % columns],
                                 sizeof(real_t)) == 0);
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("product");

    fill(a, MOST * MOST, 1);
    fill(b, MOST * MOST, 2);
    SUITE_ADD(suite, products_are_those_of_the_definition);
    SUITE_ADD(suite, large_products_too);
    SUITE_ADD(suite, width_does_not_show_in_the_bits);
    SUITE_ADD(suite, a_transpose_has_the_rows_as_columns);
    return suite_run(suite);
}
