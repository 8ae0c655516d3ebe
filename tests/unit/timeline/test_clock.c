/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_clock.c: clocks of hosts against a model of them: whatever the network does to a round trip,
 * the true offset lies within the bound. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/suite.h"
#include "timeline/clock.h"

static uint64_t state = 1;

static int64_t below(int64_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((state >> 33) % (uint64_t)n);
}

/* A's clock, when B's shows `b`: drift of ppm that may turn around half-way. */
typedef struct pair {
    int64_t offset, turn;
    double ppm;
} pair_t;

static int64_t clock_a(const pair_t *p, int64_t b)
{
    double before = (double)(b < p->turn ? b : p->turn), after = (double)(b < p->turn ? 0 : b - p->turn);

    return b + p->offset + (int64_t)((before - after) * p->ppm * 1e-6);
}

static dp__clock_sample_t trip(const pair_t *p, int64_t sent, int64_t way, int64_t back)
{
    return dp__clock_sample(sent, clock_a(p, sent + way), sent + way + back);
}

START_TEST(true_offset_is_within_the_bound)
{
    for (int round = 0; round < 200; round++) {
        pair_t p = {.offset = below(2000000000000) - 1000000000000,
                    .turn = below(20000000000),
                    .ppm = (double)(below(999) - 499)};
        dp__clock_sample_t samples[64];
        size_t count = 1 + (size_t)below(64);
        int64_t worst = 1 + below(round % 2 ? 50000000 : 50000), bound = 0;

        for (size_t i = 0; i < count; i++)
            samples[i] = trip(&p, below(20000000000), below(worst), below(10) == 0 ? 0 : below(worst));
        dp__clock_sort(samples, count);
        for (int k = 0; k < 100; k++) {
            int64_t at = below(22000000000) - 1000000000, off = dp__clock_offset(samples, count, at, &bound);
            int64_t truth = clock_a(&p, at) - at;

            ck_assert_int_ge(bound, 0);
            ck_assert_msg(llabs(off - truth) <= bound, "round %d: %lld instead of %lld, bound %lld", round,
                          (long long)off, (long long)truth, (long long)bound);
        }
    }
}
END_TEST

START_TEST(a_quick_answer_makes_a_narrow_bound)
{
    pair_t p = {.offset = 123456789};
    dp__clock_sample_t samples[3] = {trip(&p, 1000000000, 5000000, 100), trip(&p, 1000100000, 2000, 2000),
                                     trip(&p, 1000200000, 100, 7000000)};
    int64_t bound;

    dp__clock_sort(samples, 3);
    ck_assert_int_le(llabs(dp__clock_offset(samples, 3, 1000100000, &bound) - p.offset), bound);
    ck_assert_int_le(bound, 2100);
    /* a second later: 500 us more */
    (void)dp__clock_offset(samples, 3, 1000100000 + 1000000000, &bound);
    ck_assert_int_ge(bound, 500000);
    ck_assert_int_le(bound, 510000);
}
END_TEST

START_TEST(a_host_without_answers_has_no_array)
{
    dp__clock_sort(NULL, 0); /* UBSan sees what is wrong with a sort of it */
}
END_TEST

START_TEST(drift_is_measured_with_its_bound)
{
    pair_t p = {.offset = -5000000000, .turn = INT64_MAX, .ppm = 37};
    dp__clock_sample_t samples[40];
    double drift, bound;

    for (int i = 0; i < 40; i++)
        samples[i] = trip(&p, (int64_t)i * 250000000, 20000 + below(30000), 20000 + below(30000));
    dp__clock_drift(samples, 40, &drift, &bound);
    ck_assert_double_ge(37000 + bound, drift);
    ck_assert_double_le(37000 - bound, drift);
    ck_assert_double_le(bound, 20000);
    dp__clock_drift(samples, 1, &drift, &bound);
    ck_assert_double_eq(drift, 0);
    ck_assert_double_eq(bound, 0);
}
END_TEST

START_TEST(a_row_is_put_onto_the_other_clock_in_order)
{
    pair_t p = {.offset = 86400000000000, .ppm = 400};
    dp__clock_sample_t samples[16];
    dp_row_clock_t known = {.struct_size = sizeof(known)};
    dp_timeline_t *timeline = NULL;
    const dp_span_t *spans;
    int64_t count;

    ck_assert_int_eq(dp_timeline_create(2, 1000, &timeline), DP_OK);
    for (int64_t i = 0; i < 1000; i++) {
        dp_span_t span = {.start_ns = 1000000000 + i * 3000000, .end_ns = 1000000000 + i * 3000000 + 2999999};

        ck_assert_int_eq(dp_timeline_add(timeline, 1, &span), DP_OK);
    }
    for (int i = 0; i < 16; i++)
        samples[i] = trip(&p, 1000000000 + i * 250000000ll, below(400000), below(400000));
    dp__timeline_set_host(timeline, 1, 3);
    dp__timeline_align(timeline, 1, samples, 16);
    ck_assert_int_eq(dp_timeline_clock(timeline, 1, &known), DP_OK);
    ck_assert_int_eq(known.host, 3);
    spans = dp_timeline_spans(timeline, 1, &count);
    for (int64_t i = 0; i < count; i++) {
        int64_t b = 1000000000 + i * 3000000;

        ck_assert_int_le(llabs(spans[i].start_ns - clock_a(&p, b)), known.bound_ns);
        ck_assert_int_le(spans[i].start_ns, spans[i].end_ns);
        ck_assert(i == 0 || spans[i - 1].end_ns <= spans[i].start_ns);
    }
    ck_assert_int_le(known.bound_ns, 1000000);
    ck_assert_int_eq(dp_timeline_clock(timeline, 0, &known), DP_OK);
    ck_assert_int_eq(known.host + known.offset_ns + known.bound_ns, 0);
    ck_assert_int_eq(dp_timeline_clock(timeline, 2, &known), DP_ERR_INVALID);
    known.struct_size = 8;
    ck_assert_int_eq(dp_timeline_clock(timeline, 0, &known), DP_ERR_INVALID);
    dp_timeline_free(timeline);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("clock");

    SUITE_ADD(suite, true_offset_is_within_the_bound);
    SUITE_ADD(suite, a_quick_answer_makes_a_narrow_bound);
    SUITE_ADD(suite, a_host_without_answers_has_no_array);
    SUITE_ADD(suite, drift_is_measured_with_its_bound);
    SUITE_ADD(suite, a_row_is_put_onto_the_other_clock_in_order);
    return suite_run(suite);
}
