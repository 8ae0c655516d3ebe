/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * scores.h: how attention_cuda cuts S x S scores into blocks for bounded scratch memory. */
#ifndef ATTENTION_CUDA_SCORES_H
#define ATTENTION_CUDA_SCORES_H

#include "plugins/attention/cuda/block.h"

/** Scores of `kv_heads` key/value heads, with all query heads, by `rows` queries at a time. */
typedef struct attn_score_blocks {
    uint32_t kv_heads, rows;
    /* most scores from row to row: the sequence, rounded up to 16 bytes and more */
    uint32_t pitch;
    size_t block_bytes; /* of one of the arrays below, of sums: logits, or gradients */
} attn_score_blocks_t;

/** The blocks, within `budget` bytes for all four arrays if 16 rows of one head fit into it. */
attn_score_blocks_t attn_score_blocks(const dp_attention_t *a, size_t budget);

/** Scores from row to row where a block has this many columns: vector loads want 16-byte rows. */
uint32_t attn_score_pitch(uint32_t columns);

extern const attn_core_t scores_core;

#endif
