/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * search.h: quality mode: local search from a plan. */
#ifndef DP_EPLB_SEARCH_H
#define DP_EPLB_SEARCH_H

#include "eplb/layer.h"

/* Improves physical_to_logical [layers, replicas]; a layer changes only if its peak load falls. */
void dp__eplb_search(const dp__eplb_sizes_t *sizes, const dp_eplb_options_t *options, const float *loads,
                     int32_t *physical_to_logical, dp__eplb_scratch_t *scratch);

static inline bool dp__eplb_searches(const dp_eplb_options_t *options)
{
    return options->search_steps > 0 || options->search_ns > 0;
}

#endif
