/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * exposed.c: waiting for messages, and for messages on their way. */
#include "exposed.h"

#include <stdlib.h>

struct way {
    uint64_t flow;
    int64_t length;
};

typedef struct wait {
    int64_t start, end, way;
} wait_t;

static int by_flow(const void *a, const void *b)
{
    const struct way *x = a, *y = b;

    return x->flow < y->flow ? -1 : x->flow > y->flow;
}

static int64_t collect_lanes(const dp_timeline_t *timeline, struct way *at)
{
    int64_t n = 0, count;

    for (int32_t r = 0; r < dp_timeline_ranks(timeline); r++) {
        const dp_span_t *spans = dp_timeline_spans(timeline, r, &count);

        for (int64_t i = 0; i < count; i++) {
            if (spans[i].kind != DP_SPAN_SEND)
                continue;
            if (at != NULL)
                at[n] = (struct way){spans[i].flow, spans[i].end_ns - spans[i].start_ns};
            n++;
        }
    }
    return n;
}

dp_status_t ways_make(const dp_timeline_t *timeline, ways_t *ways_out)
{
    ways_out->n = collect_lanes(timeline, NULL);
    ways_out->at = calloc((size_t)ways_out->n + 1, sizeof(*ways_out->at));
    if (ways_out->at == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the ways of %lld messages", (long long)ways_out->n);
    (void)collect_lanes(timeline, ways_out->at);
    qsort(ways_out->at, (size_t)ways_out->n, sizeof(*ways_out->at), by_flow);
    return DP_OK;
}

void ways_clear(ways_t *ways)
{
    free(ways->at);
    ways->at = NULL;
}

static int64_t way_of(const ways_t *ways, uint64_t flow)
{
    const struct way key = {.flow = flow},
                     *found = bsearch(&key, ways->at, (size_t)ways->n, sizeof(*ways->at), by_flow);

    return found != NULL ? found->length : 0;
}

static void count_wait(const wait_t *wait, int64_t *waiting, int64_t *exposed)
{
    int64_t length = wait->end - wait->start;

    *waiting += length;
    *exposed += length < wait->way ? length : wait->way;
}

/* An operation of two inputs has two RECV spans with one start; the later message is the one it
 * waited for. */
exposed_t exposed_of(const dp_timeline_t *timeline, int32_t rank, const ways_t *ways)
{
    int64_t count, waiting = 0, exposed = 0;
    const dp_span_t *spans = dp_timeline_spans(timeline, rank, &count);
    wait_t wait = {0, 0, 0};

    for (int64_t i = 0; i < count; i++) {
        if (spans[i].kind != DP_SPAN_RECV || spans[i].end_ns == spans[i].start_ns)
            continue;
        if (spans[i].start_ns != wait.start) {
            count_wait(&wait, &waiting, &exposed);
            wait = (wait_t){spans[i].start_ns, spans[i].start_ns, 0};
        }
        if (spans[i].end_ns > wait.end) {
            wait.end = spans[i].end_ns;
            wait.way = way_of(ways, spans[i].flow);
        }
    }
    count_wait(&wait, &waiting, &exposed);
    return (exposed_t){(double)waiting / 1e6, (double)exposed / 1e6};
}
