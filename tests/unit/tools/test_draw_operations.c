/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_draw_operations.c: boxes of operations beside the segments they are made of: each operation
 * has some, each pair a number, and they last as long as anything of it ran. */
#include <dualpipe/simulate.h>
#include <stdlib.h>

#include "tests/support/suite.h"
#include "tools/draw/draw_operations.h"

static int by_time(const void *a, const void *b)
{
    const dp_span_t *x = a, *y = b;

    return x->start_ns < y->start_ns ? -1 : x->start_ns > y->start_ns;
}

/* In which compute or all-to-all spans of a rank lie, without counting any time twice. */
static double covered(const dp_timeline_t *timeline, int32_t rank)
{
    int64_t n, until = 0;
    const dp_span_t *given = dp_timeline_spans(timeline, rank, &n);
    dp_span_t *spans = malloc((size_t)n * sizeof(*spans));
    double sum = 0;

    ck_assert_ptr_nonnull(spans);
    for (int64_t k = 0; k < n; k++)
        spans[k] = given[k];
    qsort(spans, (size_t)n, sizeof(*spans), by_time);
    for (int64_t k = 0; k < n; k++) {
        const int64_t from = spans[k].start_ns > until ? spans[k].start_ns : until;

        if (spans[k].kind == DP_SPAN_COMPUTE && spans[k].end_ns > from) {
            sum += (double)(spans[k].end_ns - from);
            until = spans[k].end_ns;
        }
    }
    free(spans);
    return sum;
}

/* Of pass F or another one, of that chunk. */
static int64_t count_boxes(const dp_span_t *boxes, int64_t n, int32_t chunk, int32_t number, bool forward, int pair)
{
    int64_t found = 0;

    for (int64_t k = 0; k < n; k++)
        found += boxes[k].chunk == chunk && boxes[k].microbatch == number && (boxes[k].pass == DP_OP_F) == forward &&
                 boxes[k].pair == pair;
    return found;
}

static void check_method(const char *method, int32_t ranks, int32_t microbatches)
{
    const dp_schedule_request_t request = {
        .struct_size = sizeof(request), .method = method, .ranks = ranks, .microbatches = microbatches};
    const dp_segment_costs_t segments = {
        .struct_size = sizeof(segments), .layers = 2, .f = {3, 2, 3, 2}, .i = {4, 2, 3, 2}, .w = {2, 0, 3, 0}};
    const dp_costs_t costs = {.struct_size = sizeof(costs), .f = 1, .i = 1, .w = 1, .segments = &segments, .hop = 40};
    dp_simulation_t run = {.struct_size = sizeof(run)};
    dp_schedule_t *schedule;
    dp_timeline_t *operations;

    ck_assert_int_eq(dp_schedule_generate(&request, &schedule), DP_OK);
    ck_assert_int_eq(dp_evaluate(schedule, NULL, &costs, 1, &run), DP_OK);
    ck_assert_int_eq(draw_operations(schedule, run.timeline, false, &operations), DP_OK);
    for (int32_t r = 0; r < ranks; r++) {
        const double ran = covered(run.timeline, r), boxed = covered(operations, r);
        int64_t n;
        const dp_span_t *boxes = dp_timeline_spans(operations, r, &n);

        ck_assert_int_eq(dp_timeline_lost(operations, r), 0);
        ck_assert_msg(boxed > 0.999 * ran && boxed < 1.05 * ran, "%s, rank %d: %g boxed, %g ran", method, r, boxed,
                      ran);
        for (int64_t k = schedule->first[r]; k < schedule->first[r + 1]; k++) {
            const dp_op_t *op = &schedule->ops[k];
            const int pair = op->kind == DP_OP_FB ? (int)(1 + k % DP_SPAN_PAIRS) : 0;

            ck_assert_int_ge(
                count_boxes(boxes, n, op->chunk, op->microbatch, op->kind == DP_OP_F || op->kind == DP_OP_FB, pair), 1);
            if (op->kind == DP_OP_FB)
                ck_assert_int_ge(count_boxes(boxes, n, op->chunk2, op->microbatch2, false, pair), 1);
        }
    }
    dp_timeline_free(operations);
    dp_simulation_clear(&run);
    dp_schedule_free(schedule);
}

START_TEST(boxes_are_what_ran)
{
    check_method("1f1b", 1, 1);
    check_method("1f1b", 4, 7);
    check_method("zb1p", 3, 8);
    check_method("dualpipe", 4, 10);
    check_method("dualpipev", 4, 140); /* more pairs than numbers */
    check_method("interleaved", 2, 6);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("draw_operations");

    SUITE_ADD(suite, boxes_are_what_ran);
    return suite_run(suite);
}
