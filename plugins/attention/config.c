/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * config.c: configurations of attention, the sizes that follow, the list of parameters. */
#include "attention.h"

#include <limits.h>
#include <math.h>

#include "plugins/common/check.h"
#include "plugins/common/do.h"

static dp_status_t check_dtype(const dp_host_t *host, const char *plugin, unsigned takes, dp_dtype_t dtype)
{
    const bool bf16 = (takes & ATTN_TAKES_BF16) != 0;

    if (dtype == DP_F32 || dtype == DP_F64 || (bf16 && dtype == DP_BF16))
        return DP_OK;
    return DP_FAIL(host, DP_ERR_UNSUPPORTED, "%s: shape.dtype is %d (%s): use %s", plugin, (int)dtype,
                   dtype == DP_BF16 ? "DP_BF16" : "not a real type",
                   bf16 ? "DP_F32, DP_F64 or DP_BF16" : "DP_F32 or DP_F64");
}

static dp_status_t check_counts(const dp_host_t *host, const char *plugin, const dp_attention_config_t *c)
{
    const struct {
        const char *field;
        uint32_t value;
    } positive[] = {
        {"shape.batch", c->shape->batch},   {"shape.sequence", c->shape->sequence},
        {"shape.hidden", c->shape->hidden}, {"heads", c->heads},
        {"head_dim", c->head_dim},          {"kv_heads", c->kv_rank > 0 ? 1 : c->kv_heads},
    };

    for (size_t i = 0; i < sizeof(positive) / sizeof(positive[0]); i++) {
        if (positive[i].value == 0)
            return DP_FAIL(host, DP_ERR_INVALID, "%s: %s is 0, it must be at least 1", plugin, positive[i].field);
        if (positive[i].value > INT_MAX)
            return DP_FAIL(host, DP_ERR_INVALID, "%s: %s is %u, more than %d", plugin, positive[i].field,
                           positive[i].value, INT_MAX);
    }
    if (c->value_dim > INT_MAX)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: value_dim is %u, more than %d", plugin, c->value_dim, INT_MAX);
    if (c->head_dim % 2 != 0)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: head_dim is %u, it must be even: RoPE rotates pairs", plugin,
                       c->head_dim);
    if (c->kv_rank == 0 && c->heads % c->kv_heads != 0)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: heads is %u, not a multiple of kv_heads = %u", plugin, c->heads,
                       c->kv_heads);
    return DP_OK;
}

/* Latent attention, and what belongs to it alone. */
static dp_status_t check_latent(const dp_host_t *host, const char *plugin, unsigned takes,
                                const dp_attention_config_t *c)
{
    if (c->kv_rank == 0 && c->q_rank == 0 && c->rope_dim == 0)
        return DP_OK;
    if (c->kv_rank == 0)
        return DP_FAIL(host, DP_ERR_INVALID,
                       "%s: kv_rank is 0 with q_rank = %u and rope_dim = %u: these are of latent attention, which "
                       "kv_rank > 0 asks for",
                       plugin, c->q_rank, c->rope_dim);
    if ((takes & ATTN_TAKES_LATENT) == 0)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       "%s: kv_rank is %u, and it has no multi-head latent attention: use a "
                       "plugin that has, attention_cpu say, or leave q_rank, kv_rank and rope_dim 0",
                       plugin, c->kv_rank);
    if (c->q_rank > INT_MAX || c->kv_rank > INT_MAX)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: %s is %u, more than %d", plugin,
                       c->q_rank > INT_MAX ? "q_rank" : "kv_rank", c->q_rank > INT_MAX ? c->q_rank : c->kv_rank,
                       INT_MAX);
    if (c->kv_heads != 0)
        return DP_FAIL(host, DP_ERR_INVALID,
                       "%s: kv_heads is %u with kv_rank = %u: leave it 0, each head has its own keys and values",
                       plugin, c->kv_heads, c->kv_rank);
    if (c->rope_dim == 0 || c->rope_dim % 2 != 0 || c->rope_dim >= c->head_dim)
        return DP_FAIL(host, DP_ERR_INVALID,
                       "%s: rope_dim is %u, it must be even, at least 2 and less than head_dim = %u", plugin,
                       c->rope_dim, c->head_dim);
    return DP_OK;
}

/* Keys and values that are kept from step to step. */
static dp_status_t check_cache(const dp_host_t *host, const char *plugin, unsigned takes,
                               const dp_attention_config_t *c)
{
    const unsigned long long slots = c->cache_slots, tokens = c->cache_tokens;

    if (slots == 0 && tokens == 0)
        return DP_OK;
    if ((takes & ATTN_TAKES_CACHE) == 0)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       "%s: cache_slots is %llu, and it keeps no keys and values from step to step: give 0, or use a "
                       "plugin that does, attention_cpu say",
                       plugin, slots);
    if (slots == 0 || tokens == 0 || c->documents == 0)
        return DP_FAIL(host, DP_ERR_INVALID,
                       "%s: cache_slots is %llu, cache_tokens %llu and documents %u: a cache needs all three", plugin,
                       slots, tokens, c->documents);
    if (slots > INT_MAX || tokens > c->shape->sequence)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: %s is %llu, more than %s = %u", plugin,
                       slots > INT_MAX ? "cache_slots" : "cache_tokens", slots > INT_MAX ? slots : tokens,
                       slots > INT_MAX ? "INT_MAX" : "shape.sequence", slots > INT_MAX ? INT_MAX : c->shape->sequence);
    return DP_OK;
}

static dp_status_t check_reals(const dp_host_t *host, const char *plugin, const dp_attention_config_t *c)
{
    if (!isfinite(c->shape->norm_eps) || c->shape->norm_eps < 0)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: shape.norm_eps is %g, it must be 0 (default) or positive", plugin,
                       (double)c->shape->norm_eps);
    if (!isfinite(c->rope_theta) || c->rope_theta < 0)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: rope_theta is %g, it must be 0 (default) or positive", plugin,
                       (double)c->rope_theta);
    return DP_OK;
}

/* Refuses a count that BLAS, whose sizes are ints, may not take. */
static dp_status_t set_widths(const dp_host_t *host, const char *plugin, attn_dims_t *n)
{
    const struct {
        const char *what;
        uint32_t left, right, *out;
    } products[] = {
        {"shape.batch * shape.sequence", n->batch, n->sequence, &n->tokens},
        {"heads * head_dim", n->heads, n->head_dim, &n->q_width},
        {"kv_heads * head_dim", n->kv_heads, n->key_dim, &n->k_width},
        {"kv_heads * value_dim", n->kv_heads, n->value_dim, &n->v_width},
        {"heads * value_dim", n->heads, n->value_dim, &n->o_width},
    };

    for (size_t i = 0; i < sizeof(products) / sizeof(products[0]); i++) {
        const uint64_t value = (uint64_t)products[i].left * products[i].right;

        if (value > INT_MAX)
            return DP_FAIL(host, DP_ERR_INVALID, "%s: %s = %u * %u is more than %d: use smaller sizes", plugin,
                           products[i].what, products[i].left, products[i].right, INT_MAX);
        *products[i].out = (uint32_t)value;
    }
    if ((uint64_t)n->kv_rank + n->rope_dim > INT_MAX)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: kv_rank + rope_dim = %u + %u is more than %d: use smaller sizes",
                       plugin, n->kv_rank, n->rope_dim, INT_MAX);
    n->down_width = n->kv_rank + n->rope_dim;
    return DP_OK;
}

/* The next tensor: a matrix, or of 0 rows the gain of a norm. False: too large to address. */
static bool add_param(attn_dims_t *n, const char *name, uint32_t rows, uint32_t columns, size_t *offset_out)
{
    dp_param_t *p = &n->params.list[n->params.number++];
    bool overflow;

    *p = rows > 0 ? (dp_param_t){.kind = DP_PARAM_MATRIX, .fan_in = rows}
                  : (dp_param_t){.kind = DP_PARAM_VECTOR, .fan_in = columns, .start = 1};
    p->name = name;
    p->offset = *offset_out = n->params.count;
    overflow = __builtin_mul_overflow(rows > 0 ? (size_t)rows : 1, columns, &p->count);
    overflow |= __builtin_add_overflow(n->params.count, p->count, &n->params.count);
    return !overflow;
}

static bool lay_out_params(attn_dims_t *n)
{
    const bool latent = n->kv_rank > 0;
    const uint32_t d = n->hidden, q_from = n->q_rank > 0 ? n->q_rank : d, kv_from = latent ? n->kv_rank : d;
    bool fits = add_param(n, "norm", 0, d, &n->params.norm);
    size_t bytes;

    if (n->q_rank > 0) {
        fits &= add_param(n, "wq_down", d, n->q_rank, &n->params.q_down);
        fits &= add_param(n, "q_norm", 0, n->q_rank, &n->params.q_norm);
    }
    fits &= add_param(n, n->q_rank > 0 ? "wq_up" : "wq", q_from, n->q_width, &n->params.wq);
    if (latent) {
        fits &= add_param(n, "wkv_down", d, n->down_width, &n->params.kv_down);
        fits &= add_param(n, "kv_norm", 0, n->kv_rank, &n->params.kv_norm);
    }
    fits &= add_param(n, latent ? "wk_up" : "wk", kv_from, n->k_width, &n->params.wk);
    fits &= add_param(n, latent ? "wv_up" : "wv", kv_from, n->v_width, &n->params.wv);
    fits &= add_param(n, "wo", n->o_width, d, &n->params.wo);
    return fits && !__builtin_mul_overflow(n->params.count, sizeof(double), &bytes) && bytes <= PTRDIFF_MAX;
}

dp_status_t attn_too_large(const dp_host_t *host, const char *plugin, const attn_dims_t *n)
{
    return DP_FAIL(host, DP_ERR_INVALID,
                   "%s: batch %u, sequence %u, hidden %u, heads %u, head_dim %u, value_dim %u, q_rank %u, kv_rank %u "
                   "need more bytes than an address space has: use smaller sizes",
                   plugin, n->batch, n->sequence, n->hidden, n->heads, n->head_dim, n->value_dim, n->q_rank,
                   n->kv_rank);
}

dp_status_t attn_dims_init(const dp_host_t *host, const char *plugin, unsigned takes,
                           const dp_attention_config_t *config, attn_dims_t *n)
{
    dp_status_t status;
    dp_attention_config_t taken;
    const dp_attention_config_t *c = &taken;
    bool latent;

    status = DP_TAKE(host, plugin, dp_attention_config_t, DP_ATTENTION_CONFIG_MIN, &taken, config);
    if (status >= 0)
        status = DP_TAKE(host, plugin, dp_block_shape_t, DP_BLOCK_SHAPE_MIN, NULL, taken.shape);
    if (status < 0)
        return status;
    latent = c->kv_rank > 0;
    status = check_dtype(host, plugin, takes, c->shape->dtype);
    if (status >= 0 && (c->apart > 1 || (c->apart != 0 && (takes & ATTN_TAKES_APART) == 0)))
        status = DP_FAIL(host, c->apart > 1 ? DP_ERR_INVALID : DP_ERR_UNSUPPORTED, "%s: apart is %u: %s", plugin,
                         c->apart, c->apart > 1 ? "must be 0 or 1" : "its calls have no halves: give 0");
    if (status >= 0 && *attn_settings(c) != '\0' && (takes & ATTN_TAKES_SETTINGS) == 0)
        status = DP_FAIL(host, DP_ERR_INVALID, "%s: settings are \"%s\", and it has none: leave them out", plugin,
                         c->settings);
    if (status >= 0 && c->documents != 0 && (takes & ATTN_TAKES_DOCUMENTS) == 0)
        status = DP_FAIL(host, DP_ERR_UNSUPPORTED,
                         "%s does not keep packed documents apart: use attention_cpu or attention_cuda", plugin);
    if (status >= 0)
        status = check_counts(host, plugin, c);
    if (status >= 0)
        status = check_latent(host, plugin, takes, c);
    if (status >= 0)
        status = check_cache(host, plugin, takes, c);
    if (status >= 0)
        status = check_reals(host, plugin, c);
    if (status < 0)
        return status;
    *n = (attn_dims_t){
        .dtype = c->shape->dtype,
        .batch = c->shape->batch,
        .sequence = c->shape->sequence,
        .hidden = c->shape->hidden,
        .heads = c->heads,
        .kv_heads = latent ? c->heads : c->kv_heads,
        .group = latent ? 1 : c->heads / c->kv_heads,
        .head_dim = c->head_dim,
        .value_dim = c->value_dim != 0 ? c->value_dim : c->head_dim - c->rope_dim,
        .rope_dim = latent ? c->rope_dim : c->head_dim,
        .key_dim = c->head_dim - c->rope_dim,
        .q_rank = c->q_rank,
        .kv_rank = c->kv_rank,
        .cache_slots = (uint32_t)c->cache_slots,
        .cache_tokens = (uint32_t)c->cache_tokens,
        .norm_eps = c->shape->norm_eps != 0 ? (double)c->shape->norm_eps : 1e-6,
        .rope_theta = c->rope_theta != 0 ? (double)c->rope_theta : 10000.0,
        .scale = 1.0 / sqrt((double)c->head_dim),
    };
    DO(set_widths(host, plugin, n));
    return lay_out_params(n) ? DP_OK : attn_too_large(host, plugin, n);
}

void attn_list_params(const attn_dims_t *n, dp_param_t *out)
{
    memcpy(out, n->params.list, n->params.number * sizeof(*out));
}
