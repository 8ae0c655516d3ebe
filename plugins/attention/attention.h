/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention.h: what the attention plugins share on the host: which configurations they take, the
 * sizes that follow, the list of parameters, and the check that every call begins with. */
#ifndef PLUGINS_ATTENTION_ATTENTION_H
#define PLUGINS_ATTENTION_ATTENTION_H

#include <dualpipe/attention.h>

#include <stdbool.h>

enum { ATTN_PARAMS_MOST = 9 };

/* Every count, and every width of a token, fits an int. */
typedef struct attn_dims {
    dp_dtype_t dtype;
    uint32_t batch, sequence, tokens, hidden;
    uint32_t heads, kv_heads, group; /* group = heads / kv_heads */
    uint32_t head_dim, value_dim;
    /* of head_dim: rotated, and a key head's own; both head_dim unless latent */
    uint32_t rope_dim, key_dim;
    uint32_t q_rank, kv_rank;                    /* of latents; kv_rank 0: not latent */
    uint32_t down_width;                         /* kv_rank + rope_dim */
    uint32_t q_width, k_width, v_width, o_width; /* heads x dim of one token; k_width of key_dim */
    uint32_t cache_slots, cache_tokens;          /* of requests that are kept; both 0: none */
    double norm_eps, rope_theta, scale;
    /* parameters, in elements; of latents wq, wk and wv are what they are multiplied with */
    struct {
        size_t norm, wq, wk, wv, wo, count;
        size_t q_down, q_norm, kv_down, kv_norm;
        uint32_t number;
        dp_param_t list[ATTN_PARAMS_MOST];
    } params;
} attn_dims_t;

/* What a plugin takes besides DP_F32 and DP_F64, and attention of plain heads. */
enum {
    ATTN_TAKES_BF16 = 1,
    ATTN_TAKES_LATENT = 2,
    ATTN_TAKES_DOCUMENTS = 4,
    ATTN_TAKES_APART = 8,
    ATTN_TAKES_CACHE = 16,
    ATTN_TAKES_SETTINGS = 32 /* which the plugin reads itself */
};

/* config.c: refuses what cannot be, with the reason; asks no device. */
dp_status_t attn_dims_init(const dp_host_t *host, const char *plugin, unsigned takes,
                           const dp_attention_config_t *config, attn_dims_t *dims_out);
/* The settings of a configuration that attn_dims_init has taken; "": none. */
static inline const char *attn_settings(const dp_attention_config_t *config)
{
    return DP_HAS(config, dp_attention_config_t, settings) ? config->settings : "";
}
/* For memory of a call that outgrows an address space. */
dp_status_t attn_too_large(const dp_host_t *host, const char *plugin, const attn_dims_t *dims);

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
    ATTN_BACKWARD_WEIGHT = ATTN_NEED_PARAMS | ATTN_NEED_GRADS | ATTN_NEED_SAVED | ATTN_NEED_SCRATCH,
    ATTN_RECOMPUTE = ATTN_NEED_PARAMS | ATTN_NEED_SAVED | ATTN_NEED_SCRATCH,
    /* the first halves */
    ATTN_PROJECT = ATTN_RECOMPUTE | ATTN_NEED_X,
    ATTN_PROJECT_BACKWARD_INPUT = ATTN_RECOMPUTE
};
/* *taken_out: the io with tokens filled in. */
dp_status_t attn_check_io(const dp_host_t *host, const char *plugin, const attn_dims_t *n, unsigned takes,
                          const char *pass, const dp_io_t *io, unsigned needs, dp_io_t *taken_out);

/* Document `i` of a micro-batch, or its sequence. False: there are not so many. */
static inline bool attn_document(const attn_dims_t *n, const dp_io_t *io, size_t i, size_t *first_out,
                                 size_t *count_out)
{
    size_t end;

    if (io->documents > 0 ? i >= io->documents : i * n->sequence >= io->tokens)
        return false;
    *first_out = io->documents == 0 ? i * n->sequence : i > 0 ? io->document_ends[i - 1] : 0;
    end = io->documents > 0 ? io->document_ends[i] : *first_out + n->sequence;
    *count_out = (end < io->tokens ? end : io->tokens) - *first_out;
    return true;
}

#endif
