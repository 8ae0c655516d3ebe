/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * partition.c: layers onto stages. It begins with the cut whose dearest stage is the cheapest,
 * which a table finds, and with equal numbers of layers, and moves cuts as long as the simulated
 * step gets shorter: stages that are not alike wait for each other in other ways than for the
 * dearest one alone. */
#include "simulate/partition.h"
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
    const dp__cut_rules_t *rules; /* NULL: every cut may be */
    dp_costs_t costs;
    int32_t layers, stages;
    double *before;         /* [layers + 1] cost of all layers before this one */
    double *scale;          /* [stages] */
    int32_t *first, *found; /* [stages + 1] */
} search_t;

/* Of a cut: what may not be comes behind all that may. */
typedef struct score {
    double excess, step;
} score_t;

static bool is_better(score_t a, score_t than)
{
    return a.excess < than.excess || (a.excess <= than.excess && a.step < than.step * (1 - GAIN));
}

static double cost_of_layers(const search_t *s, int32_t from, int32_t to)
{
    return s->before[to] - s->before[from];
}

/* ---- the cheapest dearest stage ---- */

/* best[k][n]: dearest of k stages that hold the first n layers, infinite when none holds as few as
 * `most` says. *done_out: there is such a cut. */
static dp_status_t cut_evenly(search_t *s, const int32_t *most, bool *done_out)
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
            for (int32_t m = n - 1; m >= k - 1 && (most == NULL || n - m <= most[k - 1]); m--) {
                double last = cost_of_layers(s, m, n), dearest = fmax(best[(size_t)(k - 1) * row + (size_t)m], last);

                if (dearest < *here) {
                    *here = dearest;
                    from[(size_t)k * row + (size_t)n] = m;
                }
                if (last >= *here)
                    break;
            }
        }
    *done_out = best[places - 1] < INFINITY;
    s->first[s->stages] = s->layers;
    for (int32_t k = s->stages; k > 0 && *done_out; k--)
        s->first[k - 1] = from[(size_t)k * row + (size_t)s->first[k]];
    dp__free(best);
    return DP_OK;
}

/* ---- moves ---- */

static dp_status_t score_cut(search_t *s, score_t *score_out)
{
    dp_simulation_t result = {.struct_size = sizeof(result)};
    double mean = s->before[s->layers] / s->stages;
    dp_status_t status;

    for (int32_t i = 0; i < s->stages; i++)
        s->scale[i] = cost_of_layers(s, s->first[i], s->first[i + 1]) / mean;
    status = dp_simulate(s->request->program, &s->costs, 0, &result);
    *score_out = (score_t){s->rules != NULL ? s->rules->excess(s->rules->user, s->first) : 0.0, result.step_time};
    dp_simulation_clear(&result);
    return status;
}

static bool has_layers(const search_t *s, int32_t cut)
{
    return s->first[cut - 1] < s->first[cut] && s->first[cut] < s->first[cut + 1];
}

/* Moves cut a by `by_a` layers and cut b by `by_b`, and keeps that when the score gets better. */
static dp_status_t try_move(search_t *s, int32_t a, int32_t by_a, int32_t b, int32_t by_b, score_t *score, bool *better)
{
    score_t now = {INFINITY, INFINITY};
    dp_status_t status = DP_OK;

    if (s->rules != NULL && !s->rules->has_time(s->rules->user))
        return DP_OK;
    s->first[a] += by_a;
    s->first[b] += by_b;
    if (has_layers(s, a) && has_layers(s, b))
        status = score_cut(s, &now);
    if (status == DP_OK && is_better(now, *score)) {
        *score = now;
        *better = true;
        return DP_OK;
    }
    s->first[a] -= by_a;
    s->first[b] -= by_b;
    return status;
}

/* Single cuts by one and two layers; when none helps, pairs of them that are near each other. */
static dp_status_t improve_cuts(search_t *s, score_t *score, bool *better)
{
    static const int32_t ways[] = {1, -1, 2, -2};
    dp_status_t status = DP_OK;

    for (int32_t a = 1; a < s->stages && status == DP_OK; a++)
        for (int w = 0; w < 4 && status == DP_OK; w++)
            status = try_move(s, a, ways[w], a, 0, score, better);
    for (int32_t a = 1; a < s->stages && status == DP_OK && !*better; a++)
        for (int32_t b = a + 1; b < s->stages && b <= a + NEAR && status == DP_OK && !*better; b++)
            for (int w = 0; w < 16 && status == DP_OK && !*better; w++)
                status = try_move(s, a, ways[w & 3], b, ways[w >> 2], score, better);
    return status;
}

/* From s->first; keeps the end when it is the best so far. */
static dp_status_t descend_cuts(search_t *s, score_t *best)
{
    bool better = true;
    score_t score;
    dp_status_t status = score_cut(s, &score);

    while (status == DP_OK && better) {
        better = false;
        status = improve_cuts(s, &score, &better);
    }
    if (status == DP_OK && is_better(score, *best)) {
        *best = score;
        memcpy(s->found, s->first, ((size_t)s->stages + 1) * sizeof(*s->found));
    }
    return status;
}

/* From all beginnings; the best end counts. */
static dp_status_t search_partition(search_t *s, score_t *best)
{
    const dp__cut_rules_t *rules = s->rules;
    bool done;
    dp_status_t status;

    *best = (score_t){INFINITY, INFINITY};
    if (rules != NULL && rules->begin != NULL) {
        memcpy(s->first, rules->begin, ((size_t)s->stages + 1) * sizeof(*s->first));
        return descend_cuts(s, best);
    }
    status = cut_evenly(s, NULL, &done);
    if (status == DP_OK)
        status = descend_cuts(s, best);
    for (int32_t i = 0; i <= s->stages; i++)
        s->first[i] = (int32_t)((int64_t)s->layers * i / s->stages);
    if (status == DP_OK)
        status = descend_cuts(s, best);
    if (status < 0 || rules == NULL || rules->most == NULL)
        return status;
    status = cut_evenly(s, rules->most, &done);
    return status == DP_OK && done ? descend_cuts(s, best) : status;
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
    return dp__partition(request, NULL, first_out, step_out);
}

dp_status_t dp__partition(const dp_partition_request_t *request, const dp__cut_rules_t *rules, int32_t *first_out,
                          double *step_out)
{
    dp_partition_request_t own;
    search_t s = {.request = &own, .rules = rules};
    score_t best;
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
                       "partition: %d layer%s on %d stages: every stage holds at least one, and %d are "
                       "the most",
                       s.layers, s.layers == 1 ? "" : "s", s.stages, LAYERS_MAX);
    if (dp__arrays(DP__ARRAY(s.before, s.layers + 1), DP__ARRAY(s.scale, s.stages), DP__ARRAY(s.first, s.stages + 1),
                   DP__ARRAY(s.found, s.stages + 1)))
        s.costs.stage_scale = s.scale;
    else
        status = dp_fail(DP_ERR_NOMEM, "partition: no memory for %d layers on %d stages", s.layers, s.stages);
    if (status == DP_OK)
        status = prepare_search(&s);
    if (status == DP_OK)
        status = search_partition(&s, &best);
    if (status == DP_OK) {
        memcpy(first_out, s.found, ((size_t)s.stages + 1) * sizeof(*first_out));
        if (step_out != NULL)
            *step_out = best.step;
    }
    dp__free(s.before);
    return status;
}
