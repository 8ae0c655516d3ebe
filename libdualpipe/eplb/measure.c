/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * measure.c: loads of GPUs and nodes under a placement, and how far from even they are. */
#include "base/sized.h"
#include "eplb/index.h"

#include <string.h>

/* One kind of place, over all layers so far. */
typedef struct tally {
    double peaks, means, worst;
} tally_t;

static void add_layer(tally_t *tally, const double *loads, int32_t places)
{
    double sum = 0.0, peak = 0.0, mean;

    for (int32_t k = 0; k < places; k++) {
        sum += loads[k];
        peak = loads[k] > peak ? loads[k] : peak;
    }
    mean = sum / places;
    tally->peaks += peak;
    tally->means += mean;
    if (mean > 0.0 && peak / mean > tally->worst)
        tally->worst = peak / mean;
}

static double balance_ratio(const tally_t *tally)
{
    return tally->means > 0.0 ? tally->peaks / tally->means : 1.0;
}

static void load_gpus(const dp__eplb_sizes_t *sizes, const float *loads, const int32_t *slots, int32_t *count,
                      double *gpus)
{
    memset(count, 0, (size_t)sizes->experts * sizeof(*count));
    for (int32_t p = 0; p < sizes->replicas; p++)
        count[slots[p]]++;
    for (int32_t gpu = 0, p = 0; gpu < sizes->gpus; gpu++) {
        int32_t end = p + dp__eplb_share_count(sizes->replicas, sizes->gpus, gpu);

        gpus[gpu] = 0.0;
        for (; p < end; p++)
            gpus[gpu] += (double)loads[slots[p]] / count[slots[p]];
    }
}

static void load_nodes(const dp__eplb_sizes_t *sizes, const double *gpus, double *nodes)
{
    for (int32_t node = 0, gpu = 0; node < sizes->nodes; node++) {
        int32_t end = gpu + dp__eplb_share_count(sizes->gpus, sizes->nodes, node);

        nodes[node] = 0.0;
        for (; gpu < end; gpu++)
            nodes[node] += gpus[gpu];
    }
}

dp_status_t dp_eplb_measure(const dp_eplb_shape_t *shape, const float *loads, const int32_t *physical_to_logical,
                            dp_eplb_balance_t *balance, double *gpu_loads_out, double *node_loads_out, void *workspace,
                            size_t workspace_bytes)
{
    dp__eplb_sizes_t sizes;
    dp__eplb_scratch_t s;
    tally_t gpu = {0.0, 0.0, 1.0}, node = {0.0, 0.0, 1.0};
    dp_status_t status = dp__eplb_scratch_cut(shape, workspace, workspace_bytes, &sizes, &s);

    if (status < 0 || (status = dp__eplb_check_loads(&sizes, loads)) < 0 ||
        (status = dp__eplb_check_slots(&sizes, physical_to_logical, s.count)) < 0)
        return status;
    if (balance != NULL)
        status = dp__sized_check("eplb: the balance", balance, "dp_eplb_balance_t", DP_EPLB_BALANCE_MIN);
    if (status < 0)
        return status;
    for (int32_t layer = 0; layer < sizes.layers; layer++) {
        double *gpus = gpu_loads_out == NULL ? s.layer[0].load : gpu_loads_out + (size_t)layer * (size_t)sizes.gpus;
        double *nodes = node_loads_out == NULL ? s.node_total : node_loads_out + (size_t)layer * (size_t)sizes.nodes;

        load_gpus(&sizes, loads + (size_t)layer * (size_t)sizes.experts,
                  physical_to_logical + (size_t)layer * (size_t)sizes.replicas, s.count, gpus);
        load_nodes(&sizes, gpus, nodes);
        add_layer(&gpu, gpus, sizes.gpus);
        add_layer(&node, nodes, sizes.nodes);
    }
    if (balance != NULL) {
        balance->gpu = balance_ratio(&gpu);
        balance->gpu_worst = gpu.worst;
        balance->node = balance_ratio(&node);
        balance->node_worst = node.worst;
    }
    return DP_OK;
}
