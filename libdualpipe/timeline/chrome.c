/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * chrome.c: a timeline as a Chrome trace. Viewers want the spans of one thread not to overlap, so
 * each kind of track is split into as many threads as are busy at once. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "schedule/out.h"
#include "timeline/timeline.h"

#define THREADS_PER_TRACK 256 /* past that, spans share the last thread */

typedef enum track {
    TRACK_STEP,
    TRACK_COMPUTE,
    TRACK_ALL_TO_ALL,
    TRACK_P2P,
    TRACK_SEND,
    TRACK_RECV,
    TRACK_REDUCE,
    TRACK_COUNT
} track_t;

static const char *const track_names[TRACK_COUNT] = {"step",     "compute",     "all-to-all", "p2p",
                                                     "p2p send", "p2p receive", "reduce"};

/* A span with the thread it is shown on. */
typedef struct placed {
    const dp_span_t *span;
    int64_t start; /* since the first span of all ranks */
    track_t track;
    int32_t thread; /* within its track */
} placed_t;

/* One end of a message. */
typedef struct flow_end {
    uint64_t flow;
    int is_recv;
} flow_end_t;

typedef struct flows {
    flow_end_t *ends; /* sorted, then only the send ends of complete messages */
    int64_t count;
} flows_t;

static track_t track_of(const dp_span_t *span)
{
    static const track_t of_lane[DP_LANE_COUNT] = {TRACK_COMPUTE, TRACK_ALL_TO_ALL, TRACK_P2P, TRACK_REDUCE};

    switch (span->kind) {
    case DP_SPAN_SEND:
        return TRACK_SEND;
    case DP_SPAN_RECV:
        return TRACK_RECV;
    case DP_SPAN_REDUCE:
        return TRACK_REDUCE;
    case DP_SPAN_STEP:
        return TRACK_STEP;
    default:
        return of_lane[span->lane];
    }
}

static int by_track_and_start(const void *a, const void *b)
{
    const placed_t *x = a, *y = b;

    if (x->track != y->track)
        return x->track < y->track ? -1 : 1;
    if (x->span->start_ns != y->span->start_ns)
        return x->span->start_ns < y->span->start_ns ? -1 : 1;
    return (x->span > y->span) - (x->span < y->span);
}

/* Gives each span the first thread of its track that is free when it starts. */
static void place_spans(const dp__row_t *row, int64_t origin, placed_t *placed)
{
    int64_t busy_until[THREADS_PER_TRACK];
    int32_t used = 0;

    for (int64_t i = 0; i < row->count; i++) {
        placed[i].span = &row->spans[i];
        placed[i].start = row->spans[i].start_ns - origin;
        placed[i].track = track_of(&row->spans[i]);
    }
    qsort(placed, (size_t)row->count, sizeof(*placed), by_track_and_start);
    for (int64_t i = 0; i < row->count; i++) {
        int32_t thread = 0;

        if (i == 0 || placed[i].track != placed[i - 1].track)
            used = 0;
        while (thread < used && busy_until[thread] > placed[i].span->start_ns)
            thread++;
        if (thread == THREADS_PER_TRACK)
            thread--;
        else if (thread == used)
            used++;
        busy_until[thread] = placed[i].span->end_ns;
        placed[i].thread = thread;
    }
}

static int compare_flows(const void *a, const void *b)
{
    const flow_end_t *x = a, *y = b;

    if (x->flow != y->flow)
        return x->flow < y->flow ? -1 : 1;
    return x->is_recv - y->is_recv;
}

static bool ends_message(const dp_span_t *span)
{
    return span->flow != 0 && (span->kind == DP_SPAN_SEND || span->kind == DP_SPAN_RECV);
}

/* Messages of which exactly one send and one receive are there: only these get an arrow. */
static dp_status_t find_flows(const dp_timeline_t *timeline, flows_t *flows)
{
    int64_t n = 0, kept = 0;

    for (int32_t r = 0; r < timeline->ranks; r++)
        for (int64_t i = 0; i < timeline->rows[r].count; i++)
            n += ends_message(&timeline->rows[r].spans[i]);
    flows->ends = dp__calloc((size_t)n, sizeof(*flows->ends));
    if (flows->ends == NULL)
        return dp_fail(DP_ERR_NOMEM, "timeline: no memory for the two ends of %lld transfers", (long long)n);
    n = 0;
    for (int32_t r = 0; r < timeline->ranks; r++) {
        for (int64_t i = 0; i < timeline->rows[r].count; i++) {
            const dp_span_t *span = &timeline->rows[r].spans[i];

            if (ends_message(span))
                flows->ends[n++] = (flow_end_t){span->flow, span->kind == DP_SPAN_RECV};
        }
    }
    qsort(flows->ends, (size_t)n, sizeof(*flows->ends), compare_flows);
    for (int64_t i = 0; i < n;) {
        int64_t next = i + 1;

        while (next < n && flows->ends[next].flow == flows->ends[i].flow)
            next++;
        if (next == i + 2 && !flows->ends[i].is_recv && flows->ends[i + 1].is_recv)
            flows->ends[kept++] = flows->ends[i];
        i = next;
    }
    flows->count = kept;
    return DP_OK;
}

static bool has_arrow(const flows_t *flows, const dp_span_t *span)
{
    flow_end_t key = {span->flow, 0};

    return ends_message(span) && bsearch(&key, flows->ends, (size_t)flows->count, sizeof(key), compare_flows) != NULL;
}

/* Of the first span: what times count from. */
static int64_t find_origin(const dp_timeline_t *timeline)
{
    int64_t origin = INT64_MAX;

    for (int32_t r = 0; r < timeline->ranks; r++)
        for (int64_t i = 0; i < timeline->rows[r].count; i++)
            if (timeline->rows[r].spans[i].start_ns < origin)
                origin = timeline->rows[r].spans[i].start_ns;
    return origin == INT64_MAX ? 0 : origin;
}

/* Microseconds with three decimals: nanoseconds exactly. */
static void put_time(dp__out_t *out, const char *key, int64_t ns)
{
    dp__out_put(out, "\"%s\":%" PRId64 ".%03d", key, ns / 1000, (int)(ns % 1000));
}

static void put_thread(dp__out_t *out, int32_t rank, const placed_t *at)
{
    dp__out_put(out, "\"pid\":%d,\"tid\":%d", rank, (int)at->track * THREADS_PER_TRACK + at->thread);
}

static void put_process(dp__out_t *out, int32_t rank)
{
    dp__out_put(out,
                "%s\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":\"rank %d\"}},\n"
                "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,\"tid\":0,\"args\":{\"sort_index\":%d}}",
                rank > 0 ? "," : "", rank, rank, rank, rank);
}

/* What is known of clocks of other hosts. Viewers show the text beside the name of a rank. */
static void put_clock(dp__out_t *out, int32_t rank, const dp_row_clock_t *clock)
{
    dp__out_put(out,
                ",\n{\"ph\":\"M\",\"name\":\"process_labels\",\"pid\":%d,\"tid\":0,\"args\":{\"labels\":"
                "\"host %d, times +-%.3f ms\"}},\n"
                "{\"ph\":\"M\",\"name\":\"clock\",\"pid\":%d,\"tid\":0,\"args\":{\"host\":%d,\"offset_ns\":%" PRId64
                ",\"bound_ns\":%" PRId64 ",\"drift_ns_per_s\":%.3f,\"drift_bound_ns_per_s\":%.3f}}",
                rank, clock->host, (double)clock->bound_ns * 1e-6, rank, clock->host, clock->offset_ns, clock->bound_ns,
                clock->drift, clock->drift_bound);
}

static void put_thread_name(dp__out_t *out, int32_t rank, const placed_t *at)
{
    char number[16] = "";

    if (at->thread > 0)
        snprintf(number, sizeof(number), " %d", at->thread + 1);
    dp__out_put(out, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",");
    put_thread(out, rank, at);
    dp__out_put(out, ",\"args\":{\"name\":\"%s%s\"}},\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",",
                track_names[at->track], number);
    put_thread(out, rank, at);
    dp__out_put(out, ",\"args\":{\"sort_index\":%d}}", (int)at->track * THREADS_PER_TRACK + at->thread);
}

/* "F 3", "attention F 3", "send F 3", "wait B 2", "reduce", "gather", "step 7" */
static void put_name(dp__out_t *out, const dp_timeline_t *timeline, const dp_span_t *span)
{
    static const char *const words[] = {"", "send ", "wait ", "reduce", "step"};

    dp__out_put(out, "\"name\":\"");
    if (span->name != 0) {
        dp__out_json(out, dp_timeline_name_text(timeline, span->name));
        dp__out_put(out, span->kind == DP_SPAN_REDUCE ? "" : " ");
    }
    dp__out_put(out, "%s", span->kind == DP_SPAN_REDUCE && span->name != 0 ? "" : words[span->kind]);
    if (span->kind <= DP_SPAN_RECV)
        dp__out_put(out, "%s", span->pass == DP_OP_FB ? "F&B" : dp_op_kind_name(span->pass));
    if (span->kind == DP_SPAN_STEP)
        dp__out_put(out, " %d", span->step);
    else if (span->microbatch >= 0)
        dp__out_put(out, " %d", span->microbatch);
    dp__out_put(out, "\"");
}

static void put_span(dp__out_t *out, const dp_timeline_t *timeline, int32_t rank, const placed_t *at)
{
    const dp_span_t *span = at->span;

    dp__out_put(out, ",\n{\"ph\":\"X\",");
    put_thread(out, rank, at);
    dp__out_put(out, ",");
    put_time(out, "ts", at->start);
    dp__out_put(out, ",");
    put_time(out, "dur", span->end_ns - span->start_ns);
    dp__out_put(out, ",");
    put_name(out, timeline, span);
    dp__out_put(out,
                ",\"cat\":\"%s\",\"args\":{\"step\":%d,\"mb\":%d,\"chunk\":%d,\"stage\":%d,\"segment\":%d,"
                "\"pair\":%d",
                track_names[at->track], span->step, span->microbatch, span->chunk, span->stage, span->segment,
                span->pair);
    if (span->busy_ns > 0)
        dp__out_put(out, ",\"busy_ns\":%" PRIu32, span->busy_ns);
    dp__out_put(out, "}}");
}

/* An arrow starts with its send and ends just inside its receive, which a viewer takes it to point
 * at. Ids are text: as numbers, viewers would round the large ones. */
static void put_arrow(dp__out_t *out, int32_t rank, const placed_t *at)
{
    const dp_span_t *span = at->span;
    bool is_recv = span->kind == DP_SPAN_RECV;
    int64_t length = span->end_ns - span->start_ns, inside = at->start + (length > 0 ? length - 1 : 0);

    dp__out_put(out, ",\n{\"ph\":\"%s\",%s\"name\":\"transfer\",\"cat\":\"transfer\",\"id\":\"0x%" PRIx64 "\",",
                is_recv ? "f" : "s", is_recv ? "\"bp\":\"e\"," : "", span->flow);
    put_thread(out, rank, at);
    dp__out_put(out, ",");
    put_time(out, "ts", is_recv ? inside : at->start);
    dp__out_put(out, "}");
}

static dp_status_t put_rank_row(dp__out_t *out, const dp_timeline_t *timeline, int32_t rank, int64_t origin,
                                const flows_t *flows)
{
    const dp__row_t *row = &timeline->rows[rank];
    placed_t *placed = dp__calloc((size_t)row->count, sizeof(*placed));
    int32_t named = 0;

    if (placed == NULL)
        return dp_fail(DP_ERR_NOMEM, "timeline: no memory to sort %lld spans of rank %d", (long long)row->count, rank);
    place_spans(row, origin, placed);
    put_process(out, rank);
    if (row->clock.bound_ns > 0)
        put_clock(out, rank, &row->clock);
    for (int64_t i = 0; i < row->count && out->status >= 0; i++) {
        if (i == 0 || placed[i].track != placed[i - 1].track)
            named = 0;
        if (placed[i].thread == named) {
            put_thread_name(out, rank, &placed[i]);
            named++;
        }
        put_span(out, timeline, rank, &placed[i]);
        if (has_arrow(flows, placed[i].span))
            put_arrow(out, rank, &placed[i]);
    }
    dp__free(placed);
    return DP_OK;
}

dp_status_t dp_timeline_write_chrome(const dp_timeline_t *timeline, dp_write_fn write, void *user)
{
    int64_t origin;
    dp_status_t status, written;
    dp__out_t out;
    flows_t flows = {NULL, 0};

    if (timeline == NULL || write == NULL)
        return dp_fail(DP_ERR_INVALID, "timeline: nothing to write, or nothing to write to");
    status = find_flows(timeline, &flows);
    if (status < 0)
        return status;
    origin = find_origin(timeline);
    dp__out_open(&out, write, user);
    dp__out_put(&out, "{\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":%" PRId64 ",\"traceEvents\":[", origin);
    for (int32_t r = 0; r < timeline->ranks && status >= 0 && out.status >= 0; r++)
        status = put_rank_row(&out, timeline, r, origin, &flows);
    dp__out_put(&out, "\n]}\n");
    written = dp__out_close(&out);
    dp__free(flows.ends);
    return status < 0 ? status : written;
}
