/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention_cudnn.c: interface dp.attention/1 by cuDNN's flash attention. */
#include "core.h"

#include <string.h>

static dp_status_t open_instance(const dp_host_t *host, const dp_attention_config_t *config,
                                 dp_attention_t **attention_out)
{
    return dp_attention_block_open(host, config, &dp_cudnn_core, attention_out);
}

/* Deterministic when config.deterministic asks for it, and not otherwise: no capability for all instances. */
static const dp_attention_vt_t attention_vt = {
    .struct_size = sizeof(attention_vt),
    .caps = 0,
    .open = open_instance,
    .close = dp_attention_block_close,
    .sizes = dp_attention_block_sizes,
    .params = dp_attention_block_params,
    .forward = dp_attention_block_forward,
    .backward_input = dp_attention_block_backward_input,
    .backward_weight = dp_attention_block_backward_weight,
};

static const void *get_interface(const char *id)
{
    return strcmp(id, DP_IFACE_ATTENTION) == 0 ? &attention_vt : NULL;
}

DP_PLUGIN_DEFINE(attention_cudnn) = {
    DP_PLUGIN_HEAD, "attention_cudnn", DP_VERSION, "causal flash attention in bf16 by cuDNN", NULL,
    NULL,           get_interface,
};
