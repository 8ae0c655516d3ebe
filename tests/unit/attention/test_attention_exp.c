/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_attention_exp.c: the exp of attention_cpu, in the type of REAL_BITS, against the C library's
 * in long double. */
#include "plugins/cpu/exp.h"

#include <check.h>
#include <math.h>
#include <string.h>

static const double documented_ulps = 2;

/* Error of cpu_exp(x) in units of the last place of the exact result, which is a normal number. */
static double error_ulps(real_t x)
{
    const long double exact = expl(x);
    int exponent;

    frexpl(exact, &exponent);
    return (double)(fabsl(cpu_exp(x) - exact) / ldexpl(1, exponent - (REAL_BITS == 32 ? 24 : 53)));
}

/* Evenly in value, and as many points evenly in bits, so that tiny arguments are seen too. */
START_TEST(within_documented_error)
{
    const size_t points = 300000;
    const real_word_t lowest = {.value = EXP_LOWEST};
    /* -0, from which negative numbers count up */
    const real_bits_t zero = (real_bits_t)1 << (REAL_BITS - 1);
    double worst = 0;
    real_t worst_at = 0;

    for (size_t i = 0; i <= 2 * points; i++) {
        const double share = (double)(i / 2) / (double)points;
        const real_word_t by_bits = {.bits = zero + (lowest.bits - zero) / points * (i / 2)};
        const real_t x = i % 2 ? by_bits.value : (real_t)(EXP_LOWEST + (1 - (double)EXP_LOWEST) * share);
        const double error = error_ulps(x);

        if (!(error <= worst)) {
            worst = error;
            worst_at = x;
        }
    }
    ck_assert_msg(worst <= documented_ulps, "exp(%a): error of %g units in the last place", (double)worst_at, worst);
    /* a sum of rounded terms cannot be perfect: the measure works */
    ck_assert_double_gt(worst, 0.5);
}
END_TEST

START_TEST(special_values)
{
    ck_assert(cpu_exp(0) == 1);
    ck_assert(cpu_exp(-(real_t)0) == 1);
    ck_assert(cpu_exp(EXP_LOWEST) > 0);
    ck_assert(cpu_exp((real_t)((double)EXP_LOWEST * (1 + 1e-6))) == 0);
    ck_assert(cpu_exp(-1e30f) == 0);
    ck_assert(cpu_exp(-REAL_MAX) == 0);
    ck_assert(cpu_exp(-(real_t)INFINITY) == 0);
    ck_assert(isnan(cpu_exp((real_t)NAN)));
    ck_assert(isnan(cpu_exp(-(real_t)NAN)));
}
END_TEST

/* The loop that a compiler vectorises and single calls give the same bits. */
START_TEST(vector_width_does_not_show)
{
    enum { N = 1003 };
    real_t in[N], out[N];

    for (size_t i = 0; i < N; i++)
        in[i] = (real_t)(-90.0 * (double)i / N);
    for (size_t i = 0; i < N; i++)
        out[i] = cpu_exp(in[i]);
    for (size_t i = 0; i < N; i++) {
        volatile real_t x = in[i];
        const real_t alone = cpu_exp(x);

        ck_assert(memcmp(&alone, &out[i], sizeof(alone)) == 0);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("attention_exp");
    TCase *tc = tcase_create("attention_exp");
    SRunner *sr = srunner_create(s);
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, within_documented_error);
    tcase_add_test(tc, special_values);
    tcase_add_test(tc, vector_width_does_not_show);
    suite_add_tcase(s, tc);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed == 0 ? 0 : 1;
}
