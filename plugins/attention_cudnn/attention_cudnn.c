/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention_cudnn.c: interface dp.attention/1 by cuDNN's flash attention. */
#include "core.h"

#include <string.h>

static dp_status_t open_cudnn(const dp_host_t *host, const dp_attention_config_t *config,
                              dp_attention_t **attention_out)
{
    return attn_block_open(host, config, &cudnn_core, attention_out);
}

/* Deterministic where config.deterministic asks for it. */
static const dp_attention_vt_t attention_vt = {
    .struct_size = sizeof(attention_vt),
    .open = open_cudnn,
    .close = attn_block_close,
    .sizes = attn_block_sizes,
    .params = attn_block_params,
    .forward = attn_block_forward,
    .backward_input = attn_block_backward_input,
    .backward_weight = attn_block_backward_weight,
    .recompute = attn_block_recompute,
};

static const void *attn_interface(const char *id)
{
    return strcmp(id, DP_IFACE_ATTENTION) == 0 ? &attention_vt : NULL;
}

DP_PLUGIN_DEFINE(attention_cudnn) = {
    DP_PLUGIN_HEAD,
    .name = "attention_cudnn",
    .version = DP_VERSION,
    .summary = "causal flash attention in bf16 by cuDNN",
    .get_interface = attn_interface,
};
