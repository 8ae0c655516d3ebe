/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * exposed.c: waiting for messages, and for messages on their way. */
#include "exposed.h"

typedef struct wait {
    int64_t start, end;
} wait_t;

static void count_wait(const wait_t *wait, int64_t way, int64_t *waiting, int64_t *exposed)
{
    int64_t length = wait->end - wait->start;

    *waiting += length;
    *exposed += length < way ? length : way;
}

/* An operation of two inputs has two RECV spans with one start; the later message is the one it waited for. */
exposed_t exposed_of(const dp_timeline_t *timeline, int32_t rank, double hop)
{
    int64_t count, waiting = 0, exposed = 0, way = (int64_t)(hop * 1e6 + 0.5);
    const dp_span_t *spans = dp_timeline_spans(timeline, rank, &count);
    wait_t wait = {0, 0};

    for (int64_t i = 0; i < count; i++) {
        if (spans[i].kind != DP_SPAN_RECV || spans[i].end_ns == spans[i].start_ns)
            continue;
        if (spans[i].start_ns != wait.start) {
            count_wait(&wait, way, &waiting, &exposed);
            wait = (wait_t){spans[i].start_ns, spans[i].end_ns};
        }
        wait.end = spans[i].end_ns > wait.end ? spans[i].end_ns : wait.end;
    }
    count_wait(&wait, way, &waiting, &exposed);
    return (exposed_t){(double)waiting / 1e6, (double)exposed / 1e6};
}
