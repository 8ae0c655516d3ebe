/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_program_sweep.c: every method at every small size lowers to a program that all transports end. */
#include "../support/suite.h"

#include <dualpipe/program.h>
#include <dualpipe/simulate.h>
#include <stdio.h>

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Peaks as published: chunks of activations held on a rank, from F to the weight gradient. -1: no formula
 * that is exact at every size. */
static int32_t published_peak(const dp_schedule_t *s)
{
    int32_t ranks = s->ranks, microbatches = s->microbatches, total = microbatches * s->chunks;
    int32_t warm_up = 2 * (ranks - 1) + (s->chunks - 1) * ranks;

    if (s->forward_only)
        return 1;
    if (strcmp(s->method, "dualpipe") == 0)
        return ranks + 1;
    if (strcmp(s->method, "dualpipev") == 0)
        return 2 * ranks + 1;
    if (strcmp(s->method, "1f1b") == 0 || strcmp(s->method, "zb1p") == 0)
        return smaller(ranks, microbatches);
    if (strcmp(s->method, "gpipe") == 0)
        return microbatches;
    if (strcmp(s->method, "interleaved") == 0)
        return smaller(warm_up + 1, total);
    if (strcmp(s->method, "interleaved_overlap") == 0)
        return smaller(warm_up + 2, total);
    if (strcmp(s->method, "zbv") == 0)
        return microbatches >= 2 * ranks - 1 ? 2 * ranks : -1;
    return -1;
}

static void check_program(const dp_schedule_t *s, int32_t slots)
{
    dp_lower_options_t options = {sizeof(options), slots, 1, 0};
    dp_program_t *p = NULL;
    int32_t peak = published_peak(s);

    ck_assert_msg(dp_program_lower(s, &options, &p) == DP_OK, "%s", dp_last_error());
    for (int t = DP_TRANSPORT_CREDITS; t <= DP_TRANSPORT_SHARED_CREDITS; t++) {
        dp_verify_report_t report = {.struct_size = sizeof(report)};

        ck_assert_msg(dp_program_verify(p, (dp_transport_t)t, &report) == DP_OK, "%s P=%d M=%d K=%d: %s",
                      s->method, s->ranks, s->microbatches, slots, dp_last_error());
        ck_assert_int_ge(report.operations, p->first[p->ranks]);
        ck_assert_int_eq(report.ordered_weights, 1);
        if (t == DP_TRANSPORT_GROUPS) {
            ck_assert_int_eq(report.safe_slots, 0);
        } else {
            ck_assert_int_ge(report.safe_slots, 1);
            ck_assert_int_le(report.safe_slots, 2);
        }
        if (peak >= 0)
            ck_assert_int_eq(report.peak_activations, peak);
    }
    dp_program_free(p);
}

/* Lowered for groups: ends in the strictest way, with what the other lowering needs, and loses no time against it. */
static void check_in_order(const dp_schedule_t *s, int32_t slots)
{
    dp_lower_options_t options = {sizeof(options), slots, 1, DP_TRANSPORT_GROUPS};
    dp_verify_report_t report = {.struct_size = sizeof(report)};
    dp_costs_t unit = {.struct_size = sizeof(unit), .f = 1, .b = 2, .i = 1, .w = 1, .fb = 3};
    dp_simulation_t puts = {.struct_size = sizeof(puts)}, groups = {.struct_size = sizeof(groups)};
    dp_program_t *p = NULL, *q = NULL;

    ck_assert_msg(dp_program_lower(s, &options, &p) == DP_OK, "%s", dp_last_error());
    ck_assert_msg(dp_program_verify(p, DP_TRANSPORT_GROUPS, &report) == DP_OK, "%s P=%d M=%d K=%d: %s", s->method,
                  s->ranks, s->microbatches, slots, dp_last_error());
    ck_assert_msg(report.in_order == 1, "%s P=%d M=%d K=%d deadlocks when ranks do one thing at a time", s->method,
                  s->ranks, s->microbatches, slots);
    ck_assert_int_eq(report.ordered_weights, 1);
    options.transport = DP_TRANSPORT_CREDITS;
    ck_assert_int_eq(dp_program_lower(s, &options, &q), DP_OK);
    ck_assert_int_eq(memcmp(p->channels, q->channels, (size_t)p->nchannels * sizeof(*p->channels)), 0);
    ck_assert_int_eq(memcmp(p->activation_slots, q->activation_slots,
                            (size_t)(p->ranks * p->chunks) * sizeof(*p->activation_slots)), 0);
    /* two slots: groups lose no time against puts */
    ck_assert_int_eq(dp_simulate(q, DP_TRANSPORT_CREDITS, &unit, 0, &puts), DP_OK);
    ck_assert_int_eq(dp_simulate(p, DP_TRANSPORT_GROUPS, &unit, 0, &groups), DP_OK);
    ck_assert_msg(slots == 1 || groups.step_time <= puts.step_time + 1e-9, "%s P=%d M=%d K=%d: %g with groups, %g with puts", s->method,
                  s->ranks, s->microbatches, slots, groups.step_time, puts.step_time);
    dp_simulation_clear(&puts);
    dp_simulation_clear(&groups);
    dp_program_free(p);
    dp_program_free(q);
}

static void sweep(const dp_method_t *method, int forward_only)
{
    int accepted = 0;

    for (int32_t ranks = 1; ranks <= 9; ranks++)
        for (int32_t microbatches = 1; microbatches <= 2 * ranks + 5; microbatches++)
            for (int32_t chunks = 0; chunks <= 4; chunks++) {
                dp_schedule_request_t request = {sizeof(request), method->name, ranks,
                                                 microbatches,    chunks,       forward_only};
                dp_schedule_t *s = NULL;

                if (dp_schedule_generate(&request, &s) < 0)
                    continue;
                ck_assert_int_eq(s->placement, method->placement);
                ck_assert_msg(dp_schedule_verify(s) == DP_OK, "%s", dp_last_error());
                for (int32_t slots = 2; slots <= 3; slots++)
                    check_program(s, slots);
                for (int32_t slots = 1; slots <= 3; slots++)
                    check_in_order(s, slots);
                dp_schedule_free(s);
                accepted++;
            }
    ck_assert_int_gt(accepted, 20);
}

START_TEST(both_transports_complete)
{
    size_t count;
    const dp_method_t *methods = dp_schedule_methods(&count);

    for (size_t m = 0; m < count; m++)
        sweep(&methods[m], _i);
}
END_TEST

/* With channels of their own one slot is enough; when all channels of a pair of ranks share, DualPipe needs
 * two. */
START_TEST(smallest_safe_number_of_slots)
{
    static const struct {
        const char *method;
        int32_t ranks, microbatches, own, shared;
    } known[] = {{"dualpipe", 2, 4, 1, 2},   {"dualpipe", 4, 8, 1, 2},  {"dualpipe", 8, 20, 1, 2},
                 {"dualpipe", 16, 40, 1, 2}, {"dualpipev", 1, 2, 1, 1}, {"dualpipev", 2, 4, 1, 2},
                 {"dualpipev", 8, 20, 1, 2}, {"1f1b", 8, 20, 1, 1}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        for (int32_t slots = 1; slots <= 2; slots++) {
            dp_schedule_request_t request = {
                sizeof(request), known[i].method, known[i].ranks, known[i].microbatches, 0, 0};
            dp_lower_options_t options = {sizeof(options), slots, 1, 0};
            dp_verify_report_t report = {.struct_size = sizeof(report)};
            dp_schedule_t *s;
            dp_program_t *p;

            ck_assert_int_eq(dp_schedule_generate(&request, &s), DP_OK);
            ck_assert_int_eq(dp_program_lower(s, &options, &p), DP_OK);
            ck_assert_int_eq(dp_program_verify(p, DP_TRANSPORT_CREDITS, &report), DP_OK);
            ck_assert_int_eq(report.safe_slots, known[i].own);
            ck_assert_int_eq(dp_program_verify(p, DP_TRANSPORT_SHARED_CREDITS, &report),
                             slots < known[i].shared ? DP_ERR_REJECTED : DP_OK);
            ck_assert_int_eq(report.safe_slots, known[i].shared);
            if (slots < known[i].shared)
                ck_assert_ptr_nonnull(strstr(dp_last_error(), "a cycle of 2 waits: rank "));
            dp_program_free(p);
            dp_schedule_free(s);
        }
}
END_TEST

/* Receives directly before their use: fine for credits; groups then wait for each other in a circle, and the
 * message shows it. */
START_TEST(late_receives_deadlock_groups)
{
    dp_schedule_request_t request = {sizeof(request), "dualpipe", 4, 8, 0, 0};
    dp_lower_options_t options = {sizeof(options), 2, 0, 0};
    dp_schedule_t *s;
    dp_program_t *p;

    ck_assert_int_eq(dp_schedule_generate(&request, &s), DP_OK);
    ck_assert_int_eq(dp_program_lower(s, &options, &p), DP_OK);
    ck_assert_int_eq(dp_program_verify(p, DP_TRANSPORT_CREDITS, NULL), DP_OK);
    ck_assert_int_eq(dp_program_verify(p, DP_TRANSPORT_GROUPS, NULL), DP_ERR_REJECTED);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "deadlock, a cycle of 2 waits: end of group "));
    dp_program_free(p);
    dp_schedule_free(s);
}
END_TEST

START_TEST(large_ones_too)
{
    static const struct {
        const char *method;
        int32_t ranks, microbatches;
    } sizes[] = {{"dualpipe", 64, 160},   {"dualpipev", 48, 100},
                 {"1f1b", 64, 130},       {"gpipe", 40, 60},
                 {"zb1p", 64, 100},       {"zbv", 50, 120},
                 {"v-half", 45, 100},     {"v-min", 51, 100},
                 {"interleaved", 32, 96}, {"interleaved_overlap", 32, 96}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        dp_schedule_request_t request = {
            sizeof(request), sizes[i].method, sizes[i].ranks, sizes[i].microbatches, 0, 0};
        dp_schedule_t *s = NULL;

        ck_assert_int_eq(dp_schedule_generate(&request, &s), DP_OK);
        check_program(s, 2);
        check_in_order(s, 2);
        dp_schedule_free(s);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("program_sweep");
    TCase *tc = tcase_create("sweep");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, both_transports_complete, 0, 2);
    tcase_add_test(tc, smallest_safe_number_of_slots);
    tcase_add_test(tc, late_receives_deadlock_groups);
    tcase_add_test(tc, large_ones_too);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
