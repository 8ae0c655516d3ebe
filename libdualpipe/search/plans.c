/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * plans.c: plans the segments of built-in schedules, where costs have segments. */
#include "search/plans.h"

#include "base/memory.h"
#include "overlap/bound.h"
#include "search/cutting.h"
#include "search/offer.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

/* The planner counts chunks of a rank alike: with as many micro-batches as its largest chunk allows
 * no rank is beyond its limit. Negative: it has none. */
static dp_status_t find_caps(dp__search_t *search, const dp__given_t *given)
{
    const dp_schedule_t *schedule = given->schedule;
    double *share = dp__calloc((size_t)schedule->ranks * (size_t)schedule->chunks, sizeof(*share));

    if (share == NULL)
        return dp_fail(DP_ERR_NOMEM, "search: no memory for %d ranks", schedule->ranks);
    dp__limits_shares(&search->limits, schedule, dp__search_parts(search, &given->cut), share);
    for (int32_t r = 0; r < schedule->ranks; r++) {
        double most = 0.0;

        for (int32_t c = 0; c < schedule->chunks; c++)
            most = fmax(most, share[(size_t)r * (size_t)schedule->chunks + (size_t)c] * dp_schedule_split(schedule));
        search->plan_caps[r] = most > 0.0 ? fmax(1.0 / most, DBL_MIN) : -1.0;
    }
    dp__free(share);
    return DP_OK;
}

/* costs are those with its cut. */
static dp_status_t request_plan(dp__search_t *search, const dp__given_t *given, dp_costs_t *costs,
                                dp_overlap_request_t *request)
{
    *costs = dp__search_costs(search, &given->cut);
    *request = (dp_overlap_request_t){.struct_size = sizeof(*request),
                                      .schedule = given->schedule,
                                      .costs = costs,
                                      .slots = search->request.slots > 0 ? search->request.slots : 0,
                                      .tries = INT32_MAX,
                                      .rank_caps = search->plan_caps};
    return find_caps(search, given);
}

/* No order of its passes beats the best there is. */
static bool is_hopeless(dp__search_t *search, const dp__given_t *given)
{
    dp_overlap_request_t request;
    dp_costs_t costs;
    double bound;

    /* the bound is of one cut */
    return given->cut.stages == 0 && request_plan(search, given, &costs, &request) >= 0 &&
           dp__overlap_request_bound(&request, &bound) >= 0 && bound >= search->result->step;
}

/* Moves the cut to suit the plan, and offers both. */
static dp_status_t offer_plan(dp__search_t *search, dp__given_t *given, dp_schedule_t *plan, double until)
{
    dp__cut_t moved;
    double step = INFINITY;
    char label[48];
    dp_status_t status = dp__cut_copy(&given->cut, &moved);

    snprintf(label, sizeof(label), "%s, planned", given->name);
    if (status >= 0 && moved.stages > 1)
        status = dp__search_improve_cut(search, plan, true, until, &moved);
    if (status >= 0)
        status = dp__search_offer(search, plan, &moved, label, &step);
    else
        dp_schedule_free(plan);
    if (status >= 0 && dp__search_is_better(step, given->step)) { /* the next plan begins with it */
        dp__cut_t before = given->cut;

        given->step = step;
        given->cut = moved;
        moved = before;
    }
    dp__cut_clear(&moved);
    return status;
}

static dp_status_t plan_given(dp__search_t *search, dp__given_t *given, double seconds, uint64_t seed)
{
    const double until = dp__search_elapsed(search) + seconds;
    dp_costs_t costs;
    dp_overlap_request_t request;
    dp_overlap_result_t result = {.struct_size = sizeof(result)};
    dp_status_t status = request_plan(search, given, &costs, &request);

    request.seconds = fmax(given->cut.stages > 1 ? 0.7 * seconds : seconds, DBL_MIN);
    request.seed = seed;
    if (status >= 0)
        status = dp_plan_overlap(&request, &result);
    if (status < 0)
        return status == DP_ERR_REJECTED ? DP_OK : status;
    search->result->tried += result.tried;
    status = offer_plan(search, given, result.schedule, until);
    dp__search_show(search);
    return status;
}

/* A third of the time for those near the best that can beat it, the rest for the best then. */
dp_status_t dp__search_plan(dp__search_t *search)
{
    double far = 1.2 * search->result->step, share = search->request.seconds / 3.0;
    dp__given_t *best = &search->given[0];
    int32_t near = 0;
    dp_status_t status = DP_OK;

    for (int32_t g = 0; g < search->ngiven; g++) {
        search->given[g].wanted = search->given[g].step <= far && !is_hopeless(search, &search->given[g]);
        near += search->given[g].wanted;
    }
    for (int32_t g = 0; g < search->ngiven && status >= 0 && dp__search_has_time(search, search->request.seconds);
         g++) {
        if (search->given[g].wanted)
            status = plan_given(search, &search->given[g], share / near, search->request.seed);
        if (search->given[g].step < best->step)
            best = &search->given[g];
    }
    if (status >= 0 && search->ngiven > 0 && dp__search_has_time(search, search->request.seconds))
        status =
            plan_given(search, best, search->request.seconds - dp__search_elapsed(search), search->request.seed + 1);
    return status;
}
