/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * search.c: finds starts, improves them, and plans segments.
 *
 *     for each built-in method and number of chunks: keep as starts its own lists, the same with
 *         later weight gradients, and those of list scheduling (greedy.c)
 *     improve each of the STARTS best by annealing (anneal.c)
 *     with costs per segment, plan the built-in schedules instead (plans.c)
 *
 * Where the layers of the model are given, each start has a cut of them (dp_partition(), within the
 * memory), annealing moves it by a layer at times, and it is looked for once more behind a plan.
 *
 * Invariant: only dp__search_offer() sets the result. It lowers, proves and simulates, and checks
 * the memory; the timing of lists.c decides acceptance and never what is reported. */
#include <dualpipe/search.h>

#include "base/clock.h"
#include "base/do.h"
#include "base/memory.h"
#include "base/sized.h"
#include "search/anneal.h"
#include "search/methods.h"
#include "search/offer.h"
#include "search/plans.h"
#include "search/request.h"
#include "search/starts.h"

#include <math.h>

static void forget_starts(dp__search_t *search)
{
    for (int32_t s = 0; s < search->nstarts; s++)
        dp__start_clear(&search->starts[s]);
    for (int32_t g = 0; g < search->ngiven; g++) {
        dp_schedule_free(search->given[g].schedule);
        dp__cut_clear(&search->given[g].cut);
    }
    dp__free(search->limits.caps);
    dp__layers_clear(&search->layers);
}

static void free_result(dp_search_result_t *result)
{
    dp_schedule_free(result->schedule);
    dp__free(result->first);
    dp__free(result->candidates);
}

static dp_status_t run_search(dp__search_t *search)
{
    dp_search_result_t *found = search->result;

    found->candidates = dp__calloc(CANDIDATES, sizeof(*found->candidates));
    if (found->candidates == NULL)
        return dp_fail(DP_ERR_NOMEM, "search: no memory for its candidates");
    search->random.state = search->request.seed;
    search->nearest = INFINITY;
    DO(dp__search_methods(search));
    DO(dp__search_anneal(search));
    DO(dp__search_plan(search));
    if (found->schedule != NULL)
        return DP_OK;
    return dp_fail(DP_ERR_REJECTED, "search: no schedule fits the memory%s%s", search->nearest_is[0] != 0 ? "; " : "",
                   search->nearest_is);
}

dp_status_t dp_search(const dp_search_request_t *request, dp_search_result_t *result)
{
    dp_search_result_t found = {.struct_size = sizeof(found), .built_in_step = INFINITY, .step = INFINITY};
    dp__search_t search = {.result = &found, .began = dp__now_seconds()};
    dp_status_t status = dp__sized_check("dp_search: the result", result, "dp_search_result_t", DP_SEARCH_RESULT_MIN);

    if (status < 0)
        return status;
    dp_sized_put(result, &found);
    status = dp__search_take(request, &search);
    if (status >= 0)
        status = run_search(&search);
    forget_starts(&search);
    if (status < 0) {
        free_result(&found);
        return status;
    }
    dp_sized_put(result, &found);
    if (!DP_REACHES(result, dp_search_result_t, first))
        dp__free(found.first);
    if (!DP_REACHES(result, dp_search_result_t, candidates))
        dp__free(found.candidates);
    return DP_OK;
}

void dp_search_clear(dp_search_result_t *result)
{
    dp_search_result_t empty = {.struct_size = sizeof(empty)}, full = empty;

    if (!DP_REACHES(result, dp_search_result_t, tried))
        return;
    dp_sized_take(&full, sizeof(full), result);
    free_result(&full);
    dp_sized_put(result, &empty);
}
