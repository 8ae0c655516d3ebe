/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_program_sweep.c: every method at every small size lowers to programs that both transports
 * end. */
#include "tests/support/suite.h"

#include <dualpipe/program.h>
#include <dualpipe/simulate.h>
#include <stdio.h>

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Peaks as published: chunks of activations held on a rank, from F to the weight gradient. -1: no
 * formula that is exact at every size. */
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
    if (strcmp(s->method, "zb2p") == 0)
        return smaller(2 * ranks - 1, microbatches);
    if (strcmp(s->method, "interleaved_zb") == 0)
        return s->chunks * ranks;
    if (strcmp(s->method, "gpipe") == 0 || strcmp(s->method, "looped_bfs") == 0)
        return total;
    if (strcmp(s->method, "interleaved") == 0)
        return smaller(warm_up + 1, total);
    if (strcmp(s->method, "interleaved_overlap") == 0)
        return smaller(warm_up + 2, total);
    if (strcmp(s->method, "zbv") == 0)
        return microbatches >= 2 * ranks - 1 ? 2 * ranks : -1;
    return -1;
}

/* One slot is enough, but for two methods that wait long between a message and its use. */
static int32_t needed_slots(const dp_schedule_t *s)
{
    if (strcmp(s->method, "looped_bfs") == 0 && s->ranks > 1)
        return s->microbatches >= s->ranks ? s->microbatches / s->ranks : 1;
    if (strcmp(s->method, "interleaved_zb") == 0 && !s->forward_only)
        return s->microbatches > s->ranks ? (s->ranks + 1) / 2 : 1;
    return 1;
}

static dp_program_t *check_program(const dp_schedule_t *s, dp_transport_t transport, int32_t slots)
{
    dp_lower_options_t options = {.struct_size = sizeof(options), .transport = transport, .slots = slots};
    dp_verify_report_t report = {.struct_size = sizeof(report)};
    dp_program_t *p = NULL;
    int32_t peak = published_peak(s);

    ck_assert_msg(dp_program_lower(s, &options, &p) == DP_OK, "%s", dp_last_error());
    ck_assert_msg(dp_program_verify(p, &report) == DP_OK, "%s P=%d M=%d K=%d transport %d: %s", s->method, s->ranks,
                  s->microbatches, slots, transport, dp_last_error());
    ck_assert_int_eq(report.operations, p->first[p->ranks]);
    ck_assert_int_eq(report.ordered_weights, 1);
    if (transport == DP_TRANSPORT_BUNDLES) {
        ck_assert_int_eq(report.safe_slots, 0);
    } else {
        ck_assert_int_eq(report.safe_slots, needed_slots(s));
    }
    if (peak >= 0)
        ck_assert_int_eq(report.peak_activations, peak);
    return p;
}

/* Both lists complete with as much memory; with two slots bundles lose no time against puts. */
static void check_programs(const dp_schedule_t *s, int32_t slots)
{
    dp_costs_t unit = {.struct_size = sizeof(unit), .f = 1, .b = 2, .i = 1, .w = 1, .fb = 3};
    dp_simulation_t puts = {.struct_size = sizeof(puts)}, bundles = {.struct_size = sizeof(bundles)};
    dp_program_t *p = check_program(s, DP_TRANSPORT_BUNDLES, slots), *q = check_program(s, DP_TRANSPORT_CREDITS, slots);

    ck_assert_int_eq(memcmp(p->channels, q->channels, (size_t)p->nchannels * sizeof(*p->channels)), 0);
    ck_assert_int_eq(
        memcmp(p->activation_slots, q->activation_slots, (size_t)(p->ranks * p->chunks) * sizeof(*p->activation_slots)),
        0);
    ck_assert_int_eq(dp_simulate(q, &unit, 0, &puts), DP_OK);
    ck_assert_int_eq(dp_simulate(p, &unit, 0, &bundles), DP_OK);
    ck_assert_msg(slots == 1 || bundles.step_time <= puts.step_time + 1e-9,
                  "%s P=%d M=%d K=%d: %g with bundles, %g with puts", s->method, s->ranks, s->microbatches, slots,
                  bundles.step_time, puts.step_time);
    dp_simulation_clear(&puts);
    dp_simulation_clear(&bundles);
    dp_program_free(p);
    dp_program_free(q);
}

static void sweep(const dp_method_t *method, int forward_only)
{
    int accepted = 0;

    for (int32_t ranks = 1; ranks <= 9; ranks++)
        for (int32_t microbatches = 1; microbatches <= 2 * ranks + 5; microbatches++)
            for (int32_t chunks = 0; chunks <= 4; chunks++) {
                dp_schedule_request_t request = {sizeof(request), method->name, ranks, microbatches,
                                                 chunks,          forward_only, 0};
                dp_schedule_t *s = NULL;

                if (dp_schedule_generate(&request, &s) < 0)
                    continue;
                ck_assert_int_eq(s->placement, method->placement);
                ck_assert_msg(dp_schedule_verify(s) == DP_OK, "%s", dp_last_error());
                for (int32_t slots = 1; slots <= 3; slots++)
                    check_programs(s, needed_slots(s) + slots - 1);
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

/* The report has the fewest slots that are safe; with fewer the program is refused. */
static void check_safe_slots(const char *method, int32_t ranks, int32_t microbatches, int32_t slots, int32_t safe)
{
    dp_schedule_request_t request = {sizeof(request), method, ranks, microbatches, 0, 0, 0};
    dp_lower_options_t options = {.struct_size = sizeof(options), .slots = slots};
    dp_verify_report_t report = {.struct_size = sizeof(report)};
    dp_schedule_t *s;
    dp_program_t *p;

    ck_assert_int_eq(dp_schedule_generate(&request, &s), DP_OK);
    ck_assert_int_eq(dp_program_lower(s, &options, &p), DP_OK);
    ck_assert_int_eq(dp_program_verify(p, &report), slots < safe ? DP_ERR_REJECTED : DP_OK);
    ck_assert_int_eq(report.safe_slots, safe);
    dp_program_free(p);
    dp_schedule_free(s);
}

START_TEST(methods_that_need_more_slots)
{
    static const struct {
        const char *method;
        int32_t ranks, microbatches, slots;
    } known[] = {{"looped_bfs", 8, 40, 5},     {"looped_bfs", 2, 7, 3},      {"looped_bfs", 3, 3, 1},
                 {"interleaved_zb", 8, 16, 4}, {"interleaved_zb", 5, 20, 3}, {"interleaved_zb", 8, 8, 1}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        for (int32_t slots = 1; slots <= known[i].slots; slots++)
            check_safe_slots(known[i].method, known[i].ranks, known[i].microbatches, slots, known[i].slots);
}
END_TEST

/* Lowering takes as many as needed where that is asked for, dp_evaluate where nothing is. */
START_TEST(needed_slots_are_taken)
{
    static const int32_t expected[][3] = {/* groups of, slots, those that divide 15 messages */
                                          {3, 2, 3},
                                          {8, 4, 5}};

    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++)
        for (int32_t replayable = 0; replayable <= 1; replayable++) {
            const dp_schedule_request_t request = {.struct_size = sizeof(request),
                                                   .method = "interleaved",
                                                   .ranks = 3,
                                                   .microbatches = 15,
                                                   .chunks = 2,
                                                   .microbatch_group = expected[i][0]};
            const dp_lower_options_t options = {
                .struct_size = sizeof(options), .slots = DP_SLOTS_NEEDED, .replayable = replayable};
            const dp_costs_t costs = {.struct_size = sizeof(costs), .f = 1, .i = 1, .w = 1};
            dp_simulation_t simulation = {.struct_size = sizeof(simulation)};
            dp_schedule_t *s;
            dp_program_t *p;

            ck_assert_int_eq(dp_schedule_generate(&request, &s), DP_OK);
            ck_assert_int_eq(dp_program_lower(s, &options, &p), DP_OK);
            ck_assert_int_eq(dp_program_verify(p, NULL), DP_OK);
            for (int32_t c = 0; c < p->nchannels; c++)
                if (p->channels[c].src != p->channels[c].dst)
                    ck_assert_int_eq(p->channels[c].slots, expected[i][1 + replayable]);
            ck_assert_int_eq(dp_evaluate(s, NULL, &costs, 0, &simulation), DP_OK);
            dp_simulation_clear(&simulation);
            dp_program_free(p);
            dp_schedule_free(s);
        }
}
END_TEST

/* Channels have separate slots: one is enough. */
START_TEST(smallest_safe_number_of_slots)
{
    static const struct {
        const char *method;
        int32_t ranks, microbatches;
    } known[] = {{"dualpipe", 2, 4},  {"dualpipe", 4, 8},  {"dualpipe", 8, 20},  {"dualpipe", 16, 40},
                 {"dualpipev", 1, 2}, {"dualpipev", 2, 4}, {"dualpipev", 8, 20}, {"1f1b", 8, 20}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        for (int32_t slots = 1; slots <= 2; slots++)
            check_safe_slots(known[i].method, known[i].ranks, known[i].microbatches, slots, 1);
}
END_TEST

/* A captured step finds the slots as its replays do: they divide the messages of a channel. */
START_TEST(replayable_slots_divide_messages)
{
    static const int32_t expected[][3] = {/* micro-batches, asked, got */
                                          {8, 2, 2}, {8, 4, 4}, {8, 3, 4}, {9, 2, 3}, {7, 2, 7}, {7, 1, 1}, {1, 2, 1}};

    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++)
        for (int t = DP_TRANSPORT_CREDITS; t <= DP_TRANSPORT_BUNDLES; t++) {
            dp_schedule_request_t request = {sizeof(request), "1f1b", 3, expected[i][0], 0, 0, 0};
            dp_lower_options_t options = {.struct_size = sizeof(options),
                                          .transport = (dp_transport_t)t,
                                          .slots = expected[i][1],
                                          .replayable = 1};
            dp_schedule_t *s;
            dp_program_t *p;

            ck_assert_int_eq(dp_schedule_generate(&request, &s), DP_OK);
            ck_assert_int_eq(dp_program_lower(s, &options, &p), DP_OK);
            ck_assert_int_eq(dp_program_verify(p, NULL), DP_OK);
            for (int32_t c = 0; c < p->nchannels; c++)
                ck_assert_int_eq(p->channels[c].slots, expected[i][2]);
            dp_program_free(p);
            dp_schedule_free(s);
        }
}
END_TEST

/* The list of one transport is not that of another: receives right before their use make ranks that
 * meet wait in a circle, and the message shows it. */
START_TEST(late_receives_deadlock_bundles)
{
    dp_schedule_request_t request = {sizeof(request), "dualpipe", 4, 8, 0, 0, 0};
    dp_schedule_t *s;
    dp_program_t *p;

    ck_assert_int_eq(dp_schedule_generate(&request, &s), DP_OK);
    ck_assert_int_eq(dp_program_lower(s, NULL, &p), DP_OK);
    ck_assert_int_eq(dp_program_verify(p, NULL), DP_OK);
    p->transport = DP_TRANSPORT_BUNDLES;
    for (int r = 0; r < p->ranks; r++) {
        int32_t bundle = 0;

        for (int64_t i = p->first[r]; i < p->first[r + 1]; i++)
            if (p->instrs[i].kind == DP_INSTR_SEND || p->instrs[i].kind == DP_INSTR_RECV)
                p->instrs[i].bundle = bundle++;
    }
    ck_assert_int_eq(dp_program_verify(p, NULL), DP_ERR_REJECTED);
    ck_assert_msg(strstr(dp_last_error(), "deadlock, a cycle of ") != NULL, "%s", dp_last_error());
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
            sizeof(request), sizes[i].method, sizes[i].ranks, sizes[i].microbatches, 0, 0, 0};
        dp_schedule_t *s = NULL;

        ck_assert_int_eq(dp_schedule_generate(&request, &s), DP_OK);
        check_programs(s, 2);
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
    tcase_add_test(tc, methods_that_need_more_slots);
    tcase_add_test(tc, needed_slots_are_taken);
    tcase_add_test(tc, smallest_safe_number_of_slots);
    tcase_add_test(tc, replayable_slots_divide_messages);
    tcase_add_test(tc, late_receives_deadlock_bundles);
    tcase_add_test(tc, large_ones_too);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
