/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * offer.c: proves what is offered, and keeps the best. */
#include "search/offer.h"

#include "base/memory.h"
#include "program/make.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool dp__search_is_better(double step, double than)
{
    return step < than - 1e-9 * (1.0 + fabs(than)) || (isinf(than) && !isinf(step));
}

static void note_nearest(dp__search_t *search, const char *name, double excess)
{
    int32_t worst = 0;

    if (excess >= search->nearest)
        return;
    for (int32_t r = 0; r < search->request.ranks; r++)
        if (search->memory[r].bytes / search->limits.caps[r] > search->memory[worst].bytes / search->limits.caps[worst])
            worst = r;
    search->nearest = excess;
    snprintf(search->nearest_is, sizeof(search->nearest_is), "%s comes nearest: rank %d holds %.6g of %.6g", name,
             worst, search->memory[worst].bytes, search->limits.caps[worst]);
}

/* Of a program that was proven. */
static dp_status_t time_program(dp__search_t *search, const dp_program_t *program, const dp__cut_t *cut,
                                double *step_out)
{
    const dp_costs_t costs = dp__search_costs(search, cut);
    dp_simulation_t simulation = {.struct_size = sizeof(simulation)};
    dp_status_t status = dp_simulate(program, &costs, 0, &simulation);

    *step_out = simulation.step_time;
    dp_simulation_clear(&simulation);
    return status;
}

/* *step_out is infinite when the proof rejects it or the memory does. */
static dp_status_t prove_schedule(dp__search_t *search, const dp_schedule_t *schedule, const dp__cut_t *cut,
                                  const char *name, double *step_out)
{
    dp_lower_options_t options = {
        .struct_size = sizeof(options), .transport = search->request.transport, .slots = search->request.slots};
    dp_program_t *program;
    dp_status_t status = dp__program_make(schedule, &options, &program);
    double excess;

    *step_out = INFINITY;
    if (status < 0)
        return status == DP_ERR_REJECTED ? DP_OK : status;
    status = dp__limits_measure(&search->limits, schedule, dp__search_parts(search, cut), dp__program_slots(program),
                                search->memory);
    excess = status < 0 ? 0.0 : dp__limits_excess(&search->limits, search->memory, schedule->ranks);
    if (excess > 0.0)
        note_nearest(search, name, excess);
    else if (status >= 0)
        status = time_program(search, program, cut, step_out);
    dp_program_free(program);
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
    double peak = 0.0, memory = 0.0;
    dp__cut_t kept = {.stages = 0};
    dp_status_t status = prove_schedule(search, schedule, cut, from, step_out);

    for (int32_t r = 0; r < schedule->ranks; r++) {
        peak = fmax(peak, search->memory[r].activations);
        memory = fmax(memory, search->memory[r].bytes);
    }
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
