/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * clock.h: the clock of another host beside ours, from round trips: what is certain of it, and no
 * guess about which way was the slower one.
 *
 * Host B writes down its time `sent_ns`, host A answers with its own time, B hears it at
 * `heard_ns`. A's answer was made between the two, so (A's clock - B's clock) lies between answer -
 * heard and answer - sent, however long either way took. Between round trips the clocks drift apart
 * by at most DP__CLOCK_DRIFT, which is what kernels allow those to do who steer a clock. All of
 * that together is an interval for every moment. */
#ifndef DP_TIMELINE_CLOCK_H
#define DP_TIMELINE_CLOCK_H

#include <dualpipe/timeline.h>
#include <stdbool.h>

#define DP__CLOCK_DRIFT 500e-6

/* One round trip: when the clock of B showed at_ns, its offset was between low and high. */
typedef struct dp__clock_sample {
    int64_t at_ns, low_ns, high_ns;
} dp__clock_sample_t;

dp__clock_sample_t dp__clock_sample(int64_t sent_ns, int64_t answer_ns, int64_t heard_ns);
/* By their times, as the functions below want them. */
void dp__clock_sort(dp__clock_sample_t *samples, size_t count);
/* What is to be added at that moment of B's clock, give or take *bound_out. count > 0. */
int64_t dp__clock_offset(const dp__clock_sample_t *samples, size_t count, int64_t at_ns, int64_t *bound_out);
/* Growth of the offset in ns per second over the time of the samples; 0 for no time. */
void dp__clock_drift(const dp__clock_sample_t *samples, size_t count, double *drift_out, double *bound_out);

/* Puts the spans of a row onto the clock that the samples lead to, and writes into the row what is
 * known of it. Order is kept. */
void dp__timeline_align(dp_timeline_t *timeline, int32_t rank, const dp__clock_sample_t *samples, size_t count);
void dp__timeline_set_host(dp_timeline_t *timeline, int32_t rank, int32_t host);

#endif
