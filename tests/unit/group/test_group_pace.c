/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_group_pace.c: who is named as slow, of times that are given. */
#include <string.h>

#include "group/pace.h"
#include "tests/support/suite.h"

enum { MOST = 4096 };

static dp__pace_t paces[MOST];
static uint64_t state;

static void forget(void)
{
    memset(paces, 0, sizeof(paces));
    state = 1;
}

static void say(int32_t size, int32_t rank, int32_t count, uint64_t pipeline, double us)
{
    const dp__step_call_t call = {.pipeline = pipeline,
                                  .first = (uint64_t)(rank / count * count),
                                  .count = (uint64_t)count,
                                  .pace_ns = (uint64_t)(us * 1e3)};

    dp__pace_hear(paces, size, rank, &call);
}

/* Between 0 and 1: SplitMix64. */
static double chance(void)
{
    uint64_t x = state += 0x9e3779b97f4a7c15;

    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return (double)((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

/* `steps` of a job in copies of `count` ranks: 1000 us each and up to `noise` of that more, rank
 * `slow` that many times as long; now and then somebody else has the core. */
static void take_steps(int32_t size, int32_t count, int steps, double noise, int32_t slow, double times)
{
    for (int step = 0; step < steps; step++)
        for (int32_t r = 0; r < size; r++) {
            const double us = 1000.0 * (1.0 + noise * chance()) * (r == slow ? times : 1.0);

            say(size, r, count, 1, chance() < 0.05 ? 5.0 * us : us);
        }
}

START_TEST(one_that_is_slow_is_named_within_20_steps)
{
    static const int32_t sizes[] = {2, 3, 4, 8, 64, MOST};

    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++)
        for (int32_t slow = 0; slow < sizes[k]; slow += sizes[k] / 2) {
            dp__straggler_t got;

            forget();
            take_steps(sizes[k], sizes[k], DP__PACE_STEPS - 1, 0.02, slow, 1.3);
            ck_assert_int_eq(dp__pace_straggler(paces, sizes[k], -1).rank, -1);
            got.rank = -1;
            for (int more = DP__PACE_STEPS; more <= 20 && got.rank < 0; more++) {
                take_steps(sizes[k], sizes[k], 1, 0.02, slow, 1.3);
                got = dp__pace_straggler(paces, sizes[k], -1);
            }
            ck_assert_int_eq(got.rank, slow);
            ck_assert_double_eq_tol(got.times, 1.3, 0.03);
        }
}
END_TEST

START_TEST(nobody_is_named_where_nobody_is_slow)
{
    static const int32_t sizes[] = {1, 2, 3, 4, 8, 64};

    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
        forget();
        for (int step = 0; step < 500; step++) {
            take_steps(sizes[k], sizes[k], 1, sizes[k] < 4 ? 0.1 : 0.3, -1, 1.0);
            ck_assert_int_eq(dp__pace_straggler(paces, sizes[k], -1).rank, -1);
        }
    }
}
END_TEST

/* Two places of a pipeline may have other work; copies of them have the same. */
START_TEST(peers_are_at_the_same_place_of_their_copies)
{
    for (int32_t copies = 2; copies <= 5; copies++) {
        dp__straggler_t got;

        forget();
        for (int step = 0; step < DP__PACE_STEPS; step++)
            for (int32_t r = 0; r < 2 * copies; r++)
                say(2 * copies, r, 2, 1, (r % 2 == 0 ? 1000.0 : 3000.0) * (r == 2 ? 1.25 : 1.0));
        got = dp__pace_straggler(paces, 2 * copies, -1);
        ck_assert_int_eq(got.rank, 2);
        ck_assert_double_eq_tol(got.times, 1.25, 1e-9);
    }
}
END_TEST

START_TEST(it_takes_less_to_remain_slow_than_to_become_it)
{
    forget();
    take_steps(4, 4, DP__PACE_STEPS, 0.0, 3, 1.1);
    ck_assert_int_eq(dp__pace_straggler(paces, 4, -1).rank, -1);
    ck_assert_int_eq(dp__pace_straggler(paces, 4, 2).rank, -1);
    ck_assert_int_eq(dp__pace_straggler(paces, 4, 3).rank, 3);
    take_steps(4, 4, DP__PACE_STEPS, 0.0, 3, 1.05);
    ck_assert_int_eq(dp__pace_straggler(paces, 4, 3).rank, -1);
}
END_TEST

/* A new pipeline begins anew; ranks that say nothing of their steps are no peers; some microseconds
 * are nothing. */
START_TEST(what_tells_of_nothing_names_nobody)
{
    forget();
    take_steps(4, 4, DP__PACE_STEPS, 0.0, 1, 2.0);
    ck_assert_int_eq(dp__pace_straggler(paces, 4, -1).rank, 1);
    say(4, 1, 4, 2, 1000.0);
    ck_assert_int_eq(dp__pace_straggler(paces, 4, -1).rank, -1);
    forget();
    for (int step = 0; step < 100; step++)
        for (int32_t r = 0; r < 4; r++)
            say(4, r, 4, 1, r == 3 ? 900.0 : 0.0);
    ck_assert_int_eq(dp__pace_straggler(paces, 4, -1).rank, -1);
    forget();
    for (int step = 0; step < 100; step++)
        for (int32_t r = 0; r < 4; r++)
            say(4, r, 4, 1, r == 3 ? 25.0 : 10.0);
    ck_assert_int_eq(dp__pace_straggler(paces, 4, -1).rank, -1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pace");

    SUITE_ADD(suite, one_that_is_slow_is_named_within_20_steps);
    SUITE_ADD(suite, nobody_is_named_where_nobody_is_slow);
    SUITE_ADD(suite, peers_are_at_the_same_place_of_their_copies);
    SUITE_ADD(suite, it_takes_less_to_remain_slow_than_to_become_it);
    SUITE_ADD(suite, what_tells_of_nothing_names_nobody);
    return suite_run(suite);
}
