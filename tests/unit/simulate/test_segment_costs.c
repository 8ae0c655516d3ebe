/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_segment_costs.c: passes out of segments, against times worked out by hand and bounds that
 * always hold. */
#include <math.h>
#include <string.h>

#include "tests/support/oom.h"
#include "tests/support/suite.h"
#include <dualpipe/simulate.h>

static const struct {
    dp_segment_costs_t costs; /* attention, dispatch, mlp, combine */
    double f, i, w, b, fb, communication, hidden;
} known[] = {
    /* I combine | F attention 0-1, I mlp | F dispatch 1-2, W mlp | I dispatch 2-3, F mlp 3-4, I
     * attention | F combine 4-5, W attention 5-6 */
    {{sizeof(dp_segment_costs_t),
      1,
      {1, 1, 1, 1},
      {1, 1, 1, 1},
      {1, 0, 1, 0},
      0,
      NULL,
      NULL,
      0,
      {0},
      NULL,
      0,
      {0},
      {0},
      {0}},
     4,
     4,
     2,
     5,
     6,
     4,
     4},
    /* long all-to-alls: 0-5, 5-10, 10-15, 15-20 without a gap; six units of computation beside
     * them */
    {{sizeof(dp_segment_costs_t),
      1,
      {1, 5, 1, 5},
      {1, 5, 1, 5},
      {1, 0, 1, 0},
      0,
      NULL,
      NULL,
      0,
      {0},
      NULL,
      0,
      {0},
      {0},
      {0}},
     12,
     12,
     2,
     13,
     20,
     20,
     6},
    /* no communication, and nothing else */
    {{sizeof(dp_segment_costs_t),
      3,
      {2, 0, 1, 0},
      {3, 0, 1, 0},
      {1, 0, 4, 0},
      0,
      NULL,
      NULL,
      0,
      {0},
      NULL,
      0,
      {0},
      {0},
      {0}},
     9,
     12,
     15,
     27,
     36,
     0,
     0},
    {{sizeof(dp_segment_costs_t),
      2,
      {0, 1, 0, 2},
      {0, 3, 0, 1},
      {0, 0, 0, 0},
      0,
      NULL,
      NULL,
      0,
      {0},
      NULL,
      0,
      {0},
      {0},
      {0}},
     6,
     8,
     0,
     8,
     14,
     14,
     0},
    {{sizeof(dp_segment_costs_t), 1, {0}, {0}, {0}, 0, NULL, NULL, 0, {0}, NULL, 0, {0}, {0}, {0}},
     0,
     0,
     0,
     0,
     0,
     0,
     0},
    /* cut finer. F: shared beside combine. B: I sum | I combine, I shared | I mlp | I dispatch, W
     * shared, and then computation alone, which is all that counts in a pair */
    {{sizeof(dp_segment_costs_t),
      1,
      {1, 1, 1, 1},
      {1, 1, 1, 1},
      {1, 0, 1, 0},
      0,
      NULL,
      NULL,
      0,
      {0},
      NULL,
      0,
      {1, 1, 1},
      {1, 1, 1},
      {1, 1, 0}},
     6,
     6,
     4,
     9,
     14,
     4,
     4},
    /* weight gradients compute, whatever their segment does */
    {{sizeof(dp_segment_costs_t), 1, {0}, {0}, {2, 1, 3, 0.5}, 0, NULL, NULL, 0, {0}, NULL, 0, {0}, {0}, {0}},
     0,
     0,
     6.5,
     6.5,
     6.5,
     0,
     0},
    /* A published layer pair in microseconds: all but the first 74 of I combine are hidden. */
    {{sizeof(dp_segment_costs_t),
      1,
      {4306, 6059, 4250, 7325},
      {9018, 7302, 5693, 4380},
      {2375, 0, 3575, 0},
      0,
      NULL,
      NULL,
      0,
      {0},
      NULL,
      0,
      {0},
      {0},
      {0}},
     21940,
     26393,
     5950,
     28768,
     29291,
     25066,
     24992},
    /* In the layers that follow, W attention of the one before hides I combine: computation alone
     * counts, 29217. */
    {{sizeof(dp_segment_costs_t),
      4,
      {4306, 6059, 4250, 7325},
      {9018, 7302, 5693, 4380},
      {2375, 0, 3575, 0},
      0,
      NULL,
      NULL,
      0,
      {0},
      NULL,
      0,
      {0},
      {0},
      {0}},
     87760,
     105572,
     23800,
     107947,
     116942,
     100264,
     100190},
};

START_TEST(known_costs)
{
    dp_costs_t costs = {.struct_size = sizeof(costs), .hop = 7.0, .barrier = 1.0, .bytes = 3.0};
    dp_pair_figures_t pair = {.struct_size = sizeof(pair)};

    ck_assert_int_eq(dp_costs_from_segments(&known[_i].costs, &costs, &pair), DP_OK);
    ck_assert_double_eq_tol(costs.f, known[_i].f, 1e-9);
    ck_assert_double_eq_tol(costs.i, known[_i].i, 1e-9);
    ck_assert_double_eq_tol(costs.w, known[_i].w, 1e-9);
    ck_assert_double_eq_tol(costs.b, known[_i].b, 1e-9);
    ck_assert_double_eq_tol(costs.fb, known[_i].fb, 1e-9);
    ck_assert_double_eq_tol(pair.time, known[_i].fb, 1e-9);
    ck_assert_double_eq_tol(pair.communication, known[_i].communication, 1e-9);
    ck_assert_double_eq_tol(pair.hidden, known[_i].hidden, 1e-9);
    ck_assert_double_eq(costs.hop, 7.0);
    ck_assert_double_eq(costs.barrier, 1.0);
    ck_assert_double_eq(costs.bytes, 3.0);
    ck_assert_int_eq(dp_costs_from_segments(&known[_i].costs, &costs, NULL), DP_OK);
}
END_TEST

/* What is recomputed stands before its I on the compute lane: mlp's runs beside combine (0 to 1.5,
 * then I to 4.5), attention's beside dispatch. */
START_TEST(what_is_recomputed_runs_beside_the_all_to_all)
{
    dp_segment_costs_t segments = {
        .struct_size = sizeof(segments), .layers = 1, .f = {2, 1, 3, 1}, .i = {2, 1, 3, 1}, .r = {1, 0, 1.5, 0}};
    dp_costs_t costs = {.struct_size = sizeof(costs)};

    ck_assert_int_eq(dp_costs_from_segments(&segments, &costs, NULL), DP_OK);
    ck_assert_double_eq_tol(costs.f, 7, 1e-12);
    ck_assert_double_eq_tol(costs.i, 7.5, 1e-12);
    segments.r[0] = 1.25; /* longer than dispatch */
    ck_assert_int_eq(dp_costs_from_segments(&segments, &costs, NULL), DP_OK);
    ck_assert_double_eq_tol(costs.i, 7.75, 1e-12);
    segments.r[1] = 1;
    ck_assert_int_eq(dp_costs_from_segments(&segments, &costs, NULL), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "dispatch.R is 1"));
}
END_TEST

/* The program of these costs takes what they say. */
START_TEST(the_simulation_takes_them)
{
    dp_schedule_request_t request = {sizeof(request), "dualpipe", 4, 12, 0, 0, 0};
    dp_costs_t costs = {.struct_size = sizeof(costs), .barrier = 1.0}, same;
    dp_simulation_t a = {.struct_size = sizeof(a)}, b = {.struct_size = sizeof(b)};
    dp_schedule_t *schedule;
    dp_program_t *program;

    ck_assert_int_eq(dp_schedule_generate(&request, &schedule), DP_OK);
    ck_assert_int_eq(dp_program_lower(schedule, NULL, &program), DP_OK);
    ck_assert_int_eq(dp_costs_from_segments(&known[0].costs, &costs, NULL), DP_OK);
    same = (dp_costs_t){.struct_size = sizeof(same), .f = 4, .i = 4, .w = 2, .b = 5, .fb = 6, .barrier = 1.0};
    ck_assert_int_eq(dp_simulate(program, &costs, 0, &a), DP_OK);
    ck_assert_int_eq(dp_simulate(program, &same, 0, &b), DP_OK);
    ck_assert_double_gt(a.step_time, 12 * 4.0);
    ck_assert_double_eq(a.step_time, b.step_time);
    dp_simulation_clear(&a);
    dp_simulation_clear(&b);
    dp_program_free(program);
    dp_schedule_free(schedule);
}
END_TEST

static double draw(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(*state >> 53) / 100.0;
}

START_TEST(bounds_that_always_hold)
{
    uint64_t state = 11;

    for (int round = 0; round < 500; round++) {
        dp_segment_costs_t s = {.struct_size = sizeof(s), .layers = 1 + round % 9};
        dp_costs_t costs = {.struct_size = sizeof(costs)};
        dp_pair_figures_t pair = {.struct_size = sizeof(pair)};
        double lane[2] = {0.0, 0.0}, tol;

        for (int k = 0; k < DP_SEGMENT_COSTS; k++) {
            s.f[k] = draw(&state);
            s.i[k] = draw(&state);
            s.w[k] = k % 2 == 0 ? draw(&state) : 0.0;
            lane[k % 2] += (s.f[k] + s.i[k] + s.w[k]) * s.layers;
        }
        ck_assert_int_eq(dp_costs_from_segments(&s, &costs, &pair), DP_OK);
        tol = 1e-9 * (lane[0] + lane[1]);
        ck_assert_double_eq_tol(costs.f + costs.i + costs.w, lane[0] + lane[1], tol);
        ck_assert(costs.fb >= fmax(lane[0], lane[1]) - tol && costs.fb <= lane[0] + lane[1] + tol);
        ck_assert(costs.fb >= costs.f - tol && costs.fb >= costs.b - tol);
        ck_assert(costs.b >= costs.i - tol && costs.b <= costs.i + costs.w + tol);
        ck_assert_double_eq_tol(pair.communication, lane[1], tol);
        /* the time is computation, exposed communication, and gaps */
        ck_assert(pair.hidden >= 0.0 && pair.hidden <= fmin(lane[0], lane[1]) + tol);
        ck_assert(lane[0] + pair.communication - pair.hidden <= pair.time + tol);
    }
}
END_TEST

START_TEST(wrong_costs_are_refused)
{
    for (int k = 0; k < 9; k++) {
        dp_segment_costs_t s = known[0].costs;
        dp_costs_t costs = {.struct_size = sizeof(costs), .f = -3.0};
        dp_pair_figures_t pair = {.struct_size = sizeof(pair)};
        const char *word = "";

        switch (k) {
        case 0:
            s.struct_size = 0, word = "struct_size";
            break;
        case 1:
            costs.struct_size = 8, word = "struct_size";
            break;
        case 2:
            pair.struct_size = 0, word = "struct_size";
            break;
        case 3:
            s.layers = 0, word = "0 layers";
            break;
        case 4:
            s.layers = DP_SEGMENT_LAYERS + 1, word = "4097 layers";
            break;
        case 5:
            s.f[1] = -1.0, word = "dispatch.F";
            break;
        case 6:
            s.i[3] = NAN, word = "combine.I";
            break;
        case 7:
            s.w[2] = INFINITY, word = "mlp.W";
            break;
        case 8:
            s.f[0] = 1e300, word = "attention.F";
            break;
        }
        ck_assert_int_eq(dp_costs_from_segments(&s, &costs, &pair), DP_ERR_INVALID);
        ck_assert_msg(strstr(dp_last_error(), word) != NULL, "%s", dp_last_error());
        ck_assert_double_eq(costs.f, -3.0);
    }
    ck_assert_int_eq(dp_costs_from_segments(NULL, NULL, NULL), DP_ERR_INVALID);
}
END_TEST

START_TEST(memory_that_runs_out_is_an_error_without_leak)
{
    bool struck = true;
    long k;

    oom_install();
    for (k = 0; struck; k++) {
        dp_costs_t costs = {.struct_size = sizeof(costs)};
        dp_status_t status;

        oom_arm(k, false);
        status = dp_costs_from_segments(&known[1].costs, &costs, NULL);
        struck = oom_struck();
        oom_disarm();
        ck_assert_int_eq(status, struck ? DP_ERR_NOMEM : DP_OK);
        ck_assert_int_eq(oom_live(), 0);
    }
    ck_assert_int_eq(k, 2);
    oom_uninstall();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("segment_costs");
    TCase *tc = tcase_create("known");

    tcase_add_loop_test(tc, known_costs, 0, (int)(sizeof(known) / sizeof(known[0])));
    suite_add_tcase(suite, tc);
    SUITE_ADD(suite, what_is_recomputed_runs_beside_the_all_to_all);
    SUITE_ADD(suite, the_simulation_takes_them);
    SUITE_ADD(suite, bounds_that_always_hold);
    SUITE_ADD(suite, wrong_costs_are_refused);
    SUITE_ADD(suite, memory_that_runs_out_is_an_error_without_leak);
    return suite_run(suite);
}
