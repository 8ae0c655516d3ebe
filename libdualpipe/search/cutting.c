/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cutting.c: looks for the cut of the layers that suits a schedule. */
#include "search/cutting.h"

#include "base/memory.h"
#include "program/make.h"
#include "simulate/partition.h"

#include <math.h>
#include <string.h>

/* A cut of one schedule that is looked for. */
typedef struct cutting {
    dp__search_t *search;
    const dp_schedule_t *schedule;
    dp__cut_t *cut;
    int32_t slots; /* of a channel */
    int32_t *most; /* [stages] layers with which a stage has its part of its rank's memory */
} cutting_t;

static double excess_of_cut(void *user, const int32_t *first)
{
    cutting_t *x = user;
    dp__search_t *search = x->search;

    memcpy(x->cut->first, first, ((size_t)x->cut->stages + 1) * sizeof(*first));
    dp__cut_weigh(&search->layers, x->cut);
    if (dp__limits_measure(&search->limits, x->schedule, dp__search_parts(search, x->cut), x->slots, search->memory) <
        0)
        return INFINITY;
    return dp__limits_excess(&search->limits, search->memory, x->schedule->ranks);
}

static bool may_cut_on(void *user)
{
    dp__search_t *search = ((cutting_t *)user)->search;

    search->result->tried++;
    return dp__search_has_time(search, search->cut_until);
}

/* But for the slots, memory is in proportion to the layers of a rank. */
static dp_status_t fill_most(cutting_t *x)
{
    dp__search_t *search = x->search;
    const int32_t layers = search->layers.count, stages = x->cut->stages;
    dp_status_t status = dp__limits_measure(&search->limits, x->schedule, NULL, 0, search->memory);

    for (int32_t s = 0; s < stages; s++)
        x->most[s] = layers;
    for (int32_t r = 0; r < x->schedule->ranks && status >= 0; r++)
        for (int32_t c = 0; c < x->schedule->chunks; c++) {
            const double fit = search->limits.caps[r] / search->memory[r].bytes * layers / stages + 1e-9;
            dp_place_t place;

            dp_schedule_place(x->schedule, r, c, &place);
            x->most[place.stage] = (int32_t)fmin(x->most[place.stage], fit);
        }
    return status;
}

dp_status_t dp__search_improve_cut(dp__search_t *search, const dp_schedule_t *schedule, bool begins_there, double until,
                                   dp__cut_t *cut)
{
    dp_lower_options_t options = {
        .struct_size = sizeof(options), .transport = search->request.transport, .slots = search->request.slots};
    dp_partition_request_t request = {.struct_size = sizeof(request),
                                      .layers = search->layers.count,
                                      .layer_costs = search->request.layer_costs,
                                      .costs = &search->costs};
    cutting_t x = {.search = search, .schedule = schedule, .cut = cut};
    dp__cut_rules_t rules = {.excess = excess_of_cut, .has_time = may_cut_on, .user = &x};
    dp_program_t *program = NULL;
    int32_t *first;
    dp_status_t status;

    if (!dp__arrays(DP__ARRAY(first, cut->stages + 1), DP__ARRAY(x.most, cut->stages)))
        return dp_fail(DP_ERR_NOMEM, "search: no memory for %d stages", cut->stages);
    memcpy(first, cut->first, ((size_t)cut->stages + 1) * sizeof(*first));
    search->cut_until = until;
    rules.most = search->in_bytes ? x.most : NULL;
    rules.begin = begins_there ? first : NULL;
    status = fill_most(&x);
    if (status >= 0)
        status = dp_program_lower(schedule, &options, &program);
    request.program = program;
    if (status >= 0)
        x.slots = dp__program_slots(program);
    if (status >= 0)
        status = dp__partition(&request, &rules, first, NULL);
    (void)excess_of_cut(&x, first); /* into the cut */
    dp_program_free(program);
    dp__free(first);
    return status == DP_ERR_REJECTED ? DP_OK : status; /* the search may change what rejects it */
}

dp_status_t dp__search_cut(dp__search_t *search, const dp_schedule_t *schedule, double until, dp__cut_t *cut)
{
    dp_status_t status = dp__cut_make(&search->layers, dp_schedule_stages(schedule), cut);

    return status < 0 || cut->stages < 2 ? status : dp__search_improve_cut(search, schedule, false, until, cut);
}
