/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * project.h: what makes queries, keys and values of the normalized rows n, and its gradients: a
 * product each, or by way of a latent, which is a product, a norm and another product. Compiled
 * once per element type. */
#ifndef PLUGINS_ATTENTION_CPU_PROJECT_H
#define PLUGINS_ATTENTION_CPU_PROJECT_H

#include "gemm.h"
#include "memory.h"
#include "rows.h"

#include <string.h>

/* out = rows w; w [from, to]. */
static void project_rows(const dp_attention_t *a, const real_t *rows, size_t from, const real_t *w, size_t to,
                         real_t *out)
{
    gemm(CblasNoTrans, CblasNoTrans, a->tokens, to, from, 1, rows, from, w, to, 0, out, to);
}

/* drows = beta drows + dout w^T. */
static void project_back(const dp_attention_t *a, const real_t *dout, size_t to, const real_t *w, size_t from,
                         real_t beta, real_t *drows)
{
    gemm(CblasNoTrans, CblasTrans, a->tokens, from, to, 1, dout, to, w, to, beta, drows, from);
}

/* dw += rows^T dout. */
static void project_weight(const dp_attention_t *a, const real_t *rows, size_t from, const real_t *dout, size_t to,
                           real_t *dw)
{
    gemm(CblasTrans, CblasNoTrans, from, to, a->tokens, 1, rows, from, dout, to, 1, dw, to);
}

/* A latent: its norm, and where everything of it lies. */
typedef struct latent {
    size_t rank;
    const real_t *gain;
    real_t *normalized, *inv_rms, *dgain; /* of the micro-batch */
    /* too: rows of `stride` elements that begin with it; then their gradient */
    real_t *down;
    size_t stride;
    real_t *rows; /* scratch: behind the norm */
} latent_t;

static latent_t latent_of_queries(const dp_attention_t *a, const dp_io_t *io)
{
    const attn_saved_t *s = &a->saved;

    return (latent_t){
        .rank = a->q_rank,
        .gain = (const real_t *)io->params + a->n.params.q_norm,
        .normalized = saved_array(io, s->q_latent),
        .inv_rms = saved_array(io, s->q_inv_rms),
        .dgain = saved_array(io, s->dq_norm),
        .down = saved_array(io, s->q_down),
        .stride = a->q_rank,
        .rows = in_region(io->scratch, a->scratch.latent),
    };
}

static latent_t latent_of_keys_values(const dp_attention_t *a, const dp_io_t *io)
{
    const attn_saved_t *s = &a->saved;

    return (latent_t){
        .rank = a->kv_rank,
        .gain = (const real_t *)io->params + a->n.params.kv_norm,
        .normalized = saved_array(io, s->kv_latent),
        .inv_rms = saved_array(io, s->kv_inv_rms),
        .dgain = saved_array(io, s->dkv_norm),
        .down = saved_array(io, s->kv_down),
        .stride = a->down_width,
        .rows = in_region(io->scratch, a->scratch.latent),
    };
}

static void latent_forward(const dp_attention_t *a, const latent_t *l, const real_t *n, const real_t *w)
{
    project_rows(a, n, a->hidden, w, l->stride, l->down);
    normalize_rows(l->normalized, l->inv_rms, l->rows, l->down, l->stride, l->gain, a->tokens, l->rank, a->n.norm_eps);
}

/* What the norm has made of it, once more. */
static void latent_recompute(const dp_attention_t *a, const latent_t *l)
{
    normalize_again(l->normalized, l->inv_rms, l->down, l->stride, a->tokens, l->rank);
}

/* l->rows: the gradient behind the norm. The rest of `down` holds its gradient already. */
static void latent_backward(const dp_attention_t *a, const latent_t *l)
{
    gain_gradient(l->dgain, l->rows, l->normalized, a->tokens, l->rank);
    normalize_backward(l->rows, l->gain, l->normalized, l->inv_rms, a->tokens, l->rank);
    for (size_t t = 0; t < a->tokens; t++)
        memcpy(l->down + t * l->stride, l->rows + t * l->rank, l->rank * sizeof(real_t));
}

static void latent_weight(const dp_attention_t *a, const latent_t *l, const real_t *n, real_t *dw, real_t *dgain)
{
    project_weight(a, n, a->hidden, l->down, l->stride, dw);
    accumulate_row(dgain, l->dgain, l->rank);
    apply_gain(l->rows, l->normalized, l->gain, a->tokens, l->rank);
}

/* ---- queries ---- */

static void project_queries(const dp_attention_t *a, const dp_io_t *io, const real_t *n)
{
    const real_t *const params = io->params, *const wq = params + a->n.params.wq;
    real_t *const q = saved_array(io, a->saved.q);

    if (a->q_rank > 0) {
        const latent_t l = latent_of_queries(a, io);

        latent_forward(a, &l, n, params + a->n.params.q_down);
        project_rows(a, l.rows, l.rank, wq, a->q_width, q);
    } else {
        project_rows(a, n, a->hidden, wq, a->q_width, q);
    }
}

/* Sets dn. */
static void queries_back(const dp_attention_t *a, const dp_io_t *io, real_t *dn)
{
    const real_t *const params = io->params, *const wq = params + a->n.params.wq;
    const real_t *const dq = saved_array(io, a->saved.q);

    if (a->q_rank > 0) {
        const latent_t l = latent_of_queries(a, io);

        project_back(a, dq, a->q_width, wq, l.rank, 0, l.rows);
        latent_backward(a, &l);
        project_back(a, l.down, l.stride, params + a->n.params.q_down, a->hidden, 0, dn);
    } else {
        project_back(a, dq, a->q_width, wq, a->hidden, 0, dn);
    }
}

static void queries_weight(const dp_attention_t *a, const dp_io_t *io, const real_t *n)
{
    const real_t *const dq = saved_array(io, a->saved.q);
    real_t *const grads = io->grads, *const dwq = grads + a->n.params.wq;

    if (a->q_rank > 0) {
        const latent_t l = latent_of_queries(a, io);

        latent_weight(a, &l, n, grads + a->n.params.q_down, grads + a->n.params.q_norm);
        project_weight(a, l.rows, l.rank, dq, a->q_width, dwq);
    } else {
        project_weight(a, n, a->hidden, dq, a->q_width, dwq);
    }
}

/* ---- keys and values ---- */

static void project_keys_values(const dp_attention_t *a, const dp_io_t *io, const real_t *n)
{
    const real_t *const params = io->params, *rows = n;
    size_t from = a->hidden;

    if (a->kv_rank > 0) {
        const latent_t l = latent_of_keys_values(a, io);

        latent_forward(a, &l, n, params + a->n.params.kv_down);
        rows = l.rows;
        from = l.rank;
    }
    project_rows(a, rows, from, params + a->n.params.wk, a->k_width, saved_array(io, a->saved.k));
    project_rows(a, rows, from, params + a->n.params.wv, a->v_width, saved_array(io, a->saved.v));
}

/* Adds to dn. */
static void keys_values_back(const dp_attention_t *a, const dp_io_t *io, real_t *dn)
{
    const real_t *const params = io->params;
    const real_t *const wk = params + a->n.params.wk, *const wv = params + a->n.params.wv;
    const real_t *const dk = saved_array(io, a->saved.k), *const dv = saved_array(io, a->saved.v);

    if (a->kv_rank > 0) {
        const latent_t l = latent_of_keys_values(a, io);

        project_back(a, dk, a->k_width, wk, l.rank, 0, l.rows);
        project_back(a, dv, a->v_width, wv, l.rank, 1, l.rows);
        latent_backward(a, &l);
        project_back(a, l.down, l.stride, params + a->n.params.kv_down, a->hidden, 1, dn);
    } else {
        project_back(a, dk, a->k_width, wk, a->hidden, 1, dn);
        project_back(a, dv, a->v_width, wv, a->hidden, 1, dn);
    }
}

static void keys_values_weight(const dp_attention_t *a, const dp_io_t *io, const real_t *n)
{
    const real_t *rows = n;
    real_t *const grads = io->grads;
    size_t from = a->hidden;

    if (a->kv_rank > 0) {
        const latent_t l = latent_of_keys_values(a, io);

        latent_weight(a, &l, n, grads + a->n.params.kv_down, grads + a->n.params.kv_norm);
        rows = l.rows;
        from = l.rank;
    }
    project_weight(a, rows, from, saved_array(io, a->saved.k), a->k_width, grads + a->n.params.wk);
    project_weight(a, rows, from, saved_array(io, a->saved.v), a->v_width, grads + a->n.params.wv);
}

#endif
