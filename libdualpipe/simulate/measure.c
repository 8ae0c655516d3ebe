/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * measure.c: costs from a timeline: spans of an operation; times of operations and segments. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/memory.h"
#include "base/range.h"
#include "base/sized.h"
#include "simulate/costs.h"
#include "simulate/measure_lists.h"

enum { LONE_F, LONE_I, LONE_W, WHOLE_B, PAIR, CLASSES };
enum { RECOMPUTED = 3 /* index of R behind F, I and W */, PASSES };

/* Spans that follow one another in a row and belong to one operation. */
typedef struct op {
    /* begun: with a span that is no R */
    bool any, begun, pair, has_f, has_i, has_w, has_b, metered;
    int32_t step, f_chunk, f_mb, b_chunk, b_mb;
    /* begun: without the R before it, which does not wait for the gradient */
    int64_t start, end;
    int64_t ahead;                /* R spans before the start */
    double inside[3], recomputed; /* its F, I and W spans; its R spans */
    /* if metered: when the lane is free, and the F and the I have come so far */
    double lane[DP_LANE_COUNT], chain[2];
} op_t;

typedef struct mean {
    double sum;
    int64_t count;
} mean_t;

typedef struct sums {
    const dp_timeline_t *timeline;
    const dp_schedule_t *schedule;
    uint8_t *split; /* [chunks * microbatches] 1: this rank runs I and W apart */
    int32_t stages;
    double *busy;        /* [stages] */
    mean_t ops[CLASSES]; /* lengths */
    mean_t inside[2][3]; /* F, I, W in operations that hold more; [1]: in pairs */
    mean_t segment[DP_ROLE_SUM][PASSES];
    mean_t recomputed; /* R in operations that have an I */
    int64_t forwards;  /* operations with a forward */
    double hop;        /* shortest send; negative: none */
} sums_t;

static void add_value(mean_t *mean, double value)
{
    mean->sum += value;
    mean->count++;
}

static double mean_value(const mean_t *mean)
{
    return mean->count > 0 ? mean->sum / (double)mean->count : 0.0;
}

/* ---- operations ---- */

/* I and W of one micro-batch may stand side by side; the schedule says whether they are two
 * operations. Micro-batches of the second direction count from 0 in schedules and simulations, and
 * behind those of the first in runs: the two do not meet. */
static void find_split(sums_t *sums, int32_t rank)
{
    const dp_schedule_t *schedule = sums->schedule;
    size_t cells = (size_t)schedule->chunks * (size_t)schedule->microbatches;

    memset(sums->split, 0, cells);
    for (int64_t k = schedule->first[rank]; k < schedule->first[rank + 1]; k++) {
        const dp_op_t *op = &schedule->ops[k];
        size_t cell = (size_t)op->chunk * (size_t)schedule->microbatches + (size_t)op->microbatch;
        size_t second = schedule->placement == DP_PLACE_BIDIRECTIONAL && op->chunk == 1
                            ? (size_t)dp_schedule_path_microbatches(schedule, 1)
                            : 0;

        if (op->kind == DP_OP_I && op->chunk >= 0 && op->microbatch >= 0 && cell + second < cells)
            sums->split[cell] = sums->split[cell + second] = 1;
    }
}

static bool is_split(const sums_t *sums, const dp_span_t *span)
{
    const dp_schedule_t *schedule = sums->schedule;

    return span->chunk >= 0 && span->chunk < schedule->chunks && span->microbatch >= 0 &&
           span->microbatch < schedule->microbatches &&
           sums->split[(size_t)span->chunk * (size_t)schedule->microbatches + (size_t)span->microbatch];
}

static bool belongs_to(const sums_t *sums, const op_t *op, const dp_span_t *span)
{
    bool forward = span->pass == DP_OP_F;

    if (!forward && is_split(sums, span) && (span->pass == DP_OP_W ? op->has_i : op->has_w))
        return false;
    if (!op->any || op->step != span->step || op->pair != (span->pair != 0))
        return false;
    if (forward ? op->has_f : op->has_i || op->has_w || op->has_b)
        return forward ? op->f_chunk == span->chunk && op->f_mb == span->microbatch
                       : op->b_chunk == span->chunk && op->b_mb == span->microbatch;
    return op->pair;
}

/* Without what is recomputed. From the first start to the last end; where threads waited for cores,
 * as long as the spans would take with a core for each lane. */
static double op_length(const op_t *op)
{
    double longest = 0.0;

    if (!op->metered)
        return fmax((double)(op->end - op->start + op->ahead) / 1e6 - op->recomputed, 0.0);
    for (int l = 0; l < DP_LANE_COUNT; l++)
        longest = fmax(longest, op->lane[l]);
    return fmax(longest - op->recomputed, 0.0);
}

static void close_op(sums_t *sums, op_t *op)
{
    bool whole = op->has_b || (op->has_i && op->has_w);

    if (!op->any)
        return;
    add_value(&sums->ops[op->pair    ? PAIR
                         : op->has_f ? LONE_F
                         : whole     ? WHOLE_B
                         : op->has_i ? LONE_I
                                     : LONE_W],
              op_length(op));
    sums->forwards += op->has_f;
    if (op->has_i)
        add_value(&sums->recomputed, op->recomputed);
    for (int p = 0; p < 3; p++)
        if (p == 0 ? op->has_f : p == 1 ? op->has_i : op->has_w)
            add_value(&sums->inside[op->pair][p], op->inside[p]);
    *op = (op_t){.any = false};
}

/* Spans come in the order in which their lanes take them. A W waits for nothing but its lane: its I
 * is before it; nor does what is recomputed. */
static void restart_operation(op_t *op, const dp_span_t *span)
{
    bool waits = span->pass != DP_OP_W && span->pass != DP_OP_R;
    double *chain = &op->chain[span->pass == DP_OP_F ? 0 : 1];
    double start = waits ? *chain : 0.0, end = fmax(start, op->lane[span->lane]) + dp__span_length(span);

    op->metered = op->metered && span->busy_ns > 0;
    op->lane[span->lane] = end;
    if (waits)
        *chain = end;
}

/* From when to when. R may run while the gradient is still on its way: the wait between the two is
 * not the backward's. A pair has its forward meanwhile. */
static void stretch_operation(op_t *op, const dp_span_t *span)
{
    if (span->pass == DP_OP_R && !op->pair) {
        const int64_t until = op->begun ? dp__min_int64(op->start, span->end_ns) : span->end_ns;

        op->ahead += until > span->start_ns ? until - span->start_ns : 0;
        op->start = op->begun ? op->start : span->end_ns;
    } else if (!op->begun) {
        op->ahead -= dp__min_int64(op->ahead, op->end > span->start_ns ? op->end - span->start_ns : 0);
        op->start = span->start_ns;
        op->begun = true;
    } else {
        op->start = dp__min_int64(op->start, span->start_ns);
    }
    op->end = span->end_ns > op->end ? span->end_ns : op->end;
}

static void take_span(op_t *op, const dp_span_t *span)
{
    if (!op->any)
        *op =
            (op_t){.any = true, .pair = span->pair != 0, .metered = true, .step = span->step, .start = span->start_ns};
    if (span->pass == DP_OP_F) {
        op->has_f = true;
        op->f_chunk = span->chunk;
        op->f_mb = span->microbatch;
    } else {
        op->has_i = op->has_i || span->pass == DP_OP_I || span->pass == DP_OP_R;
        op->has_w = op->has_w || span->pass == DP_OP_W;
        op->has_b = op->has_b || span->pass == DP_OP_B;
        op->b_chunk = span->chunk;
        op->b_mb = span->microbatch;
    }
    restart_operation(op, span);
    stretch_operation(op, span);
}

/* ---- spans ---- */

static int pass_index(const dp_span_t *span)
{
    return span->pass == DP_OP_F   ? 0
           : span->pass == DP_OP_I ? 1
           : span->pass == DP_OP_W ? 2
           : span->pass == DP_OP_R ? RECOMPUTED
                                   : -1;
}

/* Of the step that begins with spans[0]. */
static bool is_forward_only(const dp_span_t *spans, int64_t count)
{
    for (int64_t k = 0; k < count && spans[k].step == spans[0].step; k++)
        if (spans[k].kind == DP_SPAN_COMPUTE && spans[k].pass != DP_OP_F)
            return false;
    return true;
}

/* A forward-only step has two forwards beside each other, which is no pair and tells of neither. */
static void read_row_spans(sums_t *sums, int32_t rank)
{
    int64_t count;
    const dp_span_t *spans = dp_timeline_spans(sums->timeline, rank, &count);
    op_t op = {.any = false};
    bool forward_only = false;

    find_split(sums, rank % sums->schedule->ranks);
    for (int64_t k = 0; k < count; k++) {
        const dp_span_t *span = &spans[k];
        int segment = dp__span_segment(sums->timeline, span), pass = pass_index(span);

        if (k == 0 || span->step != spans[k - 1].step)
            forward_only = is_forward_only(span, count - k);
        if (span->kind == DP_SPAN_SEND && (sums->hop < 0.0 || dp__span_length(span) < sums->hop))
            sums->hop = dp__span_length(span);
        if (span->kind != DP_SPAN_COMPUTE || span->stage < 0 || span->stage >= sums->stages ||
            (forward_only && span->pair != 0))
            continue;
        if (!belongs_to(sums, &op, span))
            close_op(sums, &op);
        take_span(&op, span);
        sums->busy[span->stage] += dp__span_length(span);
        if (pass >= 0 && segment >= 0)
            add_value(&sums->segment[segment][pass], dp__span_length(span));
        if (pass >= 0 && pass < RECOMPUTED)
            op.inside[pass] += dp__span_length(span);
        op.recomputed += pass == RECOMPUTED ? dp__span_length(span) : 0.0;
    }
    close_op(sums, &op);
}

/* ---- summing up ---- */

/* The length of lone operations; without any, the sums of spans in whole backwards or pairs. */
static double pass_cost(const sums_t *sums, int pass)
{
    const mean_t *lone = &sums->ops[pass == 0 ? LONE_F : pass == 1 ? LONE_I : LONE_W];

    if (lone->count > 0)
        return mean_value(lone);
    return mean_value(&sums->inside[sums->inside[0][pass].count == 0][pass]);
}

static void fill_costs(const sums_t *sums, double parts, dp_costs_t *costs)
{
    double b = sums->ops[WHOLE_B].count > 0 ? mean_value(&sums->ops[WHOLE_B]) : 0.0;

    costs->f = pass_cost(sums, 0) * parts;
    costs->i = pass_cost(sums, 1) * parts;
    costs->w = pass_cost(sums, 2) * parts;
    if (costs->i + costs->w == 0.0) /* spans of whole backwards only */
        costs->i = costs->w = b * parts / 2.0;
    costs->b = b * parts;
    costs->fb = sums->ops[PAIR].count > 0 ? mean_value(&sums->ops[PAIR]) * parts : 0.0;
    costs->r = mean_value(&sums->recomputed) * parts;
    costs->hop = sums->hop > 0.0 ? sums->hop : 0.0;
    costs->barrier = 1.0;
}

/* Passes of a braid run beside each other: what a pass takes is the sum of its segments. */
static void sum_segments(const dp_segment_costs_t *lists, double parts, dp_costs_t *costs)
{
    double share = parts / lists->stages;

    costs->f = costs->i = costs->w = costs->b = costs->fb = costs->r = 0.0;
    for (int32_t k = 0; k < lists->first[lists->stages]; k++) {
        costs->f += lists->list[k].f * share;
        costs->i += lists->list[k].i * share;
        costs->w += lists->list[k].w * share;
        costs->r += lists->list_r[k] * share;
    }
}

/* Of a device. */
static double count_layers(const sums_t *sums, const dp_segment_costs_t *lists, double parts)
{
    int32_t layers = 0;

    if (sums->schedule->nbraids == 0 || lists == NULL)
        return (double)sums->segment[0][0].count / (double)sums->forwards * parts;
    for (int32_t k = 0; k < lists->first[lists->stages]; k++)
        layers += lists->list[k].role == DP_ROLE_ATTENTION;
    return layers * parts / lists->stages;
}

static void fill_segments(const sums_t *sums, double layers, dp_segment_costs_t *segments)
{
    segments->layers = (int32_t)fmin(round(layers), DP_SEGMENT_LAYERS);
    for (int s = 0; s < DP_SEGMENT_COSTS; s++) {
        segments->f[s] = mean_value(&sums->segment[s][0]);
        segments->i[s] = mean_value(&sums->segment[s][1]);
        segments->w[s] = mean_value(&sums->segment[s][2]);
        segments->r[s] = mean_value(&sums->segment[s][RECOMPUTED]);
    }
    for (int s = 0; s < DP_SEGMENT_FINE; s++) {
        /* a layer has one, as it has attention; a trainer may call something else so */
        if (sums->segment[DP_SEGMENT_COSTS + s][0].count != sums->segment[0][0].count)
            continue;
        segments->fine_f[s] = mean_value(&sums->segment[DP_SEGMENT_COSTS + s][0]);
        segments->fine_i[s] = mean_value(&sums->segment[DP_SEGMENT_COSTS + s][1]);
        segments->fine_w[s] = mean_value(&sums->segment[DP_SEGMENT_COSTS + s][2]);
    }
}

static void fill_scale(const sums_t *sums, double *scale)
{
    double all = 0.0;

    for (int32_t s = 0; s < sums->stages; s++)
        all += sums->busy[s];
    for (int32_t s = 0; s < sums->stages; s++)
        scale[s] = all > 0.0 ? sums->busy[s] * sums->stages / all : 1.0;
}

/* What a dp_measured_costs_t points to, in one block of memory. */
typedef struct measured_memory {
    dp_costs_t costs; /* the first: dp_measured_costs_clear() frees it */
    dp_segment_costs_t segments, *lists;
    double stage_scale[];
} measured_memory_t;

static void keep_measures(const sums_t *sums, measured_memory_t *memory, dp_measured_costs_t *measured)
{
    double parts = dp_schedule_split(sums->schedule);

    memory->costs = (dp_costs_t){.struct_size = sizeof(memory->costs), .stage_scale = memory->stage_scale};
    memory->segments.struct_size = sizeof(memory->segments);
    fill_costs(sums, parts, &memory->costs);
    if (sums->schedule->nbraids > 0 && memory->lists != NULL)
        sum_segments(memory->lists, parts, &memory->costs);
    fill_segments(sums, count_layers(sums, memory->lists, parts), &memory->segments);
    fill_scale(sums, memory->stage_scale);
    measured->stages = sums->stages;
    measured->costs = &memory->costs;
    measured->segments = memory->segments.layers > 0 ? &memory->segments : NULL;
    measured->stage_segments = memory->lists;
}

dp_status_t dp_costs_measure(const dp_timeline_t *timeline, const dp_schedule_t *schedule,
                             dp_measured_costs_t *measured)
{
    sums_t sums = {.timeline = timeline, .schedule = schedule, .hop = -1.0};
    dp_measured_costs_t found = {.struct_size = sizeof(found)};
    dp_status_t status = dp__sized_check("measure: the result", measured, "dp_measured_costs_t", DP_MEASURED_COSTS_MIN);
    measured_memory_t *memory;

    if (status < 0)
        return status;
    dp_sized_put(measured, &found);
    if (timeline == NULL || schedule == NULL)
        return dp_fail(DP_ERR_INVALID, "measure: no timeline or no schedule");
    sums.stages = dp_schedule_stages(schedule);
    memory = dp__calloc(1, sizeof(*memory) + (size_t)sums.stages * sizeof(double));
    if (memory == NULL ||
        !dp__arrays(DP__ARRAY(sums.busy, sums.stages),
                    DP__ARRAY(sums.split, (size_t)schedule->chunks * (size_t)schedule->microbatches))) {
        status = dp_fail(DP_ERR_NOMEM, "measure: no memory for %d stages", sums.stages);
    } else {
        for (int32_t r = 0; r < dp_timeline_ranks(timeline); r++)
            read_row_spans(&sums, r);
        if (sums.forwards == 0)
            status = dp_fail(DP_ERR_INVALID, "measure: the timeline holds no forward of any stage");
    }
    if (status >= 0)
        status = dp__measure_lists(timeline, sums.stages, &memory->lists);
    if (status >= 0) {
        keep_measures(&sums, memory, &found);
        dp_sized_put(measured, &found);
    } else {
        dp__free(memory);
    }
    dp__free(sums.busy);
    return status;
}

/* ---- as text ---- */

static void put_segments(const dp_segment_costs_t *segments, dp__out_t *out)
{
    dp__out_put(out, "# segments of a layer; without F to FB above, those follow from these\nLAYERS=%d\n",
                segments->layers);
    for (int s = 0; s < DP_SEGMENT_COSTS; s++)
        dp__out_put(out, "%s.F=%.9g\n%s.I=%.9g\n%s.W=%.9g\n", dp__segment_names[s], segments->f[s],
                    dp__segment_names[s], segments->i[s], dp__segment_names[s], segments->w[s]);
    for (int s = 0; s < DP_SEGMENT_FINE; s++)
        if (segments->fine_f[s] + segments->fine_i[s] + segments->fine_w[s] > 0.0)
            dp__out_put(out, "%s.F=%.9g\n%s.I=%.9g\n%s.W=%.9g\n", dp__segment_names[DP_SEGMENT_COSTS + s],
                        segments->fine_f[s], dp__segment_names[DP_SEGMENT_COSTS + s], segments->fine_i[s],
                        dp__segment_names[DP_SEGMENT_COSTS + s], segments->fine_w[s]);
    for (int s = 0; s < DP_SEGMENT_COSTS; s++)
        if (segments->r[s] > 0.0)
            dp__out_put(out, "%s.R=%.9g\n", dp__segment_names[s], segments->r[s]);
}

static void put_passes(const dp_costs_t *costs, dp__out_t *out)
{
    dp__out_put(out, "# measured, in milliseconds: dualpipe simulate --costs FILE\nF=%.9g\nI=%.9g\nW=%.9g\n", costs->f,
                costs->i, costs->w);
    if (costs->b > 0.0)
        dp__out_put(out, "B=%.9g\n", costs->b);
    if (costs->fb > 0.0)
        dp__out_put(out, "FB=%.9g\n", costs->fb);
    if (costs->r > 0.0)
        dp__out_put(out, "R=%.9g\n", costs->r);
    dp__out_put(out, "HOP=%.9g\n", costs->hop);
}

void dp__measured_costs_put(const dp_measured_costs_t *measured, const char *before_scales, dp__out_t *out)
{
    put_passes(measured->costs, out);
    if (DP_HAS(measured, dp_measured_costs_t, segments))
        put_segments(measured->segments, out);
    for (int32_t s = 0; s < measured->stages; s++)
        dp__out_put(out, "%s%.6g", s == 0 ? before_scales : ",", measured->costs->stage_scale[s]);
    dp__out_put(out, "\n");
}

dp_status_t dp_measured_costs_write(const dp_measured_costs_t *measured, dp_write_fn write, void *user)
{
    dp__out_t out;

    if (!DP_HAS(measured, dp_measured_costs_t, costs) || measured->stages < 1 || write == NULL)
        return dp_fail(DP_ERR_INVALID, "measure: nothing was measured, or there is nowhere to write");
    dp__out_open(&out, write, user);
    dp__measured_costs_put(measured, "STAGE_SCALE=", &out);
    return dp__out_close(&out);
}

void dp_measured_costs_clear(dp_measured_costs_t *measured)
{
    dp_measured_costs_t empty = {.struct_size = sizeof(empty)};

    if (!DP_REACHES(measured, dp_measured_costs_t, costs))
        return;
    if (measured->costs != NULL)
        dp__free(((measured_memory_t *)(void *)measured->costs)->lists);
    dp__free((void *)measured->costs);
    dp_sized_put(measured, &empty);
}
