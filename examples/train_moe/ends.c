/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * ends.c: finds who computes the ends on this device, and describes them to the engine. */
#include "ends.h"

#include <stdio.h>
#include <string.h>

/* Devices of host functions are served here; "cuda" or "device_cuda" by the plugin train_moe_cuda. */
static dp_status_t find_compute(ends_t *ends, const dp_device_vt_t *device_vt, const char *device)
{
    const uint32_t host = DP_DEVICE_CAP_HOST_MEMORY | DP_DEVICE_CAP_LAUNCH;
    const dp_plugin_t *plugin;
    const void *table;
    char name[96];
    dp_status_t st;

    ends->vt = &compute_cpu;
    if ((device_vt->caps & host) == host)
        return DP_OK;
    if (device == NULL || *device == '\0' || strchr(device, '/') != NULL)
        return dp_fail(DP_ERR_UNSUPPORTED,
                       "the trainer's embedding, head and optimizer for this device come from a plugin "
                       "train_moe_<device>: give the device plugin by its name, not by a path");
    snprintf(name, sizeof(name), "train_moe_%s", strncmp(device, "device_", 7) == 0 ? device + 7 : device);
    st = dp_plugin_load(name, &plugin);
    if (st == DP_OK)
        st = dp_plugin_interface(plugin, COMPUTE_IFACE, sizeof(compute_vt_t), &table);
    if (st == DP_OK)
        ends->vt = table;
    return st;
}

dp_status_t ends_open(ends_t *ends, const dp_host_t *host, const char *device, const compute_config_t *config)
{
    const uint32_t d = config->shape.hidden;
    dp_status_t st;

    *ends = (ends_t){
        .boundary_bytes =
            (size_t)config->shape.batch * config->shape.sequence * d * dp_dtype_bytes(config->shape.dtype),
        .hidden = d,
        /* Every layer adds about 1 to an embedding of about 1. */
        .embedding_params = {{"table", DP_PARAM_MATRIX, 0, (size_t)VOCAB * d, 1, 0, -1}},
        .head_params = {{"norm", DP_PARAM_VECTOR, 0, d, 0, 1, -1},
                        {"w", DP_PARAM_MATRIX, d, (size_t)d * VOCAB, d, 0, -1}},
    };
    st = find_compute(ends, config->device_vt, device);
    if (st < 0)
        return st;
    st = ends->vt->open(host, config, &ends->compute);
    if (st < 0)
        return st;
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

static size_t round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static dp_block_sizes_t rounded(const dp_block_sizes_t *s, size_t param_count, uint32_t nparams)
{
    return (dp_block_sizes_t){
        .struct_size = sizeof(dp_block_sizes_t),
        .saved_bytes = round_up(s->saved_bytes),
        .work_bytes = round_up(s->work_bytes),
        .scratch_bytes = round_up(s->scratch_bytes),
        .param_count = param_count,
        .nparams = nparams,
    };
}

static dp_segment_t segment(ends_t *ends, const char *name, const compute_segment_t *run)
{
    return (dp_segment_t){sizeof(dp_segment_t), name,         DP_ROLE_OTHER,       DP_LANE_COMPUTE,
                          ends->compute,        run->forward, run->backward_input, run->backward_weight};
}

void ends_embedding(ends_t *ends, dp_part_t *part_out)
{
    *part_out = (dp_part_t){
        .struct_size = sizeof(dp_part_t),
        .nsegments = 1,
        .segments = {segment(ends, "embedding", &ends->vt->embedding)},
        .sizes = rounded(&ends->embedding_sizes, VOCAB * ends->hidden, 1),
        .params = ends->embedding_params,
        .prefix = "embedding.",
    };
}

void ends_head(ends_t *ends, dp_part_t *part_out)
{
    *part_out = (dp_part_t){
        .struct_size = sizeof(dp_part_t),
        .nsegments = 1,
        .segments = {segment(ends, "head", &ends->vt->head)},
        .sizes = rounded(&ends->head_sizes, (VOCAB + 1) * ends->hidden, 2),
        .params = ends->head_params,
        .prefix = "head.",
    };
}
