/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * check.h: checks of what a host hands a plugin, with the plugin's name for messages. */
#ifndef PLUGINS_COMMON_CHECK_H
#define PLUGINS_COMMON_CHECK_H

#include <dualpipe/block.h>
#include <dualpipe/device.h>

#include <string.h>

/* A struct shorter than in ABI 1.0. struct_size: what the host wrote; what: how messages call the struct; least: its
 * DP_<NAME>_MIN. */
static inline dp_status_t check_size(const dp_host_t *host, const char *plugin, const char *what, const char *type,
                                     uint32_t struct_size, size_t least)
{
    if (struct_size >= least)
        return DP_OK;
    return DP_FAIL(host, DP_ERR_INVALID, "%s: %s.struct_size is %u, at least %zu is needed: set it to sizeof(%s)",
                   plugin, what, struct_size, least, type);
}

/* Answers sizes() of a block. */
static inline dp_status_t answer_sizes(const dp_host_t *host, const char *plugin, const dp_block_sizes_t *sizes,
                                       dp_block_sizes_t *sizes_out)
{
    dp_status_t status =
        check_size(host, plugin, "sizes_out", "dp_block_sizes_t", sizes_out->struct_size, DP_BLOCK_SIZES_MIN);

    if (status >= 0)
        dp_sized_put(sizes_out, sizes);
    return status;
}

/* The shape that a block's configuration points to. */
static inline dp_status_t check_shape(const dp_host_t *host, const char *plugin, const dp_block_shape_t *shape)
{
    if (shape == NULL)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: config.shape is NULL", plugin);
    return check_size(host, plugin, "config.shape", "dp_block_shape_t", shape->struct_size, DP_BLOCK_SHAPE_MIN);
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
