/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * shape.c: counts parameters, matrix by matrix, as the published checkpoints have them. */
#include "shape.h"

#include "base/sized.h"

enum { MOST_LAYERS = 4096 };

bool dp__model_has_experts(const dp_model_t *model, int64_t layer)
{
    return model->experts > 0 && layer >= model->dense_first && (layer + 1) % model->moe_every == 0;
}

static double matrix(int64_t rows, int64_t columns, bool bias)
{
    return (double)rows * (double)columns + (bias ? (double)columns : 0);
}

static double norm_parameters(const dp_model_t *m, int64_t width)
{
    return (double)width * (m->norm_bias ? 2 : 1);
}

static double plain_attention(const dp_model_t *m)
{
    const int64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;

    return matrix(m->hidden, q, m->qkv_bias) + 2 * matrix(m->hidden, kv, m->qkv_bias) +
           matrix(q, m->hidden, m->o_bias) + (m->qk_norm ? 2 * norm_parameters(m, m->head_dim) : 0) +
           (m->sinks ? (double)m->heads : 0);
}

static double latent_attention(const dp_model_t *m)
{
    const int64_t q = m->heads * m->head_dim, kv = m->heads * (m->head_dim - m->rope_dim + m->value_dim);
    const double queries = m->q_rank > 0 ? matrix(m->hidden, m->q_rank, m->qkv_bias) + norm_parameters(m, m->q_rank) +
                                               matrix(m->q_rank, q, false)
                                         : matrix(m->hidden, q, false);

    return queries + matrix(m->hidden, m->kv_rank + m->rope_dim, m->qkv_bias) + norm_parameters(m, m->kv_rank) +
           matrix(m->kv_rank, kv, false) + matrix(m->heads * m->value_dim, m->hidden, m->o_bias);
}

static double mlp(const dp_model_t *m, int64_t width, bool bias)
{
    return (m->gated ? 2 : 1) * matrix(m->hidden, width, bias) + matrix(width, m->hidden, bias);
}

dp__model_layer_t dp__model_layer(const dp_model_t *m, int64_t layer)
{
    dp__model_layer_t l = {.attention = 2 * norm_parameters(m, m->hidden) +
                                        (m->kv_rank > 0 ? latent_attention(m) : plain_attention(m))};

    if (!dp__model_has_experts(m, layer)) {
        l.mlp = mlp(m, m->ffn, m->mlp_bias);
        return l;
    }
    l.mlp = matrix(m->hidden, m->experts, m->router_bias) + (m->shared_ffn > 0 ? mlp(m, m->shared_ffn, false) : 0) +
            (m->shared_gate ? (double)m->hidden : 0);
    l.experts = (double)m->experts * mlp(m, m->expert_ffn, m->expert_bias);
    return l;
}

double dp__model_embedding(const dp_model_t *m)
{
    return (double)(m->vocab + m->positions) * (double)m->hidden;
}

double dp__model_head(const dp_model_t *m)
{
    return (double)m->vocab * (double)m->hidden + norm_parameters(m, m->hidden);
}

static double ends_of(const dp_model_t *m)
{
    return dp__model_embedding(m) + dp__model_head(m) - (m->tied ? (double)m->vocab * (double)m->hidden : 0);
}

double dp__model_sum(const dp_model_t *m, bool active)
{
    const double met = active && m->experts > 0 ? (double)m->top_k / (double)m->experts : 1;
    double sum = ends_of(m);

    for (int64_t i = 0; i < m->layers; i++) {
        const dp__model_layer_t l = dp__model_layer(m, i);

        sum += l.attention + l.mlp + l.experts * met;
    }
    return sum;
}

/* From config.json or from a caller: nothing after this is too large, or divides by 0. */
dp_status_t dp__model_take(const char *what, const dp_model_t *from, dp_model_t *m)
{
    const int64_t *const sizes[] = {&m->hidden,     &m->layers,      &m->vocab,     &m->positions,  &m->heads,
                                    &m->kv_heads,   &m->head_dim,    &m->q_rank,    &m->kv_rank,    &m->rope_dim,
                                    &m->value_dim,  &m->ffn,         &m->experts,   &m->top_k,      &m->expert_ffn,
                                    &m->shared_ffn, &m->dense_first, &m->moe_every, &m->node_limit, &m->sequence};
    const int64_t most = 1 << 30;
    dp_status_t status = dp__take(what, dp_model_t, DP_MODEL_MIN, m, from);
    bool sound = status == DP_OK;

    if (status != DP_OK)
        return status;
    m->moe_every = m->moe_every == 0 ? 1 : m->moe_every;
    m->value_dim = m->value_dim == 0 ? m->head_dim : m->value_dim;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        sound = sound && *sizes[i] >= 0 && *sizes[i] <= most;
    sound = sound && m->hidden > 0 && m->vocab > 0 && m->heads > 0 && m->kv_heads > 0 && m->head_dim > 0 && m->ffn > 0;
    sound = sound && (m->experts == 0 || (m->top_k > 0 && m->expert_ffn > 0)) && m->rope_dim <= m->head_dim;
    if (!sound || m->layers < 1 || m->layers > MOST_LAYERS)
        return dp_fail(
            DP_ERR_INVALID,
            "%s: layers (1 to %d), hidden, vocab, heads, kv_heads, head_dim and ffn are required, with experts "
            "top_k and expert_ffn; none is negative or above %lld",
            what, MOST_LAYERS, (long long)most);
    if (m->top_k > m->experts || m->dense_first > m->layers)
        return dp_fail(DP_ERR_INVALID, "%s: a token meets more experts, or more layers are dense, than there are",
                       what);
    return DP_OK;
}

dp_status_t dp_model_parameters(const dp_model_t *model, double *all_out, double *active_out)
{
    dp_model_t m;
    dp_status_t status = dp__model_take("dp_model_parameters: model", model, &m);

    if (status == DP_OK && all_out != NULL)
        *all_out = dp__model_sum(&m, false);
    if (status == DP_OK && active_out != NULL)
        *active_out = dp__model_sum(&m, true);
    return status;
}
