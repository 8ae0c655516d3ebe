/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * groups.h: which groups of experts go to which node. */
#ifndef DP_EPLB_GROUPS_H
#define DP_EPLB_GROUPS_H

#include "eplb/scratch.h"

/* Sets scratch->group_list, groups node by node in the order they were placed, and
 * scratch->node_first [nodes + 1]. DP_ERR_INVALID: sizes that do not divide, and groups that do not
 * fit the slots of the nodes. */
dp_status_t dp__eplb_groups_to_nodes(const dp__eplb_sizes_t *sizes, const float *loads, int32_t layer,
                                     dp__eplb_scratch_t *scratch);

/* Slots and GPUs of a node. */
static inline void dp__eplb_node_sizes(const dp__eplb_sizes_t *sizes, int32_t number, dp__eplb_node_t *node)
{
    int32_t gpu = dp__eplb_share_first(sizes->gpus, sizes->nodes, number), extra = sizes->replicas % sizes->gpus;

    node->gpus = dp__eplb_share_count(sizes->gpus, sizes->nodes, number);
    node->first_slot = dp__eplb_share_first(sizes->replicas, sizes->gpus, gpu);
    node->capacity = sizes->replicas / sizes->gpus;
    node->larger = extra - gpu < 0 ? 0 : extra - gpu < node->gpus ? extra - gpu : node->gpus;
    if (node->larger == node->gpus) {
        node->capacity++;
        node->larger = 0;
    }
    node->slots = node->gpus * node->capacity + node->larger;
}

#endif
