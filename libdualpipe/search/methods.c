/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * methods.c: tries the built-in methods, with several numbers of chunks. */
#include "search/methods.h"

#include "search/cutting.h"
#include "search/offer.h"
#include "search/starts.h"

#include <stdio.h>

static bool is_wanted(const dp_search_request_t *request, const dp_schedule_t *schedule)
{
    return (request->placements == 0 || (request->placements >> schedule->placement & 1) != 0) &&
           (request->weights == 0 || dp_schedule_paths(schedule) <= request->weights) &&
           (request->costs->stage_scale == NULL || dp_schedule_stages(schedule) == request->stages) &&
           (request->layers == 0 || dp_schedule_stages(schedule) <= request->layers);
}

static dp_status_t offer_built_in(dp__search_t *search, dp_schedule_t *schedule, const dp__cut_t *cut, const char *name,
                                  double *step_out)
{
    dp_status_t status = dp__search_offer(search, schedule, cut, name, step_out);

    search->result->tried++;
    if (status >= 0 && dp__search_is_better(*step_out, search->result->built_in_step)) {
        search->result->built_in_step = *step_out;
        snprintf(search->result->built_in, sizeof(search->result->built_in), "%s", name);
    }
    return status;
}

/* Keeps a schedule and its cut to plan its segments, and offers another like it. */
static dp_status_t give_start(dp__search_t *search, const dp_schedule_request_t *request, dp_schedule_t *schedule,
                              dp__cut_t *cut, const char *name)
{
    dp__given_t *given = &search->given[search->ngiven];
    dp_schedule_t *other;
    dp_status_t status = search->ngiven < MOST_GIVEN ? dp_schedule_generate(request, &other)
                                                     : dp_fail(DP_ERR_OVERFLOW, "search: too many methods");

    if (status < 0) {
        dp_schedule_free(schedule);
        dp__cut_clear(cut);
        return status;
    }
    *given = (dp__given_t){.schedule = schedule, .cut = *cut};
    snprintf(given->name, sizeof(given->name), "%s", name);
    search->ngiven++;
    status = offer_built_in(search, other, &given->cut, name, &given->step);
    dp__search_show(search);
    return status;
}

/* Takes over the schedule of a shape, and its cut: itself, and lists like it, as starts. */
static dp_status_t try_lists(dp__search_t *search, dp_schedule_t *schedule, dp__cut_t *cut, const char *name,
                             bool grouped, double greedy_until)
{
    double step;
    dp_status_t status = dp__starts_add(search, schedule, cut, name, grouped, greedy_until);

    if (status >= 0)
        status = offer_built_in(search, schedule, cut, name, &step);
    else
        dp_schedule_free(schedule);
    dp__cut_clear(cut);
    dp__search_show(search);
    return status;
}

/* One method with one number of chunks, in groups of P or more: itself, and of those of P list
 * scheduling on its shape, for so many seconds. */
static dp_status_t try_method(dp__search_t *search, const dp_method_t *method, int32_t chunks, int32_t group,
                              double greedy)
{
    dp_schedule_request_t request = {.struct_size = sizeof(request),
                                     .method = method->name,
                                     .ranks = search->request.ranks,
                                     .microbatches = search->request.microbatches,
                                     .chunks = chunks,
                                     .microbatch_group = group};
    dp_schedule_t *schedule = NULL;
    dp__cut_t cut;
    char name[38], in_groups[16] = "";
    dp_status_t status = dp_schedule_generate(&request, &schedule);

    if (status < 0)
        return status == DP_ERR_INVALID ? DP_OK : status;
    if (!is_wanted(&search->request, schedule)) {
        dp_schedule_free(schedule);
        return DP_OK;
    }
    if (group > 0)
        snprintf(in_groups, sizeof(in_groups), ", G %d", group);
    snprintf(name, sizeof(name), chunks > 0 ? "%s, %d chunks%s" : "%s", method->name, chunks, in_groups);
    status = dp__search_cut(search, schedule, dp__search_elapsed(search) + search->cut_share, &cut);
    if (status < 0) {
        dp_schedule_free(schedule);
        dp__cut_clear(&cut);
        return status;
    }
    if (search->request.costs->segments != NULL)
        return give_start(search, &request, schedule, &cut, name);
    return try_lists(search, schedule, &cut, name, group > 0, greedy > 0.0 ? dp__search_elapsed(search) + greedy : 0.0);
}

/* Groups of up to 2 P. Some that differ by little divide the micro-batches alike. */
static dp_status_t try_groups(dp__search_t *search, const dp_method_t *method, int32_t chunks)
{
    const int32_t ranks = search->request.ranks, m = search->request.microbatches;
    int32_t before = m % ranks == 0 ? m / ranks : 0; /* groups of P were tried */
    dp_status_t status = DP_OK;

    for (int32_t quarters = 4; quarters <= 8 && status >= 0; quarters++) {
        const int32_t most = (ranks * quarters + 3) / 4, n = (m + most - 1) / most;

        if (n != before && m / n >= ranks)
            status = try_method(search, method, chunks, (m + n - 1) / n, 0.0);
        before = n;
    }
    return status;
}

/* List scheduling gets a third of the time, once for each placement, and cuts another. */
dp_status_t dp__search_methods(dp__search_t *search)
{
    static const int32_t usual_chunks[] = {2, 4};
    const int32_t nchunks = search->request.nchunks > 0 ? search->request.nchunks : 2,
                  *loop_chunks = search->request.nchunks > 0 ? search->request.chunks : usual_chunks;
    size_t count;
    const dp_method_t *methods = dp_schedule_methods(&count);
    bool seen[DP_PLACE_BIDIRECTIONAL + 1] = {false};
    const double third = search->request.seconds / 3.0;
    int32_t shapes = 0;
    dp_status_t status = DP_OK;

    for (size_t m = 0; m < count; m++)
        shapes += methods[m].placement == DP_PLACE_LOOP ? 2 * nchunks : 1; /* some in groups */
    search->cut_share = third / shapes;
    for (size_t m = 0; m < count && status >= 0; m++) {
        bool loop = methods[m].placement == DP_PLACE_LOOP, greedy = !seen[methods[m].placement];

        seen[methods[m].placement] = true;
        for (int32_t k = 0; k < nchunks && status >= 0 && (loop || k == 0); k++) {
            status = try_method(search, &methods[m], loop ? loop_chunks[k] : 0, 0,
                                greedy ? third / (loop ? 5.0 * nchunks : 5.0) : 0.0);
            if (status >= 0 && loop)
                status = try_groups(search, &methods[m], loop_chunks[k]);
        }
    }
    return status;
}
