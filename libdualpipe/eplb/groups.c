/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * groups.c: packs groups onto nodes, heaviest first, each to the least loaded that may take one. */
#include "eplb/groups.h"

#include "eplb/order.h"

#include <math.h>

static float group_load(const dp__eplb_sizes_t *sizes, const float *loads, int32_t group)
{
    int32_t first = dp__eplb_share_first(sizes->experts, sizes->groups, group);
    int32_t count = dp__eplb_share_count(sizes->experts, sizes->groups, group), e = 0;
    double sum[4] = {0.0, 0.0, 0.0, 0.0};

    for (; e + 4 <= count; e += 4)
        for (int k = 0; k < 4; k++)
            sum[k] += loads[first + e + k];
    for (; e < count; e++)
        sum[0] += loads[first + e];
    return (float)((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* Every node takes the same number of groups of the same size. */
static void pack_even(const dp__eplb_sizes_t *sizes, dp__eplb_scratch_t *s)
{
    int32_t each = sizes->groups / sizes->nodes;

    s->tree.leaves = dp__tournament_leaves(sizes->nodes);
    for (int32_t n = 0; n < sizes->nodes; n++) {
        s->tree.key[s->tree.leaves + n] = 0.0f;
        s->node_fill[n] = 0;
    }
    dp__tournament_start(&s->tree, sizes->nodes, -INFINITY);
    for (int32_t i = 0; i < sizes->groups; i++) {
        int32_t group = s->group_order[i], node = dp__tournament_first(&s->tree);
        float load = -s->tree.key[1] + dp__eplb_load(s->group_key[group]);

        s->group_list[node * each + s->node_fill[node]++] = group;
        dp__tournament_set(&s->tree, node, s->node_fill[node] == each ? -INFINITY : -load);
    }
}

/* The node for a group when nodes differ: least load per GPU of those with room, or most room. */
static int32_t choose_node(const dp__eplb_sizes_t *sizes, const dp__eplb_scratch_t *s, int32_t size, bool by_room)
{
    int32_t best = -1;
    double least = 0.0;

    for (int32_t n = 0; n < sizes->nodes; n++) {
        int32_t gpus = dp__eplb_share_count(sizes->gpus, sizes->nodes, n), room = s->room[n];
        double cost = by_room ? -(double)room : (double)s->node_load[n] / gpus;

        if (s->node_fill[n] == dp__eplb_share_count(sizes->groups, sizes->nodes, n) || room < size)
            continue;
        if (best < 0 || cost < least) {
            best = n;
            least = cost;
        }
    }
    return best;
}

/* Larger groups come first when they may be hard to fit. */
static bool pack_uneven(const dp__eplb_sizes_t *sizes, dp__eplb_scratch_t *s, bool by_room)
{
    int32_t larger = sizes->experts % sizes->groups;

    for (int32_t n = 0; n < sizes->nodes; n++) {
        dp__eplb_node_t node;

        dp__eplb_node_sizes(sizes, n, &node);
        s->node_load[n] = 0.0f;
        s->node_fill[n] = 0;
        s->room[n] = node.slots;
    }
    for (int pass = by_room ? 0 : 1; pass < 2; pass++) {
        for (int32_t i = 0; i < sizes->groups; i++) {
            int32_t group = s->group_order[i], node;
            int32_t size = dp__eplb_share_count(sizes->experts, sizes->groups, group);

            if (by_room && (group < larger) != (pass == 0))
                continue;
            node = choose_node(sizes, s, size, by_room);
            if (node < 0)
                return false;
            s->group_list[s->node_first[node] + s->node_fill[node]++] = group;
            s->node_load[node] += dp__eplb_load(s->group_key[group]);
            s->room[node] -= size;
        }
    }
    return true;
}

dp_status_t dp__eplb_groups_to_nodes(const dp__eplb_sizes_t *sizes, const float *loads, int32_t layer,
                                     dp__eplb_scratch_t *s)
{
    for (int32_t n = 0; n <= sizes->nodes; n++)
        s->node_first[n] = n == sizes->nodes ? sizes->groups : dp__eplb_share_first(sizes->groups, sizes->nodes, n);
    if (sizes->groups == 1) {
        s->group_list[0] = 0;
        s->node_first[1] = 1;
        if (sizes->nodes == 1)
            return DP_OK;
    }
    if (sizes->groups < sizes->nodes)
        return dp_fail(DP_ERR_INVALID,
                       "eplb: %d groups for %d nodes: some nodes would be empty; choose the global policy",
                       sizes->groups, sizes->nodes);
    if (sizes->even && sizes->groups == sizes->nodes) {
        for (int32_t g = 0; g < sizes->groups; g++)
            s->group_list[g] = g;
        return DP_OK;
    }
    for (int32_t g = 0; g < sizes->groups; g++)
        s->group_key[g] = dp__eplb_key(group_load(sizes, loads, g));
    dp__eplb_order(s, s->group_key, sizes->groups, s->group_order);
    if (sizes->even)
        pack_even(sizes, s);
    else if (!pack_uneven(sizes, s, false) && !pack_uneven(sizes, s, true))
        return dp_fail(DP_ERR_INVALID,
                       "eplb: layer %d: %d groups of %d experts do not fit the slots of %d nodes group by group; "
                       "choose the global policy or more replicas",
                       layer, sizes->groups, sizes->experts, sizes->nodes);
    return DP_OK;
}
