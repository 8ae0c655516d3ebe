/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * index.c: checks maps of slots and derives counts and the slots of each expert from them. */
#include "eplb/index.h"
#include "base/sized.h"

#include <string.h>

dp_status_t dp__eplb_check_placement(dp_eplb_placement_t *placement)
{
    dp_status_t status =
        dp__sized_check("eplb: the placement", placement, "dp_eplb_placement_t", DP_EPLB_PLACEMENT_MIN);

    if (status < 0)
        return status;
    if (placement->physical_to_logical == NULL)
        return dp_fail(DP_ERR_INVALID, "eplb: a placement needs an array physical_to_logical");
    return DP_OK;
}

/* Counts the slots of each expert of a layer; false: a slot holds no expert. */
static bool count_row(const int32_t *slots, int32_t replicas, int32_t experts, int32_t *count)
{
    memset(count, 0, (size_t)experts * sizeof(*count));
    for (int32_t p = 0; p < replicas; p++) {
        if (slots[p] < 0 || slots[p] >= experts)
            return false;
        count[slots[p]]++;
    }
    return true;
}

static dp_status_t blame_slot(const dp__eplb_sizes_t *sizes, const int32_t *slots, int32_t layer)
{
    int32_t p = 0;

    while (slots[p] >= 0 && slots[p] < sizes->experts)
        p++;
    return dp_fail(DP_ERR_INVALID, "eplb: layer %d, slot %d: expert %d is not one of 0 to %d", layer, p, slots[p],
                   sizes->experts - 1);
}

dp_status_t dp__eplb_check_slots(const dp__eplb_sizes_t *sizes, const int32_t *physical_to_logical, int32_t *count)
{
    if (physical_to_logical == NULL)
        return dp_fail(DP_ERR_INVALID, "eplb: no placement");
    for (int32_t layer = 0; layer < sizes->layers; layer++) {
        const int32_t *slots = physical_to_logical + (size_t)layer * (size_t)sizes->replicas;

        if (!count_row(slots, sizes->replicas, sizes->experts, count))
            return blame_slot(sizes, slots, layer);
        for (int32_t e = 0; e < sizes->experts; e++)
            if (count[e] == 0)
                return dp_fail(DP_ERR_INVALID, "eplb: layer %d: expert %d is in no slot", layer, e);
    }
    return DP_OK;
}

static int32_t count_all(const dp__eplb_sizes_t *sizes, dp_eplb_placement_t *placement, int32_t *count)
{
    int32_t most = 1;

    for (int32_t layer = 0; layer < sizes->layers; layer++) {
        int32_t *row =
            placement->expert_count == NULL ? count : placement->expert_count + (size_t)layer * (size_t)sizes->experts;

        count_row(placement->physical_to_logical + (size_t)layer * (size_t)sizes->replicas, sizes->replicas,
                  sizes->experts, row);
        for (int32_t e = 0; e < sizes->experts; e++)
            most = row[e] > most ? row[e] : most;
    }
    return most;
}

void dp__eplb_index_all(const dp__eplb_sizes_t *sizes, dp_eplb_placement_t *placement, const uint16_t *rank,
                        int32_t *count)
{
    size_t most, block;

    placement->max_count = count_all(sizes, placement, count);
    if (placement->logical_to_physical == NULL)
        return;
    most = (size_t)placement->max_count;
    block = (size_t)sizes->experts * most;
    for (int32_t layer = 0; layer < sizes->layers; layer++) {
        const size_t first = (size_t)layer * (size_t)sizes->replicas;
        const int32_t *slots = placement->physical_to_logical + first;
        int32_t *out = placement->logical_to_physical + (size_t)layer * block;

        memset(out, 0xff, block * sizeof(*out)); /* -1 everywhere */
        if (rank != NULL) {
            for (int32_t p = 0; p < sizes->replicas; p++)
                out[(size_t)slots[p] * most + rank[first + (size_t)p]] = p;
        } else {
            memset(count, 0, (size_t)sizes->experts * sizeof(*count));
            for (int32_t p = 0; p < sizes->replicas; p++)
                out[(size_t)slots[p] * most + (size_t)count[slots[p]]++] = p;
        }
    }
}

/* Whether every group of experts is on one node in all layers. */
static bool by_groups(const dp__eplb_sizes_t *sizes, const int32_t *physical_to_logical, int32_t *home)
{
    for (int32_t layer = 0; layer < sizes->layers; layer++) {
        const int32_t *slots = physical_to_logical + (size_t)layer * (size_t)sizes->replicas;

        memset(home, 0xff, (size_t)sizes->groups * sizeof(*home));
        for (int32_t p = 0; p < sizes->replicas; p++) {
            int32_t group = dp__eplb_share_of(sizes->experts, sizes->groups, slots[p]);
            int32_t gpu = dp__eplb_share_of(sizes->replicas, sizes->gpus, p);
            int32_t node = dp__eplb_share_of(sizes->gpus, sizes->nodes, gpu);

            if (home[group] >= 0 && home[group] != node)
                return false;
            home[group] = node;
        }
    }
    return true;
}

dp_status_t dp_eplb_index(const dp_eplb_shape_t *shape, dp_eplb_placement_t *placement, void *workspace,
                          size_t workspace_bytes)
{
    dp__eplb_sizes_t sizes;
    dp__eplb_scratch_t scratch;
    dp_status_t status = dp__eplb_scratch_cut(shape, workspace, workspace_bytes, &sizes, &scratch);

    if (status < 0 || (status = dp__eplb_check_placement(placement)) < 0 ||
        (status = dp__eplb_check_slots(&sizes, placement->physical_to_logical, scratch.count)) < 0)
        return status;
    placement->policy =
        by_groups(&sizes, placement->physical_to_logical, scratch.group_node) ? DP_EPLB_HIERARCHICAL : DP_EPLB_GLOBAL;
    dp__eplb_index_all(&sizes, placement, NULL, scratch.count);
    return DP_OK;
}
