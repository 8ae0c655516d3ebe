/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * ends.c: finds who computes the ends on this device, and describes them to the engine. */
#include "ends.h"

#include <stdio.h>
#include <string.h>

/* Devices of host functions are served here; "cuda" or "device_cuda" by the plugin
 * train_moe_cuda. */
static dp_status_t find_compute(ends_t *ends, const dp_device_vt_t *device_vt, const char *device)
{
    const uint32_t host = DP_DEVICE_CAP_HOST_MEMORY | DP_DEVICE_CAP_LAUNCH;
    const dp_plugin_t *plugin;
    const void *table;
    char name[96];
    dp_status_t status;

    ends->vt = &compute_cpu;
    if ((device_vt->caps & host) == host)
        return DP_OK;
    if (device == NULL || *device == '\0' || strchr(device, '/') != NULL)
        return dp_fail(DP_ERR_UNSUPPORTED,
                       "the trainer's embedding, head and optimizer for this device come from a plugin "
                       "train_moe_<device>: give the device plugin by its name, not by a path");
    snprintf(name, sizeof(name), "train_moe_%s", strncmp(device, "device_", 7) == 0 ? device + 7 : device);
    status = dp_plugin_load(name, &plugin);
    if (status == DP_OK)
        status = dp_plugin_interface(plugin, COMPUTE_IFACE, sizeof(compute_vt_t), &table);
    if (status == DP_OK)
        ends->vt = table;
    return status;
}

dp_status_t ends_open(ends_t *ends, const dp_host_t *host, const char *device, const compute_config_t *config)
{
    const uint32_t d = config->shape.hidden;
    const char *shared = config->tied ? "embedding.table" : NULL;
    dp_status_t status;

    *ends = (ends_t){
        /* Every layer adds about 1 to an embedding of about 1; tied, logits have to begin at about
         * 1. */
        .embedding_params = {{.name = "table",
                              .kind = DP_PARAM_MATRIX,
                              .count = (size_t)VOCAB * d,
                              .fan_in = config->tied ? d : 1,
                              .shared = shared}},
        .head_params = {{.name = "norm", .kind = DP_PARAM_VECTOR, .count = d, .fan_in = 0, .start = 1},
                        {.name = "w",
                         .kind = DP_PARAM_MATRIX,
                         .offset = d,
                         .count = (size_t)d * VOCAB,
                         .fan_in = d,
                         .shared = shared}},
    };
    status = find_compute(ends, config->device_vt, device);
    if (status < 0)
        return status;
    status = ends->vt->open(host, config, &ends->compute);
    if (status < 0)
        return status;
    ends->embedding = ends->vt->embedding;
    ends->head = ends->vt->head;
    ends->embedding.self = ends->head.self = ends->compute;
    ends->embedding_sizes =
        (dp_block_sizes_t){.struct_size = sizeof(dp_block_sizes_t), .param_count = VOCAB * (size_t)d, .nparams = 1};
    ends->head_sizes = (dp_block_sizes_t){
        .struct_size = sizeof(dp_block_sizes_t), .param_count = (VOCAB + 1) * (size_t)d, .nparams = 2};
    ends->vt->sizes(ends->compute, &ends->embedding_sizes, &ends->head_sizes);
    return DP_OK;
}

void ends_close(ends_t *ends)
{
    if (ends->compute != NULL)
        ends->vt->close(ends->compute);
    *ends = (ends_t){0};
}

/* ---- parts ---- */

void ends_embedding(ends_t *ends, dp_part_t *part_out)
{
    *part_out = (dp_part_t){
        .struct_size = sizeof(dp_part_t),
        .nsegments = 1,
        .segments = &ends->embedding,
        .sizes = &ends->embedding_sizes,
        .param_list = ends->embedding_params,
        .prefix = "embedding.",
    };
}

void ends_head(ends_t *ends, dp_part_t *part_out)
{
    *part_out = (dp_part_t){
        .struct_size = sizeof(dp_part_t),
        .nsegments = 1,
        .segments = &ends->head,
        .sizes = &ends->head_sizes,
        .param_list = ends->head_params,
        .prefix = "head.",
    };
}
