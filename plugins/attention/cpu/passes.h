/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * passes.h: forward and both backwards, around the core. Compiled once per element type. */
#include "project.h"

static void fill_rope(dp_attention_t *a)
{
    const size_t half = a->rope_dim / 2;
    real_t *rope = a->rope;

    for (size_t i = 0; i < half; i++) {
        const double frequency = pow(a->n.rope_theta, -2.0 * (double)i / (double)a->rope_dim);

        for (size_t p = 0; p < a->sequence; p++) {
            rope[p * a->rope_dim + i] = (real_t)cos((double)p * frequency);
            rope[p * a->rope_dim + half + i] = (real_t)sin((double)p * frequency);
        }
    }
}

/* Rotates queries and keys of all sequences, or turns their gradients back. */
static void rotate_all(const dp_attention_t *a, const dp_io_t *io, real_t sign)
{
    const bool latent = a->kv_rank > 0;
    const size_t nope = a->head_dim - a->rope_dim;
    const size_t heads = latent ? 1 : a->kv_heads, stride = latent ? a->down_width : a->head_dim;
    real_t *q = saved_array(io, a->saved.q) + nope;
    real_t *k = latent ? saved_array(io, a->saved.kv_down) + a->kv_rank : saved_array(io, a->saved.k);

    for (size_t b = 0, t, count; attn_document(&a->n, io, b, &t, &count); b++) {
        const real_t *rope = (const real_t *)a->rope + past_of(io, b) * a->rope_dim;

        rotate_rows(q + t * a->q_width, count, a->heads, a->head_dim, rope, a->rope_dim / 2, sign);
        rotate_rows(k + t * heads * stride, count, heads, stride, rope, a->rope_dim / 2, sign);
    }
}

/* Document b: `count` tokens from t on. */
static attn_tensors_t view_document(const dp_attention_t *a, const dp_io_t *io, size_t b, size_t t, size_t count)
{
    const attn_saved_t *s = &a->saved;

    return (attn_tensors_t){
        .io = io,
        .document = b,
        .tokens = count,
        .past = past_of(io, b),
        .q = saved_array(io, s->q) + t * a->q_width,
        .k = saved_array(io, s->k) + t * a->k_width,
        .v = saved_array(io, s->v) + t * a->v_width,
        .out = saved_array(io, s->heads_out) + t * a->o_width,
        .row_max = saved_array(io, s->row_max) + t * a->heads,
        .inv_sum = saved_array(io, s->inv_sum) + t * a->heads,
        .dout = in_region(io->scratch, a->scratch.dheads) + t * a->o_width,
        .delta = in_region(io->scratch, a->scratch.delta) + t * a->heads,
        .k_rope = a->kv_rank > 0 ? saved_array(io, s->kv_down) + t * a->down_width + a->kv_rank : NULL,
        .scratch = in_region(io->scratch, a->scratch.core),
    };
}

static dp_status_t each_document(const dp_attention_t *a, const dp_io_t *io, attn_core_fn core)
{
    for (size_t b = 0, t, count; attn_document(&a->n, io, b, &t, &count); b++) {
        const attn_tensors_t document = view_document(a, io, b, t, count);
        dp_status_t status = a->host->aborted(a->host);

        if (status >= 0)
            status = core(a, &document);
        if (status < 0)
            return status;
    }
    return DP_OK;
}

static dp_status_t attend_documents(const dp_attention_t *a, const dp_io_t *io)
{
    return each_document(a, io, a->vt->forward[a->n.dtype]);
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

static void project_qkv(const dp_attention_t *a, const dp_io_t *io, const real_t *n)
{
    project_queries(a, io, n);
    project_keys_values(a, io, n);
    rotate_all(a, io, 1);
    for (size_t b = 0, t, count; io->slots != NULL && attn_document(&a->n, io, b, &t, &count); b++)
        if (has_slot(io, b))
            store_document(a, io, b, t, count);
}

static dp_status_t compute_project(const dp_attention_t *a, const dp_io_t *io)
{
    const attn_saved_t *s = &a->saved;
    real_t *const n = in_region(io->scratch, a->scratch.rows);

    normalize_rows(saved_array(io, s->normalized), saved_array(io, s->inv_rms), n, io->x, a->hidden,
                   (const real_t *)io->params + a->n.params.norm, a->tokens, a->hidden, a->n.norm_eps);
    project_qkv(a, io, n);
    return DP_OK;
}

/* x is read before y is written: y may be x. */
static dp_status_t compute_attend(const dp_attention_t *a, const dp_io_t *io)
{
    const attn_saved_t *s = &a->saved;
    const real_t *const params = io->params;
    const dp_status_t status = attend_documents(a, io);

    if (status < 0)
        return status;
    if (io->y != io->x)
        memcpy(io->y, io->x, a->tokens * a->hidden * sizeof(real_t));
    gemm(CblasNoTrans, CblasNoTrans, a->tokens, a->hidden, a->o_width, 1, saved_array(io, s->heads_out), a->o_width,
         params + a->n.params.wo, a->hidden, 1, io->y, a->hidden);
    return DP_OK;
}

/* What forward left in the backward buffer: all but the last product, or the norms of latents. */
static dp_status_t recompute_forward(const dp_attention_t *a, const dp_io_t *io)
{
    real_t *const n = in_region(io->scratch, a->scratch.rows);

    if (a->recompute >= DP_RECOMPUTE_FULL) {
        apply_gain(n, saved_array(io, a->saved.normalized), (const real_t *)io->params + a->n.params.norm, a->tokens,
                   a->hidden);
        project_qkv(a, io, n);
        return attend_documents(a, io);
    }
    if (a->q_rank > 0) {
        const latent_t l = latent_of_queries(a, io);

        latent_recompute(a, &l);
    }
    if (a->kv_rank > 0) {
        const latent_t l = latent_of_keys_values(a, io);

        latent_recompute(a, &l);
    }
    return DP_OK;
}

/* dy is kept: it may lie where dx will. */
static dp_status_t compute_attend_backward(const dp_attention_t *a, const dp_io_t *io)
{
    const attn_saved_t *s = &a->saved;
    const real_t *const params = io->params;
    real_t *const dy = saved_array(io, s->dy), *const dheads = in_region(io->scratch, a->scratch.dheads);

    memcpy(dy, io->dy, a->tokens * a->hidden * sizeof(real_t));
    gemm(CblasNoTrans, CblasTrans, a->tokens, a->o_width, a->hidden, 1, dy, a->hidden, params + a->n.params.wo,
         a->hidden, 0, dheads, a->o_width);
    dot_rows(in_region(io->scratch, a->scratch.delta), dheads, saved_array(io, s->heads_out), a->tokens * a->heads,
             a->value_dim);
    return each_document(a, io, a->vt->backward[a->n.dtype]);
}

/* The gain's gradient needs dn even without dx. */
static dp_status_t compute_project_backward(const dp_attention_t *a, const dp_io_t *io)
{
    const attn_saved_t *s = &a->saved;
    const real_t *const params = io->params, *const normalized = saved_array(io, s->normalized);
    real_t *const dn = in_region(io->scratch, a->scratch.rows);

    rotate_all(a, io, -1);
    queries_back(a, io, dn);
    keys_values_back(a, io, dn);
    gain_gradient(saved_array(io, s->dnorm), dn, normalized, a->tokens, a->hidden);
    if (io->dx != NULL) {
        normalize_backward(dn, params + a->n.params.norm, normalized, saved_array(io, s->inv_rms), a->tokens,
                           a->hidden);
        add_residual(io->dx, saved_array(io, s->dy), dn, a->tokens * a->hidden);
    }
    return DP_OK;
}

static dp_status_t compute_attend_weight(const dp_attention_t *a, const dp_io_t *io)
{
    const attn_saved_t *s = &a->saved;

    gemm(CblasTrans, CblasNoTrans, a->o_width, a->hidden, a->tokens, 1, saved_array(io, s->heads_out), a->o_width,
         saved_array(io, s->dy), a->hidden, 1, (real_t *)io->grads + a->n.params.wo, a->hidden);
    return DP_OK;
}

static dp_status_t compute_project_weight(const dp_attention_t *a, const dp_io_t *io)
{
    const attn_saved_t *s = &a->saved;
    real_t *const n = in_region(io->scratch, a->scratch.rows);

    apply_gain(n, saved_array(io, s->normalized), (const real_t *)io->params + a->n.params.norm, a->tokens, a->hidden);
    queries_weight(a, io, n);
    keys_values_weight(a, io, n);
    accumulate_row((real_t *)io->grads + a->n.params.norm, saved_array(io, s->dnorm), a->hidden);
    return DP_OK;
}

const attn_passes_t REAL(attn_passes) = {
    .fill_rope = fill_rope,
    .project = compute_project,
    .attend = compute_attend,
    .attend_backward_input = compute_attend_backward,
    .project_backward_input = compute_project_backward,
    .attend_backward_weight = compute_attend_weight,
    .project_backward_weight = compute_project_weight,
    .recompute = recompute_forward,
};
