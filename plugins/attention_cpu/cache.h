/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cache.h: keys and values of requests, kept from step to step, and attention that reads them.
 *
 * Plain heads keep k, rotated, and v. Latent attention keeps what all heads have in common, the
 * latent behind its norm and the rotated part, kv_rank + rope_dim elements a token. Its queries are
 * multiplied with wk_up then instead of every key, and the sum of latents with wv_up instead of
 * every value: arXiv 2405.04434, section 2.1.2. */
#ifndef ATTENTION_CPU_CACHE_H
#define ATTENTION_CPU_CACHE_H

#include "heads.h"
#include "project.h"

static inline bool has_slot(const dp_io_t *io, size_t document)
{
    return io->slots != NULL && io->slots[document] != DP_NO_SLOT;
}

/* Tokens of the request before the document's. */
static inline size_t past_of(const dp_io_t *io, size_t document)
{
    return has_slot(io, document) ? io->past[document] : 0;
}

/* Position `token` of a document's request in an array of the cache with rows of `width`. */
static real_t *cache_row(const dp_attention_t *a, const dp_io_t *io, size_t array, size_t document, size_t token,
                         size_t width)
{
    return in_region(io->cache, array) + (io->slots[document] * a->n.cache_tokens + token) * width;
}

/* What `project` has made of a document, behind what its slot holds. */
static void store_document(const dp_attention_t *a, const dp_io_t *io, size_t document, size_t t, size_t count)
{
    const attn_saved_t *s = &a->saved;
    const size_t past = past_of(io, document);
    const real_t *latent, *down;
    real_t *row;

    if (a->kv_rank == 0) {
        memcpy(cache_row(a, io, a->cache.k, document, past, a->k_width), saved_array(io, s->k) + t * a->k_width,
               count * a->k_width * sizeof(real_t));
        memcpy(cache_row(a, io, a->cache.v, document, past, a->v_width), saved_array(io, s->v) + t * a->v_width,
               count * a->v_width * sizeof(real_t));
        return;
    }
    latent = saved_array(io, s->kv_latent) + t * a->kv_rank;
    down = saved_array(io, s->kv_down) + t * a->down_width;
    row = cache_row(a, io, a->cache.k, document, past, a->down_width);
    for (size_t i = 0; i < count; i++, latent += a->kv_rank, down += a->down_width, row += a->down_width) {
        apply_gain(row, latent, (const real_t *)io->params + a->n.params.kv_norm, 1, a->kv_rank);
        memcpy(row + a->kv_rank, down + a->kv_rank, a->rope_dim * sizeof(real_t));
    }
}

/* Head h of plain attention, with the keys and values of the whole request. */
static void attend_cached_head(const dp_attention_t *a, const dp_io_t *io, size_t document, size_t h, head_view_t view)
{
    const size_t kv = h / a->group;

    view.k = cache_row(a, io, a->cache.k, document, 0, a->k_width) + kv * a->key_dim;
    view.v = cache_row(a, io, a->cache.v, document, 0, a->v_width) + kv * a->value_dim;
    attend_head(a, &view, in_region(io->scratch, a->scratch.tile));
}

/* Head h of latent attention: one key, and one value, for all heads. */
static void attend_latents(const dp_attention_t *a, const dp_io_t *io, size_t document, size_t h, head_view_t view)
{
    const real_t *const params = io->params;
    real_t *const rows = cache_row(a, io, a->cache.k, document, 0, a->down_width);
    real_t *const q = in_region(io->scratch, a->scratch.absorbed), *const out = q + a->sequence * a->kv_rank;
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
    attend_head(a, &view, in_region(io->scratch, a->scratch.tile));
    gemm(CblasNoTrans, CblasNoTrans, view.length, a->value_dim, a->kv_rank, 1, out, a->kv_rank,
         params + a->n.params.wv + h * a->value_dim, a->v_width, 0, out_head, a->o_width);
}

#endif
