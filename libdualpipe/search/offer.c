/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * offer.c: proves what is offered, and keeps the best. */
#include "search/offer.h"

#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool dp__search_is_better(double step, double than)
{
    return step < than - 1e-9 * (1.0 + fabs(than)) || (isinf(than) && !isinf(step));
}

static double most_of(const double *all, int32_t count)
{
    double most = 0.0;

    for (int32_t r = 0; r < count; r++)
        most = fmax(most, all[r]);
    return most;
}

static void note_nearest(dp__search_t *search, const char *name, double excess)
{
    int32_t worst = 0;

    if (excess >= search->nearest)
        return;
    for (int32_t r = 0; r < search->request.ranks; r++)
        if (search->memory[r] / search->limits.caps[r] > search->memory[worst] / search->limits.caps[worst])
            worst = r;
    search->nearest = excess;
    snprintf(search->nearest_is, sizeof(search->nearest_is), "%s comes nearest: rank %d holds %.6g of %.6g", name,
             worst, search->memory[worst], search->limits.caps[worst]);
}

/* *step_out is infinite when that rejects it or the memory does. */
static dp_status_t prove_schedule(dp__search_t *search, const dp_schedule_t *schedule, const dp__cut_t *cut,
                                  const char *name, double *step_out, double *peak_out)
{
    const dp_search_request_t *request = &search->request;
    dp_lower_options_t options = {
        .struct_size = sizeof(options), .transport = request->transport, .slots = request->slots};
    dp_simulation_t simulation = {.struct_size = sizeof(simulation)};
    dp_costs_t costs = dp__search_costs(search, cut);
    dp_status_t status = dp_evaluate(schedule, &options, &costs, 0, &simulation);
    double excess;

    *step_out = INFINITY;
    if (status < 0)
        return status == DP_ERR_REJECTED ? DP_OK : status;
    status = dp__limits_measure(&search->limits, schedule, dp__search_parts(search, cut), search->memory);
    if (status >= 0) {
        excess = dp__limits_excess(&search->limits, search->memory, schedule->ranks);
        *peak_out = most_of(simulation.peak_activations, simulation.ranks);
        if (excess == 0.0)
            *step_out = simulation.step_time;
        else
            note_nearest(search, name, excess);
    }
    dp_simulation_clear(&simulation);
    return status;
}

/* Lists what was found from a start, the shortest step first. */
static void note_candidate(dp__search_t *search, const char *name, double step, double memory)
{
    dp_search_candidate_t *all = search->result->candidates;
    int32_t count = search->result->ncandidates, at = 0;

    while (at < count && strcmp(all[at].from, name) != 0)
        at++;
    if (at < count ? step >= all[at].step : count == CANDIDATES && step >= all[count - 1].step)
        return;
    if (at == count && count < CANDIDATES)
        search->result->ncandidates++;
    at = at < CANDIDATES ? at : CANDIDATES - 1;
    for (; at > 0 && all[at - 1].step > step; at--)
        all[at] = all[at - 1];
    all[at] = (dp_search_candidate_t){.step = step, .memory = memory};
    snprintf(all[at].from, sizeof(all[at].from), "%s", name);
}

/* Keeps the schedule when it is the best so far, and frees it otherwise. */
dp_status_t dp__search_offer(dp__search_t *search, dp_schedule_t *schedule, const dp__cut_t *cut, const char *from,
                             double *step_out)
{
    dp_search_result_t *result = search->result;
    double peak = 0.0, memory;
    dp__cut_t kept = {.stages = 0};
    dp_status_t status = prove_schedule(search, schedule, cut, from, step_out, &peak);

    memory = most_of(search->memory, schedule->ranks);
    if (status >= 0 && *step_out < INFINITY)
        note_candidate(search, from, *step_out, memory);
    if (status >= 0 && dp__search_is_better(*step_out, result->step))
        status = dp__cut_copy(cut, &kept);
    if (status < 0 || !dp__search_is_better(*step_out, result->step)) {
        dp_schedule_free(schedule);
        return status;
    }
    dp_schedule_free(result->schedule);
    dp__free(result->first);
    result->schedule = schedule;
    result->first = kept.first;
    result->step = *step_out;
    result->peak = peak;
    result->memory = memory;
    snprintf(result->from, sizeof(result->from), "%s", from);
    return DP_OK;
}
