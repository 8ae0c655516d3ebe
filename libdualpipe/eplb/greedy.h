/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * greedy.h: the published method for all layers. */
#ifndef DP_EPLB_GREEDY_H
#define DP_EPLB_GREEDY_H

#include "eplb/node.h"

/* Fills physical_to_logical [layers, replicas], expert_count [layers, experts] (or NULL) and rank
 * (or NULL). */
dp_status_t dp__eplb_greedy(const dp__eplb_sizes_t *sizes, bool distinct, const float *loads,
                            const dp__eplb_rows_t *out, dp__eplb_scratch_t *scratch);

/* The sizes to plan for and the policy that it is: a plan by groups, or one for all GPUs as one
 * node. When AUTO's groups do not fit their nodes, *policy becomes DP_EPLB_GLOBAL; what was planned
 * until then is overwritten. */
dp_status_t dp__eplb_greedy_by_policy(const dp__eplb_sizes_t *sizes, const dp_eplb_options_t *options,
                                      const float *loads, const dp__eplb_rows_t *out, dp__eplb_scratch_t *scratch,
                                      dp__eplb_sizes_t *used_out, int32_t *policy_out);

#endif
