/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * demo.c: a schedule simulated, run, and the figures of both. */
#include "demo.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#include "demo_rank.h"

/* A chunk is its part of the device's layers; one layer is cut where there are fewer layers than
 * chunks. */
static demo_pace_t pace_of(const demo_request_t *request, const dp_schedule_t *schedule)
{
    int32_t split = dp_schedule_split(schedule), layers = request->segments->layers / split;
    demo_pace_t pace = {.segments = *request->segments, .rank_scale = request->rank_scale, .unit_ns = request->unit_ns};
    double share;

    pace.segments.layers = layers > 0 ? layers : 1;
    share = (double)request->segments->layers / split / pace.segments.layers;
    for (int s = 0; s < DP_SEGMENT_COSTS; s++) {
        pace.segments.f[s] *= share;
        pace.segments.i[s] *= share;
        pace.segments.w[s] *= share;
    }
    for (int s = 0; s < DP_SEGMENT_FINE; s++) {
        pace.segments.fine_f[s] *= share;
        pace.segments.fine_i[s] *= share;
        pace.segments.fine_w[s] *= share;
    }
    return pace;
}

/* ---- the run ---- */

typedef struct window {
    int64_t start, end;
} window_t;

/* First start to last end of computing on any rank. */
static window_t window_of(const dp_timeline_t *timeline, int32_t step)
{
    window_t w = {INT64_MAX, 0};

    for (int32_t r = 0; r < dp_timeline_ranks(timeline); r++) {
        int64_t n;
        const dp_span_t *span = dp_timeline_spans(timeline, r, &n);

        for (int64_t k = 0; k < n; k++)
            if (span[k].kind == DP_SPAN_COMPUTE && span[k].step == step) {
                w.start = span[k].start_ns < w.start ? span[k].start_ns : w.start;
                w.end = span[k].end_ns > w.end ? span[k].end_ns : w.end;
            }
    }
    return w;
}

/* The spans of one step, its beginning at 0. */
static dp_status_t cut_steps(const dp_timeline_t *all, int32_t step, window_t w, dp_timeline_t **timeline_out)
{
    int32_t ranks = dp_timeline_ranks(all);
    int64_t most = 0, n;
    dp_status_t status;

    for (int32_t r = 0; r < ranks; r++) {
        (void)dp_timeline_spans(all, r, &n);
        most = n > most ? n : most;
    }
    status = dp_timeline_create(ranks, most + 1, timeline_out);
    for (int32_t r = 0; r < ranks && status >= 0; r++) {
        const dp_span_t *spans = dp_timeline_spans(all, r, &n);

        for (int64_t k = 0; k < n && status >= 0; k++) {
            dp_span_t span = spans[k];
            const char *name = dp_timeline_name_text(all, span.name);

            if (span.step != step || span.kind == DP_SPAN_STEP)
                continue;
            span.step = 0;
            span.start_ns = span.start_ns > w.start ? span.start_ns - w.start : 0;
            span.end_ns = span.end_ns > w.start ? span.end_ns - w.start : 0;
            if (name[0] != 0)
                status = dp_timeline_name(*timeline_out, name, &span.name);
            if (status >= 0)
                status = dp_timeline_add(*timeline_out, r, &span);
        }
    }
    return status;
}

/* Segments on the compute lane, in the order they ran, against one on the other. */
static int64_t beside(const dp_span_t *spans, int64_t n, const dp_span_t *communication)
{
    int64_t sum = 0;

    for (int64_t k = 0; k < n; k++)
        if (spans[k].kind == DP_SPAN_COMPUTE && spans[k].lane == DP_LANE_COMPUTE) {
            int64_t from = spans[k].start_ns > communication->start_ns ? spans[k].start_ns : communication->start_ns;
            int64_t to = spans[k].end_ns < communication->end_ns ? spans[k].end_ns : communication->end_ns;

            sum += to > from ? to - from : 0;
        }
    return sum;
}

/* The figures of a step, simulated or run. */
static dp_status_t figures_of(const dp_timeline_t *timeline, double unit_ns, demo_figures_t *figures)
{
    int32_t ranks = dp_timeline_ranks(timeline);
    int64_t communication = 0, hidden = 0, n;
    window_t w = window_of(timeline, 0);

    *figures = (demo_figures_t){.step = (double)(w.end - w.start) / unit_ns};
    for (int32_t r = 0; r < ranks; r++) {
        const dp_span_t *spans = dp_timeline_spans(timeline, r, &n);
        dp_rank_report_t report = {.struct_size = sizeof(report)};
        dp_status_t status = dp_timeline_report(timeline, r, -1, 1, &report);

        if (status < 0)
            return status;
        figures->bubble += (double)report.bubble / (double)(w.end - w.start) / ranks;
        for (int64_t k = 0; k < n; k++)
            if (spans[k].kind == DP_SPAN_COMPUTE && spans[k].lane == DP_LANE_ALL_TO_ALL) {
                communication += spans[k].end_ns - spans[k].start_ns;
                hidden += beside(spans, n, &spans[k]);
            }
    }
    figures->hidden = communication > 0 ? (double)hidden / (double)communication : NAN;
    return DP_OK;
}

/* As the engine will enqueue it; its messages are small and leave from the lane that made them. */
static dp_status_t simulate_method(const demo_request_t *request, const demo_pace_t *pace, demo_result_t *result)
{
    dp_segment_costs_t segments = pace->segments;
    dp_costs_t costs = {.struct_size = sizeof(costs),
                        .segments = &segments,
                        .hop = request->hop,
                        .barrier = 1.0,
                        .rank_scale = request->rank_scale};
    dp_simulation_t simulation = {.struct_size = sizeof(simulation)};
    dp_status_t status;

    segments.layers *= dp_schedule_split(result->schedule);
    segments.inline_messages = 1;
    status = dp_evaluate(result->schedule, NULL, &costs, 1, &simulation);
    if (status >= 0)
        status = figures_of(simulation.timeline, 1e6, &result->simulated);
    dp_simulation_clear(&simulation);
    return status;
}

static dp_status_t execute(const demo_request_t *request, const demo_pace_t *pace, demo_result_t *result)
{
    dp_timeline_t *all = NULL;
    dp_status_t status = demo_ranks_run(result->schedule, pace, request->steps, &all);
    window_t shortest = {0, INT64_MAX};
    int32_t best = 0;

    for (int32_t k = 0; k < request->steps && status >= 0; k++) {
        window_t w = window_of(all, k);

        if (w.start < w.end && w.end - w.start < shortest.end - shortest.start) {
            shortest = w;
            best = k;
        }
    }
    if (status >= 0)
        status = cut_steps(all, best, shortest, &result->timeline);
    dp_timeline_free(all);
    if (status >= 0)
        status = figures_of(result->timeline, request->unit_ns, &result->measured);
    if (isnan(result->simulated.hidden))
        result->measured.hidden = NAN;
    return status;
}

dp_status_t demo_run(const demo_request_t *request, demo_result_t *result_out)
{
    dp_schedule_request_t wanted = {.struct_size = sizeof(wanted),
                                    .method = request->method,
                                    .ranks = request->ranks,
                                    .microbatches = request->microbatches,
                                    .chunks = request->chunks};
    demo_pace_t pace;
    dp_status_t status;

    *result_out = (demo_result_t){.schedule = NULL};
    status = dp_schedule_generate(&wanted, &result_out->schedule);
    if (status >= 0 && request->forwards >= 0) {
        dp_schedule_t *training = result_out->schedule;

        status = dp_schedule_forwards(training, request->forwards, &result_out->schedule);
        dp_schedule_free(training);
    }
    if (status < 0)
        return status;
    if (request->label != NULL)
        snprintf(result_out->schedule->method, sizeof(result_out->schedule->method), "%s", request->label);
    pace = pace_of(request, result_out->schedule);
    status = simulate_method(request, &pace, result_out);
    return status < 0 || request->unit_ns <= 0.0 ? status : execute(request, &pace, result_out);
}

void demo_clear(demo_result_t *result)
{
    dp_schedule_free(result->schedule);
    dp_timeline_free(result->timeline);
    *result = (demo_result_t){.schedule = NULL};
}
