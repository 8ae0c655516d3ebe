/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * node.h: the steps for one node of one layer: replicate experts, share replicas among GPUs. */
#ifndef DP_EPLB_NODE_H
#define DP_EPLB_NODE_H

#include "eplb/scratch.h"

/* Rows of the layer that a node writes its part of. rank may be NULL. */
typedef struct dp__eplb_rows {
    int32_t *physical_to_logical, *expert_count;
    uint16_t *rank;
} dp__eplb_rows_t;

/* Takes the node's experts from scratch->group_list; sizes of the node are set, too. */
void dp__node_fill(const dp__eplb_sizes_t *sizes, const dp__eplb_scratch_t *scratch, const float *loads, int32_t number,
                   dp__eplb_node_t *node);
/* Gives each expert one replica and each further slot to the expert with the largest load per
 * replica. distinct: to one with fewer replicas than GPUs, as long as there is one. */
void dp__node_replicate(dp__eplb_scratch_t *scratch, dp__eplb_node_t *node, bool distinct);
/* Shares the replicas, heaviest first, each to the least loaded GPU with room: order and bin. */
void dp__node_pack(dp__eplb_scratch_t *scratch, dp__eplb_node_t *node);
/* The same, but no GPU gets an expert more often than needed. Not for flat nodes. */
void dp__node_pack_distinct(dp__eplb_scratch_t *scratch, dp__eplb_node_t *node);
/* Writes the node's slots. bins [slots], `stride` apart: GPU of order[i]. */
void dp__node_emit(dp__eplb_scratch_t *scratch, const dp__eplb_node_t *node, const int32_t *bins, int32_t stride,
                   const dp__eplb_rows_t *rows);

/* One slot on every GPU: the published code leaves replicas in the order they were made. */
static inline bool dp__node_is_flat(const dp__eplb_node_t *node)
{
    return node->capacity == 1 && node->larger == 0;
}

/* First slot of a GPU, within the node. */
static inline int32_t dp__node_gpu_first(const dp__eplb_node_t *node, int32_t gpu)
{
    return gpu * node->capacity + (gpu < node->larger ? gpu : node->larger);
}

#endif
