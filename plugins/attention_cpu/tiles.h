/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * tiles.h: sizes of the tiles of attention_cpu, and where they lie in the core's scratch. */
#ifndef ATTENTION_CPU_TILES_H
#define ATTENTION_CPU_TILES_H

#include "plugins/attention/cpu/block.h"

enum {
    QUERY_BLOCK = 64, /* rows of a tile: queries */
    KEY_BLOCK = 256   /* columns of a tile: keys */
};

/* In bytes from the start of the core's scratch. */
typedef struct tiles {
    size_t tile;    /* [QUERY_BLOCK, KEY_BLOCK] probabilities */
    size_t dtile;   /* the same, gradients */
    size_t dq;      /* [heads / kv_heads, S, head_dim] */
    size_t dk;      /* [KEY_BLOCK, key_dim] */
    size_t dv;      /* [KEY_BLOCK, value_dim] */
    size_t dk_rope; /* [S, rope_dim] of the part that all heads' keys have in common */
    /* [S, kv_rank] twice, of latent attention with a cache: queries times wk_up, sums of latents */
    size_t absorbed;
} tiles_t;

/* core.h: one document, for each dtype. */
dp_status_t tiles_forward_f32(const dp_attention_t *a, const attn_tensors_t *t);
dp_status_t tiles_forward_f64(const dp_attention_t *a, const attn_tensors_t *t);
dp_status_t tiles_backward_f32(const dp_attention_t *a, const attn_tensors_t *t);
dp_status_t tiles_backward_f64(const dp_attention_t *a, const attn_tensors_t *t);

#endif
