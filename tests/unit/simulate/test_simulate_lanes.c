/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_simulate_lanes.c: runs by segments on lanes against times worked out by hand, against runs
 * by operations where both models say the same, and against bounds. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/oom.h"
#include "tests/support/suite.h"
#include <dualpipe/simulate.h>

static dp_program_t *lowered(const char *method, int32_t ranks, int32_t microbatches, dp_transport_t transport,
                             dp_schedule_t **schedule)
{
    dp_schedule_request_t request = {
        .struct_size = sizeof(request), .method = method, .ranks = ranks, .microbatches = microbatches};
    dp_lower_options_t options = {.struct_size = sizeof(options), .transport = transport};
    dp_program_t *program;

    if (dp_schedule_generate(&request, schedule) < 0)
        return NULL;
    ck_assert_msg(dp_program_lower(*schedule, &options, &program) == DP_OK, "%s", dp_last_error());
    return program;
}

static double step_of(const dp_program_t *program, const dp_costs_t *costs)
{
    dp_simulation_t result = {.struct_size = sizeof(result)};
    double step;

    ck_assert_msg(dp_simulate(program, costs, 0, &result) == DP_OK, "%s", dp_last_error());
    step = result.step_time;
    dp_simulation_clear(&result);
    return step;
}

/* Two ranks, two micro-batches, a layer each: F takes 1 + 10 + 2 + 20, I 3 + 30 + 4 + 40, W 5
 * (attention) + 6 (mlp). */
START_TEST(by_hand)
{
    const dp_segment_costs_t segments = {
        .struct_size = sizeof(segments), .layers = 1, .f = {1, 10, 2, 20}, .i = {3, 30, 4, 40}, .w = {5, 0, 6, 0}};
    const dp_costs_t costs = {.struct_size = sizeof(costs), .segments = &segments, .hop = 100};
    dp_schedule_t *schedule;
    dp_program_t *program = lowered("1f1b", 1, 1, DP_TRANSPORT_CREDITS, &schedule);

    /* F ends at 33. B: combine 73, mlp 77; dispatch 107 beside W of mlp; attention 110, its W
     * 115 */
    ck_assert_double_eq_tol(step_of(program, &costs), 115, 1e-9);
    dp_program_free(program);
    dp_schedule_free(schedule);

    /* F0 ends at 33. Attention of F1 runs at 1, its dispatch waits for combine of F0: 33 to 43, mlp
     * 45, combine 65. B0 has its combine at 65 to 105, mlp 109, dispatch to 139 (W of mlp to 115),
     * attention 142, W 147. B1: combine waits for dispatch of B0: 139 to 179, mlp 183, dispatch
     * 213, attention 216, W 221 */
    program = lowered("gpipe", 1, 2, DP_TRANSPORT_CREDITS, &schedule);
    ck_assert_double_eq_tol(step_of(program, &costs), 221, 1e-9);
    dp_program_free(program);
    dp_schedule_free(schedule);

    /* F of rank 0 ends at 33 and arrives at 133, F of rank 1 at 166, whose B has its I through at
     * 243 and arrives at 343; B of rank 0 takes 82 */
    program = lowered("1f1b", 2, 1, DP_TRANSPORT_CREDITS, &schedule);
    ck_assert_double_eq_tol(
        step_of(program, &(dp_costs_t){.struct_size = sizeof(costs), .segments = &segments, .hop = 100, .barrier = 1}),
        425, 1e-9);
    dp_program_free(program);
    dp_schedule_free(schedule);
}
END_TEST

/* The same layer, recomputing 15 before I of mlp and 25 before that of attention: F is through at
 * 33, its mlp at 13, so that of mlp runs from then to 28, beside combines. I of combine ends at 73,
 * of mlp at 77, its W at 83, what attention recomputes at 108, beside dispatch to 107; I of
 * attention 111, W 116. */
START_TEST(recomputing_by_hand)
{
    const dp_segment_cost_t list[] = {{DP_ROLE_ATTENTION, DP_LANE_COMPUTE, 1, 1, 0, 1, 3, 5},
                                      {DP_ROLE_DISPATCH, DP_LANE_ALL_TO_ALL, 0, 0, 0, 10, 30, 0},
                                      {DP_ROLE_MLP, DP_LANE_COMPUTE, 1, 0, 0, 2, 4, 6},
                                      {DP_ROLE_COMBINE, DP_LANE_ALL_TO_ALL, 0, 0, 0, 20, 40, 0}};
    const double r[] = {25, 0, 15, 0}, wrong[] = {0, 1, 0, 0};
    const int32_t first[] = {0, 4};
    dp_segment_costs_t segments = {.struct_size = sizeof(segments),
                                   .layers = 1,
                                   .f = {1, 10, 2, 20},
                                   .i = {3, 30, 4, 40},
                                   .w = {5, 0, 6, 0},
                                   .r = {25, 0, 15, 0}};
    const dp_costs_t costs = {.struct_size = sizeof(costs), .segments = &segments};
    dp_simulation_t result = {.struct_size = sizeof(result)};
    dp_schedule_t *schedule;
    dp_program_t *program = lowered("1f1b", 1, 1, DP_TRANSPORT_CREDITS, &schedule);
    const dp_span_t *spans;
    int64_t count;
    int recomputed = 0;

    ck_assert_double_eq_tol(step_of(program, &costs), 116, 1e-9);
    segments.list = list, segments.list_r = r, segments.first = first, segments.stages = 1;
    ck_assert_double_eq_tol(step_of(program, &costs), 116, 1e-9);
    ck_assert_int_eq(dp_simulate(program, &costs, 1, &result), DP_OK);
    spans = dp_timeline_spans(result.timeline, 0, &count);
    for (int64_t k = 0; k < count; k++)
        recomputed += spans[k].kind == DP_SPAN_COMPUTE && spans[k].pass == DP_OP_R;
    ck_assert_int_eq(recomputed, 2);
    ck_assert_double_eq(result.peak_backward_buffers[0], 1);
    dp_simulation_clear(&result);
    segments.list_r = wrong;
    ck_assert_int_eq(dp_simulate(program, &costs, 0, &result), DP_ERR_INVALID);
    dp_program_free(program);
    dp_schedule_free(schedule);
}
END_TEST

/* As many backwards as verify counts, and the memories that the commands take. */
START_TEST(backwards_alive)
{
    static const char *const methods[] = {"1f1b", "zb1p", "dualpipe"};
    static const int alive[] = {1, 4, 2};
    const dp_costs_t costs = {.struct_size = sizeof(costs), .f = 1, .i = 1, .w = 1, .r = 0.5};
    dp_verify_report_t report = {.struct_size = sizeof(report)};
    dp_simulation_t result = {.struct_size = sizeof(result)};
    dp_schedule_t *schedule;
    dp_program_t *program = lowered(methods[_i], 4, 12, DP_TRANSPORT_CREDITS, &schedule);
    double most = 0;

    ck_assert_int_eq(dp_program_verify(program, &report), DP_OK);
    ck_assert_int_eq(dp_simulate(program, &costs, 0, &result), DP_OK);
    for (int32_t r = 0; r < 4; r++)
        most = fmax(most, result.peak_backward_buffers[r]);
    ck_assert_double_eq(most, report.peak_backward_buffers);
    ck_assert_int_eq(report.peak_backward_buffers, alive[_i]);
    dp_simulation_clear(&result);
    dp_program_free(program);
    dp_schedule_free(schedule);
}
END_TEST

static dp_schedule_t *schedule_of(size_t method, int32_t ranks, int32_t microbatches)
{
    size_t count;
    dp_schedule_request_t request = {.struct_size = sizeof(request),
                                     .method = dp_schedule_methods(&count)[method].name,
                                     .ranks = ranks,
                                     .microbatches = microbatches};
    dp_schedule_t *schedule;

    return dp_schedule_generate(&request, &schedule) == DP_OK ? schedule : NULL;
}

static bool has_whole_backwards(const dp_schedule_t *schedule)
{
    for (int64_t k = 0; k < schedule->first[schedule->ranks]; k++)
        if (schedule->ops[k].kind == DP_OP_B || schedule->ops[k].kind == DP_OP_FB)
            return true;
    return false;
}

/* One segment a stage, on one lane: operations. Only the gradient of a whole backward, or of a
 * pair, leaves before its end, so nothing is later. */
START_TEST(one_lane_is_operations)
{
    static const int32_t sizes[][2] = {{1, 1}, {1, 4}, {2, 2}, {2, 7}, {3, 9}, {4, 8}, {4, 20}, {8, 16}, {6, 12}};
    const dp_lower_options_t enough = {.struct_size = sizeof(enough), .slots = 20};
    size_t count;
    int equal = 0, earlier = 0;

    (void)dp_schedule_methods(&count);
    for (size_t m = 0; m < count; m++)
        for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
            dp_schedule_t *schedule = schedule_of(m, sizes[k][0], sizes[k][1]);
            dp_segment_cost_t list[64];
            int32_t first[65], stages;
            dp_segment_costs_t segments = {.struct_size = sizeof(segments), .first = first, .list = list};
            dp_costs_t lanes = {.struct_size = sizeof(lanes), .barrier = 1}, ops = lanes;
            double part;
            dp_program_t *program;

            if (schedule == NULL)
                continue;
            stages = segments.stages = dp_schedule_stages(schedule);
            part = 1.0 / dp_schedule_split(schedule);
            ck_assert_int_le(stages, 64);
            for (int32_t s = 0; s <= stages; s++) {
                first[s] = s;
                if (s < stages)
                    list[s] = (dp_segment_cost_t){.lane = DP_LANE_COMPUTE,
                                                  .has_weight = 1,
                                                  .begins_part = 1,
                                                  .f = 2 * part,
                                                  .i = 3 * part,
                                                  .w = 1.5 * part};
            }
            lanes.segments = &segments;
            ops.f = 2, ops.i = 3, ops.w = 1.5;
            ck_assert_int_eq(dp_program_lower(schedule, &enough, &program), DP_OK);
            for (int hop = 0; hop < 3; hop++) {
                double by_lanes, by_operations;

                lanes.hop = ops.hop = 0.3 * hop;
                by_lanes = step_of(program, &lanes), by_operations = step_of(program, &ops);
                ck_assert_msg(has_whole_backwards(schedule) ? by_lanes < by_operations + 1e-9
                                                            : fabs(by_lanes - by_operations) < 1e-9,
                              "%s %d x %d, hop %g: %.9g on lanes, %.9g by operations", schedule->method, sizes[k][0],
                              sizes[k][1], lanes.hop, by_lanes, by_operations);
                equal += fabs(by_lanes - by_operations) < 1e-9;
                earlier += by_lanes < by_operations - 1e-9;
            }
            dp_program_free(program);
            dp_schedule_free(schedule);
        }
    ck_assert_int_gt(equal, 50);
    ck_assert_int_gt(earlier, 50);
}
END_TEST

/* No lane does its work in less time than it takes, and nothing is lost against running operations
 * one by one. */
START_TEST(bounds)
{
    const dp_segment_costs_t segments = {.struct_size = sizeof(segments),
                                         .layers = 4,
                                         .f = {4.4, 6.7, 4.6, 8.7},
                                         .i = {9.3, 7.5, 5.3, 5.8},
                                         .w = {2.4, 0, 5.1, 0}};
    dp_costs_t lanes = {.struct_size = sizeof(lanes), .segments = &segments, .barrier = 1};
    dp_costs_t ops = {.struct_size = sizeof(ops), .barrier = 1};
    const double compute = 4 * (4.4 + 4.6 + 9.3 + 5.3 + 2.4 + 5.1), moves = 4 * (6.7 + 8.7 + 7.5 + 5.8);
    size_t count;

    ck_assert_int_eq(dp_costs_from_segments(&segments, &ops, NULL), DP_OK);
    (void)dp_schedule_methods(&count);
    for (size_t m = 0; m < count; m++)
        for (int transport = DP_TRANSPORT_CREDITS; transport <= DP_TRANSPORT_BUNDLES; transport++) {
            dp_schedule_t *schedule = schedule_of(m, 4, 16);
            dp_lower_options_t options = {
                .struct_size = sizeof(options), .transport = (dp_transport_t)transport, .slots = 4};
            dp_simulation_t result = {.struct_size = sizeof(result)};
            dp_program_t *program;

            ck_assert_ptr_nonnull(schedule);
            ck_assert_int_eq(dp_program_lower(schedule, &options, &program), DP_OK);
            ck_assert_msg(dp_simulate(program, &lanes, 1, &result) == DP_OK, "%s: %s", schedule->method,
                          dp_last_error());
            ck_assert_double_ge(result.step_time, 16 * fmax(compute, moves));
            for (int32_t r = 0; r < 4; r++) {
                int64_t n;
                const dp_span_t *span = dp_timeline_spans(result.timeline, r, &n);
                double busy = 0;

                ck_assert_int_eq(dp_timeline_lost(result.timeline, r), 0);
                for (int64_t i = 0; i < n; i++)
                    if (span[i].kind == DP_SPAN_COMPUTE && span[i].lane == DP_LANE_COMPUTE)
                        busy += (double)(span[i].end_ns - span[i].start_ns) * 1e-6;
                ck_assert_double_eq_tol(busy, 16 * compute, 1e-3);
                ck_assert_double_eq_tol(result.step_time - result.bubble[r], 16 * compute, 1e-6);
            }
            dp_simulation_clear(&result);
            dp_program_free(program);
            dp_schedule_free(schedule);
        }
}
END_TEST

/* Same list, same times: a layer's costs and the stages written out. */
START_TEST(layers_are_a_list)
{
    dp_segment_costs_t layers = {
        .struct_size = sizeof(layers), .layers = 2, .f = {1, 2, 3, 4}, .i = {2, 3, 4, 5}, .w = {1, 0, 2, 0}};
    dp_segment_cost_t list[8 * 4];
    int32_t first[9];
    dp_segment_costs_t full = {.struct_size = sizeof(full), .stages = 4, .first = first, .list = list};
    dp_costs_t costs = {.struct_size = sizeof(costs), .segments = &layers, .hop = 0.5};
    dp_schedule_t *schedule;
    dp_program_t *program = lowered("dualpipe", 4, 8, DP_TRANSPORT_BUNDLES, &schedule);
    double step = step_of(program, &costs);

    for (int32_t k = 0; k < 32; k++) {
        int s = k % 4;

        list[k] = (dp_segment_cost_t){.role = (uint8_t)(s + 1),
                                      .lane = s % 2 ? DP_LANE_ALL_TO_ALL : DP_LANE_COMPUTE,
                                      .has_weight = s % 2 == 0,
                                      .begins_part = s == 0,
                                      .f = layers.f[s],
                                      .i = layers.i[s],
                                      .w = layers.w[s]};
    }
    for (int32_t s = 0; s <= 4; s++)
        first[s] = 8 * s;
    costs.segments = &full;
    ck_assert_double_eq_tol(step_of(program, &costs), step, 1e-9);
    full.stages = 3;
    ck_assert_int_eq(dp_simulate(program, &costs, 0, &(dp_simulation_t){.struct_size = sizeof(dp_simulation_t)}),
                     DP_ERR_INVALID);
    full.stages = 4;
    list[3].lane = DP_LANE_P2P;
    ck_assert_int_eq(dp_simulate(program, &costs, 0, &(dp_simulation_t){.struct_size = sizeof(dp_simulation_t)}),
                     DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "segment 3 of stage 0 runs on lane 2"));
    list[3].lane = DP_LANE_ALL_TO_ALL;
    list[9].i = -1;
    ck_assert_int_eq(dp_simulate(program, &costs, 0, &(dp_simulation_t){.struct_size = sizeof(dp_simulation_t)}),
                     DP_ERR_INVALID);
    layers.layers = 0;
    costs.segments = &layers;
    ck_assert_int_eq(dp_simulate(program, &costs, 0, &(dp_simulation_t){.struct_size = sizeof(dp_simulation_t)}),
                     DP_ERR_INVALID);
    dp_program_free(program);
    dp_schedule_free(schedule);
}
END_TEST

START_TEST(memory_that_runs_out_is_an_error_without_leak)
{
    const dp_segment_costs_t segments = {.struct_size = sizeof(segments), .layers = 1, .f = {1, 1, 1, 1}};
    const dp_costs_t costs = {.struct_size = sizeof(costs), .segments = &segments};
    dp_schedule_t *schedule;
    dp_program_t *program = lowered("dualpipev", 2, 4, DP_TRANSPORT_BUNDLES, &schedule);
    bool struck = true;
    long k;

    oom_install();
    for (k = 0; struck; k++) {
        dp_simulation_t got = {.struct_size = sizeof(got)};
        dp_status_t status;

        oom_arm(k, false);
        status = dp_simulate(program, &costs, 1, &got);
        struck = oom_struck();
        oom_disarm();
        ck_assert_int_eq(status, struck ? DP_ERR_NOMEM : DP_OK);
        dp_simulation_clear(&got);
        ck_assert_int_eq(oom_live(), 0);
    }
    ck_assert_int_gt(k, 20);
    oom_uninstall();
    dp_program_free(program);
    dp_schedule_free(schedule);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("simulate_lanes");
    TCase *each = tcase_create("each");

    SUITE_ADD(suite, by_hand);
    SUITE_ADD(suite, recomputing_by_hand);
    tcase_add_loop_test(each, backwards_alive, 0, 3);
    suite_add_tcase(suite, each);
    SUITE_ADD(suite, one_lane_is_operations);
    SUITE_ADD(suite, bounds);
    SUITE_ADD(suite, layers_are_a_list);
    SUITE_ADD(suite, memory_that_runs_out_is_an_error_without_leak);
    return suite_run(suite);
}
