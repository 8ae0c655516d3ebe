/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * partition.c: layers onto stages. It begins with the cut whose dearest stage is the cheapest,
 * which a table finds, and with equal numbers of layers, and moves cuts as long as the simulated
 * step gets shorter: stages that are not alike wait for each other in other ways than for the
 * dearest one alone. */
#include "base/do.h"
#include "base/memory.h"
#include "base/sized.h"
#include "simulate/model.h"

#include <math.h>
#include <string.h>

#define LAYERS_MAX 65536
/* Steps closer than this are equal: a sum of times depends on its order. */
#define GAIN 1e-9
#define NEAR 4

typedef struct search {
    const dp_partition_request_t *request;
    dp_costs_t costs;
    int32_t layers, stages;
    double *before;         /* [layers + 1] cost of all layers before this one */
    double *scale;          /* [stages] */
    int32_t *first, *found; /* [stages + 1] */
} search_t;

static double cost_of_layers(const search_t *s, int32_t from, int32_t to)
{
    return s->before[to] - s->before[from];
}

/* ---- the cheapest dearest stage ---- */

/* best[k][n]: dearest of k stages that hold the first n layers. */
static dp_status_t cut_evenly(search_t *s)
{
    size_t row = (size_t)s->layers + 1;
    size_t places = (size_t)(s->stages + 1) * row;
    double *best;
    int32_t *from;

    if (!dp__arrays(DP__ARRAY(best, places), DP__ARRAY(from, places)))
        return dp_fail(DP_ERR_NOMEM, "partition: no memory for %d layers on %d stages", s->layers, s->stages);
    for (int32_t n = 0; n <= s->layers; n++)
        best[n] = n == 0 ? 0 : INFINITY;
    for (int32_t k = 1; k <= s->stages; k++)
        for (int32_t n = 0; n <= s->layers; n++) {
            double *here = &best[(size_t)k * row + (size_t)n];

            *here = INFINITY;
            /* The last stage grows as m falls, until it is the dearest. */
            for (int32_t m = n - 1; m >= k - 1; m--) {
                double last = cost_of_layers(s, m, n), dearest = fmax(best[(size_t)(k - 1) * row + (size_t)m], last);

                if (dearest < *here) {
                    *here = dearest;
                    from[(size_t)k * row + (size_t)n] = m;
                }
                if (last >= *here)
                    break;
            }
        }
    s->first[s->stages] = s->layers;
    for (int32_t k = s->stages; k > 0; k--)
        s->first[k - 1] = from[(size_t)k * row + (size_t)s->first[k]];
    dp__free(best);
    return DP_OK;
}

/* ---- moves ---- */

static dp_status_t step_of(search_t *s, double *step_out)
{
    dp_simulation_t result = {.struct_size = sizeof(result)};
    double mean = s->before[s->layers] / s->stages;
    dp_status_t status;

    for (int32_t i = 0; i < s->stages; i++)
        s->scale[i] = cost_of_layers(s, s->first[i], s->first[i + 1]) / mean;
    status = dp_simulate(s->request->program, &s->costs, 0, &result);
    *step_out = result.step_time;
    dp_simulation_clear(&result);
    return status;
}

static bool has_layers(const search_t *s, int32_t cut)
{
    return s->first[cut - 1] < s->first[cut] && s->first[cut] < s->first[cut + 1];
}

/* Moves cut a by `by_a` layers and cut b by `by_b`, and keeps that when the step gets shorter. */
static dp_status_t try_move(search_t *s, int32_t a, int32_t by_a, int32_t b, int32_t by_b, double *step, bool *better)
{
    double now = INFINITY;
    dp_status_t status = DP_OK;

    s->first[a] += by_a;
    s->first[b] += by_b;
    if (has_layers(s, a) && has_layers(s, b))
        status = step_of(s, &now);
    if (status == DP_OK && now < *step * (1 - GAIN)) {
        *step = now;
        *better = true;
        return DP_OK;
    }
    s->first[a] -= by_a;
    s->first[b] -= by_b;
    return status;
}

/* Single cuts by one and two layers; when none helps, pairs of them that are near each other. */
static dp_status_t improve_cuts(search_t *s, double *step, bool *better)
{
    static const int32_t ways[] = {1, -1, 2, -2};
    dp_status_t status = DP_OK;

    for (int32_t a = 1; a < s->stages && status == DP_OK; a++)
        for (int w = 0; w < 4 && status == DP_OK; w++)
            status = try_move(s, a, ways[w], a, 0, step, better);
    for (int32_t a = 1; a < s->stages && status == DP_OK && !*better; a++)
        for (int32_t b = a + 1; b < s->stages && b <= a + NEAR && status == DP_OK && !*better; b++)
            for (int w = 0; w < 16 && status == DP_OK && !*better; w++)
                status = try_move(s, a, ways[w & 3], b, ways[w >> 2], step, better);
    return status;
}

static dp_status_t descend_cuts(search_t *s, double *step_out)
{
    bool better = true;
    dp_status_t status = step_of(s, step_out);

    while (status == DP_OK && better) {
        better = false;
        status = improve_cuts(s, step_out, &better);
    }
    return status;
}

/* From both beginnings; the better end counts. */
static dp_status_t search_partition(search_t *s, int32_t *first_out, double *step_out)
{
    size_t bytes = ((size_t)s->stages + 1) * sizeof(*first_out);
    double step;
    dp_status_t status = cut_evenly(s);

    if (status == DP_OK)
        status = descend_cuts(s, step_out);
    memcpy(first_out, s->first, bytes);
    for (int32_t i = 0; i <= s->stages; i++)
        s->first[i] = (int32_t)((int64_t)s->layers * i / s->stages);
    if (status == DP_OK)
        status = descend_cuts(s, &step);
    if (status == DP_OK && step < *step_out * (1 - GAIN)) {
        *step_out = step;
        memcpy(first_out, s->first, bytes);
    }
    return status;
}

/* ---- the call ---- */

static dp_status_t prepare_search(search_t *s)
{
    for (int32_t i = 0; i < s->layers; i++) {
        double cost = s->request->layer_costs[i];

        if (!(cost > 0 && isfinite(cost)))
            return dp_fail(DP_ERR_INVALID, "partition: layer %d costs %g: every cost is a finite number above 0", i,
                           cost);
        s->before[i + 1] = s->before[i] + cost;
    }
    return isfinite(s->before[s->layers]) ? DP_OK
                                          : dp_fail(DP_ERR_INVALID, "partition: the costs of the layers are too large");
}

dp_status_t dp_partition(const dp_partition_request_t *request, int32_t *first_out, double *step_out)
{
    dp_partition_request_t own;
    search_t s = {.request = &own};
    double step = 0;
    dp_status_t status = DP_OK;

    DO(dp__take("partition request", dp_partition_request_t, DP_PARTITION_REQUEST_MIN, &own, request));
    request = &own;
    if (request->program == NULL || request->costs == NULL || request->layer_costs == NULL || first_out == NULL)
        return dp_fail(DP_ERR_INVALID, "partition: program, costs, layer_costs and first_out are required");
    DO(dp__take("costs", dp_costs_t, DP_COSTS_MIN, &s.costs, request->costs));
    s.layers = request->layers;
    s.stages = dp_schedule_stages(request->program->schedule);
    if (s.layers < s.stages || s.layers > LAYERS_MAX)
        return dp_fail(DP_ERR_INVALID,
                       "partition: %d layers on %d stages: every stage holds at least one, and %d are "
                       "the most",
                       s.layers, s.stages, LAYERS_MAX);
    if (dp__arrays(DP__ARRAY(s.before, s.layers + 1), DP__ARRAY(s.scale, s.stages), DP__ARRAY(s.first, s.stages + 1),
                   DP__ARRAY(s.found, s.stages + 1)))
        s.costs.stage_scale = s.scale;
    else
        status = dp_fail(DP_ERR_NOMEM, "partition: no memory for %d layers on %d stages", s.layers, s.stages);
    if (status == DP_OK)
        status = prepare_search(&s);
    if (status == DP_OK)
        status = search_partition(&s, s.found, &step);
    if (status == DP_OK) {
        memcpy(first_out, s.found, ((size_t)s.stages + 1) * sizeof(*first_out));
        if (step_out != NULL)
            *step_out = step;
    }
    dp__free(s.before);
    return status;
}
