/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention.h: what the attention plugins share on the host: which configurations they take, the sizes that follow, the
 * list of parameters, and the check that every call begins with. */
#ifndef PLUGINS_ATTENTION_ATTENTION_H
#define PLUGINS_ATTENTION_ATTENTION_H

#include <dualpipe/attention.h>

#include <stdbool.h>

/* Every count, and every width of a token, fits an int. */
typedef struct attn_dims {
    dp_dtype_t dtype;
    uint32_t batch, sequence, tokens, hidden;
    uint32_t heads, kv_heads, group; /* group = heads / kv_heads */
    uint32_t head_dim, value_dim;
    uint32_t q_width, k_width, v_width, o_width; /* heads x dim of one token */
    double norm_eps, rope_theta, scale;
    /* parameters, in elements */
    struct {
        size_t norm, wq, wk, wv, wo, count;
    } params;
} attn_dims_t;

/* config.c: refuses what cannot be, with the reason; asks no device. bf16: taken as well as DP_F32 and DP_F64. */
dp_status_t attn_dims_init(const dp_host_t *host, const char *plugin, bool bf16, const dp_attention_config_t *config,
                           attn_dims_t *dims_out);
/* For memory of a call that outgrows an address space. */
dp_status_t attn_too_large(const dp_host_t *host, const char *plugin, const attn_dims_t *dims);

enum { ATTN_PARAMS = 5 };
void attn_list_params(const attn_dims_t *dims, dp_param_t *params_out);

/* io.c: pointers of dp_io_t that a pass needs. */
enum {
    ATTN_NEED_PARAMS = 1,
    ATTN_NEED_GRADS = 2,
    ATTN_NEED_SAVED = 4,
    ATTN_NEED_SCRATCH = 8,
    ATTN_NEED_X = 16,
    ATTN_NEED_Y = 32,
    ATTN_NEED_DY = 64,
    ATTN_FORWARD = ATTN_NEED_PARAMS | ATTN_NEED_SAVED | ATTN_NEED_SCRATCH | ATTN_NEED_X | ATTN_NEED_Y,
    ATTN_BACKWARD_INPUT = ATTN_NEED_PARAMS | ATTN_NEED_SAVED | ATTN_NEED_SCRATCH | ATTN_NEED_DY,
    ATTN_BACKWARD_WEIGHT = ATTN_NEED_PARAMS | ATTN_NEED_GRADS | ATTN_NEED_SAVED | ATTN_NEED_SCRATCH
};
dp_status_t attn_check_io(const dp_host_t *host, const char *plugin, const char *pass, const dp_io_t *io,
                          unsigned needs);

#endif
