/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_overlap.c: what is planned is proven, computes what was given, keeps the memory, and is no
 * shorter than the bound and no longer than what was given. */
#include <dualpipe/overlap.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "overlap/bound.h"
#include "overlap/braids.h"
#include "overlap/timetable.h"
#include "simulate/costs.h"
#include "tests/support/suite.h"

/* All-to-all as long as computation; layers that divide into all numbers of chunks here. */
static const dp_segment_costs_t segments = {.struct_size = sizeof(segments),
                                            .layers = 4,
                                            .f = {4.4, 6.7, 4.6, 8.7},
                                            .i = {9.3, 7.5, 5.3, 5.8},
                                            .w = {2.4, 0, 5.1, 0}};
static const dp_costs_t costs = {.struct_size = sizeof(costs), .barrier = 1, .hop = 0.5, .segments = &segments};
/* With projections, shared experts and the sum. */
static const dp_segment_costs_t fine_segments = {.struct_size = sizeof(fine_segments),
                                                 .layers = 4,
                                                 .f = {5, 5, 5, 7},
                                                 .i = {6, 7, 5, 6},
                                                 .w = {2, 0, 5, 0},
                                                 .fine_f = {2, 2, 0.5},
                                                 .fine_i = {3, 2, 0.5},
                                                 .fine_w = {1, 1, 0}};
static const dp_costs_t fine = {.struct_size = sizeof(fine), .barrier = 1, .hop = 0.5, .segments = &fine_segments};

static const struct {
    const char *method;
    int32_t ranks, microbatches, chunks;
} shapes[] = {{"1f1b", 1, 1, 0},      {"1f1b", 3, 7, 0},     {"zb1p", 4, 9, 0},
              {"zbv", 3, 8, 0},       {"v-min", 4, 8, 0},    {"dualpipe", 4, 10, 0},
              {"dualpipev", 3, 7, 0}, {"gpipe", 2, 5, 0},    {"interleaved", 4, 8, 2},
              {"zbv", 5, 11, 0},      {"dualpipe", 2, 4, 0}, {"interleaved_overlap", 4, 12, 4}};

static dp_schedule_t *generate(size_t k)
{
    dp_schedule_request_t request = {.struct_size = sizeof(request),
                                     .method = shapes[k].method,
                                     .ranks = shapes[k].ranks,
                                     .microbatches = shapes[k].microbatches,
                                     .chunks = shapes[k].chunks};
    dp_schedule_t *schedule = NULL;

    ck_assert_msg(dp_schedule_generate(&request, &schedule) == DP_OK, "%s", dp_last_error());
    return schedule;
}

static double step_of(const dp_schedule_t *schedule, const dp_costs_t *of, double *peak)
{
    dp_simulation_t got = {.struct_size = sizeof(got)};
    double step;

    ck_assert_msg(dp_evaluate(schedule, NULL, of, 0, &got) == DP_OK, "%s", dp_last_error());
    step = got.step_time;
    *peak = 0.0;
    for (int32_t r = 0; r < got.ranks; r++)
        *peak = fmax(*peak, got.peak_activations[r]);
    dp_simulation_clear(&got);
    return step;
}

static dp_overlap_result_t plan(const dp_schedule_t *schedule, const dp_costs_t *of, double memory_cap, uint64_t seed)
{
    dp_overlap_request_t request = {.struct_size = sizeof(request),
                                    .schedule = schedule,
                                    .costs = of,
                                    .memory_cap = memory_cap,
                                    .tries = 24,
                                    .seed = seed};
    dp_overlap_result_t result = {.struct_size = sizeof(result)};

    ck_assert_msg(dp_plan_overlap(&request, &result) == DP_OK, "%s", dp_last_error());
    return result;
}

static dp_schedule_t *generate_forwards(size_t k, int order)
{
    dp_schedule_t *training = generate(k), *forwards;

    ck_assert_msg(dp_schedule_forwards(training, order, &forwards) == DP_OK, "%s", dp_last_error());
    dp_schedule_free(training);
    return forwards;
}

START_TEST(plans_are_proven_and_no_worse)
{
    int shorter = 0;

    for (size_t k = 0; k < 2 * sizeof(shapes) / sizeof(shapes[0]); k++) {
        const dp_costs_t *of = k % 2 == 0 ? &costs : &fine;
        dp_schedule_t *schedule = generate(k / 2);
        double given_peak, peak, given = step_of(schedule, of, &given_peak);

        for (int limit = 0; limit < 2; limit++) {
            dp_overlap_result_t result = plan(schedule, of, limit == 0 ? 0.0 : -1.0, k);
            double step = step_of(result.schedule, of, &peak);

            ck_assert_double_eq_tol(step, result.step, 1e-9 * step);
            ck_assert_double_ge(step, result.bound * (1.0 - 1e-9));
            ck_assert_double_le(step, given * (1.0 + 1e-9));
            ck_assert(limit == 1 || peak <= given_peak + 1e-9);
            ck_assert_double_le(peak, result.peak + 1e-9);
            ck_assert_str_eq(result.schedule->method, schedule->method);
            shorter += step < given * 0.999;
            dp_overlap_clear(&result);
        }
        dp_schedule_free(schedule);
    }
    ck_assert_int_gt(shorter, 2 * (int)(sizeof(shapes) / sizeof(shapes[0])));
}
END_TEST

/* Shared experts wait for no transfer: what is planned is no longer than any order by name. */
START_TEST(forwards_alone_beat_the_published_orders)
{
    int shorter = 0;

    for (size_t k = 0; k < sizeof(shapes) / sizeof(shapes[0]); k++) {
        dp_schedule_t *given = generate_forwards(k, DP_FORWARDS_SERIAL);
        dp_overlap_result_t result = plan(given, &fine, 0.0, k);
        double peak, named_peak, step = step_of(result.schedule, &fine, &peak), best = INFINITY;

        for (int order = DP_FORWARDS_SERIAL; order <= DP_FORWARDS_DECODE; order++) {
            dp_schedule_t *named = generate_forwards(k, order);

            best = fmin(best, step_of(named, &fine, &named_peak));
            dp_schedule_free(named);
        }
        ck_assert_int_eq(result.schedule->forward_only, 1);
        ck_assert_double_eq_tol(step, result.step, 1e-9 * step);
        ck_assert_double_le(step, best * (1.0 + 1e-9));
        ck_assert_double_ge(step, result.bound * (1.0 - 1e-9));
        ck_assert_double_le(peak, result.peak + 1e-9);
        shorter += step < best * 0.999;
        dp_overlap_clear(&result);
        result = plan(given, &fine, 1.0 / dp_schedule_split(given), k); /* one at a time */
        (void)step_of(result.schedule, &fine, &peak);
        ck_assert_double_le(peak, 1.0 / dp_schedule_split(given) + 1e-9);
        dp_overlap_clear(&result);
        dp_schedule_free(given);
    }
    ck_assert_int_ge(shorter, 6);
}
END_TEST

/* One layer of one or two passes, a and b: attention, dispatch, MLP, shared, combine, sum. */
START_TEST(marked_orders_have_shared_experts_between_attention_and_sum)
{
    static const struct {
        const char *order;
        uint8_t kind;
        dp_status_t status;
    } orders[] = {{"a+aaaaa", DP_OP_F, DP_OK},
                  {"aaaa+aa", DP_OP_F, DP_OK},
                  {"aab+abaa+babbb", DP_OP_F, DP_OK},
                  {"aaaaaa", DP_OP_F, DP_OK}, /* in its turn */
                  {"a+aAaAaAAaAaA", DP_OP_B, DP_OK},
                  {"aaA+aAAaAaAaA", DP_OP_B, DP_OK},
                  {"+aaaaaa", DP_OP_F, DP_ERR_REJECTED},
                  {"aaaaa+a", DP_OP_F, DP_ERR_REJECTED},
                  {"a+aaaaaa", DP_OP_F, DP_ERR_REJECTED},
                  {"a+a+aaaa", DP_OP_F, DP_ERR_REJECTED},
                  {"a+aaaa", DP_OP_F, DP_ERR_REJECTED},
                  {"aaaAaAaAAaA+aA", DP_OP_B, DP_ERR_REJECTED},
                  {"aaAAAa+aAaAaA", DP_OP_B, DP_ERR_REJECTED},
                  {"aaaaaa+", DP_OP_F, DP_ERR_INVALID},
                  {"aa+Aaaa", DP_OP_B, DP_ERR_INVALID},
                  {"aa+baaa", DP_OP_F, DP_ERR_INVALID}};

    for (size_t k = 0; k < sizeof(orders) / sizeof(orders[0]); k++) {
        bool two = strchr(orders[k].order, 'b') != NULL && orders[k].status == DP_OK;
        const int64_t counts[] = {orders[k].kind == DP_OP_B ? 2 : 1};
        const dp_pass_t passes[2] = {{.kind = orders[k].kind}, {.kind = orders[k].kind, .microbatch = 1}};
        dp_segment_costs_t layer = fine_segments;
        dp_costs_t own = fine;
        dp_simulation_t got = {.struct_size = sizeof(got)};
        dp_schedule_t *s;
        dp_status_t status;
        int32_t number;

        layer.layers = 1;
        layer.f[0] += layer.fine_f[0], layer.fine_f[0] = layer.fine_i[0] = layer.fine_w[0] = 0;
        own.segments = &layer;
        ck_assert_int_eq(dp_schedule_create("custom", DP_PLACE_LINE, 1, 1 + two, 1, counts, &s), DP_OK);
        s->forward_only = orders[k].kind == DP_OP_F;
        s->ops[0] = (dp_op_t){DP_OP_F, 0, -1, 0, -1};
        status = dp_schedule_add_braid(s, &(dp_braid_t){1 + two, passes, orders[k].order}, &number);
        s->ops[counts[0] - 1] = (dp_op_t){DP_OP_BRAID, -1, -1, number, -1};
        if (status >= 0)
            status = dp_evaluate(s, NULL, &own, 0, &got);
        ck_assert_msg(status == orders[k].status, "%s: %d, %s", orders[k].order, status, dp_last_error());
        dp_simulation_clear(&got);
        dp_schedule_free(s);
    }
}
END_TEST

typedef struct text {
    char *at;
    size_t used;
} text_t;

static dp_status_t keep(void *user, const char *data, size_t bytes)
{
    text_t *text = user;

    text->at = realloc(text->at, text->used + bytes + 1);
    memcpy(text->at + text->used, data, bytes);
    text->used += bytes;
    text->at[text->used] = 0;
    return DP_OK;
}

START_TEST(the_same_request_gives_the_same_plan)
{
    dp_schedule_t *schedule = generate(5);
    text_t text[2] = {{NULL, 0}, {NULL, 0}};

    for (int k = 0; k < 2; k++) {
        dp_overlap_result_t result = plan(schedule, &fine, 0.0, 7);

        ck_assert_int_eq(result.tried, 24);
        ck_assert_int_eq(dp_schedule_write_tsv(result.schedule, -1, keep, &text[k]), DP_OK);
        dp_overlap_clear(&result);
    }
    ck_assert_str_eq(text[0].at, text[1].at);
    free(text[0].at);
    free(text[1].at);
    dp_schedule_free(schedule);
}
END_TEST

/* By hand: two ranks with one layer each, four micro-batches, one held at a time: F, I and W follow
 * one another. */
START_TEST(the_bound_knows_memory_and_chains)
{
    dp_segment_costs_t layer = segments;
    dp_costs_t own = costs;
    dp_schedule_request_t request = {.struct_size = sizeof(request), .method = "1f1b", .ranks = 2, .microbatches = 4};
    dp_overlap_request_t plan_of = {.struct_size = sizeof(plan_of), .costs = &own, .memory_cap = 1.0};
    dp_schedule_t *schedule;
    double f = 4.4 + 6.7 + 4.6 + 8.7, i = 9.3 + 7.5 + 5.3 + 5.8, computes = 4 * (4.4 + 4.6 + 9.3 + 5.3 + 2.4 + 5.1);
    double warm, cool, bound;

    layer.layers = 1;
    own.segments = &layer;
    ck_assert_int_eq(dp_schedule_generate(&request, &schedule), DP_OK);
    plan_of.schedule = schedule;
    ck_assert_int_eq(dp__overlap_request_bound(&plan_of, &bound), DP_OK);
    warm = 2 * f + 0.5 + i + 0.5 - (4.4 + 4.6); /* of rank 0 until its first I, less one F */
    cool = 2 * f + 0.5 + 2 * i + 0.5 + 2.4 - (4.4 + 4.6 + 9.3 + 5.3 + 2.4 + 5.1);
    ck_assert_double_eq_tol(bound, computes + warm + cool, 1e-9);
    plan_of.memory_cap = -1.0;
    ck_assert_int_eq(dp__overlap_request_bound(&plan_of, &bound), DP_OK);
    ck_assert_double_eq_tol(bound, fmax(computes + f + 0.5, 2 * f + 2 * i + 1.0 + 2.4), 1e-9);
    dp_schedule_free(schedule);
}
END_TEST

/* Where one rank has little memory, the others still have theirs. */
START_TEST(each_rank_has_its_memory)
{
    static const double caps[] = {8, 8, 8, 2};
    dp_schedule_request_t method = {.struct_size = sizeof(method), .method = "1f1b", .ranks = 4, .microbatches = 12};
    dp_overlap_request_t request = {
        .struct_size = sizeof(request), .costs = &costs, .memory_cap = 2.0, .tries = 48, .seed = 1};
    dp_overlap_result_t all_little = {.struct_size = sizeof(all_little)}, result = {.struct_size = sizeof(result)};
    dp_schedule_t *schedule;
    dp_memory_peaks_t held[4];

    ck_assert_int_eq(dp_schedule_generate(&method, &schedule), DP_OK);
    request.schedule = schedule;
    ck_assert_msg(dp_plan_overlap(&request, &all_little) == DP_OK, "%s", dp_last_error());
    request.rank_caps = caps;
    ck_assert_msg(dp_plan_overlap(&request, &result) == DP_OK, "%s", dp_last_error());
    ck_assert_double_lt(result.step, 0.9 * all_little.step);
    ck_assert_double_ge(result.step, result.bound - 1e-9);
    ck_assert_int_eq(dp_schedule_memory(result.schedule, NULL, held), DP_OK);
    for (int r = 0; r < 4; r++)
        ck_assert_double_le(held[r].activations, caps[r] + 1e-9);
    ck_assert_double_gt(held[0].activations, 2.0);
    dp_overlap_clear(&result);
    dp_overlap_clear(&all_little);
    dp_schedule_free(schedule);
}
END_TEST

START_TEST(a_request_that_makes_no_sense_is_refused)
{
    dp_schedule_t *schedule = generate(1);
    dp_costs_t plain = {.struct_size = sizeof(plain), .f = 1, .i = 1, .w = 1};
    dp_overlap_request_t good = {.struct_size = sizeof(good), .schedule = schedule, .costs = &costs};
    dp_overlap_request_t bad[6] = {good, good, good, good, good, good};
    const char *says[] = {"struct_size", "no schedule", "no schedule, or no costs", "no segments", "memory cap", "s:"};
    dp_overlap_result_t result = {.struct_size = sizeof(result)};

    bad[0].struct_size = 8;
    bad[1].schedule = NULL;
    bad[2].costs = NULL;
    bad[3].costs = &plain;
    bad[4].memory_cap = NAN;
    bad[5].seconds = -1.0;
    for (size_t b = 0; b < sizeof(bad) / sizeof(bad[0]); b++) {
        ck_assert_int_eq(dp_plan_overlap(&bad[b], &result), DP_ERR_INVALID);
        ck_assert_msg(strstr(dp_last_error(), says[b]) != NULL, "%s", dp_last_error());
        ck_assert_ptr_null(result.schedule);
    }
    good.memory_cap = 0.25;
    ck_assert_int_eq(dp_plan_overlap(&good, &result), DP_ERR_REJECTED);
    dp_schedule_free(schedule);
}
END_TEST

/* Groups of 10 on 8 ranks leave the planner's first run no order in two slots. */
START_TEST(what_is_given_stays_where_nothing_is_found)
{
    const dp_schedule_request_t grouped = {.struct_size = sizeof(grouped),
                                           .method = "interleaved_overlap",
                                           .ranks = 8,
                                           .microbatches = 64,
                                           .chunks = 4,
                                           .microbatch_group = 10};
    dp_schedule_t *schedule;
    dp_overlap_request_t request = {.struct_size = sizeof(request), .costs = &costs, .tries = 1};
    dp_overlap_result_t result = {.struct_size = sizeof(result)};
    dp_simulation_t given = {.struct_size = sizeof(given)};

    ck_assert_int_eq(dp_schedule_generate(&grouped, &schedule), DP_OK);
    ck_assert_int_eq(dp_evaluate(schedule, NULL, &costs, 0, &given), DP_OK);
    request.schedule = schedule;
    ck_assert_msg(dp_plan_overlap(&request, &result) == DP_OK, "%s", dp_last_error());
    ck_assert_double_le(result.step, given.step_time * (1.0 + 1e-9));
    dp_simulation_clear(&given);
    dp_overlap_clear(&result);
    dp_schedule_free(schedule);
}
END_TEST

/* The forwards of a chunk of two segments: all begin before the first one ends. */
START_TEST(more_passes_than_a_braid_takes_are_no_plan)
{
    enum { MOST = DP_BRAID_PASSES + 3 };
    dp__overlap_chunk_t chunk = {.prev = -1, .next = -1, .count = 2, .weights = 1};
    dp__overlap_segment_t two[2] = {{.lane = LANE_COMPUTE}, {.lane = LANE_ALL_TO_ALL}};
    dp__overlap_problem_t problem = {.ranks = 1, .chunks = 1, .stages = 1, .paths = 1, .chunk = &chunk, .segment = two};
    dp__overlap_call_t calls[2 * MOST];
    dp_schedule_t *schedule = NULL, *like = generate(0);

    for (int32_t n = DP_BRAID_PASSES; n <= MOST; n += 3) {
        const int64_t count = 2 * n;

        problem.microbatches = n;
        for (int32_t m = 0; m < n; m++)
            for (int16_t s = 0; s < 2; s++)
                calls[s * n + m] = (dp__overlap_call_t){PASS_F, s, 0, m};
        if (n == DP_BRAID_PASSES) {
            like->microbatches = n;
            ck_assert_msg(dp__overlap_braids(&problem, like, calls, &count, &schedule) == DP_OK, "%s", dp_last_error());
            dp_schedule_free(schedule);
        } else {
            ck_assert_int_eq(dp__overlap_braids(&problem, like, calls, &count, &schedule), DP_ERR_OVERFLOW);
            ck_assert_ptr_nonnull(strstr(dp_last_error(), "26 passes"));
        }
    }
    dp_schedule_free(like);
}
END_TEST

/* Whatever the groups and paces: a time for each segment, and W behind I. */
static void check_times(const dp__overlap_graph_t *graph, const double *urgency)
{
    const dp__overlap_problem_t *p = graph->problem;

    for (int32_t w = 0; w < graph->walks; w++) {
        const dp__overlap_walk_t *walk = &graph->walk[w];

        for (int32_t n = walk->first; n < walk->first + walk->count; n++)
            ck_assert_msg(isfinite(urgency[n]) && (n == walk->first || urgency[n] >= urgency[n - 1]), "node %d: %g", n,
                          urgency[n]);
        if (walk->kind == PASS_W)
            ck_assert_double_ge(
                urgency[walk->first],
                urgency[graph->walk[dp__overlap_walk_at(p, PASS_I, walk->chunk, walk->microbatch)].first]);
    }
}

START_TEST(timetables_have_a_time_for_every_pass)
{
    dp__overlap_random_t random = {3};
    int runs = 0;

    for (size_t k = 0; k < sizeof(shapes) / sizeof(shapes[0]); k++) {
        dp_schedule_t *like = generate(k);
        dp_costs_t resolved;
        dp__overlap_problem_t problem;
        dp__overlap_graph_t graph;
        dp__overlap_run_t *run;
        double *urgency;

        ck_assert_int_eq(dp__costs_resolve(&costs, like, &resolved), DP_OK);
        ck_assert_int_eq(dp__overlap_problem_make(like, &resolved, 8, &problem), DP_OK);
        for (int32_t r = 0; r < problem.ranks; r++)
            problem.cap[r] = k % 2 == 0 ? INFINITY : 2.0 * problem.ranks;
        ck_assert_int_eq(dp__overlap_graph_make(&problem, &graph), DP_OK);
        run = dp__overlap_run_open(&graph);
        urgency = calloc((size_t)graph.nodes, sizeof(*urgency));
        for (int round = 0; round < 20; round++) {
            dp__overlap_timetable_t times;
            dp__overlap_rules_t rules;

            dp__overlap_timetable_random(&problem, &random, &times);
            for (int change = 0; change < round; change++)
                dp__overlap_timetable_change(&problem, &random, &times);
            dp__overlap_rules_random(problem.period, &random, &rules);
            for (int phase = 0; phase < PHASES; phase++)
                rules.ahead[phase] = INFINITY;
            ck_assert(dp__overlap_timetable_write(&graph, &times, urgency));
            check_times(&graph, urgency);
            runs += dp__overlap_run(run, &rules, urgency, false, INFINITY, NULL, NULL) < INFINITY;
        }
        free(urgency);
        dp__overlap_run_close(run);
        dp__overlap_graph_clear(&graph);
        dp__overlap_problem_clear(&problem);
        dp_schedule_free(like);
    }
    ck_assert_int_gt(runs, 10 * (int)(sizeof(shapes) / sizeof(shapes[0])));
}
END_TEST

/* More than the tries without timetables: in memory that the given schedule does not use, other
 * groups and warm-ups make the step shorter than any order in its own memory can be. */
START_TEST(timetables_use_the_memory)
{
    dp_schedule_request_t of = {
        .struct_size = sizeof(of), .method = "interleaved_overlap", .ranks = 4, .microbatches = 16, .chunks = 4};
    dp_schedule_t *schedule;
    dp_overlap_request_t request = {.struct_size = sizeof(request), .costs = &costs, .slots = 6, .tries = 400};
    dp_overlap_result_t result = {.struct_size = sizeof(result)};
    double peak, bound;

    ck_assert_int_eq(dp_schedule_generate(&of, &schedule), DP_OK);
    request.schedule = schedule;
    ck_assert_int_eq(dp__overlap_request_bound(&request, &bound), DP_OK);
    request.memory_cap = 8.0;
    ck_assert_msg(dp_plan_overlap(&request, &result) == DP_OK, "%s", dp_last_error());
    ck_assert_double_le(result.step, step_of(schedule, &costs, &peak) * 0.98);
    ck_assert_double_le(result.peak, 8.0 + 1e-9);
    ck_assert_double_ge(result.step, result.bound * (1.0 - 1e-9));
    ck_assert_msg(result.step < bound, "%g, and in its own memory %g at least", result.step, bound);
    dp_overlap_clear(&result);
    dp_schedule_free(schedule);
}
END_TEST

/* The planner's run of a random order beside the machine's of the same order as a schedule. It
 * leaves out what a lane's list makes its messages wait for. compared[1]: equal. */
static void compare_runs(const dp_schedule_t *like, const dp_costs_t *of, const dp__overlap_graph_t *graph,
                         dp__overlap_random_t *random, int compared[2])
{
    const dp__overlap_problem_t *p = graph->problem;
    dp__overlap_run_t *run = dp__overlap_run_open(graph);
    double *urgency = calloc((size_t)graph->nodes, sizeof(*urgency)), step, peak;
    dp__overlap_call_t *calls = calloc((size_t)graph->nodes, sizeof(*calls));
    int64_t counts[8];
    dp__overlap_rules_t rules;
    dp_simulation_t got = {.struct_size = sizeof(got)};
    dp_schedule_t *schedule = NULL;

    dp__overlap_urgency_random(graph, random, urgency);
    dp__overlap_rules_random(p->period, random, &rules);
    (void)dp__overlap_run(run, &rules, urgency, false, INFINITY, NULL, NULL);
    step = dp__overlap_run(run, &rules, urgency, false, INFINITY, calls, counts);
    peak = dp__overlap_run_peak(run);
    if (step < INFINITY && dp__overlap_braids(p, like, calls, counts, &schedule) == DP_OK &&
        dp_evaluate(schedule, NULL, of, 0, &got) == DP_OK) {
        /* a lane of the run also waits for the rules, at more places in finer layers and where
         * ranks are not alike */
        double low = of->rank_scale != NULL ? 0.85 : of->segments == fine.segments ? 0.94 : 0.98;
        double high = of->rank_scale != NULL ? 1.1 : 1.02, most = 0.0;

        for (int32_t r = 0; r < got.ranks; r++)
            most = fmax(most, got.peak_activations[r]);
        ck_assert_double_eq_tol(most, peak, 1e-9);
        ck_assert_msg(got.step_time < high * step && got.step_time > low * step, "%s: %.9g, the machine says %.9g",
                      like->method, step, got.step_time);
        compared[fabs(got.step_time - step) < 1e-9 * step]++;
    }
    dp_simulation_clear(&got);
    dp_schedule_free(schedule);
    dp__overlap_run_close(run);
    free(urgency);
    free(calls);
}

/* Of the first ranks of any shape; no two alike. */
static const double slow_ranks[8] = {1, 1.125, 0.9375, 1.25, 1, 1.0625, 0.9375, 1.1875};

static void compare_shape(size_t k, const double *rank_scale, dp__overlap_random_t *random, int compared[2])
{
    dp_costs_t given = k % 3 == 0 ? costs : fine, resolved;
    dp_schedule_t *like = k % 3 == 2 ? generate_forwards(k / 3, DP_FORWARDS_SERIAL) : generate(k / 3);
    dp__overlap_problem_t problem;
    dp__overlap_graph_t graph;

    given.rank_scale = rank_scale;
    ck_assert_int_eq(dp__costs_resolve(&given, like, &resolved), DP_OK);
    ck_assert_int_eq(dp__overlap_problem_make(like, &resolved, 2, &problem), DP_OK);
    for (int32_t r = 0; r < problem.ranks; r++)
        problem.cap[r] = INFINITY;
    ck_assert_int_eq(dp__overlap_graph_make(&problem, &graph), DP_OK);
    for (int round = 0; round < (k % 3 == 0 ? 40 : 15); round++)
        compare_runs(like, &given, &graph, random, compared);
    dp__overlap_graph_clear(&graph);
    dp__overlap_problem_clear(&problem);
    dp_schedule_free(like);
}

START_TEST(the_planner_times_as_the_machine_does)
{
    dp__overlap_random_t plain = {7}, finer = {7}, other = {7};
    int compared[2] = {0, 0}, slow[2] = {0, 0};

    for (size_t k = 0; k < 3 * sizeof(shapes) / sizeof(shapes[0]); k++) {
        compare_shape(k, NULL, k % 3 == 0 ? &plain : &finer, compared);
        if (k % 2 != 0)
            compare_shape(k, slow_ranks, &other, slow);
    }
    ck_assert_int_gt(compared[1], 400);
    ck_assert_int_gt(compared[1], 2 * compared[0]);
    ck_assert_int_gt(slow[1], 200);
    ck_assert_int_gt(slow[1], slow[0]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("overlap");

    SUITE_ADD(suite, plans_are_proven_and_no_worse);
    SUITE_ADD(suite, forwards_alone_beat_the_published_orders);
    SUITE_ADD(suite, marked_orders_have_shared_experts_between_attention_and_sum);
    SUITE_ADD(suite, the_same_request_gives_the_same_plan);
    SUITE_ADD(suite, the_bound_knows_memory_and_chains);
    SUITE_ADD(suite, each_rank_has_its_memory);
    SUITE_ADD(suite, a_request_that_makes_no_sense_is_refused);
    SUITE_ADD(suite, what_is_given_stays_where_nothing_is_found);
    SUITE_ADD(suite, more_passes_than_a_braid_takes_are_no_plan);
    SUITE_ADD(suite, the_planner_times_as_the_machine_does);
    SUITE_ADD(suite, timetables_have_a_time_for_every_pass);
    SUITE_ADD(suite, timetables_use_the_memory);
    return suite_run(suite);
}
