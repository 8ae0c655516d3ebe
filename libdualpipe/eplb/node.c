/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * node.c: replication and packing as published, in O(n log n). */
#include "eplb/node.h"

#include "eplb/groups.h"
#include "eplb/order.h"

#include <math.h>
#include <string.h>

void dp__node_fill(const dp__eplb_sizes_t *sizes, const dp__eplb_scratch_t *s, const float *loads, int32_t number,
                   dp__eplb_node_t *node)
{
    int32_t at = 0;

    dp__eplb_node_sizes(sizes, number, node);
    for (int32_t i = s->node_first[number]; i < s->node_first[number + 1]; i++) {
        int32_t first = dp__eplb_share_first(sizes->experts, sizes->groups, s->group_list[i]);
        int32_t count = dp__eplb_share_count(sizes->experts, sizes->groups, s->group_list[i]);

        for (int32_t e = 0; e < count; e++)
            node->logical[at + e] = first + e;
        memcpy(node->load + at, loads + first, (size_t)count * sizeof(*loads));
        at += count;
    }
    node->experts = at;
}

/* Key of an expert that gets no replica for now: below that of one without load. */
#define BARRED (-1)

/* Who gets the next replica: the first of the largest keys, by a scan, or a tree of many. */
typedef struct queue {
    const dp__eplb_lanes_t *lanes; /* NULL: the tree */
    int32_t *key;                  /* [experts] */
    dp__tournament_t *tree;
} queue_t;

#define QUEUE_SCANNED 512

static void queue_start(queue_t *q, int32_t experts)
{
    if (q->lanes != NULL) {
        for (int32_t e = experts; e % q->lanes->lanes != 0; e++)
            q->key[e] = BARRED;
        return;
    }
    q->tree->leaves = dp__tournament_leaves(experts);
    for (int32_t e = 0; e < experts; e++)
        q->tree->key[q->tree->leaves + e] = q->key[e] == BARRED ? -1.0f : dp__eplb_load(q->key[e]);
    dp__tournament_start(q->tree, experts, -2.0f);
}

static int32_t queue_first(const queue_t *q, int32_t experts)
{
    return q->lanes != NULL ? q->lanes->first_most(q->key, experts) : dp__tournament_first(q->tree);
}

static void queue_set(queue_t *q, int32_t expert, int32_t key)
{
    q->key[expert] = key;
    if (q->lanes == NULL)
        dp__tournament_set(q->tree, expert, key == BARRED ? -1.0f : dp__eplb_load(key));
}

static int32_t share_key(const dp__eplb_node_t *node, int32_t expert)
{
    return dp__eplb_key(node->load[expert] / (float)node->count[expert]);
}

/* One replica of each expert. */
static void start_alone(dp__eplb_node_t *node)
{
    int32_t *restrict expert = node->expert, *restrict rank = node->rank, *restrict count = node->count;
    int32_t *restrict key = node->key;
    const float *restrict load = node->load;
    int32_t experts = node->experts;

    for (int32_t e = 0; e < experts; e++) {
        expert[e] = e;
        rank[e] = 0;
        count[e] = 1;
        key[e] = dp__eplb_key(load[e]);
    }
}

void dp__node_replicate(dp__eplb_scratch_t *s, dp__eplb_node_t *node, bool distinct)
{
    queue_t queue = {.lanes = node->experts <= QUEUE_SCANNED ? s->lanes : NULL, .key = s->position, .tree = &s->tree};
    int32_t most = distinct ? node->gpus : INT32_MAX;

    start_alone(node);
    if (node->slots == node->experts)
        return;
    if (most > 1)
        memcpy(queue.key, node->key, (size_t)node->experts * sizeof(*queue.key));
    else
        memset(queue.key, 0xff, (size_t)node->experts * sizeof(*queue.key)); /* BARRED */
    queue_start(&queue, node->experts);
    for (int32_t i = node->experts; i < node->slots; i++) {
        int32_t e = queue_first(&queue, node->experts);

        if (queue.key[e] == BARRED) { /* every expert is on every GPU: one more each */
            most += node->gpus;
            for (int32_t k = 0; k < node->experts; k++)
                queue.key[k] = share_key(node, k);
            queue_start(&queue, node->experts);
            e = queue_first(&queue, node->experts);
        }
        node->expert[i] = e;
        node->rank[i] = node->count[e]++;
        node->key[e] = share_key(node, e);
        queue_set(&queue, e, node->count[e] < most ? node->key[e] : BARRED);
    }
    for (int32_t i = node->experts; i < node->slots; i++)
        node->key[i] = node->key[node->expert[i]];
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
    int32_t *restrict slots = rows->physical_to_logical + node->first_slot, *restrict fill = s->fill;
    uint16_t *restrict rank = rows->rank == NULL ? NULL : rows->rank + node->first_slot;
    const int32_t *order = node->order, *expert = node->expert, *logical = node->logical, *number = node->rank;
    int32_t count = node->slots;

    for (int32_t gpu = 0; gpu < node->gpus; gpu++)
        fill[gpu] = dp__node_gpu_first(node, gpu);
    for (int32_t i = 0; i < count; i++) {
        int32_t replica = order[i], slot = fill[bins[i * stride]]++;

        slots[slot] = logical[expert[replica]];
        if (rank != NULL)
            rank[slot] = (uint16_t)number[replica];
    }
    for (int32_t e = 0; rows->expert_count != NULL && e < node->experts; e++)
        rows->expert_count[node->logical[e]] = node->count[e];
}
