/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * state.c: time, progress and costs of a search. */
#include "search/state.h"

#include "base/clock.h"

#include <math.h>

double dp__search_elapsed(const dp__search_t *search)
{
    return dp__now_seconds() - search->began;
}

bool dp__search_has_time(const dp__search_t *search, double until)
{
    return !search->enough && dp__search_elapsed(search) < until;
}

void dp__search_show(dp__search_t *search)
{
    double now = dp__search_elapsed(search);
    dp_search_state_t state = {.struct_size = sizeof(state),
                               .elapsed = now,
                               .tried = search->result->tried,
                               .built_in_step = search->result->built_in_step,
                               .step = search->result->step,
                               .from = search->result->from};

    if (search->request.progress == NULL || search->enough || now - search->shown < 0.2)
        return;
    search->shown = now;
    search->enough = search->request.progress(search->request.user, &state) != 0;
}

dp_costs_t dp__search_costs(const dp__search_t *search, const dp__cut_t *cut)
{
    dp_costs_t costs = search->costs;

    if (cut->stages > 0)
        costs.stage_scale = cut->scale;
    return costs;
}

const double *dp__search_parts(const dp__search_t *search, const dp__cut_t *cut)
{
    return search->in_bytes ? cut->parts : NULL;
}
