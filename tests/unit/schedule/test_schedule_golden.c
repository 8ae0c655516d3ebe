/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_schedule_golden.c: generated lists equal the recorded ones, and the same sizes are
 * refused. */
#include "tests/support/golden.h"
#include "tests/support/suite.h"

static dp_schedule_t *generate(const char *method, int32_t ranks, int32_t microbatches, int32_t forward_only)
{
    dp_schedule_request_t request = {sizeof(request), method, ranks, microbatches, 0, forward_only, 0};
    dp_schedule_t *s = NULL;

    ck_assert_msg(dp_schedule_generate(&request, &s) == DP_OK, "%s", dp_last_error());
    return s;
}

static void compare(const dp_schedule_t *s, const golden_row_t *rows, int count)
{
    int i = 0;

    for (int32_t r = 0; r < s->ranks; r++)
        for (int64_t k = s->first[r]; k < s->first[r + 1]; k++, i++) {
            const dp_op_t *op = &s->ops[k];
            const golden_row_t *g = &rows[i];

            ck_assert_int_lt(i, count);
            ck_assert_int_eq(g->rank, r);
            ck_assert_str_eq(dp_op_kind_name(op->kind), g->op);
            ck_assert_int_eq(op->chunk, g->dir);
            ck_assert_int_eq(op->microbatch, g->microbatch);
            ck_assert_int_eq(op->chunk2, g->dir2);
            ck_assert_int_eq(op->microbatch2, g->microbatch2);
        }
    ck_assert_int_eq(i, count);
}

START_TEST(lists_equal_the_recordings)
{
    const golden_case_t *g = &golden_cases[_i];
    dp_schedule_t *s = generate(g->method, g->ranks, g->microbatches, g->forward_only);
    int count;
    golden_row_t *rows = golden_rows(g, 1, &count);

    ck_assert_int_gt(count, 0);
    compare(s, rows, count);
    ck_assert_msg(dp_schedule_verify(s) == DP_OK, "%s", dp_last_error());
    free(rows);
    dp_schedule_free(s);
}
END_TEST

/* The files have no shape line: the reader finds ranks, micro-batches and placement by itself. */
START_TEST(recordings_are_read)
{
    const golden_case_t *g = &golden_cases[_i];
    dp_schedule_t *want = generate(g->method, g->ranks, g->microbatches, g->forward_only);
    dp_schedule_t *s = NULL;
    char name[96];
    size_t bytes;
    char *text = golden_text(g, name, sizeof(name), &bytes);
    int count;
    golden_row_t *rows = golden_rows(g, 1, &count);

    ck_assert_msg(dp_schedule_read_tsv(name, text, bytes, &s) == DP_OK, "%s", dp_last_error());
    ck_assert_int_eq(s->ranks, want->ranks);
    ck_assert_int_eq(s->forward_only, want->forward_only);
    ck_assert_str_eq(s->method, "custom");
    if (!g->forward_only) { /* forwards alone of two directions also fit a V */
        ck_assert_int_eq(s->microbatches, want->microbatches);
        ck_assert_int_eq(s->placement, want->placement);
    }
    compare(s, rows, count);
    free(rows);
    free(text);
    dp_schedule_free(s);
    dp_schedule_free(want);
}
END_TEST

START_TEST(the_same_sizes_are_refused)
{
    FILE *f = golden_open("limits.tsv");
    char line[256], method[32], answer[32];
    int ranks, microbatches, count = 0;

    while (fgets(line, sizeof(line), f) != NULL) {
        dp_schedule_request_t request = {sizeof(request), method, 0, 0, 0, 0, 0};
        dp_schedule_t *s = NULL;
        dp_status_t status;

        if (line[0] == '#')
            continue;
        ck_assert_int_eq(sscanf(line, "%31s %d %d %31s", method, &ranks, &microbatches, answer), 4);
        request.ranks = ranks;
        request.microbatches = microbatches;
        status = dp_schedule_generate(&request, &s);
        ck_assert_msg(status == (strcmp(answer, "ok") == 0 ? DP_OK : DP_ERR_INVALID), "%s: %s", line,
                      dp_status_name(status));
        ck_assert_int_eq(s != NULL, status == DP_OK);
        if (status < 0)
            ck_assert_int_gt(strlen(dp_last_error()), 20);
        dp_schedule_free(s);
        count++;
    }
    fclose(f);
    ck_assert_int_eq(count, 27);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("schedule_golden");
    TCase *tc = tcase_create("golden");

    tcase_add_loop_test(tc, lists_equal_the_recordings, 0, GOLDEN_CASES);
    tcase_add_loop_test(tc, recordings_are_read, 0, GOLDEN_CASES);
    tcase_add_test(tc, the_same_sizes_are_refused);
    suite_add_tcase(suite, tc);
    return suite_run(suite);
}
