/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * figures.c: see figures.h. */
#include "figures.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

enum { STEP, COMPUTING, BUBBLE, LEAST_BUBBLE, MOST_BUBBLE, COMMUNICATION, HIDDEN, MEASURED };

/* ---- this host ---- */

static int32_t count_cores(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
}

static bool is_here(const dp_host_places_t *places, int32_t rank)
{
    return places->host_of[rank] == places->host_of[0];
}

/* Lanes of this host with work of segments; 0 on devices whose work takes no core. */
static int32_t count_lanes(const dp_timeline_t *timeline, const dp_host_places_t *places)
{
    int32_t lanes = 0;

    for (int32_t r = 0; r < dp_timeline_ranks(timeline); r++) {
        bool used[DP_LANE_COUNT] = {false};
        int64_t n;
        const dp_span_t *spans = dp_timeline_spans(timeline, r, &n);

        for (int64_t k = 0; k < n && is_here(places, r); k++)
            if (spans[k].busy_ns > 0 && !used[spans[k].lane]) {
                used[spans[k].lane] = true;
                lanes++;
            }
    }
    return lanes;
}

/* ---- one step ---- */

static double computed_ns(const dp_timeline_t *timeline, const dp_host_places_t *places, int32_t step)
{
    double sum = 0;

    for (int32_t r = 0; r < dp_timeline_ranks(timeline); r++) {
        int64_t n;
        const dp_span_t *spans = dp_timeline_spans(timeline, r, &n);

        for (int64_t k = 0; k < n && is_here(places, r); k++)
            if (spans[k].kind == DP_SPAN_COMPUTE && spans[k].lane == DP_LANE_COMPUTE && spans[k].step == step)
                sum += (double)spans[k].busy_ns;
    }
    return sum;
}

static dp_status_t measure_step(const dp_timeline_t *timeline, const dp_host_places_t *places, int32_t step,
                                int32_t cores, double at[MEASURED])
{
    const int32_t ranks = dp_timeline_ranks(timeline);
    double communication = 0, hidden = 0;

    for (int i = 0; i < MEASURED; i++)
        at[i] = i == LEAST_BUBBLE ? 1 : 0;
    for (int32_t r = 0; r < ranks; r++) {
        dp_rank_report_t report = {.struct_size = sizeof(report)};
        const dp_status_t status = dp_timeline_report(timeline, r, step, 1, &report);
        double share;

        if (status < 0)
            return status;
        share = (double)report.bubble / fmax(1, (double)report.window);
        at[STEP] = (double)report.window / 1e6;
        at[BUBBLE] += share / ranks;
        at[LEAST_BUBBLE] = fmin(at[LEAST_BUBBLE], share);
        at[MOST_BUBBLE] = fmax(at[MOST_BUBBLE], share);
        communication += (double)report.comm_busy / 1e6 / ranks;
        hidden += (double)report.comm_hidden / 1e6 / ranks;
    }
    at[COMMUNICATION] = communication;
    at[HIDDEN] = communication > 0 ? hidden / communication : 0;
    at[COMPUTING] = computed_ns(timeline, places, step) / 1e6 / fmax(1e-6, at[STEP] * cores);
    return DP_OK;
}

/* ---- all traced steps ---- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double median_of(double *values, int64_t n)
{
    qsort(values, (size_t)n, sizeof(*values), by_value);
    return n == 0 ? NAN : (values[(n - 1) / 2] + values[n / 2]) / 2;
}

/* Whether the step of spans[0], its first, trains: a validation is another thing. */
static bool trains(const dp_span_t *spans, int64_t n)
{
    for (int64_t k = 0; k < n && spans[k].step == spans[0].step; k++)
        if (spans[k].kind == DP_SPAN_COMPUTE && spans[k].pass != DP_OP_F)
            return true;
    return false;
}

/* columns: [MEASURED][most] */
static dp_status_t measure_steps(const dp_timeline_t *timeline, const dp_host_places_t *places, int32_t most,
                                 double *columns, figures_t *f)
{
    double at[MEASURED];
    int64_t n;
    const dp_span_t *spans = dp_timeline_spans(timeline, 0, &n);
    dp_status_t status = DP_OK;

    for (int64_t k = 0; k < n && f->steps < most && status == DP_OK; k++)
        if (spans[k].kind == DP_SPAN_STEP && trains(spans + k, n - k)) {
            status = measure_step(timeline, places, spans[k].step, f->cores, at);
            for (int i = 0; i < MEASURED; i++)
                columns[i * most + f->steps] = at[i];
            f->steps++;
        }
    if (status < 0)
        return status;
    for (int i = 0; i < MEASURED; i++)
        at[i] = median_of(columns + i * most, f->steps);
    f->step = at[STEP];
    f->computing = at[COMPUTING];
    f->bubble = at[BUBBLE];
    f->least_bubble = at[LEAST_BUBBLE];
    f->most_bubble = at[MOST_BUBBLE];
    f->communication = at[COMMUNICATION];
    f->hidden = at[HIDDEN];
    return DP_OK;
}

/* ---- a device for each rank ---- */

static double mean_bubble(const dp_simulation_t *run)
{
    double sum = 0;

    for (int32_t r = 0; r < run->ranks; r++)
        sum += run->bubble[r] / run->step_time / run->ranks;
    return sum;
}

static dp_status_t simulate_run(const trainer_t *t, figures_t *f)
{
    const dp_program_t *program = dp_pipeline_program(t->pipeline);
    dp_simulation_t uneven = {.struct_size = sizeof(uneven)}, even = {.struct_size = sizeof(even)};
    dp_costs_t costs = *f->costs.costs;
    const bool written = program->schedule->nbraids > 0;
    dp_status_t status;

    /* as `dualpipe simulate` takes costs.txt, and compare, whose stages are even; written braids
     * are for the segments that each stage has */
    if (!written) {
        costs.segments = f->costs.segments;
    } else if (f->costs.stage_segments != NULL) {
        costs.stage_scale = NULL;
        costs.segments = f->costs.stage_segments;
    }
    status = dp_simulate(program, &costs, 0, &uneven);
    costs.stage_scale = NULL;
    if (status == DP_OK)
        status = dp_simulate(program, &costs, 0, &even);
    if (status == DP_OK) {
        f->simulated_step = uneven.step_time;
        f->simulated_bubble = mean_bubble(&uneven);
        f->even_step = even.step_time;
        f->even_bubble = mean_bubble(&even);
        f->formula_bubble = even.formula_bubble / even.step_time;
    }
    for (int32_t s = 1; s < f->costs.stages; s++)
        if (f->costs.costs->stage_scale[s] > f->costs.costs->stage_scale[f->slowest_stage])
            f->slowest_stage = s;
    dp_simulation_clear(&uneven);
    dp_simulation_clear(&even);
    return status;
}

static const dp_host_places_t *places_of(const trainer_t *t)
{
    const dp_host_t *host = dp_group_host(t->group);

    return host->get_service(host, DP_HOST_PLACES);
}

bool cores_are_shared(const trainer_t *t, const dp_timeline_t *timeline)
{
    return count_lanes(timeline, places_of(t)) > count_cores();
}

bool figures_missing(const dp_timeline_t *timeline)
{
    for (int32_t r = 0; timeline != NULL && r < dp_timeline_ranks(timeline); r++) {
        int64_t n;
        const dp_span_t *spans = dp_timeline_spans(timeline, r, &n);

        for (int64_t k = 0; k < n; k++)
            if (spans[k].kind == DP_SPAN_COMPUTE)
                return false;
    }
    return true;
}

dp_status_t figures_find(const trainer_t *t, const dp_timeline_t *timeline, figures_t *f)
{
    const dp_host_places_t *places = places_of(t);
    const int32_t most = (int32_t)t->options->trace_steps;
    double *columns = calloc((size_t)most * MEASURED, sizeof(*columns));
    dp_status_t status;

    *f = (figures_t){.cores = count_cores(), .costs.struct_size = sizeof(f->costs)};
    if (columns == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the figures of %d steps", most);
    for (int32_t r = 0; r < dp_timeline_ranks(timeline); r++)
        f->ranks += is_here(places, r);
    f->shared = cores_are_shared(t, timeline);
    status = measure_steps(timeline, places, most, columns, f);
    if (status == DP_OK)
        status = dp_costs_measure(timeline, dp_pipeline_program(t->pipeline)->schedule, &f->costs);
    if (status == DP_OK)
        status = simulate_run(t, f);
    free(columns);
    return status;
}

void figures_clear(figures_t *f)
{
    dp_measured_costs_clear(&f->costs);
}
