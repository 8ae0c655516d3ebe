/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_braids.c: braids in schedules: what is refused and with which words, text and back, orders,
 * what stands where in the program. */
#include "tests/support/braided.h"
#include "tests/support/suite.h"

#include "program/braid.h"
#include <dualpipe/simulate.h>

#include <stdio.h>

typedef struct text {
    char at[1 << 16];
    size_t used;
} text_t;

static dp_status_t keep(void *user, const char *text, size_t bytes)
{
    text_t *t = user;

    ck_assert_uint_lt(t->used + bytes, sizeof(t->at));
    memcpy(t->at + t->used, text, bytes);
    t->used += bytes;
    t->at[t->used] = '\0';
    return DP_OK;
}

#define HEAD "# method=custom ranks=1 microbatches=3 chunks=1 placement=line\n"
#define NONE "\t-1\t-1\t-1\t-1\t-1\t-1"

static dp_status_t read_text(const char *rows, dp_schedule_t **schedule)
{
    char text[4096];

    snprintf(text, sizeof(text), "%s%s", HEAD, rows);
    return dp_schedule_read_tsv("FILE", text, strlen(text), schedule);
}

/* Read, and refused by the line; or verified, and refused by the pass. */
static const struct {
    const char *rows, *why;
} refused[] = {
    {"0\t0\tF0.0+\t-1\t-1\t-1\t-1\t-1\t-1\n", "FILE:2: '' is no pass of a braid"},
    {"0\t0\tX0.0+F0.1" NONE "\n", "FILE:2: 'X0.0' is no pass"},
    {"0\t0\tF0.3+F0.1" NONE "\n", "micro-batch 3; a path has 3"},
    {"0\t0\tF0.0+F0.1\t0\t-1\t-1\t-1\t-1\t-1\n", "a braid holds -1 in its columns dir to n"},
    {"0\t0\tF0.0+F0.1" NONE "\tabc\n", "'c' in its order is none of its 2 passes"},
    {"0\t0\tF0.0+F0.1" NONE "\tabA\n", "pass a is no B"},
    {"0\t0\tF0.0+F0.1" NONE "\taaaa\n", "pass b (F chunk 0 mb 1): it has no letter"},
    {"0\t0\tF0.0+F0.1" NONE "\taaab\n", "another pass of its chunk has another number"},
    {"0\t0\tF0.0+F0.1" NONE "\tabba\n", "it overtakes a pass of the same kind and chunk"},
    {"0\t0\tF0.0+B0.0" NONE "\tabaBbB\n", "no forward of this micro-batch comes before its backward"},
    {"0\t0\tF0.0+B0.0" NONE "\tcanonical\n", "no forward of this micro-batch comes before its backward"},
    {"0\t0\tF0.0+B0.0" NONE "\taaBbbB\n", "a W stands before the I of its segment"},
    {"0\t0\tF0.0+B0.0" NONE "\taabBb\n", "its I and its W have not the same number"},
    {"0\t0\tF0.0+F0.0" NONE "\tturns\n", "this forward was listed before"},
    {"0\t0\tF0.0+F0.1" NONE "\tturns\n0\t1\tI0.0+W0.0" NONE "\tabab\n", "no I of this micro-batch comes before it"},
    {"0\t0\tF0.0+F0.1" NONE "\tturns\n", "rank 0 has no B or I of chunk 0 mb 0"},
};

START_TEST(refusals)
{
    dp_schedule_t *schedule;
    dp_status_t status = read_text(refused[_i].rows, &schedule);

    if (status >= 0)
        status = dp_schedule_verify(schedule);
    ck_assert_msg(status == DP_ERR_INVALID || status == DP_ERR_REJECTED, "row %d was accepted", _i);
    ck_assert_msg(strstr(dp_last_error(), refused[_i].why) != NULL, "%d: %s", _i, dp_last_error());
    if (schedule != NULL) {
        dp_program_t *program;

        ck_assert_int_lt(dp_program_lower(schedule, NULL, &program), 0);
    }
    dp_schedule_free(schedule);
}
END_TEST

/* F, I and W of one micro-batch, one after the other in one braid; the rest beside them. */
START_TEST(one_braid_is_a_step)
{
    static const char rows[] = "0\t0\tF0.0+F0.1+B0.0+F0.2+I0.1+B0.2+W0.1" NONE "\taabbccCCddeeffFFgg\n";
    dp_schedule_t *schedule, *back;
    dp_program_t *program;
    dp_verify_report_t report = {.struct_size = sizeof(report)};
    const dp_segment_costs_t layer = {.struct_size = sizeof(layer), .layers = 1, .f = {1, 1, 1, 1}};
    const dp_segment_cost_t list[2] = {{.lane = 0, .f = 1, .i = 2, .w = 3, .has_weight = 1, .begins_part = 1},
                                       {.lane = 1, .f = 10, .i = 20}};
    const int32_t first[2] = {0, 2};
    const dp_segment_costs_t two = {.struct_size = sizeof(two), .stages = 1, .first = first, .list = list};
    dp_costs_t costs = {.struct_size = sizeof(costs), .segments = &two};
    dp_simulation_t result = {.struct_size = sizeof(result)};
    static text_t text, again;
    size_t starts = 0;

    ck_assert_msg(read_text(rows, &schedule) == DP_OK, "%s", dp_last_error());
    ck_assert_msg(dp_schedule_verify(schedule) == DP_OK, "%s", dp_last_error());
    ck_assert_msg(dp_program_lower(schedule, NULL, &program) == DP_OK, "%s", dp_last_error());
    ck_assert_msg(dp_program_verify(program, &report) == DP_OK, "%s", dp_last_error());
    ck_assert_int_eq(report.peak_activations, 2);
    ck_assert_int_eq(program->activation_slots[0], 2);
    ck_assert_int_eq(report.ordered_weights, 0); /* W of 1 comes after that of 2 */
    for (int64_t i = 0; i < program->first[1]; i++)
        starts += program->instrs[i].kind == DP_INSTR_START;
    ck_assert_uint_eq(starts, 7);
    /* lane 0: F0 1, F1 2; lane 1: F0 11, F1 21, I0 41; lane 0: I0 43, W0 46, F2 47; lane 1: F2 57,
     * I1 77, I2 97; lane 0: I1 79, I2 99, W2 102, W1 105 */
    ck_assert_msg(dp_simulate(program, &costs, 0, &result) == DP_OK, "%s", dp_last_error());
    ck_assert_double_eq_tol(result.step_time, 105, 1e-9);
    dp_simulation_clear(&result);
    costs.segments = &layer; /* four segments, two letters */
    ck_assert_int_eq(dp_simulate(program, &costs, 0, &result), DP_ERR_REJECTED);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "one letter for every segment"));

    ck_assert_int_eq(dp_schedule_write_tsv(schedule, -1, keep, &text), DP_OK);
    ck_assert_int_eq(dp_schedule_read_tsv("again", text.at, text.used, &back), DP_OK);
    ck_assert_int_eq(dp_schedule_write_tsv(back, -1, keep, &again), DP_OK);
    ck_assert_str_eq(text.at, again.at);
    ck_assert_int_eq(dp_schedule_write_csv(schedule, -1, keep, &text), DP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "row 1, operation 1 is a braid of 7 passes"));
    dp_program_free(program);
    dp_schedule_free(schedule);
    dp_schedule_free(back);
}
END_TEST

/* FB and the braid {F, B} in canonical order are one thing: same text in CSV, same times, bit for
 * bit. */
START_TEST(a_pair_is_a_braid)
{
    static const char *const methods[] = {"dualpipe", "dualpipev", "interleaved_overlap"};
    const dp_segment_costs_t segments = {.struct_size = sizeof(segments),
                                         .layers = 4,
                                         .f = {4.4, 6.7, 4.6, 8.7},
                                         .i = {9.3, 7.5, 5.3, 5.8},
                                         .w = {2.4, 0, 5.1, 0}};
    const dp_costs_t costs = {.struct_size = sizeof(costs), .segments = &segments};
    dp_schedule_request_t request = {
        .struct_size = sizeof(request), .method = methods[_i], .ranks = 4, .microbatches = 12};
    dp_simulation_t a = {.struct_size = sizeof(a)}, b = {.struct_size = sizeof(b)};
    dp_schedule_t *pairs, *braids;
    dp_program_t *p, *q;
    static text_t text, again;
    int64_t counts[4];

    ck_assert_int_eq(dp_schedule_generate(&request, &pairs), DP_OK);
    for (int r = 0; r < 4; r++)
        counts[r] = pairs->first[r + 1] - pairs->first[r];
    ck_assert_int_eq(dp_schedule_create(pairs->method, pairs->placement, 4, 12, pairs->chunks, counts, &braids), DP_OK);
    for (int64_t i = 0; i < pairs->first[4]; i++) {
        const dp_op_t *op = &pairs->ops[i];
        const dp_pass_t passes[2] = {{DP_OP_F, 0, op->chunk, op->microbatch},
                                     {DP_OP_B, 0, op->chunk2, op->microbatch2}};
        int32_t number;

        braids->ops[i] = *op;
        if (op->kind != DP_OP_FB)
            continue;
        ck_assert_int_eq(dp_schedule_add_braid(braids, &(dp_braid_t){2, passes, i % 2 ? NULL : "canonical"}, &number),
                         DP_OK);
        braids->ops[i] = (dp_op_t){DP_OP_BRAID, -1, -1, number, -1};
    }
    text.used = again.used = 0;
    ck_assert_int_eq(dp_schedule_write_csv(pairs, -1, keep, &text), DP_OK);
    ck_assert_int_eq(dp_schedule_write_csv(braids, -1, keep, &again), DP_OK);
    ck_assert_str_eq(text.at, again.at);
    ck_assert_int_eq(dp_program_lower(pairs, NULL, &p), DP_OK);
    ck_assert_msg(dp_program_lower(braids, NULL, &q) == DP_OK, "%s", dp_last_error());
    ck_assert_int_eq(dp_program_verify(q, NULL), DP_OK);
    ck_assert_int_eq(dp_simulate(p, &costs, 0, &a), DP_OK);
    ck_assert_int_eq(dp_simulate(q, &costs, 0, &b), DP_OK);
    ck_assert_double_eq_tol(a.step_time, b.step_time, 1e-9);
    dp_simulation_clear(&a);
    dp_simulation_clear(&b);
    dp_program_free(p);
    dp_program_free(q);
    dp_schedule_free(pairs);
    dp_schedule_free(braids);
}
END_TEST

/* "F0 I3 W3 ..." with the pass in front; of a layer cut finer where there are seven segments, and
 * with its transfers posted where there are minus seven. */
static void order_of(const char *order, const char *kinds, int segments, char *out)
{
    static const dp__segment_shape_t coarse[4] = {{DP_ROLE_ATTENTION, 0, 1, 1, 0},
                                                  {DP_ROLE_DISPATCH, 1, 0, 0, 0},
                                                  {DP_ROLE_MLP, 0, 1, 0, 0},
                                                  {DP_ROLE_COMBINE, 1, 0, 0, 0}};
    static const dp__segment_shape_t fine[7] = {{DP_ROLE_PROJECT, 0, 1, 1, 0},  {DP_ROLE_ATTENTION, 0, 1, 0, 0},
                                                {DP_ROLE_DISPATCH, 1, 0, 0, 0}, {DP_ROLE_MLP, 0, 1, 0, 0},
                                                {DP_ROLE_SHARED, 0, 1, 0, 0},   {DP_ROLE_COMBINE, 1, 0, 0, 0},
                                                {DP_ROLE_SUM, 0, 0, 0, 0}};
    dp__segment_shape_t posted[7];
    const dp__segment_shape_t *shapes = segments == 7 ? fine : segments == -7 ? posted : coarse;
    const dp__stage_shape_t stage = {.nsegments = abs(segments), .segments = shapes}, *stages[8];
    dp__braid_step_t steps[64];
    dp__pair_step_t scratch[64];
    dp_pass_t passes[8];
    int n = 0;
    int32_t count;

    memcpy(posted, fine, sizeof(posted));
    for (int k = 0; k < 7; k++)
        posted[k].lane = 0;
    for (; kinds[n] != '\0'; n++) {
        stages[n] = &stage;
        passes[n] = (dp_pass_t){kinds[n] == 'F'   ? DP_OP_F
                                : kinds[n] == 'B' ? DP_OP_B
                                : kinds[n] == 'I' ? DP_OP_I
                                                  : DP_OP_W,
                                0, 0, n};
    }
    count = dp__braid_order(order, passes, n, stages, steps, scratch);
    *out = '\0';
    for (int32_t k = 0; k < count; k++)
        if (steps[k].op != DP_OP_W || shapes[steps[k].segment].has_weight)
            sprintf(out + strlen(out), "%s%c%s%d", *out != '\0' ? " " : "", 'a' + steps[k].pass,
                    dp_op_kind_name(steps[k].op), steps[k].segment);
    if (count < 0)
        strcpy(out, "none");
}

static const struct {
    const char *order, *kinds;
    int segments;
    const char *steps;
} orders[] = {
    {"canonical", "FB", 4, "bI3 aF0 bI2 aF1 bI1 bW2 aF2 bI0 bW0 aF3"},
    {"canonical", "BF", 4, "aI3 bF0 aI2 bF1 aI1 aW2 bF2 aI0 aW0 bF3"},
    {"canonical", "FI", 4, "bI3 aF0 bI2 aF1 bI1 aF2 bI0 aF3"},
    {"canonical", "FF", 4, "aF0 bF0 aF1 bF1 aF2 bF2 aF3 bF3"}, /* turns */
    {"canonical", "W", 4, "aW2 aW0"},
    {"turns", "FB", 4, "aF0 bI3 aF1 bI2 bW2 aF2 bI1 aF3 bI0 bW0"},
    {"turns", "IW", 4, "aI3 aI2 bW2 aI1 aI0 bW0"},
    {"prefill", "FF", 4, "aF0 aF1 bF0 bF1 aF2 aF3 bF2 bF3"},
    {"prefill", "FFF", 4, "aF0 aF1 bF0 bF1 aF2 aF3 bF2 bF3 cF0 cF1 cF2 cF3"},
    {"prefill", "FBF", 4, "aF0 bI3 cF0 aF1 bI2 bW2 cF1 aF2 bI1 cF2 aF3 bI0 bW0 cF3"}, /* turns */
    {"decode", "F", 4, "aF0 aF1 aF2 aF3"},
    {"canonical", "FB", 7, "bI6 bI5 aF0 aF1 bI4 bI3 aF2 bI2 bW4 bW3 aF3 aF4 bI1 bI0 bW1 bW0 aF5 aF6"},
    {"aa+aaaaa", "F", 7, "aF0 aF1 aF4 aF2 aF3 aF5 aF6"},
    {"aaaaa+aa", "F", -7, "aF0 aF1 aF2 aF3 aF5 aF4 aF6"},
    {"aaa+aaaa", "F", -7, "aF0 aF1 aF2 aF4 aF3 aF5 aF6"},
    {"a+aaaaaa", "F", -7, "none"},
    {"aaaaaa+a", "F", -7, "none"},
    {"a+aaaaaa", "I", -7, "aI6 aI4 aI5 aI3 aI2 aI1 aI0"},
    {"aaa+aaaa", "I", 7, "none"},
    {"aabbBB", "FB", 2, "aF0 aF1 bI1 bI0 bW0"},
    {"abBabB", "FB", 2, "aF0 bI1 aF1 bI0 bW0"},
    {"aabbB", "FB", 2, "none"},
    {"aabbBBB", "FB", 2, "none"},
    {"aaabbB", "FB", 2, "none"},
    {"aabBbB", "FB", 3, "none"},
};

START_TEST(known_orders)
{
    char steps[512];

    order_of(orders[_i].order, orders[_i].kinds, orders[_i].segments, steps);
    ck_assert_str_eq(steps, orders[_i].steps);
}
END_TEST

/* What is published of two micro-batches: "attention1" is that of micro-batch 1. Micro-batch 1 is
 * ahead in prefill, 0 in decode. */
static const struct {
    const char *order;
    int ahead; /* the micro-batch */
    int fine;  /* attention in two */
    const char *compute, *all_to_all;
} published[] = {
    {"prefill", 1, 0, "attention1 shared0 attention0 mlp1 mlp0 shared1", "combine0 dispatch1 dispatch0 combine1"},
    {"decode", 0, 1, "shared0 project1 mlp0 attention1 shared1 project0 mlp1 attention0",
     "dispatch0 combine0 dispatch1 combine1"},
};

enum { PUBLISHED_LAYERS = 6 };

/* One lane of a braid of two forwards, without sums. */
static void lane_of_order(int which, int lane, char *out)
{
    static const char *const names[] = {"other", "attention", "dispatch", "mlp", "combine", "project", "shared", "sum"};
    static const uint8_t roles[] = {DP_ROLE_PROJECT, DP_ROLE_ATTENTION, DP_ROLE_DISPATCH, DP_ROLE_MLP,
                                    DP_ROLE_SHARED,  DP_ROLE_COMBINE,   DP_ROLE_SUM};
    dp__segment_shape_t shapes[2 + 7 * PUBLISHED_LAYERS];
    const dp__stage_shape_t stage = {.nsegments = 0, .segments = shapes}, *stages[2];
    dp__stage_shape_t full = stage;
    dp__braid_step_t steps[4 * (2 + 7 * PUBLISHED_LAYERS)];
    dp__pair_step_t scratch[3 * (2 + 7 * PUBLISHED_LAYERS)];
    const dp_pass_t passes[2] = {{DP_OP_F, 0, 0, 0}, {DP_OP_F, 0, 0, 1}};
    int n = 0, taken[2] = {0};
    int32_t count;

    shapes[n++] = (dp__segment_shape_t){DP_ROLE_OTHER, 0, 0, 1, 0}; /* an embedding */
    for (int l = 0; l < PUBLISHED_LAYERS; l++)
        for (int k = published[which].fine ? 0 : 1; k < 7; k++)
            shapes[n++] =
                (dp__segment_shape_t){roles[k], roles[k] == DP_ROLE_DISPATCH || roles[k] == DP_ROLE_COMBINE, 0, 0, 0};
    shapes[n++] = (dp__segment_shape_t){DP_ROLE_OTHER, 0, 0, 1, 0}; /* a head */
    full.nsegments = n;
    stages[0] = stages[1] = &full;
    count = dp__braid_order(published[which].order, passes, 2, stages, steps, scratch);
    ck_assert_int_eq(count, 2 * n);
    *out = '\0';
    for (int32_t k = 0; k < count; k++) {
        const dp__segment_shape_t *shape = &shapes[steps[k].segment];

        taken[steps[k].pass]++;
        if (shape->lane == lane && shape->role != DP_ROLE_SUM && shape->role != DP_ROLE_OTHER)
            sprintf(out + strlen(out), "%s%d ", names[shape->role],
                    steps[k].pass == 0 ? published[which].ahead : 1 - published[which].ahead);
    }
    ck_assert_int_eq(taken[0], n);
    ck_assert_int_eq(taken[1], n);
}

/* From the second layer until the last, both lanes are the published cycle over and over. */
START_TEST(published_orders)
{
    for (int lane = 0; lane < 2; lane++) {
        const char *cycle = lane == 0 ? published[_i].compute : published[_i].all_to_all;
        char text[8192], expected[8192] = "";

        for (int l = 0; l < PUBLISHED_LAYERS - 2; l++)
            sprintf(expected + strlen(expected), "%s ", cycle);
        lane_of_order(_i, lane, text);
        ck_assert_msg(strstr(text, expected) != NULL, "%s, lane %d: %s", published[_i].order, lane, text);
    }
}
END_TEST

/* Six forwards are two of three times as many layers. */
START_TEST(forwards_follow_each_other_without_a_break)
{
    enum { LAYERS = 2, LENGTH = 7, PASSES = 6, ALL = PASSES * LAYERS * LENGTH };
    static const uint8_t roles[LENGTH] = {DP_ROLE_PROJECT, DP_ROLE_ATTENTION, DP_ROLE_DISPATCH, DP_ROLE_MLP,
                                          DP_ROLE_SHARED,  DP_ROLE_COMBINE,   DP_ROLE_SUM};
    dp__segment_shape_t shapes[ALL / 2] = {{0}};
    const dp__stage_shape_t one = {.nsegments = LAYERS * LENGTH, .segments = shapes};
    const dp__stage_shape_t three = {.nsegments = ALL / 2, .segments = shapes};
    const dp__stage_shape_t *many[PASSES] = {&one, &one, &one, &one, &one, &one}, *two[2] = {&three, &three};
    dp_pass_t passes[PASSES] = {{.kind = DP_OP_F}};
    dp__braid_step_t steps[2][2 * ALL];
    dp__pair_step_t scratch[3 * ALL];

    for (int k = 0; k < ALL / 2; k++)
        shapes[k].role = roles[k % LENGTH];
    for (int32_t k = 0; k < PASSES; k++)
        passes[k].microbatch = k;
    ck_assert_int_eq(dp__braid_order(published[_i].order, passes, PASSES, many, steps[0], scratch), ALL);
    ck_assert_int_eq(dp__braid_order(published[_i].order, passes, 2, two, steps[1], scratch), ALL);
    for (int k = 0; k < ALL; k++) {
        ck_assert_int_eq(steps[0][k].pass % 2, steps[1][k].pass);
        ck_assert_int_eq(steps[0][k].pass / 2, steps[1][k].segment / (LAYERS * LENGTH));
        ck_assert_int_eq(steps[0][k].segment, steps[1][k].segment % (LAYERS * LENGTH));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("braids");
    TCase *tc = tcase_create("braids");

    tcase_add_loop_test(tc, refusals, 0, (int)(sizeof(refused) / sizeof(refused[0])));
    tcase_add_test(tc, one_braid_is_a_step);
    tcase_add_loop_test(tc, a_pair_is_a_braid, 0, 3);
    tcase_add_loop_test(tc, known_orders, 0, (int)(sizeof(orders) / sizeof(orders[0])));
    tcase_add_loop_test(tc, published_orders, 0, 2);
    tcase_add_loop_test(tc, forwards_follow_each_other_without_a_break, 0, 2);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
