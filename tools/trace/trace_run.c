/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_run.c: a run of ours out of its trace: one step, its schedule, its costs. */
#include "trace_run.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "trace/timeline.h"

#define MOST_STEPS (1 << 20)

/* ---- the step ---- */

typedef struct window {
    int64_t start, end, spans;
    int32_t step;
} window_t;

static bool computes(const dp_span_t *span)
{
    return span->kind == DP_SPAN_COMPUTE && span->chunk >= 0 && span->stage >= 0 && span->microbatch >= 0;
}

/* From the first to the last step of the rows that there are. */
static dp_status_t find_steps(const dp_timeline_t *all, int32_t ranks, int32_t *least_out, int32_t *most_out)
{
    *least_out = INT32_MAX;
    *most_out = INT32_MIN;
    for (int32_t r = 0; r < ranks; r++) {
        int64_t count;
        const dp_span_t *spans = dp_timeline_spans(all, r, &count);

        for (int64_t k = 0; k < count; k++)
            if (computes(&spans[k])) {
                *least_out = spans[k].step < *least_out ? spans[k].step : *least_out;
                *most_out = spans[k].step > *most_out ? spans[k].step : *most_out;
            }
    }
    if (*least_out > *most_out)
        return dp_fail(DP_ERR_REJECTED, "the pipeline of %d ranks computes nothing", ranks);
    if ((int64_t)*most_out - *least_out >= MOST_STEPS)
        return dp_fail(DP_ERR_REJECTED, "steps %d to %d in one trace: give a trace of fewer", *least_out, *most_out);
    return DP_OK;
}

static void measure_windows(const dp_timeline_t *all, int32_t ranks, int32_t least, window_t *windows)
{
    for (int32_t r = 0; r < ranks; r++) {
        int64_t count;
        const dp_span_t *spans = dp_timeline_spans(all, r, &count);

        for (int64_t k = 0; k < count; k++) {
            window_t *w;

            if (!computes(&spans[k]))
                continue;
            w = &windows[spans[k].step - least];
            w->step = spans[k].step;
            w->start = w->spans == 0 || spans[k].start_ns < w->start ? spans[k].start_ns : w->start;
            w->end = w->spans == 0 || spans[k].end_ns > w->end ? spans[k].end_ns : w->end;
            w->spans++;
        }
    }
}

/* Whole steps first, by length. */
static int by_length(const void *a, const void *b)
{
    const window_t *x = a, *y = b;
    const int64_t lx = x->end - x->start, ly = y->end - y->start;

    if (x->spans != y->spans)
        return x->spans > y->spans ? -1 : 1;
    return (lx > ly) - (lx < ly);
}

static dp_status_t choose_step(const dp_timeline_t *all, int32_t ranks, trace_run_t *run)
{
    int32_t least, most, whole = 0;
    window_t *windows;
    dp_status_t status = find_steps(all, ranks, &least, &most);

    if (status < 0)
        return status;
    windows = calloc((size_t)(most - least) + 1, sizeof(*windows));
    if (windows == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %d steps", most - least + 1);
    measure_windows(all, ranks, least, windows);
    qsort(windows, (size_t)(most - least) + 1, sizeof(*windows), by_length);
    while (whole <= most - least && windows[whole].spans == windows[0].spans)
        whole++;
    run->step = windows[(whole - 1) / 2].step;
    run->measured_step = (double)(windows[(whole - 1) / 2].end - windows[(whole - 1) / 2].start) / 1e6;
    free(windows);
    return DP_OK;
}

/* The ranks of one pipeline in that step. */
static dp_status_t cut_step(const dp_timeline_t *all, int32_t ranks, trace_run_t *run, dp_timeline_t **timeline_out)
{
    int64_t most = 0, count;
    dp_status_t status;

    for (int32_t r = 0; r < ranks; r++) {
        (void)dp_timeline_spans(all, r, &count);
        most = count > most ? count : most;
    }
    status = dp_timeline_create(ranks, most, timeline_out);
    for (int32_t r = 0; r < ranks && status >= 0; r++) {
        const dp_span_t *spans = dp_timeline_spans(all, r, &count);

        for (int64_t k = 0; k < count && status >= 0; k++) {
            dp_span_t span = spans[k];
            const char *name = dp_timeline_name_text(all, span.name);

            if (span.step != run->step || (span.kind != DP_SPAN_SEND && !computes(&span)))
                continue;
            run->metered = run->metered || span.busy_ns > 0;
            if (name[0] != 0)
                status = dp_timeline_name(*timeline_out, name, &span.name);
            if (status >= 0)
                status = dp_timeline_add(*timeline_out, r, &span);
        }
    }
    return status;
}

/* ---- the schedule ---- */

/* What the spans of the step say of it, besides the shape that the trace was read with. */
typedef struct lists {
    const dp_timeline_t *timeline;
    const dp_schedule_t *shape;
    int32_t microbatches; /* of a path */
    int32_t second;       /* what the numbers of the second direction begin with */
    bool is_v, forward_only;
    uint8_t *split; /* [chunks * shape->microbatches] of a rank: I and W stand apart */
    dp_op_t *ops;
    int64_t *nops, count;
} lists_t;

static void find_numbers(lists_t *x)
{
    const int32_t ranks = x->shape->ranks;

    x->second = INT32_MAX;
    x->is_v = x->shape->placement == DP_PLACE_LOOP && x->shape->chunks == 2 && ranks > 1;
    x->forward_only = true;
    for (int32_t r = 0; r < ranks; r++) {
        int64_t count;
        const dp_span_t *spans = dp_timeline_spans(x->timeline, r, &count);

        for (int64_t k = 0; k < count; k++) {
            const dp_span_t *s = &spans[k];
            const bool second = x->shape->placement == DP_PLACE_BIDIRECTIONAL && s->chunk == 1;

            if (!computes(s))
                continue;
            x->forward_only = x->forward_only && s->pass == DP_OP_F;
            x->is_v = x->is_v && (s->chunk != 1 || s->stage == 2 * ranks - 1 - r);
            if (second && s->microbatch < x->second)
                x->second = s->microbatch;
            if (!second && s->microbatch >= x->microbatches)
                x->microbatches = s->microbatch + 1;
        }
    }
}

static int64_t cell_of(const lists_t *x, int32_t chunk, int32_t microbatch)
{
    return (int64_t)chunk * x->shape->microbatches + microbatch;
}

static void find_split(lists_t *x, int32_t rank)
{
    memset(x->split, 0, (size_t)x->shape->chunks * (size_t)x->shape->microbatches);
    for (int64_t k = x->shape->first[rank]; k < x->shape->first[rank + 1]; k++)
        if (x->shape->ops[k].chunk < x->shape->chunks)
            x->split[cell_of(x, x->shape->ops[k].chunk, x->shape->ops[k].microbatch)] = 1;
}

static int32_t path_number(const lists_t *x, const dp_span_t *s)
{
    return x->shape->placement == DP_PLACE_BIDIRECTIONAL && s->chunk == 1 ? s->microbatch - x->second : s->microbatch;
}

/* Of an FB the backward stands in chunk2 and microbatch2. */
static bool is_of(const lists_t *x, const dp_op_t *op, const dp_span_t *last, const dp_span_t *s)
{
    const int32_t number = path_number(x, s);

    if (last == NULL || (last->pair != 0) != (s->pair != 0))
        return false;
    if (s->pair == 0) {
        const bool splits = s->pass != DP_OP_F && x->split[cell_of(x, s->chunk, s->microbatch)];

        return (op->kind == DP_OP_F) == (s->pass == DP_OP_F) && op->chunk == s->chunk && op->microbatch == number &&
               (!splits || (op->kind == DP_OP_W) == (s->pass == DP_OP_W));
    }
    if (s->pass == DP_OP_F)
        return op->microbatch < 0 || (op->chunk == s->chunk && op->microbatch == number);
    return op->microbatch2 < 0 || (op->chunk2 == s->chunk && op->microbatch2 == number);
}

static dp_op_t begin_op(const lists_t *x, const dp_span_t *s)
{
    const bool splits = x->split[cell_of(x, s->chunk, s->microbatch)];
    dp_op_t op = {.chunk = -1, .chunk2 = -1, .microbatch = -1, .microbatch2 = -1};

    op.kind = s->pair != 0         ? DP_OP_FB
              : s->pass == DP_OP_F ? DP_OP_F
              : !splits            ? DP_OP_B
              : s->pass == DP_OP_W ? DP_OP_W
                                   : DP_OP_I;
    return op;
}

static void add_to_op(const lists_t *x, const dp_span_t *s, dp_op_t *op)
{
    const bool backward = op->kind == DP_OP_FB && s->pass != DP_OP_F;

    *(backward ? &op->chunk2 : &op->chunk) = s->chunk;
    *(backward ? &op->microbatch2 : &op->microbatch) = path_number(x, s);
}

static dp_status_t list_rank(lists_t *x, int32_t rank)
{
    int64_t count, first = x->count;
    const dp_span_t *spans = dp_timeline_spans(x->timeline, rank, &count), *last = NULL;

    find_split(x, rank);
    for (int64_t k = 0; k < count; k++) {
        if (!computes(&spans[k]))
            continue;
        if (spans[k].chunk >= x->shape->chunks)
            return dp_fail(DP_ERR_REJECTED, "rank %d has a chunk %d, others have %d", rank, spans[k].chunk,
                           x->shape->chunks);
        if (x->count == first || !is_of(x, &x->ops[x->count - 1], last, &spans[k]))
            x->ops[x->count++] = begin_op(x, &spans[k]);
        last = &spans[k];
        add_to_op(x, last, &x->ops[x->count - 1]);
    }
    x->nops[rank] = x->count - first;
    for (int64_t k = first; k < x->count; k++)
        if (x->ops[k].kind == DP_OP_FB && (x->ops[k].microbatch < 0 || x->ops[k].microbatch2 < 0))
            return dp_fail(DP_ERR_REJECTED,
                           "rank %d overlaps other passes than one forward with one backward, as planned orders do: "
                           "what-if takes runs of schedules without them",
                           rank);
    return DP_OK;
}

static dp_status_t join_lists(const lists_t *x, dp_schedule_t **schedule_out)
{
    const bool two = x->shape->placement == DP_PLACE_BIDIRECTIONAL;
    dp_status_t status =
        dp_schedule_create("trace", x->is_v ? DP_PLACE_V : x->shape->placement, x->shape->ranks,
                           two ? 2 * x->microbatches : x->microbatches, x->shape->chunks, x->nops, schedule_out);

    if (status >= 0)
        memcpy((*schedule_out)->ops, x->ops, (size_t)x->count * sizeof(*x->ops));
    return status;
}

static dp_status_t find_schedule(const dp_timeline_t *timeline, const dp_schedule_t *shape,
                                 dp_schedule_t **schedule_out)
{
    lists_t x = {.timeline = timeline, .shape = shape};
    int64_t spans = 0, count;
    dp_status_t status = DP_OK;

    for (int32_t r = 0; r < shape->ranks; r++) {
        (void)dp_timeline_spans(timeline, r, &count);
        spans += count;
    }
    x.split = calloc((size_t)shape->chunks, (size_t)shape->microbatches);
    x.ops = calloc((size_t)spans + 1, sizeof(*x.ops));
    x.nops = calloc((size_t)shape->ranks, sizeof(*x.nops));
    if (x.split == NULL || x.ops == NULL || x.nops == NULL)
        status = dp_fail(DP_ERR_NOMEM, "no memory for %lld spans", (long long)spans);
    else
        find_numbers(&x);
    if (status >= 0 && x.forward_only)
        status = dp_fail(DP_ERR_REJECTED, "the trace is of forwards alone: what-if takes runs that train");
    for (int32_t r = 0; r < shape->ranks && status >= 0; r++)
        status = list_rank(&x, r);
    if (status >= 0)
        status = join_lists(&x, schedule_out);
    free(x.split);
    free(x.ops);
    free(x.nops);
    return status;
}

/* ---- costs ---- */

static double computed_ms(const dp_timeline_t *timeline, int32_t rank)
{
    int64_t count;
    const dp_span_t *spans = dp_timeline_spans(timeline, rank, &count);
    double sum = 0.0;

    for (int64_t k = 0; k < count; k++)
        if (computes(&spans[k]))
            sum +=
                (spans[k].busy_ns > 0 ? (double)spans[k].busy_ns : (double)(spans[k].end_ns - spans[k].start_ns)) / 1e6;
    return sum;
}

/* Two ranks that hold the same stages do the same work. */
static dp_status_t scale_ranks(const dp_timeline_t *timeline, trace_run_t *run)
{
    const int32_t ranks = run->schedule->ranks;

    run->rank_scale = calloc((size_t)ranks, sizeof(*run->rank_scale));
    if (run->rank_scale == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %d ranks", ranks);
    for (int32_t r = 0; r < ranks; r++) {
        dp_place_t place;
        double own = 1.0, other = 1.0;

        dp_schedule_place(run->schedule, r, 0, &place);
        if (place.mirror_rank >= 0) {
            own = computed_ms(timeline, r);
            other = computed_ms(timeline, place.mirror_rank);
        }
        run->rank_scale[r] = own + other > 0.0 ? 2.0 * own / (own + other) : 1.0;
    }
    return DP_OK;
}

static dp_status_t simulate_run(trace_run_t *run)
{
    dp_simulation_t result = {.struct_size = sizeof(result)};
    dp_status_t status = dp_simulate(run->program, &run->costs, 0, &result);

    run->step_time = result.step_time;
    dp_simulation_clear(&result);
    return status;
}

/* Small messages leave from the lane that made them, which a trace does not say: as the run was. */
static dp_status_t choose_lane(trace_run_t *run)
{
    double step;
    dp_status_t status = simulate_run(run);

    if (status < 0 || run->costs.segments == NULL)
        return status;
    step = run->step_time;
    run->segments.inline_messages = 1;
    status = simulate_run(run);
    if (fabs(step - run->measured_step) < fabs(run->step_time - run->measured_step)) {
        run->segments.inline_messages = 0;
        run->step_time = step;
    }
    return status;
}

static dp_status_t find_costs(const dp_timeline_t *timeline, trace_run_t *run)
{
    dp_status_t status;

    run->measured.struct_size = sizeof(run->measured);
    status = dp_costs_measure(timeline, run->schedule, &run->measured);
    if (status >= 0)
        status = scale_ranks(timeline, run);
    if (status < 0)
        return status;
    run->costs = *run->measured.costs;
    run->costs.rank_scale = run->rank_scale;
    if (run->measured.stage_segments != NULL) {
        run->segments = *run->measured.stage_segments;
        run->costs.segments = &run->segments;
        run->costs.stage_scale = NULL;
    }
    return choose_lane(run);
}

/* ---- the whole ---- */

static dp_status_t read_step(const dp_timeline_t *all, const dp_schedule_t *shape, trace_run_t *run)
{
    const dp_lower_options_t options = {.struct_size = sizeof(options), .slots = DP_SLOTS_NEEDED};
    dp_timeline_t *timeline = NULL;
    dp_status_t status = DP_OK;

    if (dp_timeline_ranks(all) < shape->ranks)
        return dp_fail(DP_ERR_REJECTED,
                       "%d ranks are in the trace, its pipeline has %d: `dualpipe trace merge` joins them",
                       dp_timeline_ranks(all), shape->ranks);
    status = choose_step(all, shape->ranks, run);
    if (status >= 0)
        status = cut_step(all, shape->ranks, run, &timeline);
    if (status >= 0)
        status = find_schedule(timeline, shape, &run->schedule);
    if (status >= 0)
        status = dp_program_lower(run->schedule, &options, &run->program);
    if (status >= 0)
        status = find_costs(timeline, run);
    dp_timeline_free(timeline);
    return status;
}

dp_status_t trace_run_read(const dp_trace_t *trace, trace_run_t *run)
{
    dp_timeline_t *all = NULL;
    dp_schedule_t *shape = NULL;
    dp_status_t status;

    *run = (trace_run_t){.schedule = NULL};
    if (trace->ndetails == 0)
        return dp_fail(DP_ERR_REJECTED, "no span of ours is in the trace: what-if takes traces of `dualpipe demo`, of "
                                        "train_moe and of dp_timeline_write_chrome()");
    status = dp__trace_to_timeline(trace, &all, &shape);
    if (status >= 0)
        status = read_step(all, shape, run);
    if (status == DP_ERR_INVALID)
        status = DP_ERR_REJECTED; /* the trace, not the call, is wrong */
    dp_timeline_free(all);
    dp_schedule_free(shape);
    return status;
}

void trace_run_clear(trace_run_t *run)
{
    dp_measured_costs_clear(&run->measured);
    dp_program_free(run->program);
    dp_schedule_free(run->schedule);
    free(run->rank_scale);
    *run = (trace_run_t){.schedule = NULL};
}
