/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * check.h: checks of what a host hands a plugin, with the plugin's name for messages. */
#ifndef PLUGINS_COMMON_CHECK_H
#define PLUGINS_COMMON_CHECK_H

#include <dualpipe/block.h>
#include <dualpipe/device.h>

#include <string.h>

/* Answers sizes() of a block. */
static inline dp_status_t answer_sizes(const dp_host_t *host, const char *plugin, const dp_block_sizes_t *sizes,
                                       dp_block_sizes_t *sizes_out)
{
    if (sizes_out->struct_size < DP_BLOCK_SIZES_MIN)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: struct_size of sizes_out is %u: set it to sizeof(dp_block_sizes_t)",
                       plugin, sizes_out->struct_size);
    dp_sized_put(sizes_out, sizes);
    return DP_OK;
}

/* A level of recomputation that there is. */
static inline dp_status_t check_recompute(const dp_host_t *host, const char *plugin, dp_recompute_t level)
{
    if ((unsigned)level <= DP_RECOMPUTE_FULL)
        return DP_OK;
    return DP_FAIL(host, DP_ERR_INVALID, "%s: config.recompute is %d; levels are 0 (none) to %d (full)", plugin,
                   (int)level, DP_RECOMPUTE_FULL);
}

/* A device of the kind that this plugin's pointers and streams are of. */
static inline dp_status_t check_device(const dp_host_t *host, const char *plugin, const dp_device_vt_t *vt,
                                       const dp_device_t *device, const char *kind)
{
    if (vt == NULL || device == NULL)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: config.%s is NULL, an open device is needed", plugin,
                       vt == NULL ? "device_vt" : "device");
    if (!DP_HAS(vt, dp_device_vt_t, kind) || strcmp(vt->kind, kind) != 0)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       "%s needs a device of kind \"%s\", this one is of kind \"%s\": use device_%s", plugin, kind,
                       DP_HAS(vt, dp_device_vt_t, kind) ? vt->kind : "", kind);
    return DP_OK;
}

#endif
