/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * scratch.c: one list of arrays says both how much workspace is needed and where each array lies in
 * it. */
#include "eplb/scratch.h"

#include "base/memory.h"

/* Above this, nodes are so large that one at a time keeps the machine busy. */
#define SIDE_BY_SIDE_SLOTS 1024

typedef struct cutter {
    char *at; /* NULL: only measure */
    size_t used;
    bool wrapped;
} cutter_t;

static void *cut_array(cutter_t *cutter, size_t count, size_t bytes)
{
    size_t first = cutter->used, size;

    if (!dp__mul(count, bytes, &size) || !dp__round_up(size, DP__LANES_ALIGNMENT, &size) ||
        !dp__add(first, size, &cutter->used)) {
        cutter->wrapped = true;
        return NULL;
    }
    return cutter->at == NULL ? NULL : cutter->at + first;
}

static void cut_node(cutter_t *cutter, size_t slots, dp__eplb_node_t *node)
{
    node->logical = cut_array(cutter, slots, sizeof(*node->logical));
    node->load = cut_array(cutter, slots, sizeof(*node->load));
    node->count = cut_array(cutter, slots, sizeof(*node->count));
    node->expert = cut_array(cutter, slots, sizeof(*node->expert));
    node->rank = cut_array(cutter, slots, sizeof(*node->rank));
    node->key = cut_array(cutter, slots, sizeof(*node->key));
    node->order = cut_array(cutter, slots, sizeof(*node->order));
    node->bin = cut_array(cutter, slots, sizeof(*node->bin));
}

static void cut_layer(cutter_t *cutter, size_t slots, dp__eplb_layer_t *layer)
{
    layer->expert = cut_array(cutter, slots, sizeof(*layer->expert));
    layer->count = cut_array(cutter, slots, sizeof(*layer->count));
    layer->head = cut_array(cutter, slots, sizeof(*layer->head));
    layer->next = cut_array(cutter, slots, sizeof(*layer->next));
    layer->prev = cut_array(cutter, slots, sizeof(*layer->prev));
    layer->load = cut_array(cutter, slots, sizeof(*layer->load));
}

/* Every other size of a layer is at most the number of its slots. */
static void cut_all(cutter_t *cutter, const dp__eplb_sizes_t *sizes, dp__eplb_scratch_t *s)
{
    size_t slots = (size_t)sizes->replicas + DP__LANES_MOST, wide = 1;
    size_t leaves = 2 * (size_t)dp__tournament_leaves(sizes->replicas), all;

    s->at_once = sizes->replicas <= SIDE_BY_SIDE_SLOTS ? s->lanes->lanes : 1;
    wide = s->at_once == 1 ? 0 : DP__LANES_MOST;
    for (int32_t k = 0; k < s->at_once; k++)
        cut_node(cutter, slots, &s->node[k]);
    s->lane_share = cut_array(cutter, slots * wide, sizeof(*s->lane_share));
    s->lane_load = cut_array(cutter, slots * wide, sizeof(*s->lane_load));
    s->lane_bin = cut_array(cutter, slots * wide, sizeof(*s->lane_bin));
    s->lane_room = cut_array(cutter, slots * wide, sizeof(*s->lane_room));
    s->tree.key = cut_array(cutter, leaves, sizeof(*s->tree.key));
    s->tree.winner = cut_array(cutter, leaves, sizeof(*s->tree.winner));
    s->position = cut_array(cutter, slots, sizeof(*s->position));
    s->fill = cut_array(cutter, slots, sizeof(*s->fill));
    s->pairs = cut_array(cutter, slots, sizeof(*s->pairs));
    s->pairs_too = cut_array(cutter, slots, sizeof(*s->pairs_too));
    s->group_key = cut_array(cutter, slots, sizeof(*s->group_key));
    s->group_order = cut_array(cutter, slots, sizeof(*s->group_order));
    s->group_node = cut_array(cutter, slots, sizeof(*s->group_node));
    s->group_list = cut_array(cutter, slots, sizeof(*s->group_list));
    s->node_first = cut_array(cutter, slots, sizeof(*s->node_first));
    s->node_fill = cut_array(cutter, slots, sizeof(*s->node_fill));
    s->node_load = cut_array(cutter, slots, sizeof(*s->node_load));
    if (!dp__mul((size_t)sizes->layers, (size_t)sizes->replicas, &all))
        cutter->wrapped = true;
    s->rank = cut_array(cutter, all, sizeof(*s->rank));
    s->target = cut_array(cutter, all, sizeof(*s->target));
    s->gpu_of = cut_array(cutter, slots, sizeof(*s->gpu_of));
    s->gpu_first = cut_array(cutter, slots, sizeof(*s->gpu_first));
    s->node_of = cut_array(cutter, slots, sizeof(*s->node_of));
    s->group_of = cut_array(cutter, slots, sizeof(*s->group_of));
    for (size_t k = 0; k < sizeof(s->layer) / sizeof(s->layer[0]); k++)
        cut_layer(cutter, slots, &s->layer[k]);
    s->origin = cut_array(cutter, slots, sizeof(*s->origin));
    s->best = cut_array(cutter, slots, sizeof(*s->best));
    s->count = cut_array(cutter, slots, sizeof(*s->count));
    s->touched = cut_array(cutter, slots, sizeof(*s->touched));
    s->change = cut_array(cutter, slots, sizeof(*s->change));
    s->match = cut_array(cutter, slots, sizeof(*s->match));
    s->match_too = cut_array(cutter, slots, sizeof(*s->match_too));
    s->overlap = cut_array(cutter, slots, sizeof(*s->overlap));
    s->node_match = cut_array(cutter, slots, sizeof(*s->node_match));
    s->node_total = cut_array(cutter, slots, sizeof(*s->node_total));
    s->share = cut_array(cutter, slots, sizeof(*s->share));
    s->spread = cut_array(cutter, slots, sizeof(*s->spread));
    s->room = cut_array(cutter, slots, sizeof(*s->room));
}

static dp_status_t measure_scratch(const dp__eplb_sizes_t *sizes, size_t *bytes_out)
{
    dp__eplb_scratch_t scratch = {.lanes = dp__eplb_lanes()};
    cutter_t cutter = {.at = NULL, .used = DP__LANES_ALIGNMENT};

    cut_all(&cutter, sizes, &scratch);
    if (cutter.wrapped)
        return dp_fail(DP_ERR_INVALID, "eplb: %d layers of %d replicas are more than this machine can address",
                       sizes->layers, sizes->replicas);
    *bytes_out = cutter.used;
    return DP_OK;
}

dp_status_t dp_eplb_workspace_bytes(const dp_eplb_shape_t *shape, size_t *bytes_out)
{
    dp__eplb_sizes_t sizes;
    dp_status_t status = dp__eplb_check_shape(shape, &sizes);

    return status < 0 ? status : measure_scratch(&sizes, bytes_out);
}

dp_status_t dp__eplb_scratch_cut(const dp_eplb_shape_t *shape, void *workspace, size_t workspace_bytes,
                                 dp__eplb_sizes_t *sizes_out, dp__eplb_scratch_t *scratch_out)
{
    dp_status_t status = dp__eplb_check_shape(shape, sizes_out);
    uintptr_t start = (uintptr_t)workspace;
    cutter_t cutter = {.used = 0};
    size_t bytes;

    if (status < 0 || (status = measure_scratch(sizes_out, &bytes)) < 0)
        return status;
    if (workspace == NULL || workspace_bytes < bytes)
        return dp_fail(DP_ERR_INVALID, "eplb: a workspace of %zu bytes; dp_eplb_workspace_bytes() says %zu",
                       workspace == NULL ? 0 : workspace_bytes, bytes);
    cutter.at = (char *)workspace + (DP__LANES_ALIGNMENT - start % DP__LANES_ALIGNMENT) % DP__LANES_ALIGNMENT;
    scratch_out->lanes = dp__eplb_lanes();
    cut_all(&cutter, sizes_out, scratch_out);
    return DP_OK;
}
