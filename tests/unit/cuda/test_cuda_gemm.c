/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_cuda_gemm.c: matrix products of the CUDA plugins on the fake cuBLASLt: layouts, types, and
 * what a plan depends on. Needs no GPU and no driver. */
#include "plugins/cuda/gemm.h"
#include "tests/fake_cuda/cublaslt_fake.h"
#include "tests/support/cuda_host.h"
#include "tests/support/debug.h"

#include <check.h>
#include <dlfcn.h>
#include <dualpipe/number.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cuda_host_t host;
static cuda_gemm_t *gemm;
static unsigned long (*searches)(void), (*products)(void);
static int (*last_sms)(void);

static void start(void)
{
    void *library = dlopen(debug_entry("lib.cublaslt"), RTLD_NOW);

    ck_assert_msg(library != NULL, "%s", dlerror());
    *(void **)&searches = dlsym(library, "fake_cublaslt_searches");
    *(void **)&products = dlsym(library, "fake_cublaslt_products");
    *(void **)&last_sms = dlsym(library, "fake_cublaslt_last_sms");
    cuda_host_open(&host);
    ck_assert_msg(cuda_gemm_open(&host.host, 112, 0, &gemm) == DP_OK, "%s", host.message);
}

static void stop(void)
{
    cuda_gemm_close(gemm);
    ck_assert_int_eq(host.allocations, 0);
}

static double next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-52 - 1;
}

/* A matrix in separate memory, `shift` elements off alignment. */
typedef struct matrix {
    unsigned char *memory;
    void *at;
    dp_dtype_t dtype;
    size_t count;
} matrix_t;

static matrix_t make_matrix(dp_dtype_t dtype, size_t count, size_t shift, uint64_t seed)
{
    matrix_t m = {NULL, NULL, dtype, count};
    void *memory;

    ck_assert_int_eq(posix_memalign(&memory, 256, (count + shift) * dp_dtype_bytes(dtype)), 0);
    m.memory = memory;
    m.at = m.memory + shift * dp_dtype_bytes(dtype);
    for (size_t i = 0; i < count; i++)
        dp_number_set(dtype, m.at, i, next_random(&seed));
    return m;
}

/* The definition, with every index written out. */
static double element(const cuda_gemm_shape_t *s, const matrix_t *a, const matrix_t *b, uint32_t batch, uint32_t i,
                      uint32_t j)
{
    double sum = 0;

    for (uint32_t l = 0; l < s->k; l++) {
        const int64_t ia = s->transpose_a ? l * s->lda + i : i * s->lda + l;
        const int64_t ib = s->transpose_b ? j * s->ldb + l : l * s->ldb + j;

        sum += dp_number_get(s->in, a->at, (size_t)(batch * s->stride_a + ia)) *
               dp_number_get(s->in, b->at, (size_t)(batch * s->stride_b + ib));
    }
    return sum;
}

static const struct {
    dp_dtype_t in, out;
    double tolerance; /* of a sum of 80 products of numbers below 1 */
} types[] = {{DP_F64, DP_F64, 1e-13}, {DP_F32, DP_F32, 1e-5}, {DP_BF16, DP_F32, 1e-5}, {DP_BF16, DP_BF16, 0.04}};

static void check_product(int type, unsigned transposes, uint32_t batch, size_t shift, double beta)
{
    cuda_gemm_shape_t s = {.in = types[type].in,
                           .out = types[type].out,
                           .transpose_a = transposes & 1,
                           .transpose_b = transposes >> 1 & 1,
                           .m = 5,
                           .n = 7,
                           .k = 80,
                           .batch = batch};
    const uint32_t rows_a = s.transpose_a ? s.k : s.m, rows_b = s.transpose_b ? s.n : s.k;
    matrix_t a, b, c, before;
    void *workspace;

    s.lda = (s.transpose_a ? s.m : s.k) + 3;
    s.ldb = (s.transpose_b ? s.k : s.n) + 1;
    s.ldc = s.n + 2;
    s.stride_a = rows_a * s.lda + 5;
    s.stride_b = batch == 3 ? 0 : rows_b * s.ldb;
    s.stride_c = s.m * s.ldc + 1;
    a = make_matrix(s.in, batch * (size_t)s.stride_a, shift, 1);
    b = make_matrix(s.in, batch * rows_b * (size_t)s.ldb, shift, 2);
    c = make_matrix(s.out, batch * (size_t)s.stride_c, shift, 3);
    before = make_matrix(s.out, batch * (size_t)s.stride_c, 0, 3);
    ck_assert_msg(cuda_gemm_prepare(gemm, &s) == DP_OK, "%s", host.message);
    workspace = malloc(cuda_gemm_workspace(gemm));
    if (beta == 0)
        for (uint32_t i = 0; i < s.m; i++)
            for (uint32_t j = 0; j < s.n; j++)
                dp_number_set(s.out, c.at, i * (size_t)s.ldc + j, (double)NAN);
    {
        const cuda_gemm_operands_t o = {1.25, beta, a.at, b.at, c.at, workspace};

        ck_assert_msg(cuda_gemm_run(gemm, &s, &o, NULL) == DP_OK, "%s", host.message);
    }
    for (uint32_t t = 0; t < batch; t++)
        for (uint32_t i = 0; i < s.m; i++)
            for (uint32_t j = 0; j < s.ldc; j++) {
                const size_t at = (size_t)(t * s.stride_c + i * s.ldc + j);
                const double old = dp_number_get(s.out, before.at, at), got = dp_number_get(s.out, c.at, at);
                const double want = j < s.n ? 1.25 * element(&s, &a, &b, t, i, j) + (beta != 0 ? beta * old : 0) : old;

                ck_assert_msg(fabs(got - want) <= (j < s.n ? types[type].tolerance * (1 + fabs(want)) : 0),
                              "type %d, transposes %u, product %u: c[%u][%u] is %.9g, not %.9g", type, transposes, t, i,
                              j, got, want);
            }
    free(workspace);
    free(a.memory);
    free(b.memory);
    free(c.memory);
    free(before.memory);
}

START_TEST(products_equal_the_definition)
{
    for (unsigned transposes = 0; transposes < 4; transposes++)
        for (uint32_t batch = 1; batch <= 3; batch++)
            for (size_t shift = 0; shift < 2; shift++)
                for (int beta = -1; beta <= 1; beta++)
                    check_product(_i, transposes, batch, shift, beta);
}
END_TEST

static cuda_gemm_shape_t plain(void)
{
    return (cuda_gemm_shape_t){.in = DP_BF16, .out = DP_F32, .m = 8, .n = 16, .k = 24};
}

START_TEST(a_known_shape_is_not_searched_again)
{
    cuda_gemm_shape_t s = plain(), written_out = plain();
    unsigned long before = searches();

    ck_assert_int_eq(cuda_gemm_prepare(gemm, &s), DP_OK);
    ck_assert_uint_eq(searches() - before, 2); /* aligned pointers and others */
    written_out.lda = 24;
    written_out.ldb = written_out.ldc = 16;
    written_out.batch = 1;
    ck_assert_int_eq(cuda_gemm_prepare(gemm, &written_out), DP_OK);
    for (size_t shift = 0; shift < 9; shift++) {
        matrix_t a = make_matrix(DP_BF16, 8 * 24, shift, 1), b = make_matrix(DP_BF16, 24 * 16, 0, 2);
        matrix_t c = make_matrix(DP_F32, 8 * 16, 0, 3);
        const cuda_gemm_operands_t o = {1, 0, a.at, b.at, c.at, NULL};

        ck_assert_msg(cuda_gemm_run(gemm, &s, &o, NULL) == DP_OK, "%s", host.message);
        free(a.memory);
        free(b.memory);
        free(c.memory);
    }
    ck_assert_uint_eq(searches() - before, 2);
}
END_TEST

/* Each line changes one thing that an algorithm may depend on. */
START_TEST(a_plan_depends_on_all_of_its_shape)
{
    const cuda_gemm_shape_t base = {.in = DP_BF16,
                                    .out = DP_BF16,
                                    .m = 8,
                                    .n = 8,
                                    .k = 8,
                                    .batch = 2,
                                    .lda = 32,
                                    .ldb = 32,
                                    .ldc = 32,
                                    .stride_a = 512,
                                    .stride_b = 512,
                                    .stride_c = 512};
    cuda_gemm_shape_t changed[14];
    unsigned long before;
    size_t n = 0;

    for (size_t i = 0; i < 14; i++)
        changed[i] = base;
    changed[n++].in = DP_F32;
    changed[0].out = DP_F32;
    changed[n++].out = DP_F32;
    changed[n++].transpose_a = true;
    changed[n++].transpose_b = true;
    changed[n++].m = 9;
    changed[n++].n = 9;
    changed[n++].k = 9;
    changed[n++].batch = 3;
    changed[n++].lda = 33;
    changed[n++].ldb = 33;
    changed[n++].ldc = 33;
    changed[n++].stride_a = 0;
    changed[n++].stride_b = 0;
    changed[n++].stride_c = 511;
    ck_assert_int_eq(cuda_gemm_prepare(gemm, &base), DP_OK);
    before = searches();
    for (size_t i = 0; i < n; i++) {
        ck_assert_msg(cuda_gemm_prepare(gemm, &changed[i]) == DP_OK, "%s", host.message);
        ck_assert_msg(searches() - before == 2 * (i + 1), "change %zu was taken for something known", i);
    }
    for (size_t i = 0; i < n; i++)
        ck_assert_int_eq(cuda_gemm_prepare(gemm, &changed[i]), DP_OK);
    ck_assert_int_eq(cuda_gemm_prepare(gemm, &base), DP_OK);
    ck_assert_uint_eq(searches() - before, 2 * n);
}
END_TEST

START_TEST(many_shapes_are_all_kept)
{
    const unsigned long before = searches();

    for (int round = 0; round < 2; round++)
        for (uint32_t k = 1; k <= 300; k++) {
            cuda_gemm_shape_t s = plain();

            s.k = k;
            ck_assert_int_eq(cuda_gemm_prepare(gemm, &s), DP_OK);
        }
    ck_assert_uint_eq(searches() - before, 600);
}
END_TEST

START_TEST(products_count_on_the_partition)
{
    const cuda_gemm_shape_t s = plain();
    matrix_t a = make_matrix(DP_BF16, 8 * 24, 0, 1), b = make_matrix(DP_BF16, 24 * 16, 0, 2);
    matrix_t c = make_matrix(DP_F32, 8 * 16, 0, 3);
    const cuda_gemm_operands_t o = {1, 0, a.at, b.at, c.at, NULL};

    ck_assert_int_eq(cuda_gemm_run(gemm, &s, &o, NULL), DP_OK);
    ck_assert_int_eq(last_sms(), 112);
    free(a.memory);
    free(b.memory);
    free(c.memory);
}
END_TEST

START_TEST(workspace_is_what_plans_need)
{
    cuda_gemm_shape_t s = plain();
    cuda_gemm_operands_t o = {.alpha = 1};
    matrix_t a = make_matrix(DP_BF16, 8 * 64, 0, 1), b = make_matrix(DP_BF16, 64 * 16, 0, 2);
    matrix_t c = make_matrix(DP_F32, 8 * 16, 0, 3);

    ck_assert_int_eq(cuda_gemm_prepare(gemm, &s), DP_OK);
    ck_assert_uint_eq(cuda_gemm_workspace(gemm), 0);
    s.k = 64;
    ck_assert_int_eq(cuda_gemm_prepare(gemm, &s), DP_OK);
    ck_assert_uint_ge(cuda_gemm_workspace(gemm), 4096);
    o.a = a.at;
    o.b = b.at;
    o.c = c.at;
    ck_assert_int_eq(cuda_gemm_run(gemm, &s, &o, NULL), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(host.message, "workspace"));

    /* A shape met for the first time in a step gets no more than the instance has. */
    cuda_gemm_close(gemm);
    ck_assert_int_eq(cuda_gemm_open(&host.host, 0, 0, &gemm), DP_OK);
    ck_assert_msg(cuda_gemm_run(gemm, &s, &o, NULL) == DP_OK, "%s", host.message);
    free(a.memory);
    free(b.memory);
    free(c.memory);
}
END_TEST

/* A library that has nothing for unaligned pointers is good enough until there are some. */
START_TEST(unaligned_products_fail_when_they_are_run)
{
    const cuda_gemm_shape_t s = plain();
    matrix_t a = make_matrix(DP_BF16, 8 * 24, 1, 1), b = make_matrix(DP_BF16, 24 * 16, 0, 2);
    matrix_t c = make_matrix(DP_F32, 8 * 16, 0, 3);
    cuda_gemm_operands_t o = {1, 0, a.at, b.at, c.at, NULL};

    setenv("FAKE_CUBLASLT_ALIGNED", "1", 1);
    ck_assert_msg(cuda_gemm_prepare(gemm, &s) == DP_OK, "%s", host.message);
    ck_assert_int_eq(cuda_gemm_run(gemm, &s, &o, NULL), DP_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(host.message, "aligned to 2 bytes"));
    o.a = a.memory;
    ck_assert_int_eq(cuda_gemm_run(gemm, &s, &o, NULL), DP_OK);
    unsetenv("FAKE_CUBLASLT_ALIGNED");
    free(a.memory);
    free(b.memory);
    free(c.memory);
}
END_TEST

START_TEST(what_cannot_be_is_refused)
{
    const cuda_gemm_shape_t good = plain();
    cuda_gemm_shape_t s = good;

    s.out = DP_F64;
    ck_assert_int_eq(cuda_gemm_prepare(gemm, &s), DP_ERR_INVALID);
    s = good;
    s.k = 0;
    ck_assert_int_eq(cuda_gemm_prepare(gemm, &s), DP_ERR_INVALID);
    s = good;
    s.lda = 23;
    ck_assert_int_eq(cuda_gemm_prepare(gemm, &s), DP_ERR_INVALID);
    s = good;
    s.batch = 2;
    s.stride_a = s.stride_b = 1024;
    ck_assert_int_eq(cuda_gemm_prepare(gemm, &s), DP_ERR_INVALID);
}
END_TEST

START_TEST(memory_may_run_out)
{
    const cuda_gemm_shape_t s = plain();
    cuda_gemm_t *other;

    host.fail_allocation = 1;
    ck_assert_int_eq(cuda_gemm_open(&host.host, 0, 0, &other), DP_ERR_NOMEM);
    host.fail_allocation = 1;
    ck_assert_int_eq(cuda_gemm_prepare(gemm, &s), DP_ERR_NOMEM);
    ck_assert_int_eq(cuda_gemm_prepare(gemm, &s), DP_OK);
}
END_TEST

START_TEST(a_missing_library_is_named)
{
    cuda_gemm_t *other;
    char kept[4096];

    snprintf(kept, sizeof(kept), "%s", debug_entry("lib.cublaslt"));
    debug_set("lib.cublaslt", "/nowhere/libcublasLt.so.13");
    ck_assert_int_eq(cuda_gemm_open(&host.host, 0, 0, &other), DP_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(host.message, "/nowhere/libcublasLt.so.13"));
    ck_assert_ptr_nonnull(strstr(host.message, "lib.cublaslt"));
    debug_set("lib.cublaslt", "libm.so.6");
    ck_assert_int_eq(cuda_gemm_open(&host.host, 0, 0, &other), DP_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(host.message, "cublasLtGetVersion"));
    debug_set("lib.cublaslt", kept);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cuda_gemm");
    TCase *tc = tcase_create("cuda_gemm");
    char path[4096];
    SRunner *sr;
    int failed;

    snprintf(path, sizeof(path), "%s/tests/fake_cuda/.libs/libcublaslt_fake.so", getenv("DP_TEST_BUILDDIR"));
    debug_set("lib.cublaslt", path);
    debug_set("lib.cuda", NULL);
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, start, stop);
    tcase_add_loop_test(tc, products_equal_the_definition, 0, 4);
    tcase_add_test(tc, a_known_shape_is_not_searched_again);
    tcase_add_test(tc, a_plan_depends_on_all_of_its_shape);
    tcase_add_test(tc, many_shapes_are_all_kept);
    tcase_add_test(tc, products_count_on_the_partition);
    tcase_add_test(tc, workspace_is_what_plans_need);
    tcase_add_test(tc, unaligned_products_fail_when_they_are_run);
    tcase_add_test(tc, what_cannot_be_is_refused);
    tcase_add_test(tc, memory_may_run_out);
    tcase_add_test(tc, a_missing_library_is_named);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed == 0 ? 0 : 1;
}
