/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_number.c: bf16 on the host, against all of its values and what lies between them. */
#include <dualpipe/number.h>
#include <float.h>
#include <math.h>

#include "tests/support/suite.h"

START_TEST(every_bf16_comes_back)
{
    for (uint32_t half = 0; half < 65536; half++) {
        const float f = dp_number_of_bf16((uint16_t)half);

        if (isnan(f))
            ck_assert(isnan(dp_number_of_bf16(dp_number_bf16(f))));
        else
            ck_assert_uint_eq(dp_number_bf16(f), half);
    }
}
END_TEST

/* Between two neighbours: the middle goes to the even one, a hair off it to the nearer one. */
START_TEST(nearest_and_ties_to_even)
{
    for (uint32_t low = 0; low < 0x7f7f; low++) {
        const float below = dp_number_of_bf16((uint16_t)low), above = dp_number_of_bf16((uint16_t)(low + 1));
        const float middle = (float)(((double)below + (double)above) / 2);
        const uint32_t even = low % 2 == 0 ? low : low + 1;

        ck_assert_uint_eq(dp_number_bf16(middle), even);
        ck_assert_uint_eq(dp_number_bf16(-middle), even | 0x8000);
        ck_assert_uint_eq(dp_number_bf16(nextafterf(middle, 0)), low);
        ck_assert_uint_eq(dp_number_bf16(nextafterf(middle, INFINITY)), low + 1);
    }
    ck_assert_uint_eq(dp_number_bf16(FLT_MAX), 0x7f80);
    ck_assert_uint_eq(dp_number_bf16(-INFINITY), 0xff80);
}
END_TEST

START_TEST(a_nan_stays_one)
{
    static const uint32_t patterns[] = {0x7f800001, 0x7fc00000, 0xff80ffff, 0xffffffff};

    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        float f;

        memcpy(&f, &patterns[i], sizeof(f));
        ck_assert(isnan(dp_number_of_bf16(dp_number_bf16(f))));
    }
}
END_TEST

START_TEST(elements_of_every_type)
{
    double d[3] = {0};
    float f[3] = {0};
    uint16_t h[3] = {0};

    dp_number_set(DP_F64, d, 1, 0.1);
    dp_number_set(DP_F32, f, 1, 0.1);
    dp_number_set(DP_BF16, h, 1, 0.1);
    ck_assert(dp_number_get(DP_F64, d, 1) == 0.1);
    ck_assert(dp_number_get(DP_F32, f, 1) == (double)0.1f);
    ck_assert(dp_number_get(DP_BF16, h, 1) == 0.10009765625);
    ck_assert(d[0] == 0 && d[2] == 0 && f[0] == 0 && f[2] == 0 && h[0] == 0 && h[2] == 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("number");

    SUITE_ADD(suite, every_bf16_comes_back);
    SUITE_ADD(suite, nearest_and_ties_to_even);
    SUITE_ADD(suite, a_nan_stays_one);
    SUITE_ADD(suite, elements_of_every_type);
    return suite_run(suite);
}
