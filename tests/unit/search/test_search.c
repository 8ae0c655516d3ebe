/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_search.c: the quick timing agrees with verify and simulate on good and on broken lists,
 * changes keep what is computed, and what the search finds is sound. */
#include <dualpipe/search.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "search/greedy.h"
#include "search/lists.h"
#include "search/moves.h"
#include "tests/support/suite.h"

/* Of the first ranks of a schedule. */
static const double slow_ranks[] = {1, 1, 1.5, 0.75};

static const dp_costs_t cost_sets[] = {
    {.struct_size = sizeof(dp_costs_t), .f = 1, .i = 1, .w = 1, .barrier = 1},
    {.struct_size = sizeof(dp_costs_t), .f = 1, .i = 1.4, .w = 0.6, .fb = 2.5, .hop = 0.25, .barrier = 1},
    {.struct_size = sizeof(dp_costs_t), .f = 2, .i = 1, .w = 3, .b = 3.5, .fb = 5},
    {.struct_size = sizeof(dp_costs_t), .f = 1, .i = 1, .w = 1, .fb = 2.5, .barrier = 1, .rank_scale = slow_ranks},
};

static dp_schedule_t *generate(const char *method, int32_t ranks, int32_t microbatches)
{
    dp_schedule_request_t request = {
        .struct_size = sizeof(request), .method = method, .ranks = ranks, .microbatches = microbatches};
    dp_schedule_t *schedule = NULL;

    ck_assert_msg(dp_schedule_generate(&request, &schedule) == DP_OK, "%s", dp_last_error());
    return schedule;
}

/* Step of a schedule by lowering and simulating it; infinite when it is rejected. */
static double real_step(const dp_schedule_t *schedule, const dp_costs_t *costs, int32_t slots, double *peak)
{
    dp_lower_options_t options = {.struct_size = sizeof(options), .slots = slots};
    dp_simulation_t got = {.struct_size = sizeof(got)};
    dp_status_t status = dp_evaluate(schedule, &options, costs, 0, &got);
    double step;

    if (status == DP_ERR_REJECTED)
        return INFINITY;
    ck_assert_msg(status == DP_OK, "%s", dp_last_error());
    step = got.step_time;
    *peak = 0.0;
    for (int32_t r = 0; r < got.ranks; r++)
        *peak = fmax(*peak, got.peak_activations[r]);
    dp_simulation_clear(&got);
    return step;
}

typedef struct fixture {
    dp_schedule_t *schedule;
    dp__shape_t shape;
    dp__lists_t lists, trial;
    dp__list_timer_t timer;
} fixture_t;

static fixture_t open_fixture(const char *method, int32_t ranks, int32_t microbatches, const dp_costs_t *costs)
{
    fixture_t f = {.schedule = generate(method, ranks, microbatches)};

    ck_assert_int_eq(dp__shape_make(f.schedule, costs, &f.shape), DP_OK);
    ck_assert_int_eq(dp__lists_make(&f.shape, &f.lists), DP_OK);
    ck_assert_int_eq(dp__lists_make(&f.shape, &f.trial), DP_OK);
    ck_assert_int_eq(dp__timer_make(&f.shape, &f.timer), DP_OK);
    dp__lists_take(&f.shape, f.schedule, &f.lists);
    dp__lists_copy(&f.shape, &f.lists, &f.trial);
    return f;
}

static void close_fixture(fixture_t *f)
{
    dp__timer_clear(&f->timer);
    dp__lists_clear(&f->lists);
    dp__lists_clear(&f->trial);
    dp__shape_clear(&f->shape);
    dp_schedule_free(f->schedule);
}

static void expect_agreement(fixture_t *f, const dp__lists_t *lists, const dp_costs_t *costs)
{
    dp__timing_t timing = dp__timer_run(&f->timer, &f->shape, lists, -1.0);
    dp_schedule_t *schedule;
    double peak = 0.0, step;

    ck_assert_int_eq(dp__lists_give(&f->shape, lists, &schedule), DP_OK);
    step = real_step(schedule, costs, schedule->microbatches, &peak);
    if (isinf(step) || isinf(timing.step)) {
        ck_assert_msg(isinf(step) && isinf(timing.step), "timed as %g, really %g: %s", timing.step, step,
                      dp_last_error());
    } else {
        ck_assert_double_eq_tol(timing.step, step, 1e-9);
        ck_assert_double_eq_tol(timing.peak, peak, 1e-9);
        ck_assert_double_eq_tol(dp__timer_run(&f->timer, &f->shape, lists, peak).step, step, 1e-9);
        ck_assert(isinf(dp__timer_run(&f->timer, &f->shape, lists, peak - 0.01).step));
    }
    dp_schedule_free(schedule);
}

static const struct {
    const char *method;
    int32_t ranks, microbatches;
} all[] = {
    {"1f1b", 1, 1},     {"1f1b", 4, 7},      {"gpipe", 3, 4},       {"zb1p", 3, 7},  {"zbv", 3, 6},
    {"dualpipe", 4, 8}, {"dualpipev", 3, 7}, {"interleaved", 3, 6}, {"v-min", 2, 5}, {"interleaved_overlap", 2, 4}};
enum { METHODS = sizeof(all) / sizeof(all[0]), COSTS = sizeof(cost_sets) / sizeof(cost_sets[0]) };

START_TEST(quick_timing_equals_simulation)
{
    for (size_t m = 0; m < METHODS; m++) {
        for (size_t c = 0; c < COSTS; c++) {
            fixture_t f = open_fixture(all[m].method, all[m].ranks, all[m].microbatches, &cost_sets[c]);

            expect_agreement(&f, &f.lists, &cost_sets[c]);
            close_fixture(&f);
        }
    }
}
END_TEST

START_TEST(quick_timing_equals_simulation_over_hosts)
{
    static const int32_t blocks[4] = {0, 0, 1, 1}, turns[4] = {7, 3, 7, 3};

    for (size_t m = 0; m < METHODS; m++)
        for (int turn = 0; turn < 2; turn++) {
            dp_topology_t topology = {.struct_size = sizeof(topology),
                                      .ranks = all[m].ranks,
                                      .host_of = turn ? turns : blocks,
                                      .near_hop = 0.125,
                                      .far_hop = 1.75};
            dp_costs_t costs = cost_sets[1];
            fixture_t f;

            costs.topology = &topology;
            f = open_fixture(all[m].method, all[m].ranks, all[m].microbatches, &costs);
            expect_agreement(&f, &f.lists, &costs);
            close_fixture(&f);
        }
}
END_TEST

/* Far links: what is found for them is no longer than what is best without them. */
START_TEST(what_is_found_over_hosts_is_sound)
{
    static const int32_t hosts[4] = {0, 0, 1, 1};
    dp_topology_t topology = {
        .struct_size = sizeof(topology), .ranks = 4, .host_of = hosts, .near_hop = 0.1, .far_hop = 2};
    dp_costs_t costs = cost_sets[0];
    dp_search_request_t request = {.struct_size = sizeof(request),
                                   .ranks = 4,
                                   .microbatches = 8,
                                   .costs = &costs,
                                   .slots = 8,
                                   .seconds = 0.3,
                                   .seed = 1};
    dp_search_result_t result = {.struct_size = sizeof(result)};
    double peak;

    costs.topology = &topology;
    ck_assert_msg(dp_search(&request, &result) == DP_OK, "%s", dp_last_error());
    ck_assert_double_eq_tol(real_step(result.schedule, &costs, request.slots, &peak), result.step, 1e-9);
    ck_assert_double_le(result.step, result.built_in_step + 1e-9);
    dp_search_clear(&result);
    topology.ranks = 3;
    ck_assert_int_eq(dp_search(&request, &result), DP_ERR_INVALID);
    ck_assert_msg(strstr(dp_last_error(), "topology has 3 ranks") != NULL, "%s", dp_last_error());
}
END_TEST

START_TEST(quick_timing_and_proof_agree_on_changed_lists)
{
    dp__search_random_t random = {3};
    int feasible = 0, infeasible = 0;

    for (size_t m = 1; m < METHODS; m++) {
        const dp_costs_t *costs = &cost_sets[m % COSTS];
        fixture_t f = open_fixture(all[m].method, all[m].ranks, all[m].microbatches, costs);

        for (int round = 0; round < 400; round++) {
            int32_t rank = dp__move_random(&f.shape, &f.trial, &random);

            if (rank < 0)
                continue;
            expect_agreement(&f, &f.trial, costs);
            if (isinf(dp__timer_run(&f.timer, &f.shape, &f.trial, -1.0).step)) {
                dp__lists_copy(&f.shape, &f.lists, &f.trial); /* go on from the last good one */
                infeasible++;
            } else {
                dp__lists_copy(&f.shape, &f.trial, &f.lists);
                feasible++;
            }
        }
        close_fixture(&f);
    }
    ck_assert_int_gt(feasible, 300);
    ck_assert_int_gt(infeasible, 100);
}
END_TEST

START_TEST(list_scheduling_is_complete_and_within_its_memory)
{
    dp__search_random_t random = {11};
    int done = 0;

    for (size_t m = 0; m < METHODS; m++) {
        const dp_costs_t *costs = &cost_sets[m % COSTS];
        fixture_t f = open_fixture(all[m].method, all[m].ranks, all[m].microbatches, costs);
        double cap = all[m].ranks + 1.0;

        for (int round = 0; round < 60; round++) {
            dp__rules_t rules = dp__rules_random(&f.shape, &random);

            if (!dp__greedy_run(&f.shape, &rules, cap, &f.timer, &f.trial))
                continue;
            expect_agreement(&f, &f.trial, costs);
            ck_assert_double_le(dp__timer_run(&f.timer, &f.shape, &f.trial, -1.0).peak, cap + 1e-9);
            ck_assert(!isinf(dp__timer_run(&f.timer, &f.shape, &f.trial, cap).step));
            done++;
        }
        close_fixture(&f);
    }
    ck_assert_int_gt(done, 200);
}
END_TEST

static int count_progress(void *user, const dp_search_state_t *state)
{
    ck_assert_double_ge(state->elapsed, 0.0);
    ++*(int *)user;
    return 0;
}

START_TEST(what_is_found_is_sound_and_no_worse)
{
    for (size_t c = 0; c < COSTS; c++) {
        int shown = 0;
        dp_search_request_t request = {.struct_size = sizeof(request),
                                       .ranks = 4,
                                       .microbatches = 8,
                                       .costs = &cost_sets[c],
                                       .transport = DP_TRANSPORT_CREDITS,
                                       .slots = 2,
                                       .memory_cap = 5.0,
                                       .seconds = 0.6,
                                       .seed = 1,
                                       .progress = count_progress,
                                       .user = &shown};
        dp_search_result_t result = {.struct_size = sizeof(result)};
        double peak;

        ck_assert_int_eq(dp_search(&request, &result), DP_OK);
        ck_assert_double_le(result.step, result.built_in_step + 1e-9);
        ck_assert_double_eq_tol(real_step(result.schedule, &cost_sets[c], request.slots, &peak), result.step, 1e-9);
        ck_assert_double_le(peak, 5.0 + 1e-9);
        ck_assert_double_eq_tol(peak, result.peak, 1e-9);
        ck_assert_int_gt(result.tried, 0);
        ck_assert_int_gt(shown, 0);
        dp_search_clear(&result);
    }
}
END_TEST

START_TEST(too_little_memory_is_said)
{
    dp_search_request_t request = {.struct_size = sizeof(request),
                                   .ranks = 4,
                                   .microbatches = 8,
                                   .costs = &cost_sets[0],
                                   .slots = 2,
                                   .memory_cap = 0.1,
                                   .seconds = 0.2,
                                   .seed = 1};
    dp_search_result_t result = {.struct_size = sizeof(result)};

    ck_assert_int_eq(dp_search(&request, &result), DP_ERR_REJECTED);
    ck_assert_ptr_null(result.schedule);
}
END_TEST

START_TEST(what_is_asked_for_is_kept)
{
    static const double scale[8] = {1, 1, 1.5, 1, 1, 0.5, 1, 1};
    dp_costs_t costs = cost_sets[1];
    dp_search_request_t request = {.struct_size = sizeof(request),
                                   .ranks = 4,
                                   .microbatches = 8,
                                   .costs = &costs,
                                   .slots = 8,
                                   .seconds = 0.2,
                                   .seed = 1,
                                   .weights = 1};
    dp_search_result_t result = {.struct_size = sizeof(result)};
    double peak;

    ck_assert_int_eq(dp_search(&request, &result), DP_OK);
    ck_assert_int_eq(dp_schedule_paths(result.schedule), 1);
    dp_search_clear(&result);
    request.weights = 2;
    request.placements = 1u << DP_PLACE_BIDIRECTIONAL;
    ck_assert_int_eq(dp_search(&request, &result), DP_OK);
    ck_assert_int_eq(dp_schedule_paths(result.schedule), 2);
    dp_search_clear(&result);
    request.activation_bytes = 3.0; /* two copies of 10 leave 18: 6 micro-batches, one copy 28 */
    request.weight_bytes = 10.0;
    request.memory_cap = 38.0;
    ck_assert_int_eq(dp_search(&request, &result), DP_OK);
    ck_assert_double_le(result.peak, 6.0 + 1e-9);
    dp_search_clear(&result);
    request.memory_cap = 20.0;
    ck_assert_int_eq(dp_search(&request, &result), DP_ERR_REJECTED);
    request.memory_cap = 0.0;
    request.placements = 0;
    request.stages = 8;
    costs.stage_scale = scale;
    ck_assert_msg(dp_search(&request, &result) == DP_OK, "%s", dp_last_error());
    ck_assert_int_eq(dp_schedule_stages(result.schedule), 8);
    ck_assert_double_eq_tol(real_step(result.schedule, &costs, request.slots, &peak), result.step, 1e-9);
    dp_search_clear(&result);
}
END_TEST

/* Nearly DeepSeek-V3's. */
static const dp_segment_costs_t layer = {.struct_size = sizeof(layer),
                                         .layers = 4,
                                         .f = {4.4, 6.7, 4.6, 8.7},
                                         .i = {9.3, 7.5, 5.3, 5.8},
                                         .w = {2.4, 0, 5.1, 0}};

START_TEST(segments_are_planned)
{
    dp_costs_t costs = {.struct_size = sizeof(costs), .barrier = 1, .segments = &layer};
    dp_search_request_t request = {.struct_size = sizeof(request),
                                   .ranks = 4,
                                   .microbatches = 8,
                                   .costs = &costs,
                                   .slots = 2,
                                   .memory_cap = 6.0,
                                   .seconds = 1.0,
                                   .seed = 1};
    dp_search_result_t result = {.struct_size = sizeof(result)};
    dp_simulation_t got = {.struct_size = sizeof(got)};

    ck_assert_msg(dp_search(&request, &result) == DP_OK, "%s", dp_last_error());
    /* how much shorter: what time allows */
    ck_assert_double_le(result.step, result.built_in_step * (1.0 + 1e-9));
    /* more than the built-in schedules */
    ck_assert_int_gt(result.tried, 10);
    ck_assert_double_le(result.peak, 6.0 + 1e-9);
    ck_assert_int_eq(dp_evaluate(result.schedule, NULL, &costs, 0, &got), DP_OK);
    ck_assert_double_eq_tol(got.step_time, result.step, 1e-9 * result.step);
    dp_simulation_clear(&got);
    dp_search_clear(&result);
}
END_TEST

/* Of interleaved_zb with 2 chunks on 8 ranks, messages wait for long. */
START_TEST(what_needs_more_slots_is_a_candidate)
{
    static const int32_t chunks[] = {2};
    dp_costs_t costs = {
        .struct_size = sizeof(costs), .f = 1, .i = 1, .w = 1, .barrier = 1, .bytes = 1000, .bandwidth = 1e6};
    dp_search_request_t request = {.struct_size = sizeof(request),
                                   .ranks = 8,
                                   .microbatches = 16,
                                   .costs = &costs,
                                   .slots = _i == 0 ? 0 : 2,
                                   .seconds = 0.2,
                                   .seed = 1,
                                   .placements = 1 << DP_PLACE_LOOP,
                                   .activation_bytes = 1,
                                   .weight_bytes = 1,
                                   .nchunks = 1,
                                   .chunks = chunks};
    dp_search_result_t result = {.struct_size = sizeof(result)};
    int found = 0;

    ck_assert_msg(dp_search(&request, &result) == DP_OK, "%s", dp_last_error());
    for (int32_t k = 0; k < result.ncandidates; k++) {
        if (strcmp(result.candidates[k].from, "interleaved_zb, 2 chunks") != 0)
            continue;
        found++;
        /* 4 slots, of forwards and backwards to 2 chunks, and less than 100 bytes besides */
        ck_assert_double_ge(result.candidates[k].memory, 4 * 4 * 1000.0);
        ck_assert_double_lt(result.candidates[k].memory, 4 * 4 * 1000.0 + 100.0);
    }
    ck_assert_int_eq(found, _i == 0);
    dp_search_clear(&result);
}
END_TEST

/* A forward takes longer to reach the next rank than to make way for the next one: groups of more
 * than P are the best built-in schedule where the memory is enough for them. */
START_TEST(groups_are_tried)
{
    static const double caps[] = {0, 11.5, 10};
    dp_costs_t costs = {.struct_size = sizeof(costs), .barrier = 1, .segments = &layer};
    dp_search_request_t request = {.struct_size = sizeof(request),
                                   .ranks = 8,
                                   .microbatches = 40,
                                   .costs = &costs,
                                   .slots = 3,
                                   .memory_cap = caps[_i],
                                   .seconds = 0.01,
                                   .seed = 1,
                                   .placements = 1 << DP_PLACE_LOOP};
    dp_search_result_t result = {.struct_size = sizeof(result)};

    ck_assert_msg(dp_search(&request, &result) == DP_OK, "%s", dp_last_error());
    ck_assert_msg((strstr(result.built_in, ", G 10") != NULL) == (_i < 2), "%s", result.built_in);
    dp_search_clear(&result);
}
END_TEST

static int stop_at_once(void *user, const dp_search_state_t *state)
{
    *(double *)user = state->elapsed;
    return 1;
}

START_TEST(a_search_that_is_stopped_gives_what_it_has)
{
    double stopped = 0.0;
    dp_search_request_t request = {.struct_size = sizeof(request),
                                   .ranks = 4,
                                   .microbatches = 8,
                                   .costs = &cost_sets[0],
                                   /* the test's own limit ends a search that goes on */
                                   .seconds = 1e6,
                                   .progress = stop_at_once,
                                   .user = &stopped};
    dp_search_result_t result = {.struct_size = sizeof(result)};

    ck_assert_int_eq(dp_search(&request, &result), DP_OK);
    ck_assert_double_gt(stopped, 0.0);
    ck_assert_double_le(result.step, result.built_in_step + 1e-9);
    dp_search_clear(&result);
    ck_assert_ptr_null(result.schedule);
}
END_TEST

/* Of costs that a caller compiled long ago nothing is read behind their end. */
START_TEST(shorter_costs_are_taken)
{
    dp_costs_t costs = cost_sets[0];
    dp_search_request_t request = {
        .struct_size = sizeof(request), .ranks = 2, .microbatches = 4, .costs = &costs, .seconds = 0.1, .seed = 1};
    dp_search_result_t result = {.struct_size = sizeof(result)};

    costs.struct_size = DP_COSTS_MIN;
    memset((char *)&costs + DP_COSTS_MIN, 0xa5, sizeof(costs) - DP_COSTS_MIN);
    ck_assert_msg(dp_search(&request, &result) == DP_OK, "%s", dp_last_error());
    dp_search_clear(&result);
    costs.struct_size = DP_COSTS_MIN - 1;
    ck_assert_int_eq(dp_search(&request, &result), DP_ERR_INVALID);
    ck_assert_msg(strstr(dp_last_error(), "the costs") != NULL, "%s", dp_last_error());
}
END_TEST

START_TEST(a_request_that_makes_no_sense_is_refused)
{
    double scale[4] = {1, 1, 1, 1};
    dp_costs_t scaled = cost_sets[0], negative = cost_sets[0];
    dp_search_request_t good = {.struct_size = sizeof(good), .ranks = 2, .microbatches = 4, .costs = &cost_sets[0]};
    dp_search_request_t bad[7] = {good, good, good, good, good, good, good};
    const char *says[] = {"struct_size", "0 ranks", "costs", "stage_scale", "memory_cap", "seconds", "cost F"};
    dp_search_result_t result = {.struct_size = sizeof(result)};

    bad[0].struct_size = 8;
    bad[1].ranks = 0;
    bad[2].costs = NULL;
    scaled.stage_scale = scale;
    bad[3].costs = &scaled;
    bad[4].memory_cap = NAN;
    bad[5].seconds = -1.0;
    negative.f = -1.0;
    bad[6].costs = &negative;
    for (size_t b = 0; b < sizeof(bad) / sizeof(bad[0]); b++) {
        ck_assert_int_eq(dp_search(&bad[b], &result), DP_ERR_INVALID);
        ck_assert_msg(strstr(dp_last_error(), says[b]) != NULL, "%s", dp_last_error());
        ck_assert_ptr_null(result.schedule);
    }
    result.struct_size = 8;
    ck_assert_int_eq(dp_search(&good, &result), DP_ERR_INVALID);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("search");
    TCase *groups = tcase_create("groups_are_tried");

    SUITE_ADD(suite, quick_timing_equals_simulation);
    SUITE_ADD(suite, quick_timing_equals_simulation_over_hosts);
    SUITE_ADD(suite, what_is_found_over_hosts_is_sound);
    SUITE_ADD(suite, quick_timing_and_proof_agree_on_changed_lists);
    SUITE_ADD(suite, list_scheduling_is_complete_and_within_its_memory);
    SUITE_ADD(suite, what_is_found_is_sound_and_no_worse);
    SUITE_ADD(suite, what_is_asked_for_is_kept);
    SUITE_ADD(suite, segments_are_planned);
    tcase_add_loop_test(groups, groups_are_tried, 0, 3);
    tcase_add_loop_test(groups, what_needs_more_slots_is_a_candidate, 0, 2);
    suite_add_tcase(suite, groups);
    SUITE_ADD(suite, too_little_memory_is_said);
    SUITE_ADD(suite, a_search_that_is_stopped_gives_what_it_has);
    SUITE_ADD(suite, shorter_costs_are_taken);
    SUITE_ADD(suite, a_request_that_makes_no_sense_is_refused);
    return suite_run(suite);
}
