/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_operations.c: segments of a timeline put together to operations. */
#include "draw_operations.h"

#include <stdlib.h>

typedef struct window {
    int64_t start, end;
} window_t;

typedef struct job {
    const dp_schedule_t *schedule;
    const dp_timeline_t *timeline;
    bool in_step;
    dp_timeline_t *operations;
    window_t *windows; /* of one operation */
} job_t;

static int32_t number_of(const job_t *job, int32_t chunk, int32_t microbatch)
{
    return job->in_step ? dp_schedule_step_microbatch(
                              job->schedule, job->schedule->placement == DP_PLACE_BIDIRECTIONAL ? chunk : 0, microbatch)
                        : microbatch;
}

/* The spans that a pass of a micro-batch has on any lane, behind `count` others; pass -1: I and
 * W. */
static int64_t gather_pass(const job_t *job, int32_t rank, int32_t chunk, int32_t number, int pass, int64_t count)
{
    int64_t n;
    const dp_span_t *spans = dp_timeline_spans(job->timeline, rank, &n);

    for (int64_t k = 0; k < n; k++)
        if (spans[k].kind == DP_SPAN_COMPUTE && spans[k].chunk == chunk && spans[k].microbatch == number &&
            (pass < 0 ? spans[k].pass != DP_OP_F : spans[k].pass == pass))
            job->windows[count++] = (window_t){spans[k].start_ns, spans[k].end_ns};
    return count;
}

static int by_window_start(const void *a, const void *b)
{
    const window_t *x = a, *y = b;

    return x->start < y->start ? -1 : x->start > y->start;
}

static dp_status_t add_box(const job_t *job, int32_t rank, window_t w, int32_t chunk, int32_t number, int pass,
                           uint8_t pair)
{
    dp_span_t span = {.start_ns = w.start,
                      .end_ns = w.end,
                      .microbatch = number,
                      .chunk = (int16_t)chunk,
                      .stage = -1,
                      .segment = -1,
                      .kind = DP_SPAN_COMPUTE,
                      .lane = DP_LANE_COMPUTE,
                      .pass = (uint8_t)pass,
                      .pair = pair};

    return dp_timeline_add(job->operations, rank, &span);
}

/* What ran without a gap. The two sides of a pair run at once: the box is shared out as the
 * simulator does it. */
static dp_status_t add_run(const job_t *job, int32_t rank, const dp_op_t *op, window_t w, uint8_t pair)
{
    const window_t behind = {w.start + (w.end - w.start) / 3, w.end};
    const int32_t number = number_of(job, op->chunk, op->microbatch);
    dp_status_t status;

    if (op->kind != DP_OP_FB)
        return add_box(job, rank, w, op->chunk, number, op->kind, 0);
    w.end = behind.start;
    status = add_box(job, rank, w, op->chunk, number, DP_OP_F, pair);
    return status < 0
               ? status
               : add_box(job, rank, behind, op->chunk2, number_of(job, op->chunk2, op->microbatch2), DP_OP_B, pair);
}

/* Boxes of an operation, with the gaps in which it waited for others; a sixteenth of it is none. */
static dp_status_t add_operation(const job_t *job, int32_t rank, const dp_op_t *op, uint8_t pair)
{
    window_t *const w = job->windows, run;
    int64_t count = gather_pass(job, rank, op->chunk, number_of(job, op->chunk, op->microbatch),
                                op->kind == DP_OP_FB  ? DP_OP_F
                                : op->kind == DP_OP_B ? -1
                                                      : op->kind,
                                0),
            length = 0;
    dp_status_t status = DP_OK;

    if (op->kind == DP_OP_FB)
        count = gather_pass(job, rank, op->chunk2, number_of(job, op->chunk2, op->microbatch2), -1, count);
    if (count == 0)
        return DP_OK;
    qsort(w, (size_t)count, sizeof(*w), by_window_start);
    for (int64_t k = 0; k < count; k++)
        length = w[k].end - w[0].start > length ? w[k].end - w[0].start : length;
    run = w[0];
    for (int64_t k = 1; k < count && status >= 0; k++) {
        if (w[k].start - run.end > length / 16) {
            status = add_run(job, rank, op, run, pair);
            run = w[k];
        }
        run.end = w[k].end > run.end ? w[k].end : run.end;
    }
    return status >= 0 && run.start < run.end ? add_run(job, rank, op, run, pair) : status;
}

dp_status_t draw_operations(const dp_schedule_t *schedule, const dp_timeline_t *timeline, bool in_step,
                            dp_timeline_t **operations_out)
{
    job_t job = {schedule, timeline, in_step, NULL, NULL};
    int64_t most = 0, spans;
    dp_status_t status;

    for (int32_t r = 0; r < schedule->ranks; r++) {
        (void)dp_timeline_spans(timeline, r, &spans);
        most = spans > most ? spans : most;
    }
    status = dp_timeline_create(schedule->ranks, 2 * most + 1, operations_out);
    job.operations = *operations_out;
    job.windows = malloc(((size_t)most + 1) * sizeof(*job.windows));
    if (job.windows == NULL && status >= 0)
        status = dp_fail(DP_ERR_NOMEM, "no memory for %lld boxes", (long long)most);
    for (int32_t r = 0; r < schedule->ranks && status >= 0; r++)
        for (int64_t k = schedule->first[r]; k < schedule->first[r + 1] && status >= 0; k++)
            status = add_operation(&job, r, &schedule->ops[k], (uint8_t)(1 + k % DP_SPAN_PAIRS));
    free(job.windows);
    return status;
}
