/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * block.h: the attention block of plugins that compute on the host: everything around the core,
 * which is softmax(q k^T) v and its gradient.
 *
 * The block normalises, projects, rotates, adds the residual, keeps what a backward needs, splits
 * that into one for the input and one for the weights, and cuts micro-batches into documents. A
 * plugin is a core, a table and a descriptor: examples/plugin_core is one, attention_cpu
 * another. */
#ifndef PLUGINS_ATTENTION_CPU_BLOCK_H
#define PLUGINS_ATTENTION_CPU_BLOCK_H

#include "plugins/attention/attention.h"
#include "plugins/cpu/blas.h"

#include <string.h>

enum { ATTN_ALIGN_BYTES = 64 /* of every array in a region */ };

/** One document of a micro-batch, or one of its sequences, with all heads. Pointers are to its
 *  first token, elements of n.dtype. Rows of q are [heads, head_dim], n.q_width elements apart; of
 *  k [kv_heads, key_dim] and n.k_width; of v [kv_heads, value_dim] and n.v_width; of out and dout
 *  [heads, value_dim] and n.o_width; of row_max, inv_sum and delta [heads]. Query head h reads
 *  key/value head h / n.group. */
typedef struct attn_tensors {
    const dp_io_t *io;
    size_t document; /* its number there */
    size_t tokens;   /* of it */
    size_t past;     /* ATTN_TAKES_CACHE: tokens of its request before it, which the cache holds */
    /* Rotated. backward puts the gradients in their places. */
    void *q, *k, *v;
    void *out;               /* forward writes it, backward finds it */
    void *row_max, *inv_sum; /* the same: for two numbers of each row, whatever the core likes */
    const void *dout;        /* of backward: the gradient of out, */
    const void *delta;       /* and sums over value_dim of dout * out */
    /* ATTN_TAKES_LATENT: the rotated part that all keys have in common, n.down_width elements
     * apart. backward puts its gradient there. NULL unless latent */
    void *k_rope;
    void *scratch; /* core_scratch_bytes; holds anything */
} attn_tensors_t;

/** Computes one document. A long one asks a->host->aborted now and then. */
typedef dp_status_t (*attn_core_fn)(const dp_attention_t *a, const attn_tensors_t *t);

/** What an instance of a plugin is made with. */
typedef struct attn_core {
    const char *plugin; /* its name, for messages */
    unsigned takes;     /* ATTN_TAKES_* */
    /** NULL: nothing to do. Checks what the core cannot do and takes over `settings` ("": none),
     *  with ATTN_TAKES_SETTINGS; sets a->core and a->core_scratch_bytes. */
    dp_status_t (*open)(dp_attention_t *a, const char *settings);
    /** NULL: releases a->core through the host. After a failed open() too. */
    void (*close)(dp_attention_t *a);
    /* [2] for DP_F32 and DP_F64; NULL: a dtype that is refused */
    attn_core_fn forward[2], backward[2];
} attn_core_t;

/* What one micro-batch keeps, in bytes from the start of `saved` or of `backward_buffer`
 * (layout_find). backward_input turns q, k and v into their gradients. */
typedef struct attn_saved {
    size_t normalized; /* [T, d] x / rms(x) */
    size_t inv_rms;    /* [T] 1 / rms(x) */
    size_t q;          /* [T, heads, head_dim] rotated; then dq, rotated back */
    /* [T, kv_heads, key_dim] the same; of latent attention nothing here is rotated */
    size_t k;
    size_t v;         /* [T, kv_heads, value_dim]; then dv */
    size_t row_max;   /* [T, heads] of the core: attention_cpu's largest logit of a row */
    size_t inv_sum;   /* [T, heads] the same: 1 / sum of exp(logit - row_max) */
    size_t heads_out; /* [T, heads, value_dim] softmax(..) v, before wo */
    size_t dy;        /* [T, d] from backward_input on */
    size_t dnorm;     /* [d] gradient of the norm, from backward_input on */
    /* of latent attention alone; queries have a latent with q_rank > 0 */
    size_t q_latent;   /* [T, q_rank] normalized latent, and */
    size_t q_inv_rms;  /* [T] */
    size_t q_down;     /* [T, q_rank] n wq_down; then its gradient */
    size_t dq_norm;    /* [q_rank] from backward_input on */
    size_t kv_latent;  /* [T, kv_rank], and so on */
    size_t kv_inv_rms; /* [T] */
    /* [T, kv_rank + rope_dim] n wkv_down, the keys' common part rotated; then its gradient */
    size_t kv_down;
    size_t dkv_norm; /* [kv_rank] */
    size_t bytes, backward_buffer_bytes;
} attn_saved_t;

/* Scratch, in bytes. The three passes use it one at a time, and so do the two halves of a pass. */
typedef struct attn_scratch {
    size_t rows;   /* [T, d] n = RMSNorm(x), or its gradient */
    size_t latent; /* [T, the larger rank] a latent behind its norm, or the gradient of that */
    size_t dheads; /* [T, heads, value_dim] gradient of heads_out */
    size_t delta;  /* [T, heads] sum of dheads * heads_out over a row */
    size_t core;   /* the core's */
    size_t bytes;
} attn_scratch_t;

/* What a layer keeps of requests, in bytes. */
typedef struct attn_cache {
    size_t k; /* [slots, cache_tokens, k_width] or of latent attention [.., down_width] */
    size_t v; /* [slots, cache_tokens, v_width] unless latent */
    size_t bytes;
} attn_cache_t;

/* The arithmetic for one element type: two halves of each pass. */
typedef struct attn_passes {
    void (*fill_rope)(dp_attention_t *a);
    dp_status_t (*project)(const dp_attention_t *a, const dp_io_t *io);
    dp_status_t (*attend)(const dp_attention_t *a, const dp_io_t *io);
    dp_status_t (*attend_backward_input)(const dp_attention_t *a, const dp_io_t *io);
    dp_status_t (*project_backward_input)(const dp_attention_t *a, const dp_io_t *io);
    dp_status_t (*attend_backward_weight)(const dp_attention_t *a, const dp_io_t *io);
    dp_status_t (*project_backward_weight)(const dp_attention_t *a, const dp_io_t *io);
    dp_status_t (*recompute)(const dp_attention_t *a, const dp_io_t *io);
} attn_passes_t;

extern const attn_passes_t attn_passes_f32, attn_passes_f64;

struct dp_attention {
    const dp_host_t *host;
    const dp_device_vt_t *device_vt;
    const attn_core_t *vt;
    void *core; /* the core's; NULL: it has none */
    size_t core_scratch_bytes;
    attn_dims_t n;
    const attn_passes_t *passes;
    size_t element_bytes;
    size_t sequence, tokens, hidden;
    size_t heads, kv_heads, group; /* group = heads / kv_heads */
    size_t head_dim, value_dim, rope_dim, key_dim;
    size_t q_rank, kv_rank, down_width;
    size_t q_width, k_width, v_width, o_width; /* heads x dim of one token */
    dp_recompute_t recompute;
    bool apart; /* each pass is called in halves */
    attn_saved_t saved;
    attn_scratch_t scratch;
    attn_cache_t cache;
    size_t rope_bytes;
    void *rope; /* [S, rope_dim]: rope_dim/2 cosines, then as many sines, per position */
};

/* layout.c: checks every field of the configuration and lays out all memory. */
dp_status_t attn_configure(dp_attention_t *a, const dp_attention_config_t *config);

/** The functions of dp_attention_vt_t. */
dp_status_t attn_block_open(const dp_host_t *host, const dp_attention_config_t *config, const attn_core_t *core,
                            dp_attention_t **attention_out);
void attn_block_close(dp_attention_t *a);
dp_status_t attn_block_sizes(const dp_attention_t *a, dp_block_sizes_t *sizes_out);
dp_status_t attn_block_params(const dp_attention_t *a, dp_param_t *params_out);
dp_status_t attn_block_forward(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s);
dp_status_t attn_block_project(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s);
dp_status_t attn_block_attend(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s);
dp_status_t attn_block_backward_input(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s);
dp_status_t attn_block_attend_backward_input(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s);
dp_status_t attn_block_project_backward_input(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s);
dp_status_t attn_block_backward_weight(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s);
dp_status_t attn_block_attend_backward_weight(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s);
dp_status_t attn_block_project_backward_weight(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s);
dp_status_t attn_block_recompute(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s);

/** A whole plugin around a core, an attn_core_t: its table and its descriptor. */
#define ATTN_BLOCK_PLUGIN(plugin_name, core, capabilities, plugin_version, plugin_summary)                             \
    static dp_status_t open_instance(const dp_host_t *host, const dp_attention_config_t *config, dp_attention_t **out) \
    {                                                                                                                  \
        return attn_block_open(host, config, &(core), out);                                                            \
    }                                                                                                                  \
    static const dp_attention_vt_t table = {                                                                           \
        .struct_size = sizeof(table),                                                                                  \
        .caps = (capabilities),                                                                                        \
        .open = open_instance,                                                                                         \
        .close = attn_block_close,                                                                                     \
        .sizes = attn_block_sizes,                                                                                     \
        .params = attn_block_params,                                                                                   \
        .forward = attn_block_forward,                                                                                 \
        .backward_input = attn_block_backward_input,                                                                   \
        .backward_weight = attn_block_backward_weight,                                                                 \
        .recompute = attn_block_recompute,                                                                             \
        .project = attn_block_project,                                                                                 \
        .attend = attn_block_attend,                                                                                   \
        .attend_backward_input = attn_block_attend_backward_input,                                                     \
        .project_backward_input = attn_block_project_backward_input,                                                   \
        .attend_backward_weight = attn_block_attend_backward_weight,                                                   \
        .project_backward_weight = attn_block_project_backward_weight,                                                 \
    };                                                                                                                 \
    static dp_status_t choose_kernels(const dp_host_t *host)                                                           \
    {                                                                                                                  \
        return cpu_blas_choose(host, #plugin_name);                                                                    \
    }                                                                                                                  \
    static const void *get_interface(const char *id)                                                                   \
    {                                                                                                                  \
        return strcmp(id, DP_IFACE_ATTENTION) == 0 ? &table : NULL;                                                    \
    }                                                                                                                  \
    DP_PLUGIN_DEFINE(plugin_name) = {                                                                                  \
        DP_PLUGIN_HEAD,                                                                                                \
        .name = #plugin_name,                                                                                          \
        .version = (plugin_version),                                                                                   \
        .summary = (plugin_summary),                                                                                   \
        .init = choose_kernels,                                                                                        \
        .get_interface = get_interface,                                                                                \
    }

#endif
