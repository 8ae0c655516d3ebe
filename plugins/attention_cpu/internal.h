/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * internal.h: an instance of attention_cpu, and the layout of a call's memory. */
#ifndef ATTENTION_CPU_INTERNAL_H
#define ATTENTION_CPU_INTERNAL_H

#include "plugins/attention/attention.h"

#define TAKES  (ATTN_TAKES_LATENT | ATTN_TAKES_DOCUMENTS | ATTN_TAKES_APART | ATTN_TAKES_CACHE)
#define PLUGIN "attention_cpu"

enum {
    QUERY_BLOCK = 64, /* rows of a tile: queries */
    KEY_BLOCK = 256,  /* columns of a tile: keys */
    ALIGN_BYTES = 64  /* of every array in a region */
};

/* What one micro-batch keeps, in bytes from the start of `saved` or of `backward_buffer`
 * (layout_find). backward_input turns q, k and v into their gradients. */
typedef struct attn_saved {
    size_t normalized; /* [T, d] x / rms(x) */
    size_t inv_rms;    /* [T] 1 / rms(x) */
    size_t q;          /* [T, heads, head_dim] rotated; then dq, rotated back */
    /* [T, kv_heads, key_dim] the same; of latent attention nothing here is rotated */
    size_t k;
    size_t v;         /* [T, kv_heads, value_dim]; then dv */
    size_t row_max;   /* [T, heads] largest logit of a row */
    size_t inv_sum;   /* [T, heads] 1 / sum of exp(logit - row_max) */
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
    size_t rows;    /* [T, d] n = RMSNorm(x), or its gradient */
    size_t latent;  /* [T, the larger rank] a latent behind its norm, or the gradient of that */
    size_t tile;    /* [QUERY_BLOCK, KEY_BLOCK] probabilities */
    size_t dtile;   /* the same, gradients */
    size_t dheads;  /* [T, heads, value_dim] gradient of heads_out */
    size_t delta;   /* [T, heads] sum of dheads * heads_out over a row */
    size_t dq;      /* [heads / kv_heads, S, head_dim] */
    size_t dk;      /* [KEY_BLOCK, key_dim] */
    size_t dv;      /* [KEY_BLOCK, value_dim] */
    size_t dk_rope; /* [S, rope_dim] of the part that all heads' keys have in common */
    /* [S, kv_rank] twice, of latent attention with a cache: queries times wk_up, sums of latents */
    size_t absorbed;
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

/** Checks every field of the configuration and lays out all memory; opens nothing. */
dp_status_t attn_configure(dp_attention_t *a, const dp_attention_config_t *config);

#endif
