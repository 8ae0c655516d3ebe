/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_divide.c: requests divided among micro-batches: every token once and in order, shares of the
 * load within one token's, and room where the load alone would leave none. */
#include "tests/support/suite.h"

#include <dualpipe/dualpipe.h>
#include <dualpipe/schedule.h>
#include <math.h>
#include <string.h>

enum { MOST = 64, MICROBATCHES_MOST = 9 };

static uint32_t past[MOST], fresh[MOST], count;
static dp_request_part_t parts[MOST + MICROBATCHES_MOST];

static double token_load(uint32_t position, uint32_t per_token)
{
    return position + 1.0 + per_token;
}

/* Sums by hand; the largest load of one token is *largest_out. */
static void check(uint32_t requests, uint32_t per_token, int32_t microbatches, uint32_t tokens_most, double *loads,
                  double *largest_out)
{
    uint32_t done[MOST] = {0}, tokens[MICROBATCHES_MOST] = {0};
    int32_t latest = 0;

    *largest_out = 0;
    memset(loads, 0, (size_t)microbatches * sizeof(*loads));
    ck_assert_int_eq(dp_divide_requests(past, fresh, requests, per_token, microbatches, tokens_most, parts, &count),
                     DP_OK);
    ck_assert_uint_le(count, requests + (uint32_t)microbatches - 1);
    for (uint32_t i = 0; i < count; i++) {
        const dp_request_part_t *p = &parts[i];

        ck_assert_int_ge(p->microbatch, latest);
        latest = p->microbatch;
        ck_assert_uint_gt(p->count, 0);
        ck_assert_uint_eq(p->past, past[p->request] + done[p->request]);
        done[p->request] += p->count;
        tokens[p->microbatch] += p->count;
        for (uint32_t t = 0; t < p->count; t++) {
            loads[p->microbatch] += token_load(p->past + t, per_token);
            *largest_out = fmax(*largest_out, token_load(p->past + t, per_token));
        }
    }
    ck_assert_int_lt(latest, microbatches);
    for (uint32_t r = 0; r < requests; r++)
        ck_assert_uint_eq(done[r], fresh[r]);
    for (int32_t m = 0; m < microbatches; m++)
        ck_assert_uint_le(tokens[m], tokens_most);
}

START_TEST(one_prompt_is_cut_where_both_parts_cost_the_same)
{
    double loads[2], largest;

    past[0] = 0, fresh[0] = 16384;
    check(1, 0, 2, 16384, loads, &largest);
    ck_assert_uint_eq(count, 2);
    ck_assert_double_eq_tol(parts[0].count, 16384 / sqrt(2), 1);
    check(1, 1000000000, 2, 16384, loads, &largest); /* all tokens cost the same */
    ck_assert_double_eq_tol(parts[0].count, 8192, 1);
    check(1, 0, 2, 8192, loads, &largest); /* no room for it */
    ck_assert_uint_eq(parts[0].count, 8192);
    fresh[0] = 1;
    check(1, 0, 2, 8192, loads, &largest);
    ck_assert_uint_eq(count, 1);
    fresh[0] = 0;
    check(1, 0, 2, 8192, loads, &largest);
    ck_assert_uint_eq(count, 0);
}
END_TEST

START_TEST(shares_are_even_within_a_token)
{
    unsigned key = 12345u + (unsigned)_i;

    for (int round = 0; round < 50; round++) {
        const uint32_t requests = 1 + (uint32_t)_i * 3 % MOST;
        const int32_t microbatches = 1 + (int32_t)(key >> 8) % MICROBATCHES_MOST;
        double loads[MICROBATCHES_MOST], largest, least = INFINITY, most = 0;
        uint64_t tokens = 0;

        for (uint32_t r = 0; r < requests; r++) {
            key = key * 1664525u + 1013904223u;
            past[r] = (key >> 7) % 3 == 0 ? 0 : (key >> 9) % 900;
            fresh[r] = (key >> 20) % 4 == 0 ? 0 : (key >> 22) % 4 == 0 ? 1 + (key >> 5) % 300 : 1;
            tokens += fresh[r];
        }
        check(requests, (uint32_t)round % 3 * 100, microbatches, (uint32_t)tokens + 1, loads, &largest);
        for (int32_t m = 0; m < microbatches; m++) {
            least = fmin(least, loads[m]);
            most = fmax(most, loads[m]);
        }
        ck_assert_double_le(most - least, 2 * largest);
        /* exactly as much room as there are tokens, rounded up */
        check(requests, 0, microbatches, (uint32_t)((tokens + (uint64_t)microbatches - 1) / (uint64_t)microbatches),
              loads, &largest);
    }
}
END_TEST

START_TEST(what_does_not_fit_is_refused)
{
    past[0] = 0, fresh[0] = 17;
    ck_assert_int_eq(dp_divide_requests(past, fresh, 1, 0, 2, 8, parts, &count), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "17 tokens are more than 2 micro-batches of 8"));
    ck_assert_int_eq(dp_divide_requests(past, fresh, 1, 0, 0, 8, parts, &count), DP_ERR_INVALID);
    past[0] = UINT32_MAX - 16;
    ck_assert_int_eq(dp_divide_requests(past, fresh, 1, 0, 4, 8, parts, &count), DP_ERR_INVALID);
    past[0]--;
    ck_assert_int_eq(dp_divide_requests(past, fresh, 1, 0, 4, 8, parts, &count), DP_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("divide");
    TCase *tests = tcase_create("divide");

    tcase_add_test(tests, one_prompt_is_cut_where_both_parts_cost_the_same);
    tcase_add_loop_test(tests, shares_are_even_within_a_token, 0, 12);
    tcase_add_test(tests, what_does_not_fit_is_refused);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
