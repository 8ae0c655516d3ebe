/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * figure.c: a simulated plan as a picture or a trace. */
#include "figure.h"

#include <math.h>

#include "tools/draw/draw_timeline.h"

static draw_format_t picture_format(format_t format)
{
    return format == FORMAT_PNG ? DRAW_PNG : format == FORMAT_PDF ? DRAW_PDF : DRAW_SVG;
}

/* "idle 6 to 7 of 66, at most 9 micro-batches held; F=1 I=1 W=1 B=2 FB=3 hop 0" */
static void describe_figure(const plan_t *plan, char *text, size_t bytes)
{
    const dp_simulation_t *simulation = &plan->simulation;
    const dp_costs_t *costs = &plan->args->costs;
    double low = INFINITY, high = 0.0, peak = 0.0;
    char idle[64];

    for (int32_t r = 0; r < simulation->ranks; r++) {
        low = fmin(low, simulation->bubble[r]);
        high = fmax(high, simulation->bubble[r]);
        peak = fmax(peak, simulation->peak_activations[r]);
    }
    if (high - low < 1e-9)
        snprintf(idle, sizeof(idle), "idle %.4g", fabs(low));
    else
        snprintf(idle, sizeof(idle), "idle %.4g to %.4g", fabs(low), fabs(high));
    snprintf(text, bytes,
             "%s of %.6g on each rank, at most %.4g micro-batches held; costs F %g, I %g, W %g, B %g, F&B "
             "%g, hop %g",
             idle, simulation->step_time, peak, costs->f, costs->i, costs->w, dp_costs_backward(costs),
             dp_costs_pair(costs), costs->hop);
}

static dp_status_t draw_figure(const plan_t *plan, output_t *output)
{
    const dp_schedule_t *schedule = plan->schedule;
    char title[128], subtitle[256];
    draw_timeline_t picture = {.timeline = plan->simulation.timeline,
                               .title = title,
                               .subtitle = subtitle,
                               .unit = "in units of the costs",
                               .ns_per_unit = 1e6,
                               .step = -1,
                               .first_rank = plan->args->rank >= 0 ? plan->args->rank : 0,
                               .nranks = plan->args->rank >= 0 ? 1 : schedule->ranks,
                               .chunks = schedule->chunks,
                               .placement = schedule->placement,
                               .second_direction = schedule->placement == DP_PLACE_BIDIRECTIONAL
                                                       ? dp_schedule_path_microbatches(schedule, 0)
                                                       : 0};

    snprintf(title, sizeof(title), "%s%s: %d rank%s, %d micro-batch%s", schedule->method,
             schedule->forward_only ? ", forward only" : "", schedule->ranks, schedule->ranks > 1 ? "s" : "",
             schedule->microbatches, schedule->microbatches > 1 ? "es" : "");
    describe_figure(plan, subtitle, sizeof(subtitle));
    return draw_timeline_write(&picture, picture_format(plan->args->format), output_write, output);
}

dp_status_t figure_write(const plan_t *plan, output_t *output)
{
    if (plan->args->format == FORMAT_TRACE)
        return dp_timeline_write_chrome(plan->simulation.timeline, output_write, output);
    return draw_figure(plan, output);
}
