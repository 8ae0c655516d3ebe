/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * shape.c: checks what a caller gives: sizes, options, loads. */
#include "eplb/shape.h"
#include "base/do.h"
#include "base/sized.h"

#include <float.h>
#include <string.h>

void dp_eplb_gpu_slots(const dp_eplb_shape_t *shape, int32_t gpu, int32_t *first_out, int32_t *count_out)
{
    *first_out = dp__eplb_share_first(shape->replicas, shape->gpus, gpu);
    *count_out = dp__eplb_share_count(shape->replicas, shape->gpus, gpu);
}

void dp_eplb_node_gpus(const dp_eplb_shape_t *shape, int32_t node, int32_t *first_out, int32_t *count_out)
{
    *first_out = dp__eplb_share_first(shape->gpus, shape->nodes, node);
    *count_out = dp__eplb_share_count(shape->gpus, shape->nodes, node);
}

int32_t dp_eplb_most_replicas(const dp_eplb_shape_t *shape)
{
    return shape->replicas - shape->experts + 1;
}

static bool is_divisible(const dp__eplb_sizes_t *s)
{
    return s->groups % s->nodes == 0 && s->experts % s->groups == 0 && s->gpus % s->nodes == 0 &&
           s->replicas % s->gpus == 0;
}

dp_status_t dp__eplb_check_shape(const dp_eplb_shape_t *shape, dp__eplb_sizes_t *sizes_out)
{
    dp_eplb_shape_t own;

    DO(dp__take("eplb: the shape", dp_eplb_shape_t, DP_EPLB_SHAPE_MIN, &own, shape));
    shape = &own;
    const struct {
        const char *name;
        int32_t value;
    } all[] = {{"layers", shape->layers}, {"experts", shape->experts}, {"replicas", shape->replicas},
               {"groups", shape->groups}, {"nodes", shape->nodes},     {"gpus", shape->gpus}};
    for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++)
        if (all[k].value < 1 || all[k].value > DP_EPLB_LIMIT)
            return dp_fail(DP_ERR_INVALID, "eplb: %d %s; from 1 to %d are possible", all[k].value, all[k].name,
                           DP_EPLB_LIMIT);
    if (shape->experts > shape->replicas)
        return dp_fail(DP_ERR_INVALID, "eplb: %d replicas for %d experts: each expert needs at least one",
                       shape->replicas, shape->experts);
    if (shape->gpus > shape->replicas)
        return dp_fail(DP_ERR_INVALID, "eplb: %d replicas on %d GPUs: each GPU needs at least one", shape->replicas,
                       shape->gpus);
    if (shape->nodes > shape->gpus)
        return dp_fail(DP_ERR_INVALID, "eplb: %d GPUs on %d nodes: each node needs at least one", shape->gpus,
                       shape->nodes);
    if (shape->groups > shape->experts)
        return dp_fail(DP_ERR_INVALID, "eplb: %d experts in %d groups: each group needs at least one", shape->experts,
                       shape->groups);
    *sizes_out = (dp__eplb_sizes_t){.layers = shape->layers,
                                    .experts = shape->experts,
                                    .replicas = shape->replicas,
                                    .groups = shape->groups,
                                    .nodes = shape->nodes,
                                    .gpus = shape->gpus};
    sizes_out->even = is_divisible(sizes_out);
    return DP_OK;
}

dp__eplb_sizes_t dp__eplb_as_global(const dp__eplb_sizes_t *sizes)
{
    dp__eplb_sizes_t global = *sizes;

    global.groups = global.nodes = 1;
    global.even = is_divisible(&global);
    return global;
}

dp_status_t dp__eplb_check_options(const dp_eplb_options_t *options, dp_eplb_options_t *options_out)
{
    *options_out = (dp_eplb_options_t){.struct_size = sizeof(*options_out)};
    if (options == NULL)
        return DP_OK;
    DO(dp__take("eplb: the options", dp_eplb_options_t, DP_EPLB_OPTIONS_MIN, options_out, options));
    if (options_out->policy < DP_EPLB_AUTO || options_out->policy > DP_EPLB_GLOBAL)
        return dp_fail(DP_ERR_INVALID, "eplb: there is no policy %d", options_out->policy);
    if (options_out->search_steps < 0 || options_out->search_ns < 0)
        return dp_fail(DP_ERR_INVALID, "eplb: a search of %lld steps in %lld ns; neither may be negative",
                       (long long)options_out->search_steps, (long long)options_out->search_ns);
    return DP_OK;
}

/* Minus zero is a load of nothing; all other bit patterns above those of FLT_MAX are negative or
 * not finite. */
static dp_status_t blame_load(const float *row, int32_t layer, int32_t experts)
{
    for (int32_t e = 0; e < experts; e++) {
        if (!(row[e] >= 0.0f) || row[e] > FLT_MAX)
            return dp_fail(row[e] < 0.0f && row[e] >= -FLT_MAX ? DP_ERR_INVALID : DP_ERR_NUMERIC,
                           "eplb: layer %d: the load of expert %d is %g; it has to be finite and not negative", layer,
                           e, (double)row[e]);
    }
    return dp_fail(DP_ERR_NUMERIC, "eplb: layer %d: the loads add up to more than a float holds", layer);
}

dp_status_t dp__eplb_check_loads(const dp__eplb_sizes_t *sizes, const float *loads)
{
    if (loads == NULL)
        return dp_fail(DP_ERR_INVALID, "eplb: no loads");
    for (int32_t layer = 0; layer < sizes->layers; layer++) {
        const float *row = loads + (size_t)layer * (size_t)sizes->experts;
        uint32_t wrong = 0, most = 0;

        for (int32_t e = 0; e < sizes->experts; e++) {
            uint32_t bits;

            memcpy(&bits, &row[e], sizeof(bits));
            wrong |= (bits > 0x7f7fffffu) & (bits != 0x80000000u);
            bits &= 0x7fffffffu;
            most = bits > most ? bits : most;
        }
        float peak;
        memcpy(&peak, &most, sizeof(peak));
        if (wrong)
            return blame_load(row, layer, sizes->experts);
        if (peak > FLT_MAX / 2 / (float)sizes->experts) { /* rare: then it is worth adding up */
            double sum = 0.0;
            for (int32_t e = 0; e < sizes->experts; e++)
                sum += row[e];
            if (sum > (double)FLT_MAX / 2)
                return blame_load(row, layer, sizes->experts);
        }
    }
    return DP_OK;
}
