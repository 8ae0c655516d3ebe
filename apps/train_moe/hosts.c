/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * hosts.c: what the report says of several hosts: how well their clocks are known beside each
 * other, and how fast messages went between them. */
#include "train_moe.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MOST_LINES 12

/* One end of a message, then a whole one: that of its sender. */
typedef struct message {
    uint64_t flow;
    int32_t from, to; /* hosts */
    bool received, waited;
    int64_t start_ns, end_ns; /* of the end's span */
} message_t;

static int by_flow(const void *a, const void *b)
{
    const message_t *x = a, *y = b;

    return x->flow != y->flow ? (x->flow < y->flow ? -1 : 1) : x->received - y->received;
}

static int64_t transfer_time(const message_t *m)
{
    return m->end_ns - m->start_ns;
}

static int by_way(const void *a, const void *b)
{
    const message_t *x = a, *y = b;

    if (x->from != y->from)
        return x->from - y->from;
    if (x->to != y->to)
        return x->to - y->to;
    if (x->waited != y->waited)
        return y->waited - x->waited;
    return (transfer_time(x) > transfer_time(y)) - (transfer_time(x) < transfer_time(y));
}

static dp_row_clock_t clock_of(const dp_timeline_t *timeline, int32_t rank)
{
    dp_row_clock_t clock = {.struct_size = sizeof(clock)};

    if (dp_timeline_clock(timeline, rank, &clock) < 0) /* no such row: nothing is known */
        clock = (dp_row_clock_t){.struct_size = sizeof(clock)};
    return clock;
}

static int64_t take_ends(const dp_timeline_t *timeline, message_t *ends)
{
    int64_t n = 0;

    for (int32_t r = 0; r < dp_timeline_ranks(timeline); r++) {
        const int32_t host = clock_of(timeline, r).host;
        int64_t count;
        const dp_span_t *spans = dp_timeline_spans(timeline, r, &count);

        for (int64_t i = 0; i < count; i++) {
            const dp_span_t *s = &spans[i];
            if (s->flow == 0 || (s->kind != DP_SPAN_SEND && s->kind != DP_SPAN_RECV))
                continue;
            if (ends != NULL)
                ends[n] = (message_t){s->flow, host, host, s->kind == DP_SPAN_RECV, false, s->start_ns, s->end_ns};
            n++;
        }
    }
    return n;
}

/* Messages between hosts of which both ends are there; the time of those that nobody waited for is
 * not known. */
static int64_t join_ends(message_t *ends, int64_t count)
{
    int64_t n = 0;

    qsort(ends, (size_t)count, sizeof(*ends), by_flow);
    for (int64_t i = 0; i + 1 < count; i++) {
        const message_t *s = &ends[i], *r = &ends[i + 1];
        if (s->flow != r->flow || s->received || !r->received || s->from == r->to)
            continue;
        ends[n++] = (message_t){s->flow,     s->from,  r->to, true, r->start_ns < s->end_ns && r->end_ns > s->start_ns,
                                s->start_ns, r->end_ns};
        i++;
    }
    qsort(ends, (size_t)n, sizeof(*ends), by_way);
    return n;
}

static void print_way(const message_t *m, int64_t count, double bytes, FILE *to)
{
    int64_t waited = 0;
    char speed[128] = "all there before they were wanted";

    while (waited < count && m[waited].waited)
        waited++;
    if (waited > 0) {
        const double ms = (double)transfer_time(&m[waited / 2]) / 1e6;

        snprintf(speed, sizeof(speed), "median of %lld waited for %.3f ms, %.1f MB/s", (long long)waited, ms,
                 bytes / 1e3 / ms);
    }
    report_line(to, "transfers", "host %d to %d: %lld messages of %.3f MB, %s", m->from, m->to, (long long)count,
                bytes / 1e6, speed);
}

static void print_clocks(const dp_timeline_t *timeline, FILE *to)
{
    int32_t host = 0;

    for (int32_t r = 0; r < dp_timeline_ranks(timeline); r++) {
        const dp_row_clock_t clock = clock_of(timeline, r);
        if (clock.host <= host)
            continue;
        host = clock.host;
        if (clock.bound_ns > 0)
            report_line(to, "clocks", "times of host %d are right to %.3f ms; its clock drifts by %.1f us/s (+- %.1f)",
                        host, (double)clock.bound_ns / 1e6, clock.drift / 1e3, clock.drift_bound / 1e3);
    }
}

dp_status_t report_hosts(const trainer_t *t, const dp_timeline_t *timeline, FILE *to)
{
    const double bytes = (double)model_boundary_bytes(t->options);
    int64_t count = take_ends(timeline, NULL);
    message_t *ends = malloc(((size_t)count + 1) * sizeof(*ends));
    int lines = 0;

    if (ends == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %lld messages", (long long)count);
    print_clocks(timeline, to);
    count = join_ends(ends, take_ends(timeline, ends));
    for (int64_t i = 0, next; i < count; i = next) {
        for (next = i + 1; next < count && ends[next].from == ends[i].from && ends[next].to == ends[i].to;)
            next++;
        if (lines++ < MOST_LINES)
            print_way(ends + i, next - i, bytes, to);
    }
    if (lines > MOST_LINES)
        report_line(to, "", "and between %d more pairs of hosts", lines - MOST_LINES);
    free(ends);
    return DP_OK;
}
