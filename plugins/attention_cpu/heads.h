/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * heads.h: causal attention of one sequence's heads, tile by tile. Tiles above the diagonal are
 * never touched, those that it crosses end with the last key their last query sees.
 *
 * Tensors keep the layout of the projections, [token, head, dim]: a block of a head is a matrix
 * with the token as row stride, which BLAS takes as it is. A key of latent attention is never put
 * together: its own part and the one that all heads have in common are two products. */
#ifndef ATTENTION_CPU_HEADS_H
#define ATTENTION_CPU_HEADS_H

#include "plugins/attention/cpu/gemm.h"
#include "softmax.h"

#include <string.h>

_Static_assert(KEY_BLOCK % QUERY_BLOCK == 0, "every row of a tile must see its first key");

/* One sequence and one key/value head, or one of its query heads; pointers to its first token. */
typedef struct head_view {
    real_t *q, *k, *v, *out, *row_max, *sum;
    const real_t *q_rope, *k_rope; /* NULL unless latent */
    const real_t *dout, *delta;
    size_t length; /* tokens of the sequence */
    /* keys before the first query's, which k, k_rope and v begin with. 0 in a backward, where the
     * widths are the instance's */
    size_t past;
    size_t q_stride, k_stride, v_stride, out_stride, key_dim, value_dim;
} head_view_t;

static inline size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void compute_logits(const dp_attention_t *a, const head_view_t *h, size_t i, size_t ni, size_t j, size_t nj,
                           real_t *tile)
{
    gemm(CblasNoTrans, CblasTrans, ni, nj, h->key_dim, (real_t)a->n.scale, h->q + i * h->q_stride, h->q_stride,
         h->k + j * h->k_stride, h->k_stride, 0, tile, KEY_BLOCK);
    if (h->k_rope != NULL)
        gemm(CblasNoTrans, CblasTrans, ni, nj, a->rope_dim, (real_t)a->n.scale, h->q_rope + i * a->q_width, a->q_width,
             h->k_rope + j * a->down_width, a->down_width, 1, tile, KEY_BLOCK);
}

static void attend_queries(const dp_attention_t *a, const head_view_t *h, size_t i, size_t ni, real_t *tile)
{
    const size_t keys = h->past + i + ni;
    real_t *const out = h->out + i * h->out_stride, *const sum = h->sum + i * a->heads;

    for (size_t j = 0; j < keys; j += KEY_BLOCK) {
        const size_t nj = smaller(KEY_BLOCK, keys - j);

        compute_logits(a, h, i, ni, j, nj, tile);
        softmax_tile(tile, ni, nj, h->past + i - j + 1, j == 0, h->row_max + i * a->heads, sum, a->heads, out,
                     h->out_stride, h->value_dim);
        gemm(CblasNoTrans, CblasNoTrans, ni, h->value_dim, nj, 1, tile, KEY_BLOCK, h->v + j * h->v_stride, h->v_stride,
             j == 0 ? 0 : 1, out, h->out_stride);
    }
    softmax_finish(ni, sum, a->heads, out, h->out_stride, h->value_dim);
}

/* A block of queries ends where its last key begins a tile: every row of that must see a key. */
static void attend_head(const dp_attention_t *a, const head_view_t *h, real_t *tile)
{
    for (size_t i = 0, ni; i < h->length; i += ni) {
        ni = smaller(smaller(QUERY_BLOCK, h->length - i), KEY_BLOCK - (h->past + i) % KEY_BLOCK);
        attend_queries(a, h, i, ni, tile);
    }
}

/* Gradients of one key/value head, before they take the places of q, k and v. */
typedef struct head_gradients {
    real_t *tile, *dtile;
    real_t *dq;      /* [group, S, head_dim] */
    real_t *dk;      /* [KEY_BLOCK, key_dim] */
    real_t *dv;      /* [KEY_BLOCK, value_dim] */
    real_t *dk_rope; /* [S, rope_dim] of all heads; latent only */
} head_gradients_t;

/* Adds what one tile contributes; its first key block sets dq. */
static void backward_tile(const dp_attention_t *a, const head_view_t *h, const head_gradients_t *g, real_t *dq,
                          size_t i, size_t ni, size_t j, size_t nj)
{
    const real_t scale = (real_t)a->n.scale;
    const real_t *const dout = h->dout + i * a->o_width;

    compute_logits(a, h, i, ni, j, nj, g->tile);
    gemm(CblasNoTrans, CblasTrans, ni, nj, a->value_dim, 1, dout, a->o_width, h->v + j * a->v_width, a->v_width, 0,
         g->dtile, KEY_BLOCK);
    softmax_backward_tile(g->tile, g->dtile, ni, nj, i - j + 1, h->row_max + i * a->heads, h->sum + i * a->heads,
                          h->delta + i * a->heads, a->heads);
    gemm(CblasTrans, CblasNoTrans, nj, a->value_dim, ni, 1, g->tile, KEY_BLOCK, dout, a->o_width, 1, g->dv,
         a->value_dim);
    gemm(CblasTrans, CblasNoTrans, nj, a->key_dim, ni, scale, g->dtile, KEY_BLOCK, h->q + i * a->q_width, a->q_width, 1,
         g->dk, a->key_dim);
    gemm(CblasNoTrans, CblasNoTrans, ni, a->key_dim, nj, scale, g->dtile, KEY_BLOCK, h->k + j * a->k_width, a->k_width,
         j == 0 ? 0 : 1, dq + i * a->head_dim, a->head_dim);
    if (h->k_rope == NULL)
        return;
    gemm(CblasTrans, CblasNoTrans, nj, a->rope_dim, ni, scale, g->dtile, KEY_BLOCK, h->q + i * a->q_width + a->key_dim,
         a->q_width, 1, g->dk_rope + j * a->rope_dim, a->rope_dim);
    gemm(CblasNoTrans, CblasNoTrans, ni, a->rope_dim, nj, scale, g->dtile, KEY_BLOCK, h->k_rope + j * a->down_width,
         a->down_width, j == 0 ? 0 : 1, dq + i * a->head_dim + a->key_dim, a->head_dim);
}

static void copy_rows(real_t *to, size_t to_stride, const real_t *from, size_t from_stride, size_t rows, size_t columns)
{
    for (size_t r = 0; r < rows; r++)
        memcpy(to + r * to_stride, from + r * from_stride, columns * sizeof(real_t));
}

static head_view_t next_query_head(const dp_attention_t *a, head_view_t h)
{
    h.q += a->head_dim;
    h.q_rope += h.q_rope != NULL ? a->head_dim : 0;
    h.out += a->value_dim;
    h.dout += a->value_dim;
    h.row_max++;
    h.sum++;
    h.delta++;
    return h;
}

/* One key block of a key/value head against all queries that see it; k, v become gradients. */
static void backward_keys(const dp_attention_t *a, head_view_t h, const head_gradients_t *g, size_t j, size_t nj)
{
    memset(g->dk, 0, nj * a->key_dim * sizeof(real_t));
    memset(g->dv, 0, nj * a->value_dim * sizeof(real_t));
    for (size_t head = 0; head < a->group; head++, h = next_query_head(a, h))
        for (size_t i = j; i < h.length; i += QUERY_BLOCK) {
            const size_t ni = smaller(QUERY_BLOCK, h.length - i);

            backward_tile(a, &h, g, g->dq + head * h.length * a->head_dim, i, ni, j, smaller(nj, i + ni - j));
        }
    copy_rows(h.k + j * a->k_width, a->k_width, g->dk, a->key_dim, nj, a->key_dim);
    copy_rows(h.v + j * a->v_width, a->v_width, g->dv, a->value_dim, nj, a->value_dim);
}

/* h: the first query head of a group and its key/value head. Adds to dk_rope. */
static void backward_group(const dp_attention_t *a, head_view_t h, const head_gradients_t *g)
{
    for (size_t j = 0; j < h.length; j += KEY_BLOCK)
        backward_keys(a, h, g, j, smaller(KEY_BLOCK, h.length - j));
    for (size_t head = 0; head < a->group; head++, h = next_query_head(a, h))
        copy_rows(h.q, a->q_width, g->dq + head * h.length * a->head_dim, a->head_dim, h.length, a->head_dim);
}

#endif
