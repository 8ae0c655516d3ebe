/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_measured_costs.c: costs out of timelines: simulated ones give back what they were made with,
 * a hand-made one has every figure worked out. */
#include <math.h>
#include <string.h>

#include "tests/support/oom.h"
#include "tests/support/suite.h"
#include <dualpipe/overlap.h>

static dp_schedule_t *generate(const char *method, int32_t ranks, int32_t microbatches)
{
    dp_schedule_request_t request = {sizeof(request), method, ranks, microbatches, 0, 0, 0};
    dp_schedule_t *schedule = NULL;

    ck_assert_msg(dp_schedule_generate(&request, &schedule) == DP_OK, "%s", dp_last_error());
    return schedule;
}

static dp_simulation_t simulate(const dp_schedule_t *schedule, const dp_costs_t *costs)
{
    dp_program_t *program;
    dp_simulation_t result = {.struct_size = sizeof(result)};

    ck_assert_int_eq(dp_program_lower(schedule, NULL, &program), DP_OK);
    ck_assert_int_eq(dp_simulate(program, costs, 1, &result), DP_OK);
    dp_program_free(program);
    return result;
}

static const struct {
    const char *method;
    bool has_parts, has_whole, has_pair;
} methods[] = {{"dualpipe", true, true, true},
               {"dualpipev", true, true, true},
               {"zb1p", true, false, false},
               {"1f1b", false, true, false},
               {"interleaved", false, true, false}};

START_TEST(a_simulation_gives_back_its_costs)
{
    const dp_costs_t costs = {
        .struct_size = sizeof(costs), .f = 3, .i = 4, .w = 2, .b = 5.5, .fb = 7, .hop = 0.25, .barrier = 1};
    dp_schedule_t *schedule = generate(methods[_i].method, 4, 12);
    dp_simulation_t run = simulate(schedule, &costs);
    dp_measured_costs_t got = {.struct_size = sizeof(got)};

    ck_assert_int_eq(dp_costs_measure(run.timeline, schedule, &got), DP_OK);
    ck_assert_double_eq_tol(got.costs->f, 3.0, 1e-5);
    if (methods[_i].has_parts) {
        ck_assert_double_eq_tol(got.costs->i, 4.0, 1e-5);
        ck_assert_double_eq_tol(got.costs->w, 2.0, 1e-5);
    } else {
        ck_assert_double_eq_tol(got.costs->i + got.costs->w, 5.5, 1e-5);
    }
    if (methods[_i].has_whole)
        ck_assert_double_eq_tol(got.costs->b, 5.5, 1e-5);
    if (methods[_i].has_pair)
        ck_assert_double_eq_tol(got.costs->fb, 7.0, 1e-5);
    else
        ck_assert_double_eq(got.costs->fb, 0.0);
    ck_assert_double_eq_tol(got.costs->hop, 0.25, 1e-5);
    ck_assert_ptr_null(got.segments);
    ck_assert_int_eq(got.stages, dp_schedule_stages(schedule));
    for (int32_t s = 0; s < got.stages; s++)
        ck_assert_double_eq_tol(got.costs->stage_scale[s], 1.0, 0.2);
    dp_measured_costs_clear(&got);
    dp_simulation_clear(&run);
    dp_schedule_free(schedule);
}
END_TEST

START_TEST(slow_stages_are_seen_and_the_step_comes_out_again)
{
    const double scale[] = {0.5, 1.0, 1.75, 0.75};
    const dp_costs_t costs = {.struct_size = sizeof(costs), .f = 3, .i = 4, .w = 2, .barrier = 1, .stage_scale = scale};
    dp_schedule_t *schedule = generate("zb1p", 4, 12);
    dp_simulation_t run = simulate(schedule, &costs), again;
    dp_measured_costs_t got = {.struct_size = sizeof(got)};

    ck_assert_int_eq(dp_costs_measure(run.timeline, schedule, &got), DP_OK);
    for (int32_t s = 0; s < 4; s++)
        ck_assert_double_eq_tol(got.costs->stage_scale[s], scale[s], 1e-5); /* their mean is 1 */
    again = simulate(schedule, got.costs);
    ck_assert_double_eq_tol(again.step_time, run.step_time, 1e-3);
    dp_measured_costs_clear(&got);
    dp_simulation_clear(&run);
    dp_simulation_clear(&again);
    dp_schedule_free(schedule);
}
END_TEST

/* What a trainer calls "sum" or "project" is that of a layer only where a layer has one. */
START_TEST(names_of_a_layer_are_anybodys_elsewhere)
{
    enum { C = DP_LANE_COMPUTE, A = DP_LANE_ALL_TO_ALL };
    const dp_segment_cost_t list[] = {{DP_ROLE_SUM, C, 0, 1, 0, 1, 1, 0},       {DP_ROLE_PROJECT, C, 1, 1, 0, 2, 2, 1},
                                      {DP_ROLE_ATTENTION, C, 1, 0, 0, 4, 4, 1}, {DP_ROLE_DISPATCH, A, 0, 0, 0, 3, 3, 0},
                                      {DP_ROLE_MLP, C, 1, 0, 0, 4, 4, 1},       {DP_ROLE_SHARED, C, 1, 0, 0, 2, 2, 1},
                                      {DP_ROLE_COMBINE, A, 0, 0, 0, 3, 3, 0},   {DP_ROLE_SUM, C, 0, 0, 0, 1, 1, 0},
                                      {DP_ROLE_SUM, C, 0, 1, 0, 1, 1, 0},       {DP_ROLE_PROJECT, C, 1, 1, 0, 2, 2, 1},
                                      {DP_ROLE_MLP, C, 1, 1, 0, 4, 4, 1},       {DP_ROLE_SUM, C, 0, 1, 0, 1, 1, 0}};
    static const bool own[] = {1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1}; /* of the trainer */
    enum { SEGMENTS = sizeof(list) / sizeof(list[0]) };
    const int32_t first[] = {0, 9, SEGMENTS};
    const dp_segment_costs_t segments = {.struct_size = sizeof(segments), .stages = 2, .first = first, .list = list};
    const dp_costs_t costs = {.struct_size = sizeof(costs), .barrier = 1, .segments = &segments};
    dp_schedule_t *schedule = generate("1f1b", 2, 5);
    dp_simulation_t run = simulate(schedule, &costs);
    dp_measured_costs_t got = {.struct_size = sizeof(got)};

    ck_assert_int_eq(dp_costs_measure(run.timeline, schedule, &got), DP_OK);
    ck_assert_ptr_nonnull(got.stage_segments);
    ck_assert_mem_eq(got.stage_segments->first, first, sizeof(first));
    for (int32_t k = 0; k < SEGMENTS; k++) {
        const dp_segment_cost_t *one = &got.stage_segments->list[k];

        ck_assert_msg(one->role == (own[k] ? DP_ROLE_OTHER : list[k].role), "segment %d has role %d", k, one->role);
        ck_assert_msg(!own[k] || one->begins_part, "segment %d begins no part", k);
        ck_assert_double_eq_tol(one->f, list[k].f, 1e-5);
    }
    dp_measured_costs_clear(&got);
    dp_simulation_clear(&run);
    dp_schedule_free(schedule);
}
END_TEST

/* Stages that are not alike: an embedding, a layer with and one without experts, a head. */
START_TEST(every_segment_of_every_stage_comes_back)
{
    enum { C = DP_LANE_COMPUTE, A = DP_LANE_ALL_TO_ALL };
    const dp_segment_cost_t list[] = {
        {0, C, 1, 1, 0, 0.5, 0.25, 0.75},           {DP_ROLE_ATTENTION, C, 1, 1, 0, 4, 9, 2},
        {DP_ROLE_DISPATCH, A, 0, 0, 0, 6, 7, 0},    {DP_ROLE_MLP, C, 1, 0, 0, 4.5, 5, 5.5},
        {DP_ROLE_COMBINE, A, 0, 0, 0, 8, 5.75, 0},  {DP_ROLE_ATTENTION, C, 1, 1, 0, 3, 8, 1},
        {DP_ROLE_MLP, C, 1, 0, 0, 2, 3, 2.5},       {DP_ROLE_ATTENTION, C, 1, 1, 0, 5, 10, 3},
        {DP_ROLE_MLP, C, 1, 0, 0, 1.5, 2.5, 1.125}, {0, C, 1, 1, 0, 7, 6, 6.5}};
    const int32_t first[] = {0, 5, 7, 10};
    const dp_segment_costs_t segments = {.struct_size = sizeof(segments), .stages = 3, .first = first, .list = list};
    const dp_costs_t costs = {.struct_size = sizeof(costs), .hop = 0.25, .barrier = 1, .segments = &segments};
    const char *const some[] = {"zb1p", "1f1b", "zb1p"};
    dp_schedule_t *schedule = generate(some[_i], 3, 7);
    const dp_overlap_request_t request = {.struct_size = sizeof(request), .schedule = schedule, .costs = &costs};
    dp_overlap_result_t plan = {.struct_size = sizeof(plan)};
    dp_simulation_t run, again;
    dp_measured_costs_t got = {.struct_size = sizeof(got)};
    dp_costs_t measured = costs;

    if (_i == 2) {
        ck_assert_int_eq(dp_plan_overlap(&request, &plan), DP_OK);
        ck_assert_int_gt(plan.schedule->nbraids, 0);
        dp_schedule_free(schedule);
        schedule = plan.schedule;
    }
    run = simulate(schedule, &costs);
    ck_assert_int_eq(dp_costs_measure(run.timeline, schedule, &got), DP_OK);
    ck_assert_ptr_nonnull(got.stage_segments);
    ck_assert_int_eq(got.stage_segments->stages, 3);
    ck_assert_mem_eq(got.stage_segments->first, first, sizeof(first));
    for (int32_t k = 0; k < first[3]; k++) {
        const dp_segment_cost_t *one = &got.stage_segments->list[k];

        ck_assert_int_eq(one->role, list[k].role);
        ck_assert_int_eq(one->lane, list[k].lane);
        ck_assert_int_eq(one->has_weight, list[k].has_weight);
        ck_assert_int_eq(one->begins_part, list[k].begins_part);
        ck_assert_double_eq_tol(one->f, list[k].f, 1e-5);
        ck_assert_double_eq_tol(one->i, list[k].i, 1e-5);
        ck_assert_double_eq_tol(one->w, list[k].w, 1e-5);
    }
    if (_i == 2) { /* sums of segments */
        ck_assert_double_eq_tol(got.costs->f, 41.5 / 3, 1e-5);
        ck_assert_double_eq_tol(got.costs->i, 56.5 / 3, 1e-5);
        ck_assert_double_eq_tol(got.costs->w, 22.375 / 3, 1e-5);
    }
    measured.segments = got.stage_segments;
    again = simulate(schedule, &measured);
    ck_assert_double_eq_tol(again.step_time, run.step_time, 1e-3);
    dp_measured_costs_clear(&got);
    dp_simulation_clear(&run);
    dp_simulation_clear(&again);
    dp_schedule_free(schedule);
}
END_TEST

/* Runs number the second direction's micro-batches behind the first's, where simulations begin at 0
 * again. */
START_TEST(the_second_direction_may_count_on)
{
    const dp_costs_t costs = {
        .struct_size = sizeof(costs), .f = 3, .i = 4, .w = 2, .b = 5.5, .fb = 7, .hop = 0.25, .barrier = 1};
    dp_schedule_t *schedule = generate("dualpipe", 4, 12);
    dp_simulation_t run = simulate(schedule, &costs);
    dp_measured_costs_t got = {.struct_size = sizeof(got)};
    dp_timeline_t *counting_on;

    ck_assert_int_eq(dp_timeline_create(4, 1000, &counting_on), DP_OK);
    for (int32_t r = 0; r < 4; r++) {
        int64_t count;
        const dp_span_t *spans = dp_timeline_spans(run.timeline, r, &count);

        for (int64_t k = 0; k < count; k++) {
            dp_span_t span = spans[k];

            span.microbatch += span.kind == DP_SPAN_COMPUTE && span.chunk == 1 ? 6 : 0;
            ck_assert_int_eq(dp_timeline_add(counting_on, r, &span), DP_OK);
        }
    }
    ck_assert_int_eq(dp_costs_measure(counting_on, schedule, &got), DP_OK);
    ck_assert_double_eq_tol(got.costs->i, 4.0, 1e-5);
    ck_assert_double_eq_tol(got.costs->w, 2.0, 1e-5);
    ck_assert_double_eq_tol(got.costs->b, 5.5, 1e-5);
    dp_measured_costs_clear(&got);
    dp_timeline_free(counting_on);
    dp_simulation_clear(&run);
    dp_schedule_free(schedule);
}
END_TEST

/* ---- a row by hand: two layers, F0, then F1 and B0 as a pair, then B1 with its parts apart
 * ---- */

typedef struct line {
    const char *name;
    int pass, pair, microbatch, start, end; /* ms */
} line_t;

static const line_t row[] = {
    {"attention", DP_OP_F, 0, 0, 0, 2},   {"dispatch", DP_OP_F, 0, 0, 2, 3},  {"mlp", DP_OP_F, 0, 0, 3, 6},
    {"combine", DP_OP_F, 0, 0, 6, 7},     {"attention", DP_OP_F, 0, 0, 7, 9}, {"dispatch", DP_OP_F, 0, 0, 9, 10},
    {"mlp", DP_OP_F, 0, 0, 10, 14},       {"combine", DP_OP_F, 0, 0, 14, 15}, {"head", DP_OP_F, 0, 0, 15, 16},
    {"attention", DP_OP_F, 1, 1, 20, 22}, {"combine", DP_OP_I, 1, 0, 21, 23}, {"dispatch", DP_OP_F, 1, 1, 23, 24},
    {"mlp", DP_OP_I, 1, 0, 24, 27},       {"mlp", DP_OP_W, 1, 0, 27, 29},     {"mlp", DP_OP_F, 1, 1, 29, 32},
    {"dispatch", DP_OP_I, 1, 0, 27, 30},  {"combine", DP_OP_F, 1, 1, 32, 33}, {"attention", DP_OP_F, 1, 1, 33, 35},
    {"dispatch", DP_OP_F, 1, 1, 35, 36},  {"mlp", DP_OP_F, 1, 1, 36, 40},     {"combine", DP_OP_F, 1, 1, 40, 42},
    {"mlp", DP_OP_I, 0, 1, 50, 55},       {"mlp", DP_OP_W, 0, 1, 55, 57},     {"attention", DP_OP_I, 0, 1, 57, 61},
};

static dp_timeline_t *by_hand(void)
{
    dp_timeline_t *timeline;
    dp_span_t send = {.kind = DP_SPAN_SEND, .lane = DP_LANE_P2P, .start_ns = 5, .end_ns = 1000005, .flow = 1};

    ck_assert_int_eq(dp_timeline_create(1, 100, &timeline), DP_OK);
    for (size_t k = 0; k < sizeof(row) / sizeof(row[0]); k++) {
        dp_span_t span = {.start_ns = row[k].start * INT64_C(1000000),
                          .end_ns = row[k].end * INT64_C(1000000),
                          .microbatch = row[k].microbatch,
                          .pass = (uint8_t)row[k].pass,
                          .pair = (uint8_t)row[k].pair};

        ck_assert_int_eq(dp_timeline_name(timeline, row[k].name, &span.name), DP_OK);
        ck_assert_int_eq(dp_timeline_add(timeline, 0, &span), DP_OK);
        send.end_ns += 1000000; /* the first one is the shortest */
        ck_assert_int_eq(dp_timeline_add(timeline, 0, &send), DP_OK);
    }
    return timeline;
}

static void check_by_hand(const dp_measured_costs_t *got)
{
    static const double wanted[3][DP_SEGMENT_COSTS] = {
        {2, 1, 14.0 / 4, 5.0 / 4}, /* F: four layers each */
        {4, 3, 4, 2},
        {0, 0, 2, 0},
    };

    ck_assert_double_eq_tol(got->costs->f, 16, 1e-9);
    ck_assert_double_eq_tol(got->costs->fb, 22, 1e-9);
    ck_assert_double_eq_tol(got->costs->b, 11, 1e-9);
    ck_assert_double_eq_tol(got->costs->i, 9, 1e-9);
    ck_assert_double_eq_tol(got->costs->w, 2, 1e-9);
    ck_assert_double_eq_tol(got->costs->hop, 2, 1e-9);
    ck_assert_int_eq(got->segments->layers, 2);
    for (int s = 0; s < DP_SEGMENT_COSTS; s++) {
        ck_assert_double_eq_tol(got->segments->f[s], wanted[0][s], 1e-9);
        ck_assert_double_eq_tol(got->segments->i[s], wanted[1][s], 1e-9);
        ck_assert_double_eq_tol(got->segments->w[s], wanted[2][s], 1e-9);
    }
    ck_assert_int_eq(got->stages, 1);
    ck_assert_double_eq(got->costs->stage_scale[0], 1.0);
}

static dp_status_t append(void *user, const char *text, size_t bytes)
{
    strncat(user, text, bytes);
    return DP_OK;
}

static dp_status_t full(void *user, const char *text, size_t bytes)
{
    (void)text, (void)bytes;
    return --*(int *)user < 0 ? DP_ERR_IO : DP_OK;
}

/* A validation between training steps: its forwards run beside each other. */
START_TEST(forwards_beside_each_other_are_no_pair)
{
    dp_schedule_t *schedule = generate("1f1b", 1, 2);
    dp_timeline_t *timeline = by_hand();
    dp_measured_costs_t got = {.struct_size = sizeof(got)};

    for (int k = 0; k < 8; k++) {
        dp_span_t span = {.step = 1,
                          .start_ns = (100 + k) * INT64_C(1000000),
                          .end_ns = (101 + k) * INT64_C(1000000),
                          .microbatch = k % 2,
                          .pass = DP_OP_F,
                          .pair = 1};

        ck_assert_int_eq(dp_timeline_name(timeline, k % 4 < 2 ? "attention" : "mlp", &span.name), DP_OK);
        ck_assert_int_eq(dp_timeline_add(timeline, 0, &span), DP_OK);
    }
    ck_assert_int_eq(dp_costs_measure(timeline, schedule, &got), DP_OK);
    check_by_hand(&got);
    dp_measured_costs_clear(&got);
    dp_timeline_free(timeline);
    dp_schedule_free(schedule);
}
END_TEST

START_TEST(a_row_by_hand)
{
    dp_schedule_t *schedule = generate("1f1b", 1, 2);
    dp_timeline_t *timeline = by_hand();
    dp_measured_costs_t got = {.struct_size = sizeof(got)};
    dp_costs_t derived = {.struct_size = sizeof(derived)};
    char text[2048] = "";

    ck_assert_int_eq(dp_costs_measure(timeline, schedule, &got), DP_OK);
    check_by_hand(&got);
    ck_assert_int_eq(dp_costs_from_segments(got.segments, &derived, NULL), DP_OK);
    ck_assert_double_eq_tol(derived.f, 2 * (2 + 1 + 3.5 + 1.25), 1e-9);

    ck_assert_int_eq(dp_measured_costs_write(&got, append, text), DP_OK);
    ck_assert_str_eq(text, "# measured, in milliseconds: dualpipe simulate --costs FILE\n"
                           "F=16\nI=9\nW=2\nB=11\nFB=22\nHOP=2\n"
                           "# segments of a layer; without F to FB above, those follow from these\n"
                           "LAYERS=2\n"
                           "attention.F=2\nattention.I=4\nattention.W=0\n"
                           "dispatch.F=1\ndispatch.I=3\ndispatch.W=0\n"
                           "mlp.F=3.5\nmlp.I=4\nmlp.W=2\n"
                           "combine.F=1.25\ncombine.I=2\ncombine.W=0\n"
                           "STAGE_SCALE=1\n");
    ck_assert_int_eq(dp_measured_costs_write(&got, full, &(int){0}), DP_ERR_IO);
    dp_measured_costs_clear(&got);
    ck_assert_int_eq(dp_measured_costs_write(&got, append, text), DP_ERR_INVALID);
    dp_timeline_free(timeline);
    dp_schedule_free(schedule);
}
END_TEST

/* Threads that waited for cores: spans of 50 ms, of which the thread had a core for fewer. A pair:
 * attention(F) 2 and combine(I) 3 side by side, then dispatch(F) 4 on the lane of combine(I),
 * mlp(I) 5 beside it, mlp(W) 6, mlp(F) 7. */
START_TEST(time_without_a_core_does_not_count)
{
    static const struct {
        int pass, lane, pair, busy;
    } spans[] = {
        {DP_OP_F, DP_LANE_COMPUTE, 0, 3},    {DP_OP_F, DP_LANE_ALL_TO_ALL, 0, 1}, {DP_OP_F, DP_LANE_COMPUTE, 1, 2},
        {DP_OP_I, DP_LANE_ALL_TO_ALL, 1, 3}, {DP_OP_F, DP_LANE_ALL_TO_ALL, 1, 4}, {DP_OP_I, DP_LANE_COMPUTE, 1, 5},
        {DP_OP_W, DP_LANE_COMPUTE, 1, 6},    {DP_OP_F, DP_LANE_COMPUTE, 1, 7},
    };
    dp_schedule_t *schedule = generate("1f1b", 1, 2);
    dp_timeline_t *timeline;
    dp_measured_costs_t got = {.struct_size = sizeof(got)};

    ck_assert_int_eq(dp_timeline_create(1, 16, &timeline), DP_OK);
    for (size_t k = 0; k < sizeof(spans) / sizeof(spans[0]); k++) {
        const dp_span_t span = {.start_ns = (int64_t)k * 10000000,
                                .end_ns = (int64_t)k * 10000000 + 50000000,
                                .microbatch = spans[k].pair && spans[k].pass == DP_OP_F,
                                .pass = (uint8_t)spans[k].pass,
                                .lane = (uint8_t)spans[k].lane,
                                .pair = (uint8_t)spans[k].pair,
                                .busy_ns = (uint32_t)spans[k].busy * 1000000};

        ck_assert_int_eq(dp_timeline_add(timeline, 0, &span), DP_OK);
    }
    ck_assert_int_eq(dp_costs_measure(timeline, schedule, &got), DP_OK);
    ck_assert_double_eq_tol(got.costs->f, 4, 1e-9);
    ck_assert_double_eq_tol(got.costs->fb, 21, 1e-9); /* compute: 0 to 2, 3 to 8, 14, 21 */
    ck_assert_double_eq_tol(got.costs->i, 8, 1e-9);
    ck_assert_double_eq_tol(got.costs->w, 6, 1e-9);
    dp_measured_costs_clear(&got);
    dp_timeline_free(timeline);
    dp_schedule_free(schedule);
}
END_TEST

START_TEST(nothing_to_measure_is_refused)
{
    dp_schedule_t *schedule = generate("1f1b", 1, 2);
    dp_measured_costs_t got = {.struct_size = sizeof(got)}, unset = {.struct_size = 0};
    dp_timeline_t *timeline;
    dp_span_t stranger = {.stage = 7, .chunk = 0, .end_ns = 5};

    ck_assert_int_eq(dp_timeline_create(1, 4, &timeline), DP_OK);
    ck_assert_int_eq(dp_costs_measure(timeline, schedule, &got), DP_ERR_INVALID);
    /* of no stage of the schedule */
    ck_assert_int_eq(dp_timeline_add(timeline, 0, &stranger), DP_OK);
    ck_assert_int_eq(dp_costs_measure(timeline, schedule, &got), DP_ERR_INVALID);
    ck_assert_ptr_null(got.costs);
    ck_assert_int_eq(dp_costs_measure(NULL, schedule, &got), DP_ERR_INVALID);
    ck_assert_int_eq(dp_costs_measure(timeline, NULL, &got), DP_ERR_INVALID);
    ck_assert_int_eq(dp_costs_measure(timeline, schedule, &unset), DP_ERR_INVALID);
    ck_assert_int_eq(dp_costs_measure(timeline, schedule, NULL), DP_ERR_INVALID);
    dp_measured_costs_clear(NULL);
    dp_timeline_free(timeline);
    dp_schedule_free(schedule);
}
END_TEST

enum { ALLOCATIONS = 5 };

START_TEST(memory_that_runs_out_is_an_error_without_leak)
{
    dp_schedule_t *schedule = generate("1f1b", 1, 2);
    dp_timeline_t *timeline = by_hand();

    oom_install();
    for (long k = 0; k <= ALLOCATIONS; k++) {
        dp_measured_costs_t got = {.struct_size = sizeof(got)};
        dp_status_t status;

        oom_arm(k, false);
        status = dp_costs_measure(timeline, schedule, &got);
        ck_assert_int_eq(oom_struck(), k < ALLOCATIONS);
        oom_disarm();
        ck_assert_int_eq(status, k < ALLOCATIONS ? DP_ERR_NOMEM : DP_OK);
        dp_measured_costs_clear(&got);
        ck_assert_int_eq(oom_live(), 0);
    }
    oom_uninstall();
    dp_timeline_free(timeline);
    dp_schedule_free(schedule);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("measured_costs");
    TCase *tc = tcase_create("simulated");

    tcase_add_loop_test(tc, a_simulation_gives_back_its_costs, 0, (int)(sizeof(methods) / sizeof(methods[0])));
    tcase_add_loop_test(tc, every_segment_of_every_stage_comes_back, 0, 3);
    suite_add_tcase(suite, tc);
    SUITE_ADD(suite, the_second_direction_may_count_on);
    SUITE_ADD(suite, slow_stages_are_seen_and_the_step_comes_out_again);
    SUITE_ADD(suite, a_row_by_hand);
    SUITE_ADD(suite, names_of_a_layer_are_anybodys_elsewhere);
    SUITE_ADD(suite, forwards_beside_each_other_are_no_pair);
    SUITE_ADD(suite, time_without_a_core_does_not_count);
    SUITE_ADD(suite, nothing_to_measure_is_refused);
    SUITE_ADD(suite, memory_that_runs_out_is_an_error_without_leak);
    return suite_run(suite);
}
