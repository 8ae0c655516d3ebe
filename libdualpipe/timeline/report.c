/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * report.c: busy, hidden, idle and waiting time of a rank, by measuring unions of spans. */
#include <stdlib.h>

#include "base/memory.h"
#include "base/sized.h"
#include "timeline/timeline.h"

enum { COMPUTE = 1, ALL_TO_ALL = 2, OTHER_COMM = 4, WAITING = 8 };

typedef struct window {
    int64_t start, end; /* end < start: nothing seen yet */
} window_t;

typedef struct interval {
    int64_t start, end;
    int class; /* one of the above */
} interval_t;

static const window_t no_window = {INT64_MAX, -1};

static int class_of(const dp_span_t *span)
{
    switch (span->kind) {
    case DP_SPAN_COMPUTE:
        if (span->lane == DP_LANE_COMPUTE)
            return COMPUTE;
        return span->lane == DP_LANE_ALL_TO_ALL ? ALL_TO_ALL : OTHER_COMM;
    case DP_SPAN_SEND:
    case DP_SPAN_REDUCE:
        return OTHER_COMM;
    case DP_SPAN_RECV:
        return WAITING;
    default:
        return 0;
    }
}

static void widen_window(window_t *window, int64_t start, int64_t end)
{
    if (start < window->start)
        window->start = start;
    if (end > window->end)
        window->end = end;
}

/* The STEP spans of a row, or all its spans where there is none. */
static window_t row_window(const dp__row_t *row, int32_t step)
{
    window_t steps = no_window, all = no_window;

    for (int64_t i = 0; i < row->count; i++) {
        const dp_span_t *span = &row->spans[i];

        if (step >= 0 && span->step != step)
            continue;
        widen_window(&all, span->start_ns, span->end_ns);
        if (span->kind == DP_SPAN_STEP)
            widen_window(&steps, span->start_ns, span->end_ns);
    }
    return steps.end >= 0 ? steps : all;
}

static int by_start(const void *a, const void *b)
{
    int64_t x = ((const interval_t *)a)->start, y = ((const interval_t *)b)->start;

    return (x > y) - (x < y);
}

static int64_t gather_intervals(const dp__row_t *row, int32_t step, window_t window, interval_t *intervals)
{
    int64_t n = 0;

    for (int64_t i = 0; i < row->count; i++) {
        const dp_span_t *span = &row->spans[i];
        interval_t cut = {span->start_ns, span->end_ns, class_of(span)};

        if (cut.class == 0 || (step >= 0 && span->step != step))
            continue;
        if (cut.start < window.start)
            cut.start = window.start;
        if (cut.end > window.end)
            cut.end = window.end;
        if (cut.start < cut.end)
            intervals[n++] = cut;
    }
    qsort(intervals, (size_t)n, sizeof(*intervals), by_start);
    return n;
}

/* Length of the union of the intervals whose class is in the mask. They are sorted by start. */
static int64_t covered_time(const interval_t *intervals, int64_t n, int mask)
{
    int64_t total = 0, reached = 0;

    for (int64_t i = 0; i < n; i++) {
        if ((intervals[i].class & mask) == 0 || intervals[i].end <= reached)
            continue;
        total += intervals[i].end - (intervals[i].start > reached ? intervals[i].start : reached);
        reached = intervals[i].end;
    }
    return total;
}

dp_status_t dp_timeline_report(const dp_timeline_t *timeline, int32_t rank, int32_t step, int common_window,
                               dp_rank_report_t *report_out)
{
    const int communication = ALL_TO_ALL | OTHER_COMM;
    window_t window = no_window;
    interval_t *intervals;
    const dp__row_t *row;
    dp_rank_report_t report = {.struct_size = sizeof(report)};
    dp_status_t status =
        dp__sized_check("dp_timeline_report: report_out", report_out, "dp_rank_report_t", DP_RANK_REPORT_MIN);
    int64_t n;

    if (status < 0)
        return status;
    if (timeline == NULL || rank < 0 || rank >= timeline->ranks)
        return dp_fail(DP_ERR_INVALID, "timeline: there is no row for rank %d", rank);
    row = &timeline->rows[rank];
    for (int32_t r = 0; r < timeline->ranks; r++) {
        window_t one = common_window || r == rank ? row_window(&timeline->rows[r], step) : no_window;

        if (one.end >= 0)
            widen_window(&window, one.start, one.end);
    }
    if (window.end < 0)
        return dp_fail(DP_ERR_INVALID, "timeline: rank %d has no spans of step %d", rank, step);
    intervals = dp__calloc((size_t)row->count, sizeof(*intervals));
    if (intervals == NULL)
        return dp_fail(DP_ERR_NOMEM, "timeline: no memory to sort %lld spans of rank %d", (long long)row->count, rank);
    n = gather_intervals(row, step, window, intervals);
    report.window = window.end - window.start;
    report.compute_busy = covered_time(intervals, n, COMPUTE);
    report.comm_busy = covered_time(intervals, n, communication);
    /* in this order no sum passes the window, which may be as long as the clock */
    report.comm_hidden = report.compute_busy - (covered_time(intervals, n, COMPUTE | communication) - report.comm_busy);
    report.bubble = report.window - covered_time(intervals, n, COMPUTE | ALL_TO_ALL);
    report.waiting = covered_time(intervals, n, WAITING);
    dp_sized_put(report_out, &report);
    dp__free(intervals);
    return DP_OK;
}
