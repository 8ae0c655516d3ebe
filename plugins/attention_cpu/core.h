/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * core.h: the core of attention_cpu: documents, head by head, by tiles. Compiled once per element
 * type.
 *
 * Latent attention with a cache multiplies its queries with wk_up instead of every key, and the sum
 * of latents with wv_up instead of every value: arXiv 2405.04434, section 2.1.2. */
#include "heads.h"
#include "plugins/attention/cpu/memory.h"
#include "tiles.h"

static real_t *tile_array(const attn_tensors_t *t, size_t at)
{
    return in_region(t->scratch, at);
}

/* Query head h and its key/value head. */
static head_view_t view_head(const dp_attention_t *a, const attn_tensors_t *t, size_t h)
{
    const size_t kv = h / a->group;
    real_t *const q = (real_t *)t->q + h * a->head_dim;

    return (head_view_t){
        .q = q,
        .k = (real_t *)t->k + kv * a->key_dim,
        .q_rope = t->k_rope != NULL ? q + a->key_dim : NULL,
        .k_rope = t->k_rope,
        .v = (real_t *)t->v + kv * a->value_dim,
        .out = (real_t *)t->out + h * a->value_dim,
        .row_max = (real_t *)t->row_max + h,
        .sum = (real_t *)t->inv_sum + h,
        .dout = (const real_t *)t->dout + h * a->value_dim,
        .delta = (const real_t *)t->delta + h,
        .length = t->tokens,
        .past = t->past,
        .q_stride = a->q_width,
        .k_stride = a->k_width,
        .v_stride = a->v_width,
        .out_stride = a->o_width,
        .key_dim = a->key_dim,
        .value_dim = a->value_dim,
    };
}

/* Head h of plain attention, with the keys and values of the whole request. */
static void attend_cached_head(const dp_attention_t *a, const attn_tensors_t *t, size_t h, head_view_t view,
                               real_t *tile)
{
    const size_t kv = h / a->group;

    view.k = cache_row(a, t->io, a->cache.k, t->document, 0, a->k_width) + kv * a->key_dim;
    view.v = cache_row(a, t->io, a->cache.v, t->document, 0, a->v_width) + kv * a->value_dim;
    attend_head(a, &view, tile);
}

/* Head h of latent attention: one key, and one value, for all heads. */
static void attend_latents(const dp_attention_t *a, const attn_tensors_t *t, size_t h, head_view_t view, real_t *tile)
{
    const real_t *const params = t->io->params;
    real_t *const rows = cache_row(a, t->io, a->cache.k, t->document, 0, a->down_width);
    real_t *const q = tile_array(t, ((const tiles_t *)a->core)->absorbed), *const out = q + a->sequence * a->kv_rank;
    real_t *const out_head = view.out;

    gemm(CblasNoTrans, CblasTrans, view.length, a->kv_rank, a->key_dim, 1, view.q, a->q_width,
         params + a->n.params.wk + h * a->key_dim, a->k_width, 0, q, a->kv_rank);
    view.q = q;
    view.q_stride = a->kv_rank;
    view.k = view.v = rows;
    view.k_stride = view.v_stride = a->down_width;
    view.k_rope = rows + a->kv_rank;
    view.key_dim = view.value_dim = a->kv_rank;
    view.out = out;
    view.out_stride = a->kv_rank;
    attend_head(a, &view, tile);
    gemm(CblasNoTrans, CblasNoTrans, view.length, a->value_dim, a->kv_rank, 1, out, a->kv_rank,
         params + a->n.params.wv + h * a->value_dim, a->v_width, 0, out_head, a->o_width);
}

/* Keys and values of a new request, or of none, are those that the block has just made. */
dp_status_t REAL(tiles_forward)(const dp_attention_t *a, const attn_tensors_t *t)
{
    real_t *const tile = tile_array(t, ((const tiles_t *)a->core)->tile);

    for (size_t h = 0; h < a->heads; h++) {
        const head_view_t view = view_head(a, t, h);
        const dp_status_t status = a->host->aborted(a->host);

        if (status < 0)
            return status;
        if (t->past == 0)
            attend_head(a, &view, tile);
        else if (a->kv_rank == 0)
            attend_cached_head(a, t, h, view, tile);
        else
            attend_latents(a, t, h, view, tile);
    }
    return DP_OK;
}

dp_status_t REAL(tiles_backward)(const dp_attention_t *a, const attn_tensors_t *t)
{
    const tiles_t *const at = a->core;
    const head_gradients_t g = {
        .tile = tile_array(t, at->tile),
        .dtile = tile_array(t, at->dtile),
        .dq = tile_array(t, at->dq),
        .dk = tile_array(t, at->dk),
        .dv = tile_array(t, at->dv),
        .dk_rope = tile_array(t, at->dk_rope),
    };

    if (t->k_rope != NULL)
        memset(g.dk_rope, 0, t->tokens * a->rope_dim * sizeof(real_t));
    for (size_t h = 0; h < a->heads; h += a->group) {
        const dp_status_t status = a->host->aborted(a->host);

        if (status < 0)
            return status;
        backward_group(a, view_head(a, t, h), &g);
    }
    if (t->k_rope != NULL)
        copy_rows(t->k_rope, a->down_width, g.dk_rope, a->rope_dim, t->tokens, a->rope_dim);
    return DP_OK;
}
