/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * costs.c: costs out of a trace. An instant at which kernels of several computing segments run is
 * split evenly between them, so that segments add up to the time a device computes; a segment of
 * communication takes the time in which any of its kernels runs. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/sized.h"
#include "simulate/measure_lists.h"
#include "trace/actions.h"
#include "trace/costs_head.h"
#include "trace/overlap.h"
#include "trace/segment.h"
#include "trace/timeline.h"

/* What dp_trace_costs_write() was asked, made ready. */
typedef struct request {
    const char *title;
    int32_t layers;
    dp__trace_rule_t rules[DP_TRACE_ANNOTATIONS];
    int nrules;
} request_t;

/* An annotation around segments: a chunk, a pair of chunks, a step. */
typedef struct window {
    int64_t start, end;            /* of the records in it */
    int64_t times[DP__TRACE_KEYS]; /* annotations of each segment and pass */
    int64_t turns;                 /* how often a forward follows a backward or the other way */
    int last_pass;
    bool any;
} window_t;

typedef struct sums {
    const dp_trace_t *trace;
    int8_t *keys;                /* [names] segment key, from 0; -1: none; -2: not asked yet */
    uint8_t *used;               /* [ranges] records belong to it */
    window_t *windows;           /* [ranges + 1] by parent; the last: no annotation around */
    double time[DP__TRACE_KEYS]; /* ns */
    int64_t times[DP__TRACE_KEYS];
} sums_t;

/* ---- which segment ---- */

static int key_of_name(sums_t *sums, const request_t *request, uint32_t name)
{
    if (sums->keys[name] == -2)
        sums->keys[name] =
            (int8_t)dp__trace_segment_of(dp__trace_name(sums->trace, name), request->rules, request->nrules);
    return sums->keys[name];
}

/* The annotation of a segment that a record is in, past annotations within it. */
static uint32_t segment_range(sums_t *sums, const request_t *request, const dp__trace_record_t *record)
{
    uint32_t range = record->range;

    for (int climbed = 0; range != DP__TRACE_NONE && climbed < 64; climbed++) {
        if (key_of_name(sums, request, sums->trace->ranges[range].name) >= 0)
            return range;
        range = sums->trace->ranges[range].parent;
    }
    return DP__TRACE_NONE;
}

static window_t *window_of(sums_t *sums, uint32_t range)
{
    uint32_t parent = sums->trace->ranges[range].parent;

    return &sums->windows[parent != DP__TRACE_NONE ? parent : sums->trace->nranges];
}

/* ---- time ---- */

/* A record of a segment begins or ends. */
typedef struct edge {
    int64_t time;
    int8_t key, change;
} edge_t;

static int by_time(const void *a, const void *b)
{
    const edge_t *x = a, *y = b;

    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    if (x->change != y->change)
        return x->change < y->change ? -1 : 1;
    return x->key - y->key;
}

static bool is_computing(int key)
{
    int segment = dp__trace_key_segment(key);

    return segment == 0 || segment == 2;
}

/* What the time between two edges adds. */
static void add_stretch(sums_t *sums, const int64_t *running, double length)
{
    int sharing = 0;

    for (int k = 0; k < DP__TRACE_KEYS; k++)
        sharing += is_computing(k) && running[k] > 0;
    for (int k = 0; k < DP__TRACE_KEYS; k++)
        if (running[k] > 0)
            sums->time[k] += is_computing(k) ? length / sharing : length;
}

static void sweep_edges(sums_t *sums, edge_t *edges, size_t count)
{
    int64_t running[DP__TRACE_KEYS] = {0};

    qsort(edges, count, sizeof(*edges), by_time);
    for (size_t e = 0; e < count; e++) {
        if (e > 0 && edges[e].time > edges[e - 1].time)
            add_stretch(sums, running, (double)(edges[e].time - edges[e - 1].time));
        running[edges[e].key] += edges[e].change;
    }
}

static void note_record(sums_t *sums, uint32_t range, const dp__trace_record_t *record)
{
    window_t *window = window_of(sums, range);

    sums->used[range] = 1;
    window->start = !window->any || record->start < window->start ? record->start : window->start;
    window->end = !window->any || record->end > window->end ? record->end : window->end;
    window->any = true;
}

static dp_status_t add_rank(sums_t *sums, const request_t *request, const dp__trace_rank_t *rank)
{
    edge_t *edges = dp__allocate((2 * (rank->end - rank->first) + 1) * sizeof(*edges), 16);
    size_t count = 0;

    if (edges == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu records", rank->end - rank->first);
    for (size_t i = rank->first; i < rank->end; i++) {
        const dp__trace_record_t *record = &sums->trace->records[i];
        uint32_t range = segment_range(sums, request, record);
        int8_t key;

        if (range == DP__TRACE_NONE)
            continue;
        key = sums->keys[sums->trace->ranges[range].name];
        note_record(sums, range, record);
        edges[count++] = (edge_t){record->start, key, 1};
        edges[count++] = (edge_t){record->end, key, -1};
    }
    sweep_edges(sums, edges, count);
    dp__free(edges);
    return DP_OK;
}

/* ---- counts ---- */

static void count_ranges(sums_t *sums)
{
    for (size_t r = 0; r < sums->trace->nranges; r++) {
        window_t *window;
        int key, pass;

        if (!sums->used[r])
            continue;
        key = sums->keys[sums->trace->ranges[r].name];
        pass = dp__trace_key_pass(key) == 0 ? 1 : 2;
        window = window_of(sums, (uint32_t)r);
        sums->times[key]++;
        window->times[key]++;
        window->turns += window->last_pass != 0 && window->last_pass != pass;
        window->last_pass = pass;
    }
}

/* Layers: the most annotations that one segment has of a pass. */
static int64_t layers_in(const int64_t *times, int pass)
{
    int64_t most = 0;

    for (int s = 0; s < DP_SEGMENT_COSTS; s++)
        most = times[3 * s + pass] > most ? times[3 * s + pass] : most;
    return most;
}

/* What chunks took, first start to last end, in ns. */
typedef struct chunks {
    double time[3]; /* F alone, backward alone, overlapped pairs */
    double count[3];
    double layers;
} chunks_t;

static chunks_t measure_chunks(const sums_t *sums, int32_t layers)
{
    chunks_t chunks = {.layers = layers};
    double forwards = 0.0, windows = 0.0;

    for (size_t w = 0; w <= sums->trace->nranges; w++) {
        forwards += (double)layers_in(sums->windows[w].times, 0);
        if (layers_in(sums->windows[w].times, 0) > 0)
            windows += w < sums->trace->nranges ? 1.0 : (double)sums->trace->nranks;
    }
    if (layers == 0)
        chunks.layers = fmax(1.0, round(forwards / fmax(windows, 1.0)));
    for (size_t w = 0; w <= sums->trace->nranges; w++) {
        const window_t *window = &sums->windows[w];
        double f = (double)layers_in(window->times, 0);
        double b = (double)(layers_in(window->times, 1) > layers_in(window->times, 2) ? layers_in(window->times, 1)
                                                                                      : layers_in(window->times, 2));
        int kind = f > 0.0 && b > 0.0 ? 2 : f > 0.0 ? 0 : 1;

        /* One forward and then one backward is no pair; without an annotation around, neither is it
         * known what is one chunk. */
        if (!window->any || w == sums->trace->nranges || (kind == 2 && window->turns < 3))
            continue;
        chunks.time[kind] += (double)window->end - (double)window->start;
        chunks.count[kind] += fmax(f, b) / chunks.layers;
    }
    return chunks;
}

/* ---- output ---- */

static const char *const segment_names[DP_SEGMENT_COSTS] = {"attention", "dispatch", "mlp", "combine"};
static const char pass_names[] = "FIW";

static dp_status_t derive_costs(const sums_t *sums, double layers, dp_costs_t *costs, dp_pair_figures_t *pair)
{
    dp_segment_costs_t segments = {.struct_size = sizeof(segments), .layers = (int32_t)layers};
    double *const passes[3] = {segments.f, segments.i, segments.w};

    for (int k = 0; k < DP__TRACE_KEYS; k++) {
        int64_t of = layers_in(sums->times, k % 3);

        passes[k % 3][k / 3] = of > 0 ? sums->time[k] / (double)of / 1e6 : 0.0;
    }
    *costs = (dp_costs_t){.struct_size = sizeof(*costs)};
    *pair = (dp_pair_figures_t){.struct_size = sizeof(*pair)};
    return dp_costs_from_segments(&segments, costs, pair);
}

static void put_segments(const sums_t *sums, double layers, dp__out_t *to)
{
    dp__out_put(to,
                "\n# One layer, one micro-batch; what of F to FB is not given below follows from these.\nLAYERS=%g\n",
                layers);
    for (int k = 0; k < DP__TRACE_KEYS; k++) {
        int64_t of = layers_in(sums->times, k % 3);

        if (sums->times[k] > 0)
            dp__out_put(to, "%s.%c=%.6g\n", segment_names[k / 3], pass_names[k % 3], sums->time[k] / (double)of / 1e6);
    }
}

static void put_chunks(const chunks_t *chunks, dp__out_t *to)
{
    static const char *const names[3] = {"F", "B", "FB"};
    static const char *const what[3] = {"A forward of all layers", "A backward of all layers", "An overlapped pair"};

    for (int c = 0; c < 3; c++)
        if (chunks->count[c] > 0.0)
            dp__out_put(to, "\n# %s, first start to last end, mean of %g.\n%s=%.6g\n", what[c], chunks->count[c],
                        names[c], chunks->time[c] / chunks->count[c] / 1e6);
}

static dp_status_t put_costs(const sums_t *sums, const request_t *request, dp__out_t *to)
{
    chunks_t chunks = measure_chunks(sums, request->layers);
    dp_pair_figures_t pair;
    dp_costs_t costs;
    dp_status_t status;

    if (chunks.layers > DP_SEGMENT_LAYERS)
        return dp_fail(DP_ERR_REJECTED, "%g layers in a chunk: give --layers N, how many layers a chunk has",
                       chunks.layers);
    status = derive_costs(sums, chunks.layers, &costs, &pair);
    if (status != DP_OK)
        return status;
    dp__trace_costs_head(request->title, to);
    dp__out_put(to, "# The segments were slowed down by what ran beside them when they were measured.\n");
    put_segments(sums, chunks.layers, to);
    dp__out_put(to, "# from the segments: F=%.6g I=%.6g W=%.6g B=%.6g FB=%.6g\n", costs.f, costs.i, costs.w, costs.b,
                costs.fb);
    put_chunks(&chunks, to);
    dp__out_put(to, "\n# Transfers between stages are not in these: --cost HOP=MS,BYTES=N,BANDWIDTH=BYTES_PER_MS.\n");
    return DP_OK;
}

/* ---- the kinds of traces ---- */

static dp_status_t open_sums(const dp_trace_t *trace, sums_t *sums)
{
    *sums = (sums_t){.trace = trace};
    if (!dp__arrays(DP__ARRAY(sums->windows, trace->nranges + 1), DP__ARRAY(sums->used, trace->nranges + 1),
                    DP__ARRAY(sums->keys, dp__trace_names(trace) + 1)))
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu annotations", trace->nranges);
    memset(sums->keys, -2, dp__trace_names(trace) + 1);
    return DP_OK;
}

static dp_status_t put_annotated(const dp_trace_t *trace, const request_t *request, dp__out_t *to)
{
    sums_t sums;
    dp_status_t status = open_sums(trace, &sums);

    for (size_t r = 0; r < trace->nranks && status == DP_OK; r++)
        status = add_rank(&sums, request, &trace->ranks[r]);
    if (status == DP_OK)
        count_ranges(&sums);
    if (status == DP_OK && layers_in(sums.times, 0) == 0)
        status = dp_fail(DP_ERR_REJECTED,
                         "%s: no annotation such as attn(F), mlp(F), dispatch(F) has kernels: give --annotation "
                         "attention.F=REGEX and so on for the names that are there (dualpipe trace overlap lists them)",
                         request->title);
    if (status == DP_OK)
        status = put_costs(&sums, request, to);
    dp__free(sums.windows);
    return status;
}

/* Stages of one schedule do not fit another: their scales are written as a comment. */
static dp_status_t put_ours(const dp_trace_t *trace, dp__out_t *to)
{
    dp_measured_costs_t measured = {.struct_size = sizeof(measured)};
    dp_timeline_t *timeline;
    dp_schedule_t *schedule;
    dp_status_t status = dp__trace_to_timeline(trace, &timeline, &schedule);

    if (status == DP_OK)
        status = dp_costs_measure(timeline, schedule, &measured);
    if (status == DP_ERR_INVALID)
        status = DP_ERR_REJECTED; /* the trace, not the call, lacks a forward */
    if (status == DP_OK)
        dp__measured_costs_put(&measured, "# for the same placement alone: STAGE_SCALE=", to);
    dp_measured_costs_clear(&measured);
    dp_timeline_free(timeline);
    dp_schedule_free(schedule);
    return status;
}

static dp_status_t write_costs_json(const dp_trace_t *trace, const request_t *request, dp__out_t *to)
{
    if (trace->ndetails > 0 && trace->nranges == 0)
        return put_ours(trace, to);
    if (request->nrules == 0 && dp__trace_has_actions(trace))
        return dp__trace_actions_put(trace, request->title, to);
    return put_annotated(trace, request, to);
}

/* ---- the request ---- */

static dp_status_t read_request(const dp_trace_costs_t *given, request_t *request)
{
    dp_trace_costs_t own;
    const dp_trace_costs_t *const costs = &own;
    dp_status_t status = dp__take("dp_trace_costs_write: costs", dp_trace_costs_t, DP_TRACE_COSTS_MIN, &own, given);

    if (status != DP_OK)
        return status;
    if (costs->layers < 0 || costs->layers > DP_SEGMENT_LAYERS)
        return dp_fail(DP_ERR_INVALID, "dp_trace_costs_write: %d layers: 0 to %d are possible", costs->layers,
                       DP_SEGMENT_LAYERS);
    if (costs->annotation_count < 0 || costs->annotation_count > DP_TRACE_ANNOTATIONS ||
        (costs->annotation_count > 0 && costs->annotations == NULL))
        return dp_fail(DP_ERR_INVALID, "dp_trace_costs_write: %d annotations: 0 to %d are possible",
                       costs->annotation_count, DP_TRACE_ANNOTATIONS);
    request->layers = costs->layers;
    request->title = costs->title != NULL ? costs->title : request->title;
    for (int32_t k = 0; k < costs->annotation_count && status == DP_OK; k++) {
        status = dp__trace_rule(costs->annotations[k], &request->rules[k]);
        request->nrules += status == DP_OK;
    }
    return status;
}

static dp_status_t write_request(const dp_trace_t *trace, const request_t *request, dp_write_fn write, void *user)
{
    dp__out_t *to = dp__calloc(1, sizeof(*to));
    dp_status_t status;

    if (to == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the costs");
    dp__out_open(to, write, user);
    status = write_costs_json(trace, request, to);
    if (status == DP_OK)
        status = dp__out_close(to);
    dp__free(to);
    return status;
}

dp_status_t dp_trace_costs_write(const dp_trace_t *trace, const dp_trace_costs_t *costs, dp_write_fn write, void *user)
{
    request_t request = {.title = "a trace"};
    dp_status_t status = DP_OK;

    if (trace == NULL || write == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_trace_costs_write: trace and write must not be NULL");
    if (costs != NULL)
        status = read_request(costs, &request);
    if (status == DP_OK)
        status = write_request(trace, &request, write, user);
    for (int k = 0; k < request.nrules; k++)
        regfree(&request.rules[k].regex);
    return status;
}
