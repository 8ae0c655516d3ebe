/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention_loops.c: attention by plain loops, as a core inside the block that plugins on the host
 * share. Settings "window=N": a token sees N tokens, itself included. The Makefile compiles it with
 * REAL_BITS 32 and 64. */
#include "plugins/attention/cpu/block.h"
#include "plugins/cpu/exp.h"

#include <stdio.h>
#include <tgmath.h>

static real_t dot(const real_t *a, const real_t *b, size_t n)
{
    real_t sum = 0;

    for (size_t i = 0; i < n; i++)
        sum = fma(a[i], b[i], sum);
    return sum;
}

/* to += f * from */
static void add(real_t *to, real_t f, const real_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = fma(f, from[i], to[i]);
}

/* The first token that token i sees. */
static size_t first_seen(const dp_attention_t *a, size_t i)
{
    const size_t window = *(const size_t *)a->core;

    return window > 0 && i + 1 > window ? i + 1 - window : 0;
}

dp_status_t REAL(loops_forward)(const dp_attention_t *a, const attn_tensors_t *t)
{
    real_t *const p = t->scratch;

    for (size_t row = 0; row < t->tokens * a->heads; row++) { /* token by token, head by head */
        const size_t i = row / a->heads, h = row % a->heads, kv = h / a->group, first = first_seen(a, i);
        const real_t *const q = (const real_t *)t->q + i * a->q_width + h * a->head_dim;
        const real_t *const k = (const real_t *)t->k + kv * a->key_dim, *v = (const real_t *)t->v + kv * a->value_dim;
        real_t *const out = (real_t *)t->out + i * a->o_width + h * a->value_dim;
        real_t lanes[LANES] = {0}, sum = 0, max = -REAL_MAX;

        for (size_t j = first; j <= i; j++) {
            p[j] = (real_t)a->n.scale * dot(q, k + j * a->k_width, a->head_dim);
            max = p[j] > max ? p[j] : max;
        }
        memset(out, 0, a->value_dim * sizeof(*out));
        for (size_t j = first; j <= i; j++) {
            p[j] = cpu_exp(p[j] - max);
            lanes[j % LANES] += p[j];
            add(out, p[j], v + j * a->v_width, a->value_dim);
        }
        for (size_t l = 0; l < LANES; l++)
            sum += lanes[l];
        for (size_t d = 0; d < a->value_dim; d++)
            out[d] *= 1 / sum;
        ((real_t *)t->row_max)[row] = max;
        ((real_t *)t->inv_sum)[row] = 1 / sum;
    }
    return a->host->aborted(a->host);
}

/* dk and dv get what query head h adds; its queries become their gradients. */
static void backward_head(const dp_attention_t *a, const attn_tensors_t *t, size_t h, real_t *dk, real_t *dv)
{
    const real_t scale = (real_t)a->n.scale;

    for (size_t i = 0; i < t->tokens; i++) {
        real_t *const q = (real_t *)t->q + i * a->q_width + h * a->head_dim, *const dq = t->scratch;
        const real_t *const dout = (const real_t *)t->dout + i * a->o_width + h * a->value_dim;
        const size_t row = i * a->heads + h, kv = h / a->group;

        memset(dq, 0, a->head_dim * sizeof(*dq));
        for (size_t j = first_seen(a, i); j <= i; j++) {
            const real_t *const k = (const real_t *)t->k + j * a->k_width + kv * a->key_dim;
            const real_t *const v = (const real_t *)t->v + j * a->v_width + kv * a->value_dim;
            const real_t p = cpu_exp(scale * dot(q, k, a->head_dim) - ((const real_t *)t->row_max)[row]) *
                             ((const real_t *)t->inv_sum)[row];
            const real_t ds = p * (dot(dout, v, a->value_dim) - ((const real_t *)t->delta)[row]);

            add(dv + j * a->value_dim, p, dout, a->value_dim);
            add(dk + j * a->key_dim, ds, q, a->head_dim);
            add(dq, ds, k, a->head_dim);
        }
        for (size_t d = 0; d < a->head_dim; d++)
            q[d] = scale * dq[d];
    }
}

dp_status_t REAL(loops_backward)(const dp_attention_t *a, const attn_tensors_t *t)
{
    const size_t keys = t->tokens * a->key_dim, values = t->tokens * a->value_dim;
    real_t *const dk = (real_t *)t->scratch + a->head_dim, *const dv = dk + keys, *const own = dv + values;

    for (size_t kv = 0; kv < a->kv_heads; kv++) {
        memset(dk, 0, (keys + values) * sizeof(*dk));
        for (size_t h = kv * a->group; h < (kv + 1) * a->group; h++) {
            memset(own, 0, (keys + values) * sizeof(*own));
            backward_head(a, t, h, own, own + keys);
            for (size_t d = 0; d < keys; d++)
                dk[d] += (real_t)a->n.scale * own[d];
            add(dv, 1, own + keys, values);
        }
        for (size_t j = 0; j < t->tokens; j++) {
            memcpy((real_t *)t->k + j * a->k_width + kv * a->key_dim, dk + j * a->key_dim, a->key_dim * sizeof(*dk));
            memcpy((real_t *)t->v + j * a->v_width + kv * a->value_dim, dv + j * a->value_dim,
                   a->value_dim * sizeof(*dv));
        }
    }
    return a->host->aborted(a->host);
}

/* ---- the plugin ---- */

#if REAL_BITS == 64
dp_status_t loops_forward_f32(const dp_attention_t *a, const attn_tensors_t *t);
dp_status_t loops_backward_f32(const dp_attention_t *a, const attn_tensors_t *t);

static dp_status_t open_loops(dp_attention_t *a, const char *settings)
{
    size_t *const window = a->core = a->host->allocate(a->host, sizeof(*window), ATTN_ALIGN_BYTES);
    int end = 0;

    if (window == NULL)
        return DP_FAIL(a->host, DP_ERR_NOMEM, "attention_loops: no memory for an instance");
    *window = 0; /* all tokens before */
    if (*settings != '\0' &&
        (sscanf(settings, "window=%zu%n", window, &end) != 1 || settings[end] != '\0' || *window == 0))
        return DP_FAIL(a->host, DP_ERR_INVALID, "attention_loops: settings are \"%s\": say window=N, N 1 or more",
                       settings);
    a->core_scratch_bytes = (a->head_dim + a->sequence * (1 + 2 * (a->key_dim + a->value_dim))) * a->element_bytes;
    return DP_OK;
}

static const attn_core_t core = {
    .plugin = "attention_loops",
    .takes = ATTN_TAKES_DOCUMENTS | ATTN_TAKES_APART | ATTN_TAKES_SETTINGS,
    .open = open_loops,
    .forward = {[DP_F32] = loops_forward_f32, [DP_F64] = loops_forward_f64},
    .backward = {[DP_F32] = loops_backward_f32, [DP_F64] = loops_backward_f64},
};

ATTN_BLOCK_PLUGIN(attention_loops, core, DP_ATTENTION_CAP_OWN_FORMULA, "1",
                  "causal attention by plain loops, with a window");
#endif
