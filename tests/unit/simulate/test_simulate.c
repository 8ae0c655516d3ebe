/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_simulate.c: simulated times against recorded replays, published figures, hand-made cases and
 * a slow second simulator that knows the schedule only. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/oom.h"
#include "tests/support/suite.h"
#include <dualpipe/simulate.h>

static const dp_costs_t unit = {.struct_size = sizeof(dp_costs_t), .f = 1, .i = 1, .w = 1, .barrier = 1};

static dp_schedule_t *generate(const char *method, int32_t ranks, int32_t microbatches, int32_t chunks)
{
    dp_schedule_request_t request = {sizeof(request), method, ranks, microbatches, chunks, 0, 0};
    dp_schedule_t *schedule = NULL;

    ck_assert_msg(dp_schedule_generate(&request, &schedule) == DP_OK, "%s", dp_last_error());
    return schedule;
}

static dp_program_t *lower(const dp_schedule_t *schedule, dp_transport_t transport, int32_t slots)
{
    dp_lower_options_t options = {.struct_size = sizeof(options), .transport = transport, .slots = slots};
    dp_program_t *program = NULL;

    ck_assert_msg(dp_program_lower(schedule, &options, &program) == DP_OK, "%s", dp_last_error());
    return program;
}

static dp_simulation_t simulate(const dp_schedule_t *schedule, dp_transport_t transport, int32_t slots,
                                const dp_costs_t *costs, int with_timeline)
{
    dp_program_t *program = lower(schedule, transport, slots);
    dp_simulation_t result = {.struct_size = sizeof(result)};

    ck_assert_msg(dp_simulate(program, costs, with_timeline, &result) == DP_OK, "%s %d %d: %s", schedule->method,
                  schedule->ranks, schedule->microbatches, dp_last_error());
    dp_program_free(program);
    return result;
}

/* ---- a second opinion: sweeps over the schedule until nothing moves, transfers without limits
 * ---- */

typedef struct sweep {
    const dp_schedule_t *schedule;
    const dp_costs_t *costs;
    double *forward, *backward; /* [rank, chunk, mb]: end, negative: not yet */
    double step, *busy, *peak;
} sweep_t;

static int64_t cell(const dp_schedule_t *s, int32_t rank, int32_t chunk, int32_t microbatch)
{
    return ((int64_t)rank * s->chunks + chunk) * s->microbatches + microbatch;
}

/* When what a half takes is there; negative: not yet. */
static double input_time(const sweep_t *sweep, int32_t rank, int kind, int32_t chunk, int32_t microbatch)
{
    const dp_schedule_t *s = sweep->schedule;
    dp_place_t place;
    double own = 0.0, other = 0.0;
    int32_t from;

    dp_schedule_place(s, rank, chunk, &place);
    if (kind == DP_OP_W)
        return sweep->backward[cell(s, rank, chunk, microbatch)];
    if (kind != DP_OP_F)
        own = sweep->forward[cell(s, rank, chunk, microbatch)];
    from = kind == DP_OP_F ? place.prev_rank : place.next_rank;
    if (from >= 0)
        other = kind == DP_OP_F ? sweep->forward[cell(s, from, place.prev_chunk, microbatch)]
                                : sweep->backward[cell(s, from, place.next_chunk, microbatch)];
    if (own < 0.0 || other < 0.0)
        return -1.0;
    return fmax(own, other + (from >= 0 && from != rank ? sweep->costs->hop : 0.0));
}

static double op_cost(const sweep_t *sweep, int kind)
{
    const dp_schedule_t *s = sweep->schedule;
    bool shared = s->placement == DP_PLACE_LOOP || s->placement == DP_PLACE_V;
    double b = sweep->costs->b == 0 ? sweep->costs->i + sweep->costs->w : fmax(sweep->costs->b, 0);
    double fb = sweep->costs->fb == 0 ? sweep->costs->f + b : fmax(sweep->costs->fb, 0);
    double all[] = {sweep->costs->f, b, sweep->costs->i, sweep->costs->w, fb};

    return all[kind] / (shared ? s->chunks : 1);
}

static bool try_op(sweep_t *sweep, int32_t rank, const dp_op_t *op, double *lane, double *held)
{
    const dp_schedule_t *s = sweep->schedule;
    bool pair = op->kind == DP_OP_FB, shared = s->placement == DP_PLACE_LOOP || s->placement == DP_PLACE_V;
    double share = shared ? 1.0 / s->chunks : 1.0;
    double ready = input_time(sweep, rank, pair ? DP_OP_F : op->kind, op->chunk, op->microbatch);
    double ready2 = pair ? input_time(sweep, rank, DP_OP_B, op->chunk2, op->microbatch2) : 0.0, end;

    if (ready < 0.0 || ready2 < 0.0)
        return false;
    end = fmax(*lane, fmax(ready, ready2)) + op_cost(sweep, op->kind);
    *lane = end;
    sweep->busy[rank] += op_cost(sweep, op->kind);
    sweep->step = fmax(sweep->step, end);
    if (op->kind == DP_OP_F || pair) {
        sweep->forward[cell(s, rank, op->chunk, op->microbatch)] = end;
        *held += share;
        sweep->peak[rank] = fmax(sweep->peak[rank], *held);
    }
    if (op->kind == DP_OP_B || op->kind == DP_OP_I)
        sweep->backward[cell(s, rank, op->chunk, op->microbatch)] = end;
    if (pair)
        sweep->backward[cell(s, rank, op->chunk2, op->microbatch2)] = end;
    if (op->kind == DP_OP_B || op->kind == DP_OP_W || pair)
        *held -= share;
    return true;
}

static sweep_t sweep_schedule(const dp_schedule_t *s, const dp_costs_t *costs)
{
    size_t cells = (size_t)s->ranks * (size_t)s->chunks * (size_t)s->microbatches;
    sweep_t sweep = {s,
                     costs,
                     malloc(cells * sizeof(double)),
                     malloc(cells * sizeof(double)),
                     0.0,
                     calloc((size_t)s->ranks, sizeof(double)),
                     calloc((size_t)s->ranks, sizeof(double))};
    double *lane = calloc((size_t)s->ranks, sizeof(double)), *held = calloc((size_t)s->ranks, sizeof(double));
    int64_t *at = calloc((size_t)s->ranks, sizeof(*at));
    bool moved = true;

    for (size_t c = 0; c < cells; c++)
        sweep.forward[c] = sweep.backward[c] = -1.0;
    while (moved) {
        moved = false;
        for (int32_t r = 0; r < s->ranks; r++) {
            while (s->first[r] + at[r] < s->first[r + 1] &&
                   try_op(&sweep, r, &s->ops[s->first[r] + at[r]], &lane[r], &held[r])) {
                at[r]++;
                moved = true;
            }
        }
    }
    for (int32_t r = 0; r < s->ranks; r++)
        ck_assert_int_eq(s->first[r] + at[r], s->first[r + 1]);
    free(lane);
    free(held);
    free(at);
    free(sweep.forward);
    free(sweep.backward);
    return sweep;
}

static void expect_equal_to_sweep(const dp_schedule_t *schedule, const dp_simulation_t *got, const dp_costs_t *costs)
{
    sweep_t sweep = sweep_schedule(schedule, costs);

    ck_assert_msg(fabs(got->step_time - sweep.step) < 1e-9 * (1.0 + sweep.step), "%s P=%d M=%d: %g, the sweep says %g",
                  schedule->method, schedule->ranks, schedule->microbatches, got->step_time, sweep.step);
    for (int32_t r = 0; r < schedule->ranks; r++) {
        ck_assert_double_eq_tol(got->bubble[r], sweep.step - sweep.busy[r], 1e-9 * (1.0 + sweep.step));
        ck_assert_double_eq_tol(got->peak_activations[r], sweep.peak[r], 1e-9);
    }
    free(sweep.busy);
    free(sweep.peak);
}

START_TEST(transfers_without_limit_are_dataflow)
{
    static const struct {
        const char *method;
        int32_t ranks, microbatches;
    } all[] = {{"1f1b", 1, 1},        {"1f1b", 1, 5},      {"1f1b", 2, 1},
               {"1f1b", 4, 3},        {"1f1b", 5, 17},     {"dualpipe", 2, 4},
               {"dualpipe", 4, 8},    {"dualpipe", 4, 20}, {"dualpipe", 6, 14},
               {"dualpipe", 8, 20},   {"zb1p", 4, 9},      {"zbv", 3, 8},
               {"interleaved", 4, 8}, {"v-min", 5, 12},    {"interleaved_overlap", 2, 6},
               {"v-half", 4, 2},      {"gpipe", 3, 4},     {"dualpipev", 1, 2},
               {"dualpipev", 2, 4},   {"dualpipev", 3, 7}, {"dualpipev", 4, 10},
               {"dualpipev", 8, 21}};
    static const dp_costs_t costs[] = {
        {.struct_size = sizeof(dp_costs_t), .f = 1, .i = 1, .w = 1, .barrier = 1},
        {.struct_size = sizeof(dp_costs_t), .f = 1, .i = 1, .w = 1, .b = 2, .fb = 2, .barrier = 1},
        {.struct_size = sizeof(dp_costs_t), .f = 10, .i = 11, .w = 9, .b = 20, .fb = 30, .barrier = 1},
        {.struct_size = sizeof(dp_costs_t), .f = 10, .i = 9, .w = 11, .b = 20, .fb = 30, .barrier = 1},
        {.struct_size = sizeof(dp_costs_t), .f = 8, .i = 10, .w = 10, .b = 20, .fb = 23, .barrier = 1},
        {.struct_size = sizeof(dp_costs_t), .f = 1, .i = 1, .w = 1, .hop = 0.25, .barrier = 1},
        {.struct_size = sizeof(dp_costs_t), .f = 3, .fb = 3, .hop = 1.5, .barrier = 1},
        {.struct_size = sizeof(dp_costs_t), .f = 3, .i = 2, .w = 1, .b = -1, .hop = 1.5, .barrier = 1},
        {.struct_size = sizeof(dp_costs_t), .f = 3, .i = 2, .w = 1, .b = -1, .fb = -1, .barrier = 1},
    };

    for (size_t a = 0; a < sizeof(all) / sizeof(all[0]); a++) {
        dp_schedule_t *schedule = generate(all[a].method, all[a].ranks, all[a].microbatches, 0);

        for (size_t c = 0; c < sizeof(costs) / sizeof(costs[0]); c++) {
            dp_simulation_t got = simulate(schedule, DP_TRANSPORT_CREDITS, all[a].microbatches, &costs[c], 0);

            expect_equal_to_sweep(schedule, &got, &costs[c]);
            dp_simulation_clear(&got);
        }
        dp_schedule_free(schedule);
    }
}
END_TEST

/* ---- recorded replays ---- */

START_TEST(recorded_replays_come_out)
{
    char path[512], line[512];
    int rows = 0;
    FILE *file;

    snprintf(path, sizeof(path), "%s/schedules/replay.tsv", getenv("DP_TEST_DATA"));
    file = fopen(path, "r");
    ck_assert_msg(file != NULL, "%s is missing", path);
    while (fgets(line, sizeof(line), file) != NULL) {
        char method[32], rule[32];
        int32_t ranks, microbatches;
        double f, b, i, w, fb, step, low, high, sum, formula, scale;
        dp_schedule_t *schedule;
        dp_simulation_t got;
        dp_costs_t costs;
        double got_low = INFINITY, got_high = -INFINITY, got_sum = 0.0;

        if (sscanf(line, "%31s %d %d %lf %lf %lf %lf %lf %31s %lf %lf %lf %lf %lf", method, &ranks, &microbatches, &f,
                   &b, &i, &w, &fb, rule, &step, &low, &high, &sum, &formula) != 14 ||
            strcmp(rule, "dataflow") != 0)
            continue;
        schedule = generate(method, ranks, microbatches, 0);
        scale = schedule->placement == DP_PLACE_V ? 2.0 : 1.0; /* the file has costs per chunk */
        costs = (dp_costs_t){.struct_size = sizeof(costs),
                             .f = f * scale,
                             .i = i * scale,
                             .w = w * scale,
                             .b = b * scale,
                             .fb = fb * scale,
                             .barrier = 1};
        got = simulate(schedule, DP_TRANSPORT_CREDITS, 2, &costs, 0);
        for (int32_t r = 0; r < ranks; r++) {
            got_low = fmin(got_low, got.bubble[r]);
            got_high = fmax(got_high, got.bubble[r]);
            got_sum += got.bubble[r];
        }
        ck_assert_msg(fabs(got.step_time - step) < 1e-9 && fabs(got_low - low) < 1e-9 && fabs(got_high - high) < 1e-9 &&
                          fabs(got_sum - sum) < 1e-9 && fabs(got.formula_bubble - formula) < 1e-9,
                      "%sgot: %g %g %g %g %g", line, got.step_time, got_low, got_high, got_sum, got.formula_bubble);
        dp_simulation_clear(&got);
        dp_schedule_free(schedule);
        rows++;
    }
    fclose(file);
    ck_assert_int_ge(rows, 90);
}
END_TEST

START_TEST(time_lost_at_unit_costs)
{
    static const struct {
        int32_t ranks, microbatches;
    } sizes[] = {{4, 20}, {8, 20}, {8, 40}, {16, 64}};
    static const struct {
        const char *method;
        int32_t chunks;
        double bubble[4]; /* of the sizes above; 0: the method does not have that size */
    } all[] = {{"gpipe", 0, {9, 21, 21, 45}},
               {"1f1b", 0, {9, 21, 21, 45}},
               {"zb1p", 0, {3, 7, 7, 15}},
               {"zbv", 0, {1.5, 3.5, 3.5, 7.5}},
               {"v-half", 0, {4.5, 10.5, 10.5, 22.5}},
               {"dualpipe", 0, {2, 6, 6, 14}},
               {"dualpipev", 0, {3, 7, 7, 15}},
               {"interleaved", 2, {4.5, 0, 10.5, 22.5}},
               {"interleaved", 4, {2.25, 0, 5.25, 11.25}},
               {"interleaved_overlap", 2, {4.5, 0, 10.5, 22.5}},
               {"interleaved_overlap", 4, {2.25, 0, 5.25, 11.25}}};

    for (size_t a = 0; a < sizeof(all) / sizeof(all[0]); a++) {
        for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
            double bubble = all[a].bubble[k];
            dp_schedule_t *schedule;
            dp_simulation_t got;

            if (bubble == 0.0)
                continue;
            schedule = generate(all[a].method, sizes[k].ranks, sizes[k].microbatches, all[a].chunks);
            got = simulate(schedule, DP_TRANSPORT_CREDITS, 2, &unit, 0);
            for (int32_t r = 0; r < sizes[k].ranks; r++)
                ck_assert_msg(fabs(got.bubble[r] - bubble) < 1e-9, "%s P=%d M=%d rank %d: %g instead of %g",
                              all[a].method, sizes[k].ranks, sizes[k].microbatches, r, got.bubble[r], bubble);
            ck_assert_double_eq_tol(got.formula_bubble, bubble, 1e-9);
            ck_assert_double_eq_tol(got.step_time, 3.0 * sizes[k].microbatches + bubble, 1e-9);
            dp_simulation_clear(&got);
            dp_schedule_free(schedule);
        }
    }
}
END_TEST

/* ---- hand-made cases ---- */

typedef struct list {
    const char *ops; /* "F0 B0 I1 W1" */
} list_t;

static dp_schedule_t *by_hand(dp_placement_t placement, int32_t ranks, int32_t microbatches, int forward_only,
                              const list_t *lists)
{
    dp_schedule_t *schedule = NULL;
    int64_t nops[8] = {0};

    for (int32_t r = 0; r < ranks; r++)
        nops[r] = (int64_t)(strlen(lists[r].ops) + 1) / 3;
    ck_assert_int_eq(dp_schedule_create("custom", placement, ranks, microbatches, 1, nops, &schedule), DP_OK);
    schedule->forward_only = forward_only;
    for (int32_t r = 0; r < ranks; r++) {
        for (int64_t k = 0; k < nops[r]; k++) {
            char kind = lists[r].ops[3 * k];

            schedule->ops[schedule->first[r] + k] = (dp_op_t){.kind = kind == 'F'   ? DP_OP_F
                                                                      : kind == 'B' ? DP_OP_B
                                                                      : kind == 'I' ? DP_OP_I
                                                                                    : DP_OP_W,
                                                              .microbatch = lists[r].ops[3 * k + 1] - '0',
                                                              .chunk2 = -1,
                                                              .microbatch2 = -1};
        }
    }
    return schedule;
}

static const list_t three_forwards[] = {{"F0 F1 F2"}, {"F0 F1 F2"}};
static const double slow_second[] = {1.0, 3.0};

START_TEST(a_slot_holds_back_its_next_message)
{
    static const struct {
        dp_transport_t transport;
        int32_t slots;
        double step, alone; /* alone: without the barrier */
    } all[] = {{DP_TRANSPORT_CREDITS, 1, 11.5, 10.0},
               {DP_TRANSPORT_CREDITS, 2, 10.5, 9.0},
               {DP_TRANSPORT_BUNDLES, 1, 11.5, 10.0},
               {DP_TRANSPORT_BUNDLES, 2, 10.5, 9.0}};
    dp_schedule_t *schedule = by_hand(DP_PLACE_LINE, 2, 3, 1, three_forwards);

    for (size_t a = 0; a < 2 * sizeof(all) / sizeof(all[0]); a++) {
        for (int barrier = 0; barrier < 2; barrier++) {
            dp_costs_t costs = unit;
            dp_simulation_t got;
            bool by_rank = a % 2 != 0;
            double step = barrier ? all[a / 2].step : all[a / 2].alone;

            costs.hop = 0.5;
            *(by_rank ? &costs.rank_scale : &costs.stage_scale) = slow_second;
            costs.barrier = barrier;
            got = simulate(schedule, all[a / 2].transport, all[a / 2].slots, &costs, 0);
            ck_assert_double_eq_tol(got.step_time, step, 1e-12);
            ck_assert_double_eq_tol(got.bubble[0], step - 3.0, 1e-12);
            ck_assert_double_eq_tol(got.bubble[1], step - 9.0, 1e-12);
            ck_assert_double_eq_tol(got.peak_activations[0], 1.0, 1e-12);
            ck_assert_double_nan(got.formula_bubble);
            dp_simulation_clear(&got);
        }
    }
    dp_schedule_free(schedule);
}
END_TEST

/* Forwards of one unit; a message takes the link for 1.5 of them and arrives half a unit later:
 * they leave at 1, 2.5, 4, arrive at 3, 4.5, 6, and the last forward ends at 7. */
START_TEST(a_link_passes_one_message_at_a_time)
{
    dp_schedule_t *schedule = by_hand(DP_PLACE_LINE, 2, 3, 1, three_forwards);
    dp_costs_t costs = unit;
    dp_simulation_t got;
    int64_t count, left[3] = {1000000, 2500000, 4000000};
    const dp_span_t *spans;
    int n = 0;

    costs.hop = 0.5;
    costs.bytes = 3.0;
    costs.bandwidth = 2.0;
    got = simulate(schedule, DP_TRANSPORT_CREDITS, 3, &costs, 1);
    ck_assert_double_eq_tol(got.step_time, 7.0, 1e-12);
    spans = dp_timeline_spans(got.timeline, 0, &count);
    for (int64_t i = 0; i < count; i++)
        if (spans[i].kind == DP_SPAN_SEND) {
            ck_assert_int_lt(n, 3);
            ck_assert_int_eq(spans[i].start_ns, left[n]);
            ck_assert_int_eq(spans[i].end_ns, left[n++] + 2000000);
        }
    ck_assert_int_eq(n, 3);
    dp_simulation_clear(&got);

    costs.bandwidth = 0.0; /* without limit: they leave at 1, 2, 3 */
    got = simulate(schedule, DP_TRANSPORT_CREDITS, 3, &costs, 0);
    ck_assert_double_eq_tol(got.step_time, 4.5, 1e-12);
    dp_simulation_clear(&got);
    dp_schedule_free(schedule);
}
END_TEST

START_TEST(weights_and_activations_by_hand)
{
    static const list_t lists[] = {{"F0 F1 I0 I1 W1 W0"}};
    dp_schedule_t *schedule = by_hand(DP_PLACE_LINE, 1, 2, 0, lists);
    dp_costs_t costs = {
        .struct_size = sizeof(costs), .f = 1.5, .i = 2.0, .w = 0.25, .b = 100.0, .fb = 100.0, .hop = 7.0, .barrier = 1};
    dp_simulation_t got = simulate(schedule, DP_TRANSPORT_CREDITS, 2, &costs, 0);

    ck_assert_double_eq_tol(got.step_time, 2 * 1.5 + 2 * 2.0 + 2 * 0.25, 1e-12);
    ck_assert_double_eq_tol(got.bubble[0], 0.0, 1e-12);
    ck_assert_double_eq_tol(got.peak_activations[0], 2.0, 1e-12);
    dp_simulation_clear(&got);
    dp_schedule_free(schedule);
}
END_TEST

START_TEST(a_pair_of_unlike_stages_gains_in_proportion)
{
    static const double scale[] = {1.0, 3.0};
    dp_schedule_t *schedule = generate("dualpipe", 2, 8, 0);
    dp_costs_t costs = {.struct_size = sizeof(costs),
                        .f = 1.0,
                        .i = 1.0,
                        .w = 1.0,
                        .b = 2.0,
                        .fb = 1.5, /* a pair takes half of F + B */
                        .barrier = 1,
                        .stage_scale = scale};
    dp_simulation_t got = simulate(schedule, DP_TRANSPORT_CREDITS, 2, &costs, 1);

    for (int32_t r = 0; r < 2; r++) {
        int64_t count;
        const dp_span_t *spans = dp_timeline_spans(got.timeline, r, &count);
        int pairs = 0;

        for (int64_t i = 0; i < count; i++) {
            double length = (double)(spans[i].end_ns - spans[i].start_ns);

            if (spans[i].kind != DP_SPAN_COMPUTE || !spans[i].pair)
                continue;
            ck_assert_double_eq_tol(length, (spans[i].pass == DP_OP_F ? 0.5e6 : 1.0e6) * scale[spans[i].stage], 2.0);
            pairs++;
        }
        ck_assert_int_gt(pairs, 2);
    }
    dp_simulation_clear(&got);
    dp_schedule_free(schedule);
}
END_TEST

/* ---- programs that cannot finish ---- */

static void expect_rejected(const dp_program_t *program, const char *words)
{
    dp_simulation_t got = {.struct_size = sizeof(got)};

    ck_assert_int_eq(dp_simulate(program, &unit, 1, &got), DP_ERR_REJECTED);
    ck_assert_msg(strstr(dp_last_error(), words) != NULL, "%s", dp_last_error());
    ck_assert_ptr_null(got.bubble);
    ck_assert_ptr_null(got.timeline);
}

START_TEST(a_program_that_cannot_finish_is_rejected)
{
    static const list_t good[] = {{"F0 F1 B0 B1"}, {"F0 B0 F1 B1"}};
    dp_schedule_t *schedule = by_hand(DP_PLACE_LINE, 2, 2, 0, good);
    dp_program_t *program = lower(schedule, (dp_transport_t)_i, 2);
    dp_instr_t *rank0 = program->instrs, saved;
    int64_t n = program->first[1], f = -1, b = -1, last_send = -1;

    for (int64_t i = 0; i < n; i++) {
        if (rank0[i].kind == DP_INSTR_COMPUTE && rank0[i].op == DP_OP_F && rank0[i].microbatch == 1)
            f = i;
        if (rank0[i].kind == DP_INSTR_COMPUTE && rank0[i].op == DP_OP_B && rank0[i].microbatch == 1)
            b = i;
        if (rank0[i].kind == DP_INSTR_SEND)
            last_send = i;
    }
    saved = rank0[f]; /* the backward before its forward */
    rank0[f] = rank0[b];
    rank0[b] = saved;
    expect_rejected(program, "rank 0: B of chunk 0, micro-batch 1 never starts: the rank has not computed");
    saved = rank0[f];
    rank0[f] = rank0[b];
    rank0[b] = saved;
    saved = rank0[last_send]; /* the last forward is never sent */
    rank0[last_send].kind = DP_INSTR_REDUCE;
    expect_rejected(program, "never starts: its input does not arrive");
    rank0[last_send] = saved;
    dp_program_free(program);
    dp_schedule_free(schedule);
}
END_TEST

/* Where a stage is on one rank alone, its rank's factor is the stage's: of operations, and of
 * segments on both lanes. */
START_TEST(a_slow_rank_is_a_rank_of_slow_stages)
{
    static const struct {
        const char *method;
        int32_t ranks, microbatches, chunks;
    } all[] = {{"1f1b", 1, 3, 0}, {"1f1b", 4, 8, 0},      {"zb1p", 5, 9, 0},
               {"zbv", 4, 8, 0},  {"dualpipev", 4, 9, 0}, {"interleaved_overlap", 4, 8, 3},
               {"v-min", 3, 7, 0}};
    const double by_rank[] = {1.25, 1, 0.5, 1.0 / 3, 2};
    const dp_segment_costs_t layer = {.struct_size = sizeof(layer),
                                      .layers = 6,
                                      .f = {4, 7, 5, 8},
                                      .i = {9, 7.5, 5.5, 6},
                                      .w = {2, 0, 5, 0},
                                      .r = {1, 0, 2, 0}};

    for (size_t a = 0; a < 2 * sizeof(all) / sizeof(all[0]); a++) {
        dp_schedule_t *s = generate(all[a / 2].method, all[a / 2].ranks, all[a / 2].microbatches, all[a / 2].chunks);
        dp_costs_t ranks = unit, stages = unit;
        double by_stage[16];
        dp_simulation_t got, want;

        for (int32_t k = 0; k < s->ranks * s->chunks; k++) {
            dp_place_t place;

            dp_schedule_place(s, k / s->chunks, k % s->chunks, &place);
            by_stage[place.stage] = by_rank[k / s->chunks];
        }
        ranks.hop = stages.hop = 0.25;
        ranks.segments = stages.segments = a % 2 != 0 ? &layer : NULL;
        ranks.rank_scale = by_rank;
        stages.stage_scale = by_stage;
        got = simulate(s, DP_TRANSPORT_CREDITS, 2, &ranks, 0);
        want = simulate(s, DP_TRANSPORT_CREDITS, 2, &stages, 0);
        ck_assert_double_eq_tol(got.step_time, want.step_time, 1e-9 * want.step_time);
        for (int32_t r = 0; r < s->ranks; r++)
            ck_assert_double_eq_tol(got.bubble[r], want.bubble[r], 1e-9 * want.step_time);
        dp_simulation_clear(&got);
        dp_simulation_clear(&want);
        dp_schedule_free(s);
    }
}
END_TEST

/* Two ranks hold a stage in two directions: each of them is as slow as it is. */
START_TEST(a_slow_rank_of_two_directions_is_busy_longer)
{
    const double by_rank[] = {1, 1, 1.5, 1};
    dp_schedule_t *schedule = generate("dualpipe", 4, 12, 0);
    dp_costs_t costs = unit;
    dp_simulation_t even = simulate(schedule, DP_TRANSPORT_BUNDLES, 0, &costs, 0), slow;

    costs.rank_scale = by_rank;
    slow = simulate(schedule, DP_TRANSPORT_BUNDLES, 0, &costs, 0);
    for (int32_t r = 0; r < 4; r++)
        ck_assert_double_eq_tol(slow.step_time - slow.bubble[r], by_rank[r] * (even.step_time - even.bubble[r]), 1e-9);
    ck_assert_double_gt(slow.step_time, 1.5 * (even.step_time - even.bubble[2]));
    dp_simulation_clear(&even);
    dp_simulation_clear(&slow);
    dp_schedule_free(schedule);
}
END_TEST

/* Two hosts are links that are not as the others, one by one. */
START_TEST(hosts_are_links_one_by_one)
{
    static const int32_t hosts[] = {0, 0, 1, 1};
    const dp_topology_t topology = {sizeof(topology), 4, hosts, 0.25, 8, 2, 1};
    const dp_link_costs_t links[] = {{1, 2, 2, 1}, {2, 1, 2, 1}, {1, 2, 9, 9}, {0, 0, 9, 9}};

    for (int method = 0; method < 2; method++) {
        dp_schedule_t *schedule = generate(method == 0 ? "zb1p" : "dualpipe", 4, 12, 0);
        dp_costs_t by_host = unit, by_link = unit;
        dp_simulation_t got, want;

        by_host.bytes = by_link.bytes = 1.5;
        by_host.topology = &topology;
        by_link.hop = 0.25;
        by_link.bandwidth = 8;
        by_link.links = links;
        by_link.nlinks = 4; /* of two for the same ranks the first counts */
        got = simulate(schedule, DP_TRANSPORT_CREDITS, 2, &by_link, 0);
        want = simulate(schedule, DP_TRANSPORT_CREDITS, 2, &by_host, 0);
        ck_assert_double_eq(got.step_time, want.step_time);
        dp_simulation_clear(&got);
        by_link.links = links + 1; /* one way alone */
        by_link.nlinks = 1;
        got = simulate(schedule, DP_TRANSPORT_CREDITS, 2, &by_link, 0);
        ck_assert_double_lt(got.step_time, want.step_time);
        dp_simulation_clear(&got);
        dp_simulation_clear(&want);
        dp_schedule_free(schedule);
    }
}
END_TEST

START_TEST(wrong_arguments_are_refused)
{
    dp_schedule_t *schedule = generate("1f1b", 2, 2, 0);
    dp_program_t *program = lower(schedule, DP_TRANSPORT_CREDITS, 2);
    dp_simulation_t got = {.struct_size = sizeof(got)}, unset = {.struct_size = 0};
    double scales[] = {1.0, NAN}, negative[] = {1.0, -1.0};
    const dp_link_costs_t link[] = {{0, 2, 1, 1}, {-1, 0, 1, 1}, {0, 1, -1, 0}, {0, 1, 0, NAN}, {0, 1, 0, 1e-300}};
    dp_costs_t bad[19];

    for (int k = 0; k < 19; k++)
        bad[k] = unit;
    for (int k = 14; k < 19; k++) {
        bad[k].bytes = 1.0;
        bad[k].nlinks = 1;
        bad[k].links = &link[k - 14];
    }
    bad[0].struct_size = DP_COSTS_MIN - 1;
    bad[1].f = -1.0;
    bad[2].i = NAN;
    bad[3].w = INFINITY;
    bad[4].hop = -0.5;
    bad[5].b = NAN;
    bad[6].fb = 1e300;
    bad[7].stage_scale = scales;
    bad[8].hop = INFINITY;
    bad[9].bytes = -1.0;
    bad[10].bandwidth = NAN;
    bad[11].bytes = 1e10, bad[11].bandwidth = 1e-10;
    bad[12].rank_scale = scales;
    bad[13].rank_scale = negative;
    for (int k = 0; k < 19; k++)
        ck_assert_msg(dp_simulate(program, &bad[k], 0, &got) == DP_ERR_INVALID, "costs %d were taken", k);
    ck_assert_int_eq(dp_simulate(program, NULL, 0, &got), DP_ERR_INVALID);
    ck_assert_int_eq(dp_simulate(NULL, &unit, 0, &got), DP_ERR_INVALID);
    program->transport = (dp_transport_t)2;
    ck_assert_int_eq(dp_simulate(program, &unit, 0, &got), DP_ERR_INVALID);
    program->transport = DP_TRANSPORT_CREDITS;
    ck_assert_int_eq(dp_simulate(program, &unit, 0, &unset), DP_ERR_INVALID);
    ck_assert_int_eq(dp_simulate(program, &unit, 0, NULL), DP_ERR_INVALID);
    bad[0] = unit;
    bad[0].f = 1e13; /* fine as a number, too long for a timeline in nanoseconds */
    ck_assert_int_eq(dp_simulate(program, &bad[0], 1, &got), DP_ERR_INVALID);
    ck_assert_int_eq(dp_simulate(program, &bad[0], 0, &got), DP_OK);
    dp_simulation_clear(&got);
    dp_simulation_clear(&got);
    dp_simulation_clear(NULL);
    dp_program_free(program);
    dp_schedule_free(schedule);
}
END_TEST

START_TEST(evaluation_is_three_calls)
{
    dp_schedule_t *schedule = generate("dualpipe", 4, 8, 0);
    dp_lower_options_t options = {.struct_size = sizeof(options), .slots = 3};
    dp_simulation_t whole = {.struct_size = sizeof(whole)};
    dp_simulation_t parts = simulate(schedule, DP_TRANSPORT_CREDITS, 3, &unit, 0);

    ck_assert_int_eq(dp_evaluate(schedule, &options, &unit, 1, &whole), DP_OK);
    ck_assert_double_eq(whole.step_time, parts.step_time);
    ck_assert_ptr_nonnull(whole.timeline);
    dp_simulation_clear(&whole);
    dp_simulation_clear(&parts);
    ck_assert_int_eq(dp_evaluate(schedule, &options, NULL, 0, &whole), DP_ERR_INVALID);
    options.slots = -2;
    ck_assert_int_eq(dp_evaluate(schedule, &options, &unit, 0, &whole), DP_ERR_INVALID);
    schedule->ops[1] = schedule->ops[0];
    ck_assert_int_eq(dp_evaluate(schedule, NULL, &unit, 0, &whole), DP_ERR_REJECTED);
    dp_simulation_clear(&whole);
    dp_schedule_free(schedule);
}
END_TEST

/* A newer caller's structs are longer than this library's: it reads and writes what it knows. */
START_TEST(structs_may_be_longer_than_known)
{
    dp_schedule_t *schedule = generate("1f1b", 2, 4, 0);
    dp_program_t *program = lower(schedule, DP_TRANSPORT_CREDITS, 2);
    struct {
        dp_costs_t known;
        double more;
    } costs = {unit, 5.0};
    struct {
        dp_simulation_t known;
        int64_t more;
    } got = {{.struct_size = sizeof(got)}, 7};

    costs.known.struct_size = sizeof(costs);
    ck_assert_int_eq(dp_simulate(program, &costs.known, 0, &got.known), DP_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "of dp_costs_t is set"));
    costs.more = 0;
    ck_assert_int_eq(dp_simulate(program, &costs.known, 0, &got.known), DP_OK);
    ck_assert_double_eq_tol(got.known.step_time, 15.0, 1e-12);
    ck_assert_uint_eq(got.known.struct_size, sizeof(got));
    dp_simulation_clear(&got.known);
    ck_assert_ptr_null(got.known.bubble);
    ck_assert_uint_eq(got.known.struct_size, sizeof(got));
    ck_assert_int_eq(got.more, 7);
    dp_program_free(program);
    dp_schedule_free(schedule);
}
END_TEST

START_TEST(ids_out_of_bounds_do_no_harm)
{
    uint64_t state = 5;
    dp_schedule_t *schedule = generate("dualpipev", 3, 7, 0);
    dp_program_t *program = lower(schedule, (dp_transport_t)_i, 2);
    int64_t n = program->first[program->ranks];

    for (int round = 0; round < 4000; round++) {
        dp_instr_t *instr, saved;
        dp_simulation_t got = {.struct_size = sizeof(got)};
        dp_status_t status;
        unsigned char *bytes;

        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        instr = &program->instrs[(state >> 33) % (uint64_t)n];
        saved = *instr;
        bytes = (unsigned char *)instr;
        bytes[(state >> 13) % sizeof(*instr)] ^= (unsigned char)(1u << (state >> 8) % 8);
        status = dp_simulate(program, &unit, 1, &got);
        ck_assert_msg(status == DP_OK || status == DP_ERR_INVALID || status == DP_ERR_REJECTED, "status %d", status);
        dp_simulation_clear(&got);
        *instr = saved;
    }
    dp_program_free(program);
    dp_schedule_free(schedule);
}
END_TEST

/* ---- another run of the program: every time from its definition, over and over until none changes
 * ---- */

typedef struct naive {
    const dp_program_t *program;
    const dp_costs_t *costs;
    double *ready;  /* per instruction. COMPUTE: end. SEND: left, or posted. RECV: arrived */
    double *posted; /* BUNDLES: SEND, RECV */
    double *begun;  /* BUNDLES: SEND: its bytes enter the link */
} naive_t;

/* The instruction of `kind` for a message; -1 when there is none. */
static int64_t find(const dp_program_t *p, int kind, int32_t channel, int32_t number)
{
    for (int64_t i = 0; i < p->first[p->ranks]; i++)
        if (p->instrs[i].kind == kind && p->instrs[i].channel == channel && p->instrs[i].number == number)
            return i;
    return -1;
}

static double released(const naive_t *n, int32_t channel, int32_t number)
{
    int64_t recv;
    int32_t rank = n->program->channels[channel].dst;

    if (number < 0)
        return 0.0;
    recv = find(n->program, DP_INSTR_RECV, channel, number) - n->program->first[rank];
    for (int64_t i = n->program->first[rank]; i < n->program->first[rank + 1]; i++)
        if (n->program->instrs[i].kind == DP_INSTR_COMPUTE &&
            (n->program->instrs[i].in == recv || n->program->instrs[i].in2 == recv))
            return n->ready[i];
    return -1.0;
}

static double max_known(double a, double b)
{
    return a < 0.0 || b < 0.0 ? -1.0 : fmax(a, b);
}

static double link_time(const naive_t *n)
{
    return n->costs->bandwidth > 0.0 ? n->costs->bytes / n->costs->bandwidth : 0.0;
}

/* The send before this one from the same rank to the same other; -1: none. */
static int64_t before_on_link(const naive_t *n, int64_t send)
{
    const dp_instr_t *instrs = n->program->instrs;
    int32_t src = n->program->channels[instrs[send].channel].src;

    for (int64_t i = send - 1; i >= n->program->first[src]; i--)
        if (instrs[i].kind == DP_INSTR_SEND && instrs[i].peer == instrs[send].peer)
            return i;
    return -1;
}

static double compute_time(const naive_t *n, int32_t rank, int64_t at, double lane)
{
    const dp_instr_t *x = &n->program->instrs[at];
    const double *base = n->ready + n->program->first[rank];
    double b = n->costs->b == 0 ? n->costs->i + n->costs->w : fmax(n->costs->b, 0);
    double fb = n->costs->fb == 0 ? n->costs->f + b : fmax(n->costs->fb, 0);
    double all[] = {n->costs->f, b, n->costs->i, n->costs->w, fb};
    bool shared = n->program->schedule->placement == DP_PLACE_V || n->program->schedule->placement == DP_PLACE_LOOP;
    double share = shared ? 1.0 / n->program->chunks : 1.0;

    if (x->in >= 0)
        lane = max_known(lane, base[x->in]);
    if (x->op == DP_OP_FB && x->in2 >= 0)
        lane = max_known(lane, base[x->in2]);
    return lane < 0.0 ? -1.0 : lane + all[x->op] * share;
}

static void naive_credits(naive_t *n, int32_t rank, int64_t at, double lane, double *last_send)
{
    const dp_instr_t *x = &n->program->instrs[at];

    if (x->kind == DP_INSTR_SEND) {
        n->ready[at] = max_known(max_known(lane, *last_send),
                                 released(n, x->channel, x->number - n->program->channels[x->channel].slots));
        if (before_on_link(n, at) >= 0)
            n->ready[at] = max_known(n->ready[at], n->ready[before_on_link(n, at)] + link_time(n));
        *last_send = n->ready[at];
    } else {
        double left = n->ready[find(n->program, DP_INSTR_SEND, x->channel, x->number)];

        n->ready[at] = left < 0.0 ? -1.0 : left + link_time(n) + n->costs->hop;
    }
    (void)rank;
}

/* All of a bundle at its first member: posted, then over. lanes: compute time before each
 * instruction. */
static void naive_bundle(naive_t *n, int32_t rank, int64_t at, const double *lanes, double *over_before)
{
    const dp_instr_t *instrs = n->program->instrs;
    double post = *over_before, over = 0.0;

    for (int64_t i = at; i < n->program->first[rank + 1]; i++) {
        if (instrs[i].bundle != instrs[at].bundle)
            continue;
        post = max_known(post, instrs[i].kind == DP_INSTR_SEND
                                   ? lanes[i]
                                   : released(n, instrs[i].channel,
                                              instrs[i].number - n->program->channels[instrs[i].channel].slots));
    }
    for (int64_t i = at; i < n->program->first[rank + 1]; i++) {
        int64_t other, send, before;

        if (instrs[i].bundle != instrs[at].bundle)
            continue;
        n->posted[i] = post;
        other = find(n->program, instrs[i].kind == DP_INSTR_SEND ? DP_INSTR_RECV : DP_INSTR_SEND, instrs[i].channel,
                     instrs[i].number);
        send = instrs[i].kind == DP_INSTR_SEND ? i : other;
        before = before_on_link(n, send);
        n->begun[send] = max_known(post, n->posted[other]);
        if (before >= 0)
            n->begun[send] = max_known(n->begun[send], n->begun[before] < 0.0 ? -1.0 : n->begun[before] + link_time(n));
        over = max_known(over, n->begun[send] < 0.0 ? -1.0 : n->begun[send] + link_time(n) + n->costs->hop);
    }
    for (int64_t i = at; i < n->program->first[rank + 1]; i++)
        if (instrs[i].bundle == instrs[at].bundle)
            n->ready[i] = over;
    *over_before = over;
}

static double naive_step(const dp_program_t *program, const dp_costs_t *costs)
{
    int64_t count = program->first[program->ranks];
    naive_t n = {program, costs, malloc((size_t)count * sizeof(double)), malloc((size_t)count * sizeof(double)),
                 malloc((size_t)count * sizeof(double))};
    double *lanes = malloc((size_t)count * sizeof(double)), sum = -1.0, before = -2.0, step = 0.0;

    for (int64_t i = 0; i < count; i++)
        n.ready[i] = n.posted[i] = n.begun[i] = -1.0;
    while (sum != before) {
        before = sum;
        sum = 0.0;
        for (int32_t r = 0; r < program->ranks; r++) {
            double lane = 0.0, comm = 0.0, over[2][8] = {{0.0}}; /* by kind and peer */
            int32_t bundle = -1;

            for (int64_t i = program->first[r]; i < program->first[r + 1]; i++) {
                if (program->instrs[i].kind == DP_INSTR_COMPUTE)
                    n.ready[i] = lane = lane < 0.0 ? -1.0 : compute_time(&n, r, i, lane);
                lanes[i] = lane;
            }
            for (int64_t i = program->first[r]; i < program->first[r + 1]; i++) {
                const dp_instr_t *x = &program->instrs[i];

                if (x->kind != DP_INSTR_SEND && x->kind != DP_INSTR_RECV)
                    continue;
                if (program->transport == DP_TRANSPORT_CREDITS)
                    naive_credits(&n, r, i, lanes[i], &comm);
                else if (x->bundle != bundle)
                    naive_bundle(&n, r, i, lanes, &over[x->kind == DP_INSTR_RECV][x->peer]);
                bundle = x->bundle;
            }
            for (int64_t i = program->first[r]; i < program->first[r + 1]; i++)
                sum += n.ready[i];
        }
    }
    for (int64_t i = 0; i < count; i++)
        if (program->instrs[i].kind == DP_INSTR_COMPUTE) {
            ck_assert(n.ready[i] >= 0.0);
            step = fmax(step, n.ready[i]);
        }
    free(n.ready);
    free(n.posted);
    free(n.begun);
    free(lanes);
    return step;
}

START_TEST(both_transports_equal_their_definition)
{
    static const struct {
        const char *method;
        int32_t ranks, microbatches;
    } all[] = {{"1f1b", 4, 6},      {"dualpipe", 4, 8}, {"dualpipe", 4, 12},
               {"dualpipev", 3, 7}, {"zbv", 3, 6},      {"interleaved", 3, 6}};
    static const dp_costs_t costs[] = {
        {.struct_size = sizeof(dp_costs_t), .f = 1, .i = 1, .w = 1, .barrier = 1},
        {.struct_size = sizeof(dp_costs_t), .f = 8, .i = 10, .w = 10, .b = 20, .fb = 23, .hop = 3, .barrier = 1},
        {.struct_size = sizeof(dp_costs_t), .f = 1, .i = 1, .w = 1, .hop = 1.75, .barrier = 1},
        {.struct_size = sizeof(dp_costs_t),
         .f = 1,
         .i = 1,
         .w = 1,
         .hop = 0.25,
         .barrier = 1,
         .bytes = 6,
         .bandwidth = 8},
        {.struct_size = sizeof(dp_costs_t), .f = 1, .i = 1, .w = 1, .barrier = 1, .bytes = 11, .bandwidth = 4}};

    for (size_t a = 0; a < sizeof(all) / sizeof(all[0]); a++) {
        dp_schedule_t *schedule = generate(all[a].method, all[a].ranks, all[a].microbatches, 0);

        for (int32_t slots = 1; slots <= 3; slots++) {
            for (int transport = DP_TRANSPORT_CREDITS; transport <= DP_TRANSPORT_BUNDLES; transport++) {
                dp_program_t *program = lower(schedule, (dp_transport_t)transport, slots);

                for (size_t c = 0; c < sizeof(costs) / sizeof(costs[0]); c++) {
                    dp_simulation_t got = {.struct_size = sizeof(got)};

                    ck_assert_int_eq(dp_simulate(program, &costs[c], 0, &got), DP_OK);
                    ck_assert_double_eq_tol(got.step_time, naive_step(program, &costs[c]), 1e-9);
                    dp_simulation_clear(&got);
                }
                dp_program_free(program);
            }
        }
        dp_schedule_free(schedule);
    }
}
END_TEST

/* ---- the timeline ---- */

static void check_messages(const dp_simulation_t *got, double hop)
{
    enum { MOST = 4096 };
    int64_t sent[MOST] = {0}, received[MOST] = {0};

    for (int32_t r = 0; r < got->ranks; r++) {
        int64_t count;
        const dp_span_t *spans = dp_timeline_spans(got->timeline, r, &count);

        for (int64_t i = 0; i < count; i++) {
            if (spans[i].kind != DP_SPAN_SEND && spans[i].kind != DP_SPAN_RECV)
                continue;
            ck_assert_uint_gt(spans[i].flow, 0);
            ck_assert_uint_lt(spans[i].flow, MOST);
            ck_assert_uint_eq(spans[i].lane, DP_LANE_P2P);
            (spans[i].kind == DP_SPAN_SEND ? sent : received)[spans[i].flow] += 1 + spans[i].end_ns;
            if (spans[i].kind == DP_SPAN_SEND)
                ck_assert_int_eq(spans[i].end_ns - spans[i].start_ns, llround(hop * 1e6));
        }
    }
    for (int f = 0; f < MOST; f++) {
        ck_assert_int_eq(sent[f] > 0, received[f] > 0);
        ck_assert_int_ge(received[f], sent[f]); /* waited for, or there before */
    }
}

START_TEST(the_timeline_shows_what_the_figures_say)
{
    static const char *const methods[] = {"1f1b", "dualpipe", "dualpipev", "interleaved"};

    for (size_t m = 0; m < 4; m++) {
        dp_schedule_t *schedule = generate(methods[m], 4, 12, 0);
        dp_costs_t costs = {
            .struct_size = sizeof(costs), .f = 8, .i = 10, .w = 9, .b = 20, .fb = 23, .hop = 1.5, .barrier = 1};
        dp_simulation_t got = simulate(schedule, DP_TRANSPORT_CREDITS, 2, &costs, 1);

        ck_assert_int_eq(dp_timeline_ranks(got.timeline), 4);
        for (int32_t r = 0; r < 4; r++) {
            dp_rank_report_t report = {.struct_size = sizeof(report)};

            ck_assert_int_eq(dp_timeline_report(got.timeline, r, 0, 0, &report), DP_OK);
            ck_assert_int_le(llabs(report.window - llround(got.step_time * 1e6)), 1);
            ck_assert_int_le(llabs(report.bubble - llround(got.bubble[r] * 1e6)), 100);
            ck_assert_int_le(report.waiting, report.bubble); /* what is waited for is idle time */
            ck_assert_int_eq(dp_timeline_lost(got.timeline, r), 0);
        }
        check_messages(&got, 1.5);
        dp_simulation_clear(&got);
        dp_schedule_free(schedule);
    }
}
END_TEST

START_TEST(memory_that_runs_out_is_an_error_without_leak)
{
    dp_schedule_t *schedule = generate("dualpipe", 2, 4, 0);
    dp_program_t *program = lower(schedule, DP_TRANSPORT_CREDITS, 2);
    bool struck = true;
    long k;

    oom_install();
    for (k = 0; struck; k++) {
        dp_simulation_t got = {.struct_size = sizeof(got)};
        dp_status_t status;

        oom_arm(k, false);
        status = dp_simulate(program, &unit, 1, &got);
        struck = oom_struck();
        oom_disarm();
        ck_assert_int_eq(status, struck ? DP_ERR_NOMEM : DP_OK);
        dp_simulation_clear(&got);
        ck_assert_int_eq(oom_live(), 0);
    }
    ck_assert_int_gt(k, 8);
    oom_uninstall();
    dp_program_free(program);
    dp_schedule_free(schedule);
}
END_TEST

/* ---- hosts ---- */

/* One micro-batch there and back: 4 F, 4 B, and twice what lies between neighbours. */
START_TEST(ways_within_and_between_hosts_by_hand)
{
    static const struct {
        int32_t host_of[4];
        double step;
    } cases[] = {
        {{7, 7, 7, 7}, 12 + 2 * (0.5 + 0.5 + 0.5)},
        {{0, 0, 1, 1}, 12 + 2 * (0.5 + 10 + 0.5)},
        {{0, 1, 0, 1}, 12 + 2 * (10 + 10 + 10)},
        {{0, 1, 1, 0}, 12 + 2 * (10 + 0.5 + 10)},
    };
    dp_topology_t topology = {.struct_size = sizeof(topology),
                              .ranks = 4,
                              .host_of = cases[_i].host_of,
                              .near_hop = 0.5,
                              .far_hop = 5,
                              .far_bandwidth = 2};
    dp_costs_t costs = {.struct_size = sizeof(costs),
                        .f = 1,
                        .b = 2,
                        .barrier = 1,
                        .hop = 1000, /* the topology's counts */
                        .bytes = 10,
                        .topology = &topology};
    dp_schedule_t *schedule = generate("1f1b", 4, 1, 0);

    for (int transport = DP_TRANSPORT_CREDITS; transport <= DP_TRANSPORT_BUNDLES; transport++) {
        dp_simulation_t result = simulate(schedule, (dp_transport_t)transport, 2, &costs, 0);

        ck_assert_double_eq_tol(result.step_time, cases[_i].step, 1e-12);
        dp_simulation_clear(&result);
    }
    dp_schedule_free(schedule);
}
END_TEST

/* Three messages that each take a slow link for 5: with a slot for each they follow one another;
 * with two slots the third waits until the first was used, at 12 on the way there and at 37 on the
 * way back. */
START_TEST(a_slow_link_between_hosts_by_hand)
{
    static const int32_t host_of[] = {0, 1};
    dp_topology_t topology = {
        .struct_size = sizeof(topology), .ranks = 2, .host_of = host_of, .far_hop = 5, .far_bandwidth = 2};
    dp_costs_t costs = {.struct_size = sizeof(costs), .f = 1, .b = 2, .barrier = 1, .bytes = 10, .topology = &topology};
    dp_schedule_t *schedule = generate("gpipe", 2, 3, 0);
    dp_simulation_t three = simulate(schedule, DP_TRANSPORT_CREDITS, 3, &costs, 0),
                    two = simulate(schedule, DP_TRANSPORT_CREDITS, 2, &costs, 0);

    ck_assert_double_eq_tol(three.step_time, 46, 1e-12);
    ck_assert_double_eq_tol(two.step_time, 49, 1e-12);
    dp_simulation_clear(&three);
    dp_simulation_clear(&two);
    dp_schedule_free(schedule);
}
END_TEST

/* 1f1b on two ranks, two micro-batches, hops of 3. Rank 0: F0 0-1, F1 1-2. Rank 1: F0 4-5, B0 5-7,
 * F1 7-8, B1 8-10. A B of 2 hands its gradient on at its end, one of a segment behind its I: at 7
 * and 10, or at 6 and 9. Rank 0: B0 10-12, B1 13-15, or 9-11 and 12-14. */
START_TEST(gradients_leave_behind_i_of_a_segment_by_hand)
{
    const dp_segment_cost_t list[] = {{0, DP_LANE_COMPUTE, 1, 1, 0, 1, 1, 1}, {0, DP_LANE_COMPUTE, 1, 1, 0, 1, 1, 1}};
    const int32_t first[] = {0, 1, 2};
    const dp_segment_costs_t segments = {.struct_size = sizeof(segments), .stages = 2, .first = first, .list = list};
    dp_costs_t costs = {.struct_size = sizeof(costs), .f = 1, .i = 1, .w = 1, .barrier = 1, .hop = 3};
    dp_schedule_t *schedule = generate("1f1b", 2, 2, 0);
    dp_simulation_t at_end = simulate(schedule, DP_TRANSPORT_CREDITS, 2, &costs, 0), early;

    costs.segments = &segments;
    early = simulate(schedule, DP_TRANSPORT_CREDITS, 2, &costs, 0);
    ck_assert_double_eq_tol(at_end.step_time, 15, 1e-12);
    ck_assert_double_eq_tol(early.step_time, 14, 1e-12);
    dp_simulation_clear(&at_end);
    dp_simulation_clear(&early);
    dp_schedule_free(schedule);
}
END_TEST

START_TEST(a_topology_that_makes_no_sense_is_refused)
{
    static const int32_t host_of[] = {0, 1, 2};
    const dp_topology_t right = {.struct_size = sizeof(right), .ranks = 2, .host_of = host_of, .far_hop = 1};
    dp_topology_t wrong[] = {right, right, right, right, right};
    dp_schedule_t *schedule = generate("gpipe", 2, 3, 0);
    dp_program_t *program = lower(schedule, DP_TRANSPORT_CREDITS, 2);

    wrong[0].struct_size = 8;
    wrong[1].ranks = 3;
    wrong[2].near_hop = -1;
    wrong[3].far_bandwidth = NAN;
    wrong[4].far_bandwidth = 1e-300; /* a message would take for ever */
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        dp_costs_t costs = unit;
        dp_simulation_t result = {.struct_size = sizeof(result)};

        costs.bytes = 1e6;
        costs.topology = &wrong[i];
        ck_assert_int_eq(dp_simulate(program, &costs, 0, &result), DP_ERR_INVALID);
        ck_assert_msg(strstr(dp_last_error(), "topology") != NULL, "%s", dp_last_error());
    }
    dp_program_free(program);
    dp_schedule_free(schedule);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("simulate");
    TCase *hosts = tcase_create("hosts");
    TCase *transports = tcase_create("both transports");

    tcase_add_loop_test(transports, a_program_that_cannot_finish_is_rejected, DP_TRANSPORT_CREDITS,
                        DP_TRANSPORT_BUNDLES + 1);
    tcase_add_loop_test(transports, ids_out_of_bounds_do_no_harm, DP_TRANSPORT_CREDITS, DP_TRANSPORT_BUNDLES + 1);
    suite_add_tcase(suite, transports);
    tcase_add_loop_test(hosts, ways_within_and_between_hosts_by_hand, 0, 4);
    tcase_add_test(hosts, gradients_leave_behind_i_of_a_segment_by_hand);
    tcase_add_test(hosts, a_slow_link_between_hosts_by_hand);
    tcase_add_test(hosts, a_topology_that_makes_no_sense_is_refused);
    suite_add_tcase(suite, hosts);
    SUITE_ADD(suite, transfers_without_limit_are_dataflow);
    SUITE_ADD(suite, recorded_replays_come_out);
    SUITE_ADD(suite, time_lost_at_unit_costs);
    SUITE_ADD(suite, a_slot_holds_back_its_next_message);
    SUITE_ADD(suite, a_link_passes_one_message_at_a_time);
    SUITE_ADD(suite, weights_and_activations_by_hand);
    SUITE_ADD(suite, a_pair_of_unlike_stages_gains_in_proportion);
    SUITE_ADD(suite, a_slow_rank_is_a_rank_of_slow_stages);
    SUITE_ADD(suite, hosts_are_links_one_by_one);
    SUITE_ADD(suite, a_slow_rank_of_two_directions_is_busy_longer);
    SUITE_ADD(suite, wrong_arguments_are_refused);
    SUITE_ADD(suite, evaluation_is_three_calls);
    SUITE_ADD(suite, structs_may_be_longer_than_known);
    SUITE_ADD(suite, both_transports_equal_their_definition);
    SUITE_ADD(suite, the_timeline_shows_what_the_figures_say);
    SUITE_ADD(suite, memory_that_runs_out_is_an_error_without_leak);
    return suite_run(suite);
}
