/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * request.c: checks what a search is asked for. */
#include "search/request.h"

#include "base/do.h"
#include "base/memory.h"
#include "base/sized.h"
#include "program/lower.h"

#include <math.h>

static dp_status_t take_limits(dp__search_t *search)
{
    const dp_search_request_t *request = &search->request;

    if (!dp__arrays(DP__ARRAY(search->limits.caps, request->ranks), DP__ARRAY(search->memory, request->ranks),
                    DP__ARRAY(search->plan_caps, request->ranks)))
        return dp_fail(DP_ERR_NOMEM, "search: no memory for %d ranks", request->ranks);
    search->in_bytes = request->activation_bytes > 0.0 && request->weight_bytes > 0.0;
    search->limits.bytes = (dp_memory_bytes_t){.struct_size = sizeof(search->limits.bytes), .activation = 1.0};
    if (search->in_bytes)
        search->limits.bytes = (dp_memory_bytes_t){.struct_size = sizeof(search->limits.bytes),
                                                   .slots = request->slots > 0 ? request->slots : DP__USUAL_SLOTS,
                                                   .message = request->costs->bytes,
                                                   .activation = request->activation_bytes,
                                                   .weights = request->weight_bytes};
    for (int32_t r = 0; r < request->ranks; r++) {
        const double cap = request->rank_caps != NULL ? request->rank_caps[r] : request->memory_cap;

        if (!(cap >= 0.0))
            return dp_fail(DP_ERR_INVALID, "search: the memory of rank %d is %g: it may not be negative", r, cap);
        search->limits.caps[r] = cap == 0.0 ? INFINITY : cap;
    }
    return DP_OK;
}

static dp_status_t take_layers(dp__search_t *search)
{
    const dp_search_request_t *request = &search->request;

    if (request->layers < 0 || request->nchunks < 0 || (request->layers > 0) != (request->layer_costs != NULL) ||
        (request->nchunks > 0) != (request->chunks != NULL))
        return dp_fail(DP_ERR_INVALID,
                       "search: %d layers, %d numbers of chunks: neither is negative, and layer_costs "
                       "and chunks have as many numbers",
                       request->layers, request->nchunks);
    if (request->layers > 0 && request->costs->stage_scale != NULL)
        return dp_fail(DP_ERR_INVALID, "search: either layers or costs with a stage_scale");
    if (request->layers > 0 && request->layers < request->ranks)
        return dp_fail(DP_ERR_INVALID, "search: %d layers on %d ranks: every stage holds at least one", request->layers,
                       request->ranks);
    for (int32_t k = 0; k < request->nchunks; k++)
        if (request->chunks[k] < 1 || request->chunks[k] > DP_MAX_CHUNKS)
            return dp_fail(DP_ERR_INVALID, "search: %d chunks: 1 to %d are possible", request->chunks[k],
                           DP_MAX_CHUNKS);
    return dp__layers_make(request->layer_costs, request->layers, &search->layers);
}

dp_status_t dp__search_take(const dp_search_request_t *from, dp__search_t *search)
{
    dp_search_request_t *request = &search->request;

    DO(dp__take("dp_search: the request", dp_search_request_t, DP_SEARCH_REQUEST_MIN, request, from));
    if (request->ranks < 1 || request->microbatches < 1)
        return dp_fail(DP_ERR_INVALID, "search: %d ranks and %d micro-batches: both must be 1 or more", request->ranks,
                       request->microbatches);
    if (request->costs == NULL)
        return dp_fail(DP_ERR_INVALID, "search: no costs");
    request->slots = request->slots == 0 ? DP_SLOTS_NEEDED : request->slots;
    DO(dp__take("dp_search: the costs", dp_costs_t, DP_COSTS_MIN, &search->costs, request->costs));
    request->costs = &search->costs;
    if (request->costs->stage_scale != NULL && request->stages < 1)
        return dp_fail(DP_ERR_INVALID, "search: costs with a stage_scale, and `stages` does not say of how many");
    if (request->weights < 0 || !(request->activation_bytes >= 0.0) || !(request->weight_bytes >= 0.0))
        return dp_fail(DP_ERR_INVALID, "search: weights %d, activation_bytes %g, weight_bytes %g: none may be negative",
                       request->weights, request->activation_bytes, request->weight_bytes);
    if (request->costs->topology != NULL && request->costs->topology->ranks != request->ranks)
        return dp_fail(DP_ERR_INVALID, "search: the topology has %d ranks, %d are wanted",
                       request->costs->topology->ranks, request->ranks);
    if (!(request->memory_cap >= 0.0) || !(request->seconds >= 0.0))
        return dp_fail(DP_ERR_INVALID, "search: memory_cap %g, seconds %g: neither may be negative",
                       request->memory_cap, request->seconds);
    if (request->seconds == 0.0)
        request->seconds = 10.0;
    DO(take_layers(search));
    return take_limits(search);
}
