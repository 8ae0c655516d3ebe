/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention_cuda.c: interface dp.attention/1 on CUDA devices without cuDNN. */
#include "scores.h"

#include <string.h>

static dp_status_t open_scores(const dp_host_t *host, const dp_attention_config_t *config,
                               dp_attention_t **attention_out)
{
    return attn_block_open(host, config, &scores_core, attention_out);
}

static const dp_attention_vt_t attention_vt = {
    .struct_size = sizeof(attention_vt),
    .open = open_scores,
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

DP_PLUGIN_DEFINE(attention_cuda) = {
    DP_PLUGIN_HEAD,
    .name = "attention_cuda",
    .version = DP_VERSION,
    .summary = "causal attention by cuBLASLt and a softmax kernel",
    .get_interface = attn_interface,
};
