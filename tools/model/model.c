/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * model.c: counts parameters, matrix by matrix, as the published checkpoints have them. */
#include "model.h"

bool model_has_experts(const model_t *model, int64_t layer)
{
    return model->experts > 0 && layer >= model->dense_first && (layer + 1) % model->moe_every == 0;
}

static double matrix(int64_t rows, int64_t columns, bool bias)
{
    return (double)rows * (double)columns + (bias ? (double)columns : 0);
}

static double norm_parameters(const model_t *m, int64_t width)
{
    return (double)width * (m->norm_bias ? 2 : 1);
}

static double plain_attention(const model_t *m)
{
    const int64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;

    return matrix(m->hidden, q, m->qkv_bias) + 2 * matrix(m->hidden, kv, m->qkv_bias) +
           matrix(q, m->hidden, m->o_bias) + (m->qk_norm ? 2 * norm_parameters(m, m->head_dim) : 0) +
           (m->sinks ? (double)m->heads : 0);
}

static double latent_attention(const model_t *m)
{
    const int64_t q = m->heads * m->head_dim, kv = m->heads * (m->head_dim - m->rope_dim + m->value_dim);
    const double queries = m->q_rank > 0 ? matrix(m->hidden, m->q_rank, m->qkv_bias) + norm_parameters(m, m->q_rank) +
                                               matrix(m->q_rank, q, false)
                                         : matrix(m->hidden, q, false);

    return queries + matrix(m->hidden, m->kv_rank + m->rope_dim, m->qkv_bias) + norm_parameters(m, m->kv_rank) +
           matrix(m->kv_rank, kv, false) + matrix(m->heads * m->value_dim, m->hidden, m->o_bias);
}

static double mlp(const model_t *m, int64_t width, bool bias)
{
    return (m->gated ? 2 : 1) * matrix(m->hidden, width, bias) + matrix(width, m->hidden, bias);
}

model_layer_t model_layer(const model_t *m, int64_t layer)
{
    model_layer_t l = {.attention = 2 * norm_parameters(m, m->hidden) +
                                    (m->kv_rank > 0 ? latent_attention(m) : plain_attention(m))};

    if (!model_has_experts(m, layer)) {
        l.mlp = mlp(m, m->ffn, m->mlp_bias);
        return l;
    }
    l.mlp = matrix(m->hidden, m->experts, m->router_bias) + (m->shared_ffn > 0 ? mlp(m, m->shared_ffn, false) : 0) +
            (m->shared_gate ? (double)m->hidden : 0);
    l.experts = (double)m->experts * mlp(m, m->expert_ffn, m->expert_bias);
    return l;
}

double model_embedding(const model_t *m)
{
    return (double)(m->vocab + m->positions) * (double)m->hidden;
}

double model_head(const model_t *m)
{
    return (double)m->vocab * (double)m->hidden + norm_parameters(m, m->hidden);
}

static double ends_of(const model_t *m)
{
    return model_embedding(m) + model_head(m) - (m->tied ? (double)m->vocab * (double)m->hidden : 0);
}

double model_parameters(const model_t *m)
{
    double sum = ends_of(m);

    for (int64_t i = 0; i < m->layers; i++) {
        const model_layer_t l = model_layer(m, i);

        sum += l.attention + l.mlp + l.experts;
    }
    return sum;
}

double model_active(const model_t *m)
{
    double sum = ends_of(m);

    for (int64_t i = 0; i < m->layers; i++) {
        const model_layer_t l = model_layer(m, i);

        sum += l.attention + l.mlp + (m->experts > 0 ? l.experts * (double)m->top_k / (double)m->experts : 0);
    }
    return sum;
}
