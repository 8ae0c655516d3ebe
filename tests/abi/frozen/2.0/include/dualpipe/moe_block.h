/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_block.h: MoE transformer layers from the names of plugins.
 *
 * A block is what the layers of one rank share: an attention instance, a MoE instance and, where
 * experts are replicated, what moves them (replicas.h). In the trainer's `build`, at its first
 * call:
 *
 *     const dp_moe_block_options_t options = {.struct_size = sizeof(options),
 *                                             .attention_config = &attention, .moe_config = &moe};
 *     status = dp_moe_block_open(context, &options, &block);
 *
 * and for each layer of the stage
 *
 *     parts[n] = (dp_part_t){.struct_size = sizeof(parts[n])};
 *     status = dp_moe_block_part(block, NULL, NULL, &parts[n]);
 *     parts[n].prefix = "layer3.";
 *
 * In `unbuild`: dp_moe_block_close(block).
 *
 * Since 0.2: dp_moe_block_options_t.ep, dp_moe_block_about, dp_moe_block_replica_bytes. */
#ifndef DUALPIPE_MOE_BLOCK_H
#define DUALPIPE_MOE_BLOCK_H

#include <dualpipe/pipeline.h>
#include <dualpipe/replicas.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dp_moe_block dp_moe_block_t;

typedef struct dp_moe_block_options {
    uint32_t struct_size;

    /* ---- what layers are ---- */
    /* Required; both have the same shape. Device and comm are those of the context: their members
     * here are ignored, and so are exchange_id and ep_vt. moe_config->replicas above 0 replicates
     * experts. */
    const dp_attention_config_t *attention_config;
    const dp_moe_config_t *moe_config;

    /* ---- plugins, by name or path: "cpu" means "attention_cpu", "moe_cpu" ---- */
    /* NULL: DUALPIPE_PLUGINS, else those of the device's kind (dp_device_vt_t.kind). */
    const char *attention, *moe;
    /* A draft (draft/ep.h): a plugin for dispatch and combine; "exchange" means "ep_exchange".
     * NULL: DUALPIPE_PLUGINS. That unset, or "": none, the MoE plugin's own exchanges. A MoE plugin
     * that takes none refuses that with DP_ERR_UNSUPPORTED. */
    const char *ep;
} dp_moe_block_options_t;
enum { DP_MOE_BLOCK_OPTIONS_MIN = DP_SIZE_TO(dp_moe_block_options_t, ep) };

/** Loads the plugins and opens their instances on the context's device and expert group, whose
 *  exchange ids 0 to 4 the block uses. Options and context are borrowed during the call. Errors
 *  name the plugin. [blocks] [collective] over the expert group */
DP_API DP_CHECKED dp_status_t dp_moe_block_open(const dp_build_context_t *context,
                                                const dp_moe_block_options_t *options, dp_moe_block_t **block_out);

/** A layer as a part: attention and route, dispatch, experts, combine, with the lanes and roles of
 *  the canonical order; with `apart` in a configuration its finer segments (types.h). Its
 *  parameters are called "attention.wq", "moe.router" and so on.
 *  placement: the expert that each replica is of at first, [replicas], copied; NULL:
 *  dp_replicas_first_placement; ignored without replicas. layer_out: NULL, or the layer for
 *  dp_moe_layer_place; the block's. *part_out (struct_size set by the caller) points into the
 *  block. [main] */
DP_API DP_CHECKED dp_status_t dp_moe_block_part(dp_moe_block_t *block, const int32_t *placement,
                                                dp_moe_layer_t **layer_out, dp_part_t *part_out);

/** Device memory that moves replicas, in bytes; 0 without replicas. [any] */
DP_API size_t dp_moe_block_replica_bytes(const dp_moe_block_t *block);

/** How the MoE plugin computes (dp_moe_vt_t.about), for reports. NULL: it does not say. The
 *  block's. [any] */
DP_API const char *dp_moe_block_about(const dp_moe_block_t *block);

/** Closes the instances and frees all layers. In dp_pipeline_options_t.unbuild: no step runs any
 *  more, device and comm are still open. Stages made of the layers may be freed before or after.
 *  NULL is allowed. [main] */
DP_API void dp_moe_block_close(dp_moe_block_t *block);

#ifdef __cplusplus
}
#endif
#endif
