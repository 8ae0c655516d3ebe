/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_schedule_methods.c: what each method promises: idle time, memory, limits, and the order of
 * weight gradients. */
#include "tests/support/golden.h"
#include "tests/support/replay.h"
#include "tests/support/suite.h"

#include <dualpipe/program.h>
#include <stdbool.h>

static dp_status_t try(const char *method, int32_t ranks, int32_t microbatches, int32_t chunks, dp_schedule_t **s)
{
    dp_schedule_request_t request = {sizeof(request), method, ranks, microbatches, chunks, 0, 0};

    return dp_schedule_generate(&request, s);
}

static dp_schedule_t *generate(const char *method, int32_t ranks, int32_t microbatches, int32_t chunks)
{
    dp_schedule_t *s = NULL;

    ck_assert_msg(try(method, ranks, microbatches, chunks, &s) == DP_OK, "%s", dp_last_error());
    return s;
}

/* ---- idle time and memory on equal devices ---- */

/* Idle time of every rank at F = I = W = 1 for a device's whole share, a pair without gain, and the
 * most chunks of activations on a rank. -1: the size is refused. */
static const struct {
    const char *method;
    int32_t chunks;
    double idle[4]; /* P=4 M=20, P=8 M=20, P=8 M=40, P=16 M=64 */
    int32_t peak;   /* P=8 M=40 */
} table[] = {
    {"gpipe", 0, {9, 21, 21, 45}, 40},
    {"1f1b", 0, {9, 21, 21, 45}, 8},
    {"interleaved", 2, {4.5, -1, 10.5, 22.5}, 23},
    {"interleaved", 4, {2.25, -1, 5.25, 11.25}, 39},
    {"zb1p", 0, {3, 7, 7, 15}, 8},
    {"looped_bfs", 2, {4.5, 10.5, 10.5, 22.5}, 80},
    {"looped_bfs", 4, {2.25, 5.25, 5.25, 11.25}, 160},
    {"interleaved_zb", 2, {1.5, -1, 3.5, 7.5}, 16},
    {"interleaved_zb", 4, {0.75, -1, 1.75, 3.75}, 32},
    {"zbv", 0, {1.5, 3.5, 3.5, 7.5}, 16},
    {"v-half", 0, {4.5, 10.5, 10.5, 22.5}, 10},
    {"v-min", 0, {5.5, 13.5, 13.5, 29.5}, 8},
    {"dualpipe", 0, {2, 6, 6, 14}, 9},
    {"dualpipev", 0, {3, 7, 7, 15}, 17},
    {"interleaved_overlap", 1, {9, 21, 21, 45}, 16},
    {"interleaved_overlap", 2, {4.5, -1, 10.5, 22.5}, 24},
    {"interleaved_overlap", 4, {2.25, -1, 5.25, 11.25}, 40},
};

START_TEST(idle_time_and_memory)
{
    static const int32_t sizes[4][2] = {{4, 20}, {8, 20}, {8, 40}, {16, 64}};

    for (int k = 0; k < 4; k++) {
        dp_schedule_t *s = NULL;
        replay_cost_t cost;
        replay_result_t result;
        double unit;

        if (table[_i].idle[k] < 0) {
            ck_assert_int_eq(try(table[_i].method, sizes[k][0], sizes[k][1], table[_i].chunks, &s), DP_ERR_INVALID);
            continue;
        }
        s = generate(table[_i].method, sizes[k][0], sizes[k][1], table[_i].chunks);
        unit = s->placement == DP_PLACE_BIDIRECTIONAL ? 1 : 1.0 / s->chunks;
        cost = (replay_cost_t){unit, 2 * unit, unit, unit, 3 * unit};
        result = replay(s, &cost);
        ck_assert_int_eq(result.stuck, 0);
        ck_assert_double_eq(result.idle_min, table[_i].idle[k]);
        ck_assert_double_eq(result.idle_max, table[_i].idle[k]);
        if (sizes[k][1] == 40) {
            dp_lower_options_t options = {.struct_size = sizeof(options), .slots = 8};
            dp_verify_report_t report = {.struct_size = sizeof(report)};
            dp_program_t *p;

            ck_assert_int_eq(dp_program_lower(s, &options, &p), DP_OK);
            ck_assert_int_eq(dp_program_verify(p, &report), DP_OK);
            ck_assert_int_eq(report.peak_activations, table[_i].peak);
            ck_assert_int_eq(report.ordered_weights, 1);
            dp_program_free(p);
        }
        dp_schedule_free(s);
    }
}
END_TEST

/* Ranks of zb2p are idle before their first and behind their last operation alone. */
START_TEST(zb2p_has_no_idle_time_inside)
{
    for (int32_t ranks = 1; ranks <= 12; ranks++)
        for (int32_t microbatches = 2 * ranks - 1; microbatches <= 3 * ranks; microbatches++) {
            replay_cost_t unit = {1, 2, 1, 1, 3};
            dp_schedule_t *s = generate("zb2p", ranks, microbatches, 0);
            replay_result_t result = replay(s, &unit);
            dp_verify_report_t report = {.struct_size = sizeof(report)};
            dp_program_t *p;

            ck_assert_double_eq(result.step, 3 * microbatches + ranks - 1);
            ck_assert_double_eq(result.idle_max, ranks - 1);
            ck_assert_int_eq(dp_program_lower(s, NULL, &p), DP_OK);
            ck_assert_int_eq(dp_program_verify(p, &report), DP_OK);
            ck_assert_int_eq(report.peak_activations, 2 * ranks - 1);
            dp_program_free(p);
            dp_schedule_free(s);
        }
}
END_TEST

/* The formulas of the header comments at many sizes, for unit costs: V-Half, V-Min and the like
 * have one more term. */
START_TEST(formulas_of_the_v_blocks)
{
    for (int32_t ranks = 1; ranks <= 24; ranks++) {
        int32_t microbatches = 4 * ranks + 3;
        replay_cost_t half = {0.5, 1, 0.5, 0.5, 1.5};
        dp_schedule_t *s = generate("v-half", ranks, microbatches, 0);
        double idle = replay(s, &half).idle_max, formula = 1.5 * (ranks - 1);

        ck_assert_double_le(idle, formula);
        ck_assert_double_ge(idle, ranks % 2 == 0 ? formula : formula - 0.5);
        dp_schedule_free(s);
        s = generate("v-min", ranks, microbatches, 0);
        idle = replay(s, &half).idle_max;
        formula = 2.0 * (ranks - 1);
        ck_assert_double_le(idle, formula + 1.5);
        ck_assert_double_ge(idle, formula - 0.5);
        dp_schedule_free(s);
    }
}
END_TEST

/* ---- recorded tables ---- */

/* Counts and peaks of one rank, from its list alone. */
typedef struct counts {
    int kinds[5];                            /* F B I W FB */
    int pair, after, until_w, leg[2], queue; /* peaks */
} counts_t;

static void note(int *peak, int value)
{
    *peak = value > *peak ? value : *peak;
}

static counts_t count_rank(const dp_schedule_t *s, int32_t rank)
{
    counts_t c = {{0}, 0, 0, 0, {0, 0}, 0};
    int leg[2] = {0, 0}, deferred = 0;

    for (int64_t k = s->first[rank]; k < s->first[rank + 1]; k++) {
        const dp_op_t *op = &s->ops[k];
        bool forward = op->kind == DP_OP_F || op->kind == DP_OP_FB;

        c.kinds[op->kind]++;
        leg[op->chunk] += forward;
        note(&c.pair, leg[0] + leg[1]);
        note(&c.until_w, leg[0] + leg[1] + deferred);
        for (int l = 0; l < 2; l++)
            note(&c.leg[l], leg[l]);
        if (op->kind == DP_OP_B || op->kind == DP_OP_I)
            leg[op->chunk]--;
        if (op->kind == DP_OP_FB)
            leg[op->chunk2]--;
        deferred += (op->kind == DP_OP_I) - (op->kind == DP_OP_W);
        note(&c.after, leg[0] + leg[1]);
        note(&c.queue, deferred);
    }
    return c;
}

/* What verify reports for the whole program. */
static dp_verify_report_t report_of(const dp_schedule_t *s)
{
    dp_verify_report_t report = {.struct_size = sizeof(report)};
    dp_program_t *p;

    ck_assert_int_eq(dp_program_lower(s, NULL, &p), DP_OK);
    ck_assert_int_eq(dp_program_verify(p, &report), DP_OK);
    dp_program_free(p);
    return report;
}

START_TEST(counts_and_peaks_equal_the_recorded_table)
{
    FILE *f = golden_open("per_rank.tsv");
    dp_schedule_t *s = NULL;
    char line[256], method[32], before[64] = "", key[64];
    int rows = 0, most_held = 0, most_deferred = 0;

    while (fgets(line, sizeof(line), f) != NULL) {
        int ranks, microbatches, rank, n[5], commits, pair, after, until_w, leg[2], queue;
        counts_t c;

        if (line[0] == '#')
            continue;
        ck_assert_int_eq(sscanf(line, "%31s %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d", method, &ranks,
                                &microbatches, &rank, &n[0], &n[1], &n[2], &n[3], &n[4], &commits, &pair, &after,
                                &until_w, &leg[0], &leg[1], &queue),
                         16);
        snprintf(key, sizeof(key), "%s %d %d", method, ranks, microbatches);
        if (strcmp(key, before) != 0) {
            dp_schedule_free(s);
            s = generate(method, ranks, microbatches, 0);
            strcpy(before, key);
            most_held = most_deferred = 0;
        }
        c = count_rank(s, rank);
        for (int k = 0; k < 5; k++)
            ck_assert_int_eq(c.kinds[k], n[k]);
        ck_assert_int_eq(c.pair, pair);
        ck_assert_int_eq(c.after, after);
        ck_assert_int_eq(c.until_w, until_w);
        ck_assert_int_eq(c.leg[0], leg[0]);
        ck_assert_int_eq(c.leg[1], leg[1]);
        ck_assert_int_eq(c.queue, queue);
        note(&most_held, until_w);
        note(&most_deferred, queue);
        if (rank == ranks - 1) {
            dp_verify_report_t report = report_of(s);

            ck_assert_int_eq(report.peak_activations, most_held);
            ck_assert_int_eq(report.peak_deferred, most_deferred);
        }
        rows++;
    }
    dp_schedule_free(s);
    fclose(f);
    ck_assert_int_eq(rows, 110);
}
END_TEST

START_TEST(dataflow_replay_equals_the_recorded_table)
{
    FILE *f = golden_open("replay.tsv");
    char line[256], method[32], rule[32];
    int rows = 0;

    while (fgets(line, sizeof(line), f) != NULL) {
        int ranks, microbatches;
        double step, idle_min, idle_max, idle_sum;
        replay_cost_t cost;
        replay_result_t result;
        dp_schedule_t *s;

        if (line[0] == '#')
            continue;
        ck_assert_int_eq(sscanf(line, "%31s %d %d %lf %lf %lf %lf %lf %31s %lf %lf %lf %lf", method, &ranks,
                                &microbatches, &cost.f, &cost.b, &cost.i, &cost.w, &cost.fb, rule, &step, &idle_min,
                                &idle_max, &idle_sum),
                         13);
        if (strcmp(rule, "dataflow") != 0)
            continue;
        s = generate(method, ranks, microbatches, 0);
        result = replay(s, &cost);
        ck_assert_msg(result.step == step && result.idle_min == idle_min && result.idle_max == idle_max &&
                          result.idle_sum == idle_sum,
                      "%s: %g %g %g %g", line, result.step, result.idle_min, result.idle_max, result.idle_sum);
        dp_schedule_free(s);
        rows++;
    }
    fclose(f);
    ck_assert_int_eq(rows, 108);
}
END_TEST

/* ---- limits ---- */

static const struct {
    const char *method;
    int32_t ranks, microbatches, chunks, group;
    const char *message; /* NULL: accepted */
} limits[] = {
    {"gpipe", 3, 2, 1, 0, NULL},
    {"gpipe", 3, 2, 2, 0, "gpipe: a rank holds exactly 1 chunk, not 2"},
    {"1f1b", 5, 2, 1, 0, NULL},
    {"zb1p", 7, 1, 0, 0, NULL},
    {"zb1p", 7, 1, 2, 0, "zb1p: a rank holds exactly 1 chunk, not 2"},
    {"zbv", 4, 1, 2, 0, NULL},
    {"zbv", 4, 1, 1, 0, "zbv: a rank holds exactly 2 chunks, not 1"},
    {"v-half", 5, 1, 0, 0, NULL},
    {"v-half", 5, 1, 3, 0, "v-half: a rank holds exactly 2 chunks, not 3"},
    {"v-min", 1, 1, 0, 0, NULL},
    {"v-min", 1, 0, 0, 0, "v-min: 0 micro-batches"},
    {"interleaved", 4, 8, 3, 0, NULL},
    {"interleaved", 4, 8, 64, 0, NULL},
    {"interleaved", 1, 3, 2, 0, NULL},
    {"interleaved", 4, 8, 1, 0, "interleaved: 1 chunk per rank; at least 2"},
    {"interleaved", 4, 9, 2, 0, "interleaved: 9 micro-batches on 4 ranks; a multiple"},
    {"interleaved", 4, 3, 2, 0, "interleaved: 3 micro-batches on 4 ranks; a multiple"},
    {"interleaved_overlap", 4, 9, 1, 0, NULL},
    {"interleaved_zb", 4, 8, 1, 0, "interleaved_zb: 1 chunk per rank; at least 2 are needed (zb1p has 1)"},
    {"interleaved_zb", 4, 9, 2, 0, "interleaved_zb: 9 micro-batches on 4 ranks; a multiple"},
    {"interleaved_zb", 1, 1, 64, 0, NULL},
    {"looped_bfs", 4, 8, 1, 0, "looped_bfs: 1 chunk per rank; at least 2 are needed (gpipe has 1)"},
    {"looped_bfs", 3, 7, 5, 0, NULL},
    {"zb2p", 7, 1, 0, 0, NULL},
    {"zb2p", 7, 1, 2, 0, "zb2p: a rank holds exactly 1 chunk, not 2"},
    {"interleaved_overlap", 4, 9, 2, 0, "interleaved_overlap: 9 micro-batches on 4 ranks"},
    {"interleaved", 4, 9, 2, 5, NULL},
    {"interleaved_overlap", 4, 9, 2, 9, NULL},
    {"interleaved_overlap", 4, 9, 2, 100, NULL},
    {"interleaved", 4, 9, 2, 4, "interleaved: 9 micro-batches in groups of at most 4 leave one of 3; 4 ranks"},
    {"interleaved", 4, 8, 2, -1, "interleaved: groups of -1 micro-batches"},
    {"interleaved_overlap", 4, 8, 1, 8, "interleaved_overlap: groups of 8 with 1 chunk"},
    {"1f1b", 4, 8, 0, 8, "1f1b: groups of 8 micro-batches; only interleaved and"},
    {"v-half", 4, 8, 0, 8, "v-half: groups of 8 micro-batches; only interleaved and"},
    {"interleaved_zb", 4, 8, 2, 8, "interleaved_zb: groups of 8 micro-batches; only interleaved and"},
    {"looped_bfs", 4, 8, 2, 8, "looped_bfs: groups of 8 micro-batches; only interleaved and"},
    {"dualpipe", 4, 8, 0, 8, "dualpipe: groups of 8 micro-batches; only interleaved and"},
    {"dualpipe", 4, 8, 3, 0, "dualpipe: a rank holds exactly 2 chunks, not 3"},
    {"dualpipev", 4, 8, 1, 0, "dualpipev: a rank holds exactly 2 chunks, not 1"},
    {"v-half", 4096, 65536, 0, 0, "schedule: more than"},
    {"zbv", 4096, 65536, 0, 0, "zbv: "},
};

START_TEST(sizes_are_accepted_or_refused)
{
    const dp_schedule_request_t request = {sizeof(request),         limits[_i].method, limits[_i].ranks,
                                           limits[_i].microbatches, limits[_i].chunks, 0,
                                           limits[_i].group};
    dp_schedule_t *s = NULL;
    dp_status_t status = dp_schedule_generate(&request, &s);

    if (limits[_i].message == NULL) {
        ck_assert_msg(status == DP_OK, "%s", dp_last_error());
        ck_assert_msg(dp_schedule_verify(s) == DP_OK, "%s", dp_last_error());
        dp_schedule_free(s);
    } else {
        ck_assert_int_eq(status, DP_ERR_INVALID);
        ck_assert_ptr_null(s);
        ck_assert_msg(strstr(dp_last_error(), limits[_i].message) == dp_last_error(), "%s", dp_last_error());
    }
}
END_TEST

/* ---- groups ---- */

/* Megatron-LM's table for P 2, 3 micro-batches in a group, 5 in all and 2 chunks
 * (megatron/core/pipeline_parallel/schedules.py, get_schedule_table). */
START_TEST(groups_are_those_of_megatron)
{
    static const int16_t chunk[] = {0, 0, 0, 1, 1, 1, 0, 0, 1, 1};
    static const int32_t microbatch[] = {0, 1, 2, 0, 1, 2, 3, 4, 3, 4};
    const dp_schedule_request_t request = {sizeof(request), "interleaved", 2, 5, 2, 0, 3};
    dp_schedule_t *s = NULL;

    ck_assert_msg(dp_schedule_generate(&request, &s) == DP_OK, "%s", dp_last_error());
    for (int32_t r = 0; r < 2; r++) {
        int forwards = 0, warm_up = 0;

        for (int64_t k = s->first[r]; k < s->first[r + 1]; k++) {
            const dp_op_t *op = &s->ops[k];

            if (op->kind == DP_OP_F) {
                ck_assert_int_eq(op->chunk, chunk[forwards]);
                ck_assert_int_eq(op->microbatch, microbatch[forwards]);
                forwards++;
            } else if (warm_up == 0) {
                warm_up = forwards;
            }
        }
        ck_assert_int_eq(forwards, 10);
        ck_assert_int_eq(warm_up, (2 - r - 1) * 2 + (2 - 1) * 3 + 1); /* then B follows each F */
    }
    dp_schedule_free(s);
}
END_TEST

static void prove(const dp_schedule_t *s, dp_transport_t transport, int32_t slots)
{
    dp_lower_options_t options = {.struct_size = sizeof(options), .transport = transport, .slots = slots};
    dp_program_t *program = NULL;

    ck_assert_msg(dp_program_lower(s, &options, &program) == DP_OK, "%s", dp_last_error());
    ck_assert_msg(dp_program_verify(program, NULL) == DP_OK, "%d ranks, %d chunks, %d micro-batches: %s", s->ranks,
                  s->chunks, s->microbatches, dp_last_error());
    dp_program_free(program);
}

/* They complete with the slots that schedule.h states. _i: ranks less 1. */
START_TEST(groups_of_every_size)
{
    const int32_t ranks = 1 + _i;

    for (int32_t chunks = 2; chunks <= 4; chunks++)
        for (int32_t m = ranks; m <= 5 * ranks; m += 1 + ranks / 4)
            for (int32_t most = ranks; most <= m; most++) {
                const dp_schedule_request_t request = {
                    sizeof(request), "interleaved_overlap", ranks, m, chunks, 0, most};
                const int32_t n = (m + most - 1) / most, largest = (m + n - 1) / n;
                dp_schedule_t *s = NULL;
                dp_status_t status = dp_schedule_generate(&request, &s);

                ck_assert_int_eq(status, m / n < ranks ? DP_ERR_INVALID : DP_OK);
                if (status < 0)
                    continue;
                prove(s, DP_TRANSPORT_CREDITS, largest > ranks ? largest - ranks + 1 : 1);
                prove(s, DP_TRANSPORT_BUNDLES, 0);
                dp_schedule_free(s);
            }
}
END_TEST

/* Fewer micro-batches than the order was made for: complete all the same. */
START_TEST(any_number_of_microbatches)
{
    static const char *const methods[] = {"gpipe", "1f1b", "zb1p", "zb2p", "looped_bfs", "zbv", "v-half", "v-min"};

    for (size_t m = 0; m < sizeof(methods) / sizeof(methods[0]); m++)
        for (int32_t ranks = 1; ranks <= 13; ranks++)
            for (int32_t microbatches = 1; microbatches <= 30; microbatches += microbatches < 8 ? 1 : 5) {
                dp_schedule_t *s = generate(methods[m], ranks, microbatches, 0);

                ck_assert_msg(dp_schedule_verify(s) == DP_OK, "%s", dp_last_error());
                dp_schedule_free(s);
            }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("schedule_methods");
    TCase *tc = tcase_create("methods");

    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, idle_time_and_memory, 0, (int)(sizeof(table) / sizeof(table[0])));
    tcase_add_test(tc, zb2p_has_no_idle_time_inside);
    tcase_add_test(tc, formulas_of_the_v_blocks);
    tcase_add_test(tc, counts_and_peaks_equal_the_recorded_table);
    tcase_add_test(tc, dataflow_replay_equals_the_recorded_table);
    tcase_add_loop_test(tc, sizes_are_accepted_or_refused, 0, (int)(sizeof(limits) / sizeof(limits[0])));
    tcase_add_test(tc, any_number_of_microbatches);
    tcase_add_test(tc, groups_are_those_of_megatron);
    tcase_add_loop_test(tc, groups_of_every_size, 0, 9);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
