/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * node.c: replication and packing as published, in O(n log n). */
#include "eplb/node.h"

#include "eplb/groups.h"
#include "eplb/order.h"

#include <math.h>
#include <string.h>

#pragma GCC optimize("O3")

void dp__node_fill(const dp__eplb_sizes_t *sizes, const dp__eplb_scratch_t *s, const float *weights,
                   int32_t number, dp__eplb_node_t *node)
{
    int32_t at = 0;

    dp__eplb_node_sizes(sizes, number, node);
    for (int32_t i = s->node_first[number]; i < s->node_first[number + 1]; i++) {
        int32_t first = dp__eplb_share_first(sizes->experts, sizes->groups, s->group_list[i]);
        int32_t count = dp__eplb_share_count(sizes->experts, sizes->groups, s->group_list[i]);

        for (int32_t e = 0; e < count; e++)
            node->logical[at + e] = first + e;
        memcpy(node->load + at, weights + first, (size_t)count * sizeof(*weights));
        at += count;
    }
    node->experts = at;
}

void dp__node_replicate(dp__eplb_scratch_t *s, dp__eplb_node_t *node, bool distinct)
{
    dp__tournament_t *tree = &s->tree;
    int32_t most = distinct ? node->gpus : INT32_MAX;

    for (int32_t e = 0; e < node->experts; e++) {
        node->expert[e] = e;
        node->rank[e] = 0;
        node->count[e] = 1;
    }
    if (node->slots > node->experts) {
        tree->leaves = dp__tournament_leaves(node->experts);
        for (int32_t e = 0; e < node->experts; e++)
            tree->key[tree->leaves + e] = most > 1 ? node->load[e] : -1.0f;
        dp__tournament_start(tree, node->experts, -2.0f);
    }
    for (int32_t i = node->experts; i < node->slots; i++) {
        if (tree->key[1] == -1.0f) { /* every expert is on every GPU: one more each */
            most += node->gpus;
            for (int32_t e = 0; e < node->experts; e++)
                tree->key[tree->leaves + e] = node->load[e] / (float)node->count[e];
            dp__tournament_start(tree, node->experts, -2.0f);
        }
        int32_t e = dp__tournament_first(tree), count = node->count[e];

        node->expert[i] = e;
        node->rank[i] = count;
        node->count[e] = ++count;
        dp__tournament_set(tree, e, count < most ? node->load[e] / (float)count : -1.0f);
    }
    for (int32_t i = 0; i < node->slots; i++)
        node->key[i] = dp__eplb_key(node->load[node->expert[i]] / (float)node->count[node->expert[i]]);
}

void dp__node_pack(dp__eplb_scratch_t *s, dp__eplb_node_t *node)
{
    dp__tournament_t *tree = &s->tree;

    if (dp__node_is_flat(node)) {
        for (int32_t i = 0; i < node->slots; i++)
            node->order[i] = node->bin[i] = i;
        return;
    }
    dp__eplb_order(s, node->key, node->slots, node->order);
    tree->leaves = dp__tournament_leaves(node->gpus);
    for (int32_t gpu = 0; gpu < node->gpus; gpu++) {
        tree->key[tree->leaves + gpu] = 0.0f;
        s->fill[gpu] = node->capacity + (gpu < node->larger);
    }
    dp__tournament_start(tree, node->gpus, -INFINITY);
    for (int32_t i = 0; i < node->slots; i++) {
        int32_t gpu = dp__tournament_first(tree);
        float load = -tree->key[1] + dp__eplb_load(node->key[node->order[i]]);

        node->bin[i] = gpu;
        dp__tournament_set(tree, gpu, --s->fill[gpu] == 0 ? -INFINITY : -load);
    }
}

void dp__node_emit(dp__eplb_scratch_t *s, const dp__eplb_node_t *node, const int32_t *bins, int32_t stride,
                   const dp__eplb_rows_t *rows)
{
    int32_t *slots = rows->physical_to_logical + node->first_slot, *fill = s->fill;
    uint16_t *rank = rows->rank == NULL ? NULL : rows->rank + node->first_slot;

    for (int32_t gpu = 0; gpu < node->gpus; gpu++)
        fill[gpu] = dp__node_gpu_first(node, gpu);
    for (int32_t i = 0; i < node->slots; i++) {
        int32_t replica = node->order[i], slot = fill[bins[i * stride]]++;

        slots[slot] = node->logical[node->expert[replica]];
        if (rank != NULL)
            rank[slot] = (uint16_t)node->rank[replica];
    }
    for (int32_t e = 0; rows->expert_count != NULL && e < node->experts; e++)
        rows->expert_count[node->logical[e]] = node->count[e];
}
