/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * greedy.c: plans nodes as many at once as a vector has lanes, or one by one where they differ. */
#include "eplb/greedy.h"

#include "eplb/groups.h"
#include "eplb/order.h"

#include <string.h>

/* A tree of matches does less work than looking at every GPU from here on. */
#define LANES_MOST_GPUS 512

static dp__eplb_rows_t layer_rows(const dp__eplb_sizes_t *sizes, const dp__eplb_rows_t *all, int32_t layer)
{
    size_t slots = (size_t)layer * (size_t)sizes->replicas, experts = (size_t)layer * (size_t)sizes->experts;

    return (dp__eplb_rows_t){
        .physical_to_logical = all->physical_to_logical + slots,
        .expert_count = all->expert_count == NULL ? NULL : all->expert_count + experts,
        .rank = all->rank == NULL ? NULL : all->rank + slots,
    };
}

/* Puts the loads of a node, heaviest first, into lane number `lane`. */
static void enter_lane(dp__eplb_scratch_t *s, dp__eplb_node_t *node, int32_t lane)
{
    int32_t lanes = s->lanes->lanes;

    if (node->slots <= DP__EPLB_COUNTED) {
        dp__eplb_positions(s->lanes, node->key, node->slots, s->position);
        for (int32_t i = 0; i < node->slots; i++) {
            node->order[s->position[i]] = i;
            s->lane_share[s->position[i] * lanes + lane] = dp__eplb_load(node->key[i]);
        }
    } else {
        dp__eplb_order(s, node->key, node->slots, node->order);
        for (int32_t i = 0; i < node->slots; i++)
            s->lane_share[i * lanes + lane] = dp__eplb_load(node->key[node->order[i]]);
    }
}

/* Packs the nodes that have entered and writes them out. */
static void finish_lanes(dp__eplb_scratch_t *s, int32_t used, const dp__eplb_rows_t *rows)
{
    const dp__eplb_node_t *node = &s->node[0];
    int32_t lanes = s->lanes->lanes;

    if (used == 0)
        return;
    s->lanes->pack(s->lane_share, node->slots, node->gpus, node->capacity, s->lane_load, s->lane_room, s->lane_bin);
    for (int32_t lane = 0; lane < used; lane++)
        dp__node_emit(s, &s->node[lane], s->lane_bin + lane, lanes, &rows[lane]);
}

static bool side_by_side(const dp__eplb_sizes_t *sizes, const dp__eplb_scratch_t *s, bool distinct)
{
    return sizes->even && !distinct && s->at_once > 1 && sizes->layers * (int64_t)sizes->nodes > 1 &&
           sizes->gpus < sizes->replicas && sizes->gpus / sizes->nodes <= LANES_MOST_GPUS;
}

static void plan_alone(dp__eplb_scratch_t *s, dp__eplb_node_t *node, bool distinct, const dp__eplb_rows_t *rows)
{
    dp__node_replicate(s, node, distinct);
    if (distinct && !dp__node_is_flat(node))
        dp__node_pack_distinct(s, node);
    else
        dp__node_pack(s, node);
    dp__node_emit(s, node, node->bin, 1, rows);
}

dp_status_t dp__eplb_greedy(const dp__eplb_sizes_t *sizes, bool distinct, const float *loads,
                            const dp__eplb_rows_t *out, dp__eplb_scratch_t *s)
{
    dp__eplb_rows_t rows[DP__LANES_MOST];
    bool together = side_by_side(sizes, s, distinct);
    int32_t lane = 0;

    if (together)
        memset(s->lane_share, 0, (size_t)sizes->replicas * (size_t)s->lanes->lanes * sizeof(*s->lane_share));
    for (int32_t layer = 0; layer < sizes->layers; layer++) {
        const float *row = loads + (size_t)layer * (size_t)sizes->experts;
        dp_status_t status = dp__eplb_groups_to_nodes(sizes, row, layer, s);

        if (status < 0)
            return status;
        for (int32_t number = 0; number < sizes->nodes; number++) {
            dp__eplb_node_t *node = &s->node[lane];

            rows[lane] = layer_rows(sizes, out, layer);
            dp__node_fill(sizes, s, row, number, node);
            if (!together) {
                plan_alone(s, node, distinct, &rows[lane]);
                continue;
            }
            dp__node_replicate(s, node, false);
            enter_lane(s, node, lane);
            if (++lane == s->at_once) {
                finish_lanes(s, lane, rows);
                lane = 0;
            }
        }
    }
    finish_lanes(s, lane, rows);
    return DP_OK;
}

dp_status_t dp__eplb_greedy_by_policy(const dp__eplb_sizes_t *sizes, const dp_eplb_options_t *options,
                                      const float *loads, const dp__eplb_rows_t *out, dp__eplb_scratch_t *s,
                                      dp__eplb_sizes_t *used_out, int32_t *policy_out)
{
    bool distinct = options->distinct != 0;
    dp_status_t status;

    *policy_out = options->policy;
    if (options->policy == DP_EPLB_AUTO)
        *policy_out = sizes->groups % sizes->nodes == 0 ? DP_EPLB_HIERARCHICAL : DP_EPLB_GLOBAL;
    *used_out = *policy_out == DP_EPLB_GLOBAL ? dp__eplb_as_global(sizes) : *sizes;
    status = dp__eplb_greedy(used_out, distinct, loads, out, s);
    if (status == DP_ERR_INVALID && options->policy == DP_EPLB_AUTO && *policy_out == DP_EPLB_HIERARCHICAL) {
        *policy_out = DP_EPLB_GLOBAL;
        *used_out = dp__eplb_as_global(sizes);
        status = dp__eplb_greedy(used_out, distinct, loads, out, s);
    }
    return status;
}
