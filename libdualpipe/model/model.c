/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * model.c: dp_layouts_find(): requests, and what was found. */
#include "base/memory.h"
#include "base/sized.h"
#include "layouts.h"
#include "shape.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { MOST_TENSOR = 8, MOST_GPUS = 1 << 20 };

static bool is_rate(double value)
{
    return value > 0 && isfinite(value);
}

static bool is_share(double value)
{
    return value > 0 && value <= 1;
}

static bool is_time(double value)
{
    return value >= 0 && isfinite(value);
}

static bool is_method(const char *name)
{
    size_t count;
    const dp_method_t *methods = dp_schedule_methods(&count);

    for (size_t i = 0; i < count; i++)
        if (strcmp(methods[i].name, name) == 0)
            return true;
    return false;
}

static dp_status_t take_gpu(const dp_gpu_t *from, dp_gpu_t *g)
{
    dp_status_t status = dp__take("dp_layouts_find: gpu", dp_gpu_t, DP_GPU_MIN, g, from);

    if (status != DP_OK)
        return status;
    return g->host > 0 && is_rate(g->tflops) && is_rate(g->memory) && is_rate(g->near) && is_rate(g->far) &&
                   is_share(g->products) && is_share(g->core) && is_share(g->links) && is_time(g->latency) &&
                   is_time(g->reserve)
               ? DP_OK
               : dp_fail(DP_ERR_INVALID, "dp_layouts_find: gpu: host, rates and memory above 0 and shares above 0, at "
                                         "most 1, are required");
}

static dp_status_t check_request(const dp_layout_request_t *r)
{
    if (r->gpus < 1 || r->gpus > MOST_GPUS || r->batch < 1 || r->batch > MOST_GPUS * 1024ll || r->micro_batch < 0 ||
        r->sequence < 0 || r->sequence > 1 << 24)
        return dp_fail(DP_ERR_INVALID,
                       "dp_layouts_find: %d GPUs, a batch of %lld in micro-batches of %d, sequences of %lld tokens: "
                       "1 to %d GPUs, a batch from 1 on are expected",
                       r->gpus, (long long)r->batch, r->micro_batch, (long long)r->sequence, MOST_GPUS);
    if (r->pp < 0 || r->ep < 0 || r->dp < 0 || r->tp < 0 || r->pp > DP__MOST_STAGES || r->tp > MOST_TENSOR)
        return dp_fail(DP_ERR_INVALID, "dp_layouts_find: pp is at most %d, tp at most %d, none below 0",
                       DP__MOST_STAGES, MOST_TENSOR);
    if (r->recompute < 0 || r->recompute > 1 + DP_RECOMPUTE_FULL)
        return dp_fail(DP_ERR_INVALID, "dp_layouts_find: recompute is %d; 0 to %d are possible", r->recompute,
                       1 + DP_RECOMPUTE_FULL);
    if (r->method != NULL && !is_method(r->method))
        return dp_fail(DP_ERR_INVALID, "dp_layouts_find: no built-in schedule has the name %s", r->method);
    return DP_OK;
}

/* Of a layer. Times of transfers are those of one number of ranks. */
static dp_status_t take_measured(const dp_layout_request_t *r, dp__job_t *job)
{
    const int dispatch = DP_ROLE_DISPATCH - 1, combine = DP_ROLE_COMBINE - 1;
    dp_segment_costs_t *m = &job->measured;
    dp_status_t status = DP_OK;
    bool sound = is_time(r->hop) && is_time(r->bandwidth);

    if (r->measured != NULL)
        status = dp__take("dp_layouts_find: measured", dp_segment_costs_t, DP_SEGMENT_COSTS_MIN, m, r->measured);
    if (status != DP_OK)
        return status;
    for (int s = 0; s < DP_SEGMENT_COSTS; s++)
        sound = sound && is_time(m->f[s]) && is_time(m->i[s]) && is_time(m->w[s]) && is_time(m->r[s]);
    for (int s = 0; s < DP_SEGMENT_FINE; s++)
        if (m->fine_f[s] + m->fine_i[s] + m->fine_w[s] != 0)
            return dp_fail(DP_ERR_INVALID, "measured: of a layer of attention, dispatch, mlp and combine are times "
                                           "expected, without project, shared and sum");
    if (!sound || m->list != NULL)
        return dp_fail(DP_ERR_INVALID, "measured: times of one layer, finite and 0 or more, are expected");
    if (m->f[dispatch] + m->f[combine] > 0 && job->model.experts == 0)
        return dp_fail(DP_ERR_INVALID, "measured: times of dispatch or combine, but the model has no experts");
    if (m->f[dispatch] + m->f[combine] > 0 && r->ep == 0)
        return dp_fail(DP_ERR_INVALID, "measured: times of dispatch and combine are those of one number of ranks: give "
                                       "ep, the ranks that the experts were spread over");
    job->hop = r->hop;
    job->bandwidth = r->bandwidth;
    return DP_OK;
}

static dp_status_t make_job(const dp_layout_request_t *r, dp__job_t *job)
{
    dp_status_t status = dp__model_take("dp_layouts_find: model", r->model, &job->model);

    if (status == DP_OK)
        status = take_gpu(r->gpu, &job->gpu);
    if (status == DP_OK)
        status = check_request(r);
    if (status == DP_OK)
        status = take_measured(r, job);
    job->gpus = r->gpus;
    job->batch = r->batch;
    job->micro_batch = r->micro_batch > 0 ? r->micro_batch : 1;
    job->whole_optimizer = r->whole_optimizer;
    job->sequence = r->sequence;
    if (job->sequence == 0)
        job->sequence = job->model.sequence > 0 && job->model.sequence < 4096 ? job->model.sequence : 4096;
    if (status == DP_OK && job->model.positions > 0 && job->sequence > job->model.positions)
        status = dp_fail(DP_ERR_INVALID, "sequences of %lld tokens: the model has %lld positions",
                         (long long)job->sequence, (long long)job->model.positions);
    return status;
}

dp_status_t dp_layouts_find(const dp_layout_request_t *request, dp_layouts_t **layouts_out)
{
    dp_layout_request_t asked;
    dp_layouts_t *all;
    dp_status_t status =
        dp__take("dp_layouts_find: request", dp_layout_request_t, DP_LAYOUT_REQUEST_MIN, &asked, request);

    if (layouts_out == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_layouts_find: layouts_out is NULL");
    *layouts_out = NULL;
    if (status != DP_OK)
        return status;
    all = dp__calloc(1, sizeof(*all));
    if (all == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for layouts");
    all->asked = &asked;
    status = make_job(&asked, &all->job);
    if (status >= 0)
        status = dp__layouts_fill(all);
    if (status < 0) {
        dp_layouts_free(all);
        return status;
    }
    dp__layouts_advise(all);
    all->asked = NULL;
    *layouts_out = all;
    return DP_OK;
}

/* ---- what was found ---- */

dp_status_t dp_layouts_about(const dp_layouts_t *layouts, dp_layouts_about_t *about_out)
{
    dp_layouts_about_t about = {.struct_size = sizeof(about)};
    dp_status_t status =
        dp__sized_check("dp_layouts_about: about_out", about_out, "dp_layouts_about_t", DP_LAYOUTS_ABOUT_MIN);

    if (status != DP_OK)
        return status;
    if (layouts == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_layouts_about: layouts is NULL");
    about.count = layouts->count;
    about.timed = layouts->timed;
    about.tried = layouts->tried;
    about.uneven = layouts->uneven;
    about.advice = layouts->advice;
    dp_sized_put(about_out, &about);
    return DP_OK;
}

static dp_status_t find_row(const char *what, const dp_layouts_t *layouts, int32_t row)
{
    const int32_t count = layouts != NULL ? layouts->count : 0;

    return row >= 0 && row < count
               ? DP_OK
               : dp_fail(DP_ERR_INVALID, "%s: there is no row %d, but %d of them", what, row, count);
}

dp_status_t dp_layouts_row(const dp_layouts_t *layouts, int32_t row, dp_layout_t *layout_out)
{
    dp_status_t status = dp__sized_check("dp_layouts_row: layout_out", layout_out, "dp_layout_t", DP_LAYOUT_MIN);

    if (status == DP_OK)
        status = find_row("dp_layouts_row", layouts, row);
    if (status == DP_OK)
        dp_sized_put(layout_out, &layouts->rows[row]);
    return status;
}

dp_status_t dp_layouts_segments(const dp_layouts_t *layouts, int32_t row, dp_segment_costs_t *estimated_out)
{
    dp_segment_costs_t segments;
    dp_status_t status = dp__sized_check("dp_layouts_segments: estimated_out", estimated_out, "dp_segment_costs_t",
                                         DP_SEGMENT_COSTS_MIN);

    if (status == DP_OK)
        status = find_row("dp_layouts_segments", layouts, row);
    if (status == DP_OK) {
        dp__estimate_segments(&layouts->job, &layouts->rows[row], &segments);
        dp_sized_put(estimated_out, &segments);
    }
    return status;
}

dp_status_t dp_layouts_rank(const dp_layouts_t *layouts, int32_t row, int32_t rank, dp_layout_t *layout_out)
{
    dp_layout_t layout;
    dp_status_t status = dp__sized_check("dp_layouts_rank: layout_out", layout_out, "dp_layout_t", DP_LAYOUT_MIN);

    if (status == DP_OK)
        status = find_row("dp_layouts_rank", layouts, row);
    if (status == DP_OK && (rank < 0 || rank >= layouts->rows[row].pp))
        status = dp_fail(DP_ERR_INVALID, "dp_layouts_rank: there is no rank %d, but %d of them", rank,
                         layouts->rows[row].pp);
    if (status == DP_OK)
        status = dp__estimate_rank(&layouts->job, &layouts->rows[row], rank, &layout);
    if (status == DP_OK)
        dp_sized_put(layout_out, &layout);
    return status;
}

dp_status_t dp_layouts_simulate(const dp_layouts_t *layouts, int32_t row, int32_t microbatches,
                                dp_schedule_t **schedule_out, dp_simulation_t *simulation_out)
{
    dp_simulation_t simulation = {.struct_size = sizeof(simulation)};
    dp_schedule_t *schedule = NULL;
    dp_status_t status =
        dp__sized_check("dp_layouts_simulate: simulation_out", simulation_out, "dp_simulation_t", DP_SIMULATION_MIN);

    if (schedule_out == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_layouts_simulate: schedule_out is NULL");
    *schedule_out = NULL;
    if (status == DP_OK)
        status = find_row("dp_layouts_simulate", layouts, row);
    if (status == DP_OK)
        status = dp__estimate_timeline(&layouts->job, &layouts->rows[row],
                                       microbatches > 0 ? microbatches : layouts->rows[row].microbatches, &schedule,
                                       &simulation);
    if (status < 0) {
        dp_simulation_clear(&simulation);
        dp_schedule_free(schedule);
        return status;
    }
    *schedule_out = schedule;
    dp_sized_put(simulation_out, &simulation);
    return DP_OK;
}

void dp_layouts_free(dp_layouts_t *layouts)
{
    if (layouts != NULL)
        dp__free(layouts->rows);
    dp__free(layouts);
}
