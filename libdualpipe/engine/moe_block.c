/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_block.c: the plugins' instances that the MoE layers of a rank share, opened by name and
 * closed in order. */
#include "base/do.h"
#include "base/memory.h"
#include "base/sized.h"
#include "engine/engine.h"
#include "stage/replicas.h"

#include <dualpipe/draft/ep.h>
#include <dualpipe/moe_block.h>

enum { MOE_EXCHANGES = 4 }; /* of a MoE instance; replicas come behind */

/* The block's layers, to be freed with it. */
typedef struct kept_layer {
    struct kept_layer *next;
    dp_moe_layer_t *layer;
} kept_layer_t;

struct dp_moe_block {
    const dp_attention_vt_t *attention_vt;
    dp_attention_t *attention;
    const dp_moe_vt_t *moe_vt;
    dp_moe_t *moe;
    dp__replicas_t *replicas;
    int32_t *placement; /* [nreplicas] the first one */
    dp_block_shape_t shape;
    kept_layer_t *layers;
};

static dp_status_t load_kind(const char *kind, const char *name, const dp_build_context_t *context, const char *id,
                             size_t least, const void **table_out)
{
    char full[DP__NAME_BYTES];
    const dp_plugin_t *plugin;

    DO(dp__full_name(kind, name, context->device_vt->kind, full));
    DO(dp_plugin_load(full, &plugin));
    return dp_plugin_interface(plugin, id, least, table_out);
}

/* A plugin that does not know a switch goes on as without it, and its sizes say so. */
static dp_status_t check_switch(const char *name, uint64_t wanted, uint64_t taken, const char *kind)
{
    if (wanted == taken)
        return DP_OK;
    return dp_fail(DP_ERR_UNSUPPORTED,
                   "dp_moe_block_open: %s is %d, and the %s plugin is called as for %d: give 0, or take another plugin",
                   name, (int)wanted, kind, (int)taken);
}

static dp_status_t open_attention(dp_moe_block_t *b, const dp_build_context_t *context,
                                  const dp_moe_block_options_t *options)
{
    dp_block_sizes_t sizes = {.struct_size = sizeof(sizes)};
    dp_attention_config_t config;
    const void *table;

    DO(dp__take("dp_moe_block_open: attention_config", dp_attention_config_t, DP_ATTENTION_CONFIG_MIN, &config,
                options->attention_config));
    DO(load_kind("attention", options->attention, context, DP_IFACE_ATTENTION, DP_ATTENTION_VT_MIN, &table));
    b->attention_vt = table;
    config.variable_tokens |= context->tokens > 0;
    config.documents |= context->documents > 0;
    if (context->cache_slots > 0) {
        config.cache_slots = context->cache_slots;
        config.cache_tokens = context->cache_tokens;
    }
    config.device_vt = context->device_vt;
    config.device = context->device;
    DO(b->attention_vt->open(context->host, &config, &b->attention));
    DO(b->attention_vt->sizes(b->attention, &sizes));
    DO(check_switch("apart", config.apart, sizes.apart, "attention"));
    if (config.cache_slots > 0 && sizes.cache_bytes == 0)
        return dp_fail(DP_ERR_UNSUPPORTED,
                       "dp_moe_block_open: cache_slots is %u, and the attention plugin keeps no keys and values: give "
                       "0, or take another plugin",
                       (unsigned)config.cache_slots);
    return DP_OK;
}

/* The plugin for dispatch and combine, if one was named. */
static dp_status_t load_ep(const dp_build_context_t *context, const dp_moe_block_options_t *options,
                           const dp_ep_vt_t **ep_out)
{
    char named[DP__NAME_BYTES];
    const void *table = NULL;

    DO(dp__plugin_named("ep", options->ep, named));
    if (named[0] != '\0')
        DO(load_kind("ep", named, context, DP_IFACE_EP, DP_EP_VT_MIN, &table));
    *ep_out = table;
    return DP_OK;
}

static dp_status_t open_moe(dp_moe_block_t *b, const dp_build_context_t *context, const dp_moe_block_options_t *options,
                            dp_moe_config_t config)
{
    dp_block_sizes_t sizes = {.struct_size = sizeof(sizes)};
    const void *table;

    DO(load_kind("moe", options->moe, context, DP_IFACE_MOE, DP_MOE_VT_MIN, &table));
    b->moe_vt = table;
    DO(load_ep(context, options, &config.ep_vt));
    config.variable_tokens |= context->tokens > 0;
    config.device_vt = context->device_vt;
    config.device = context->device;
    config.comm_vt = context->comm_vt;
    config.comm = context->expert_comm;
    config.comm_rank = context->expert_rank;
    config.comm_size = context->expert_size;
    config.exchange_id = 0;
    DO(b->moe_vt->open(context->host, &config, &b->moe));
    DO(b->moe_vt->sizes(b->moe, &sizes));
    DO(check_switch("apart", config.apart, sizes.apart, "MoE"));
    return check_switch("posted", config.posted, sizes.posted, "MoE");
}

static dp_status_t open_replicas(dp_moe_block_t *b, const dp_build_context_t *context, const dp_moe_config_t *moe)
{
    const dp__replicas_config_t config = {
        .experts = moe->experts,
        .replicas = moe->replicas,
        .expert_count = 3 * (size_t)b->shape.hidden * moe->expert_hidden,
        .dtype = b->shape.dtype,
        .device_vt = context->device_vt,
        .device = context->device,
        .comm_vt = context->comm_vt,
        .comm = context->expert_comm,
        .comm_rank = context->expert_rank,
        .comm_size = context->expert_size,
        .exchange_id = MOE_EXCHANGES,
    };

    if (moe->replicas == 0)
        return DP_OK;
    b->placement = dp__calloc(moe->replicas, sizeof(*b->placement));
    if (b->placement == NULL)
        return dp_fail(DP_ERR_NOMEM, "dp_moe_block_open: no memory for a placement of %u replicas", moe->replicas);
    dp_replicas_first_placement(moe->experts, moe->replicas, b->placement);
    return dp__replicas_open(&config, &b->replicas);
}

static dp_status_t open_all(dp_moe_block_t *b, const dp_build_context_t *context, const dp_moe_block_options_t *options)
{
    dp_moe_config_t moe;

    DO(dp__take("dp_moe_block_open: moe_config", dp_moe_config_t, DP_MOE_CONFIG_MIN, &moe, options->moe_config));
    DO(dp__take("dp_moe_block_open: moe_config->shape", dp_block_shape_t, DP_BLOCK_SHAPE_MIN, &b->shape, moe.shape));
    DO(open_attention(b, context, options));
    DO(open_moe(b, context, options, moe));
    return open_replicas(b, context, &moe);
}

dp_status_t dp_moe_block_open(const dp_build_context_t *context, const dp_moe_block_options_t *options,
                              dp_moe_block_t **block_out)
{
    dp_moe_block_options_t own;
    dp_moe_block_t *b;
    dp_status_t status;

    DO(dp__sized_check("dp_moe_block_open: context", context, "dp_build_context_t", DP_BUILD_CONTEXT_MIN));
    DO(dp__take("dp_moe_block_open: options", dp_moe_block_options_t, DP_MOE_BLOCK_OPTIONS_MIN, &own, options));
    if (block_out == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_moe_block_open: block_out is NULL");
    b = dp__calloc(1, sizeof(*b));
    if (b == NULL)
        return dp_fail(DP_ERR_NOMEM, "dp_moe_block_open: no memory for its record");
    status = open_all(b, context, &own);
    if (status < 0) {
        dp_moe_block_close(b);
        return status;
    }
    *block_out = b;
    return DP_OK;
}

dp_status_t dp_moe_block_part(dp_moe_block_t *b, const int32_t *placement, dp_moe_layer_t **layer_out,
                              dp_part_t *part_out)
{
    kept_layer_t *kept;

    if (b == NULL)
        return dp_fail(DP_ERR_INVALID, "dp_moe_block_part: the block is NULL");
    kept = dp__calloc(1, sizeof(*kept));
    if (kept == NULL)
        return dp_fail(DP_ERR_NOMEM, "dp_moe_block_part: no memory for its record");
    kept->next = b->layers;
    b->layers = kept;
    DO(dp_moe_layer_part(b->attention_vt, b->attention, b->moe_vt, b->moe, b->shape.dtype,
                         (size_t)b->shape.batch * b->shape.sequence * b->shape.hidden * dp_dtype_bytes(b->shape.dtype),
                         &kept->layer, part_out));
    if (b->replicas != NULL)
        DO(dp__moe_layer_replicate(kept->layer, b->replicas, placement != NULL ? placement : b->placement, part_out));
    if (layer_out != NULL)
        *layer_out = kept->layer;
    return DP_OK;
}

size_t dp_moe_block_replica_bytes(const dp_moe_block_t *b)
{
    return b->replicas != NULL ? dp__replicas_bytes(b->replicas) : 0;
}

const char *dp_moe_block_about(const dp_moe_block_t *b)
{
    return DP_HAS(b->moe_vt, dp_moe_vt_t, about) ? b->moe_vt->about(b->moe) : NULL;
}

void dp_moe_block_close(dp_moe_block_t *b)
{
    if (b == NULL)
        return;
    if (b->moe != NULL)
        b->moe_vt->close(b->moe);
    if (b->attention != NULL)
        b->attention_vt->close(b->attention);
    dp__replicas_close(b->replicas);
    while (b->layers != NULL) {
        kept_layer_t *kept = b->layers;

        b->layers = kept->next;
        dp_moe_layer_free(kept->layer);
        dp__free(kept);
    }
    dp__free(b->placement);
    dp__free(b);
}
