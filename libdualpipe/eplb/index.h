/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * index.h: from slots to the other two maps. */
#ifndef DP_EPLB_INDEX_H
#define DP_EPLB_INDEX_H

#include "eplb/scratch.h"

dp_status_t dp__eplb_check_placement(dp_eplb_placement_t *placement);
/* Every expert in range and present, in each layer; count [experts] is worked in. */
dp_status_t dp__eplb_check_slots(const dp__eplb_sizes_t *sizes, const int32_t *physical_to_logical, int32_t *count);
/* Sets expert_count and logical_to_physical, where wanted, and max_count. rank [layers, replicas]:
 * number of each replica among those of its expert; NULL: ascending slots. count [experts] is
 * worked in. */
void dp__eplb_index_all(const dp__eplb_sizes_t *sizes, dp_eplb_placement_t *placement, const uint16_t *rank,
                        int32_t *count);

#endif
