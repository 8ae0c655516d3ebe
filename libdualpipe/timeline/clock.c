/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * clock.c: offsets between clocks, and rows brought onto one of them. */
#include "timeline/clock.h"
#include "base/sized.h"
#include "timeline/timeline.h"

#include <stdlib.h>

#define NEIGHBOURS 32 /* on each side: those farther away say less than the drift takes away */

dp__clock_sample_t dp__clock_sample(int64_t sent_ns, int64_t answer_ns, int64_t heard_ns)
{
    return (dp__clock_sample_t){sent_ns + (heard_ns - sent_ns) / 2, answer_ns - heard_ns, answer_ns - sent_ns};
}

static int compare_times(const void *a, const void *b)
{
    const dp__clock_sample_t *x = a, *y = b;

    return (x->at_ns > y->at_ns) - (x->at_ns < y->at_ns);
}

void dp__clock_sort(dp__clock_sample_t *samples, size_t count)
{
    if (count > 0) /* of no samples the pointer may be NULL, which qsort does not take */
        qsort(samples, count, sizeof(*samples), compare_times);
}

static int64_t sample_width(const dp__clock_sample_t *s)
{
    return s->high_ns - s->low_ns;
}

static const dp__clock_sample_t *narrowest_sample(const dp__clock_sample_t *samples, size_t count)
{
    const dp__clock_sample_t *best = samples;

    for (size_t i = 1; i < count; i++)
        if (sample_width(&samples[i]) < sample_width(best))
            best = &samples[i];
    return best;
}

static size_t first_after(const dp__clock_sample_t *samples, size_t count, int64_t at_ns)
{
    size_t low = 0, high = count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (samples[middle].at_ns <= at_ns)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* How far the offset may have moved since; the interval is that of some moment between question and
 * answer. */
static int64_t drift_slack(const dp__clock_sample_t *s, int64_t at_ns)
{
    int64_t away = at_ns > s->at_ns ? at_ns - s->at_ns : s->at_ns - at_ns;

    return 1 + (int64_t)(DP__CLOCK_DRIFT * (double)(away + sample_width(s)));
}

int64_t dp__clock_offset(const dp__clock_sample_t *samples, size_t count, int64_t at_ns, int64_t *bound_out)
{
    size_t middle = first_after(samples, count, at_ns);
    size_t from = middle > NEIGHBOURS ? middle - NEIGHBOURS : 0,
           to = count - middle > NEIGHBOURS ? middle + NEIGHBOURS : count;
    int64_t low = INT64_MIN, high = INT64_MAX, half;

    for (size_t i = from; i < to; i++) {
        int64_t loose = drift_slack(&samples[i], at_ns);

        low = samples[i].low_ns - loose > low ? samples[i].low_ns - loose : low;
        high = samples[i].high_ns + loose < high ? samples[i].high_ns + loose : high;
    }
    /* low > high: a clock ran faster than is believed (a suspended machine, say) */
    half = (high - low) / 2;
    *bound_out = half < 0 ? -half : half + 1;
    return low + half;
}

void dp__clock_drift(const dp__clock_sample_t *samples, size_t count, double *drift_out, double *bound_out)
{
    const dp__clock_sample_t *a = samples, *b = samples;
    double seconds;

    *drift_out = *bound_out = 0;
    if (count > 1) {
        a = narrowest_sample(samples, count / 2);
        b = narrowest_sample(samples + count / 2, count - count / 2);
    }
    seconds = count > 1 ? (double)(b->at_ns - a->at_ns) * 1e-9 : 0;
    if (seconds <= 0)
        return;
    *drift_out = ((double)(b->low_ns - a->low_ns) + (double)(b->high_ns - a->high_ns)) / 2 / seconds;
    *bound_out = (double)(sample_width(a) + sample_width(b)) / 2 / seconds;
}

static int64_t shift_time(const dp__clock_sample_t *samples, size_t count, int64_t at_ns, dp_row_clock_t *clock)
{
    int64_t bound;

    clock->offset_ns = dp__clock_offset(samples, count, at_ns, &bound);
    if (bound > clock->bound_ns)
        clock->bound_ns = bound;
    return at_ns + clock->offset_ns > 0 ? at_ns + clock->offset_ns : 0;
}

void dp__timeline_align(dp_timeline_t *timeline, int32_t rank, const dp__clock_sample_t *samples, size_t count)
{
    dp__row_t *row = &timeline->rows[rank];

    dp__clock_drift(samples, count, &row->clock.drift, &row->clock.drift_bound);
    for (int64_t i = 0; i < row->count; i++) {
        dp_span_t *span = &row->spans[i];

        span->start_ns = shift_time(samples, count, span->start_ns, &row->clock);
        span->end_ns = shift_time(samples, count, span->end_ns, &row->clock);
    }
}

void dp__timeline_set_host(dp_timeline_t *timeline, int32_t rank, int32_t host)
{
    timeline->rows[rank].clock.host = host;
}

dp_status_t dp_timeline_clock(const dp_timeline_t *timeline, int32_t rank, dp_row_clock_t *clock_out)
{
    dp_status_t status = dp__sized_check("dp_timeline_clock: clock_out", clock_out, "dp_row_clock_t", DP_ROW_CLOCK_MIN);
    dp_row_clock_t clock;

    if (status < 0)
        return status;
    if (timeline == NULL || rank < 0 || rank >= timeline->ranks)
        return dp_fail(DP_ERR_INVALID, "timeline: there is no row for rank %d", rank);
    clock = timeline->rows[rank].clock;
    clock.struct_size = sizeof(clock);
    dp_sized_put(clock_out, &clock);
    return DP_OK;
}
