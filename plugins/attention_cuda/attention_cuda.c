/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention_cuda.c: interface dp.attention/1 on CUDA devices without cuDNN. */
#include "scores.h"

#include <string.h>

static dp_status_t open_instance(const dp_host_t *host, const dp_attention_config_t *config,
                                 dp_attention_t **attention_out)
{
    return dp_attention_block_open(host, config, &dp_scores_core, attention_out);
}

static const dp_attention_vt_t attention_vt = {
    .struct_size = sizeof(attention_vt),
    .caps = DP_ATTENTION_CAP_DETERMINISTIC,
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

DP_PLUGIN_DEFINE(attention_cuda) = {
    DP_PLUGIN_HEAD, "attention_cuda", DP_VERSION, "causal attention by cuBLASLt and a softmax kernel", NULL,
    NULL,           get_interface,
};
