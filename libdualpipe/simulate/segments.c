/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * segments.c: the costs of a device's passes out of those of a layer's segments, by running their
 * order of enqueueing over two lanes. */
#include <dualpipe/simulate.h>

#include <math.h>
#include <stdbool.h>

#include "base/do.h"
#include "base/memory.h"
#include "base/sized.h"
#include "program/pair.h"
#include "simulate/costs.h"
#include "simulate/stages.h"

enum { LAYER = DP_SEGMENT_COSTS };

/* A lone operation or a pair of `layers` layers, with room for its parts. */
typedef struct braid {
    dp_segment_cost_t layer[DP__LAYER_SEGMENTS];
    double layer_r[DP__LAYER_SEGMENTS];
    int32_t length;             /* segments of a layer */
    int32_t segments;           /* of one side */
    dp__segment_shape_t *shape; /* [segments] */
    dp__pair_step_t *steps;     /* [3 * segments] */
    double *end[2];             /* [segments]: of F and of I; 0: not in this operation */
    double *from[2], *to[2];    /* [4 * segments] when each lane was busy, in order */
    int32_t count[2];
} braid_t;

/* Times of an operation: the whole, the all-to-all lane, and its part beside computation. */
typedef struct braid_times {
    double time, communication, hidden;
} braid_times_t;

static const dp_segment_cost_t *cost_of(const braid_t *x, int32_t segment)
{
    return &x->layer[segment % x->length];
}

/* Of F and I; weight gradients are computation everywhere. */
static int lane_of(const braid_t *x, int32_t segment)
{
    return cost_of(x, segment)->lane == DP_LANE_ALL_TO_ALL;
}

static double cost_of_step(const braid_t *x, const dp__pair_step_t *step)
{
    const dp_segment_cost_t *c = cost_of(x, step->segment);

    return step->pass == DP_OP_F ? c->f : step->pass == DP_OP_I ? c->i : c->w;
}

/* F follows the segment before it, I the one after it, W the I of the same segment. Shared experts
 * follow what is on their lane, and only their lane follows them. */
static double ready_time(const braid_t *x, const dp__pair_step_t *step)
{
    bool forward = step->pass == DP_OP_F;

    if (step->pass == DP_OP_W)
        return x->end[1][step->segment];
    if (step->segment == (forward ? 0 : x->segments - 1) || cost_of(x, step->segment)->role == DP_ROLE_SHARED)
        return 0.0;
    return x->end[!forward][dp__segment_next(x->shape, step->segment, forward ? -1 : 1)];
}

/* What is recomputed before an I: on its lane at once. */
static void run_recompute(braid_t *x, const dp__pair_step_t *step, double free_at[2])
{
    double r = step->pass == DP_OP_I ? x->layer_r[step->segment % x->length] : 0.0;

    if (r == 0.0)
        return;
    x->from[0][x->count[0]] = free_at[0];
    x->to[0][x->count[0]++] = free_at[0] += r;
}

static double overlap_time(const braid_t *x)
{
    double sum = 0.0;
    int32_t a = 0, b = 0;

    while (a < x->count[0] && b < x->count[1]) {
        sum += fmax(0.0, fmin(x->to[0][a], x->to[1][b]) - fmax(x->from[0][a], x->from[1][b]));
        if (x->to[0][a] < x->to[1][b])
            a++;
        else
            b++;
    }
    return sum;
}

static braid_times_t run_braid(braid_t *x, int32_t nsteps)
{
    braid_times_t times = {0.0, 0.0, 0.0};
    double free_at[2] = {0.0, 0.0};

    x->count[0] = x->count[1] = 0;
    for (int32_t s = 0; s < x->segments; s++)
        x->end[0][s] = x->end[1][s] = 0.0;
    for (int32_t k = 0; k < nsteps; k++) {
        int lane = x->steps[k].pass == DP_OP_W ? 0 : lane_of(x, x->steps[k].segment);
        double cost = cost_of_step(x, &x->steps[k]), start;

        run_recompute(x, &x->steps[k], free_at);
        start = fmax(free_at[lane], ready_time(x, &x->steps[k]));

        free_at[lane] = start + cost;
        x->from[lane][x->count[lane]] = start;
        x->to[lane][x->count[lane]++] = free_at[lane];
        if (x->steps[k].pass != DP_OP_W)
            x->end[x->steps[k].pass == DP_OP_I][x->steps[k].segment] = free_at[lane];
        times.communication += lane == 1 ? cost : 0.0;
        times.time = fmax(times.time, free_at[lane]);
    }
    times.hidden = overlap_time(x);
    return times;
}

/* A lone pass of all segments: backward ones from the last to the first. */
static braid_times_t run_pass(braid_t *x, int pass)
{
    for (int32_t s = 0; s < x->segments; s++)
        x->steps[s] = (dp__pair_step_t){(uint8_t)pass, (int16_t)(pass == DP_OP_F ? s : x->segments - 1 - s)};
    return run_braid(x, x->segments);
}

static braid_times_t run_pair(braid_t *x, bool forward)
{
    return run_braid(x, dp__pair_order(x->shape, forward ? x->segments : 0, x->shape, x->segments, x->steps));
}

static dp_status_t take_segments(const dp_segment_costs_t *given, dp_segment_costs_t *segments)
{
    DO(dp__take("segment costs", dp_segment_costs_t, DP_SEGMENT_COSTS_MIN, segments, given));
    if (segments->layers < 1 || segments->layers > DP_SEGMENT_LAYERS)
        return dp_fail(DP_ERR_INVALID, "segment costs: %d layers; from 1 to %d are possible", segments->layers,
                       DP_SEGMENT_LAYERS);
    for (int s = 0; s < DP_SEGMENT_FINE; s++) {
        const double all[] = {segments->fine_f[s], segments->fine_i[s], segments->fine_w[s]};

        for (int p = 0; p < 3; p++)
            if (!isfinite(all[p]) || all[p] < 0.0 || all[p] > DP__COST_MAX / (4 * LAYER) / segments->layers)
                return dp_fail(DP_ERR_INVALID, "segment costs: %s.%c is %g; a cost is 0 or more, and finite",
                               dp__segment_names[LAYER + s], "FIW"[p], all[p]);
    }
    for (int s = 0; s < LAYER; s++) {
        const double r = segments->r[s];
        const double all[] = {segments->f[s], segments->i[s], segments->w[s], r};

        for (int p = 0; p < 4; p++)
            if (!isfinite(all[p]) || all[p] < 0.0 || all[p] > DP__COST_MAX / (4 * LAYER) / segments->layers)
                return dp_fail(DP_ERR_INVALID, "segment costs: %s.%c is %g; a cost is 0 or more, and finite",
                               dp__segment_names[s], "FIWR"[p], all[p]);
        if (r > 0.0 && (s + 1 == DP_ROLE_DISPATCH || s + 1 == DP_ROLE_COMBINE))
            return dp_fail(DP_ERR_INVALID,
                           "segment costs: %s.R is %g; what is sent between ranks is not sent once more",
                           dp__segment_names[s], r);
    }
    return DP_OK;
}

static dp_status_t allocate_braid(const dp_segment_costs_t *segments, braid_t *x)
{
    size_t n;

    *x = (braid_t){.segments = 0};
    x->length = dp__layer_costs(segments, x->layer, x->layer_r);
    x->segments = segments->layers * x->length;
    n = (size_t)x->segments;
    if (!dp__arrays(DP__ARRAY(x->shape, n), DP__ARRAY(x->steps, 3 * n), DP__ARRAY(x->end[0], n),
                    DP__ARRAY(x->end[1], n), DP__ARRAY(x->from[0], 4 * n), DP__ARRAY(x->to[0], 4 * n),
                    DP__ARRAY(x->from[1], 4 * n), DP__ARRAY(x->to[1], 4 * n)))
        return dp_fail(DP_ERR_NOMEM, "segment costs: no memory for %d layers", segments->layers);
    for (size_t s = 0; s < n; s++)
        x->shape[s] = (dp__segment_shape_t){.role = cost_of(x, (int32_t)s)->role,
                                            .lane = cost_of(x, (int32_t)s)->lane,
                                            .has_weight = cost_of(x, (int32_t)s)->has_weight};
    return DP_OK;
}

dp_status_t dp_costs_from_segments(const dp_segment_costs_t *segments, dp_costs_t *costs, dp_pair_figures_t *pair_out)
{
    dp_segment_costs_t own;
    dp_status_t status;
    braid_t x;

    DO(dp__sized_check("segment costs: the costs", costs, "dp_costs_t", DP_COSTS_MIN));
    if (pair_out != NULL)
        DO(dp__sized_check("segment costs: the figures", pair_out, "dp_pair_figures_t", DP_PAIR_FIGURES_MIN));
    DO(take_segments(segments, &own));
    status = allocate_braid(&own, &x);
    if (status >= 0) {
        braid_times_t pair = run_pair(&x, true);
        dp_pair_figures_t figures = {.struct_size = sizeof(figures),
                                     .time = pair.time,
                                     .communication = pair.communication,
                                     .hidden = pair.hidden};

        if (pair_out != NULL)
            dp_sized_put(pair_out, &figures);
        costs->fb = pair.time;
        costs->b = run_pair(&x, false).time;
        costs->f = run_pass(&x, DP_OP_F).time;
        costs->i = run_pass(&x, DP_OP_I).time;
        costs->w = run_pass(&x, DP_OP_W).time;
    }
    dp__free(x.shape);
    return status;
}
