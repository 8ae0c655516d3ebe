/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * config.c: which configurations attention plugins take, the sizes that follow, and the list of parameters. */
#include "attention.h"

#include <limits.h>
#include <math.h>

#include "plugins/common/check.h"

static dp_status_t check_structs(const dp_host_t *host, const char *plugin, const dp_attention_config_t *c)
{
    dp_status_t status =
        check_size(host, plugin, "config", "dp_attention_config_t", c->struct_size, DP_ATTENTION_CONFIG_MIN);

    return status < 0 ? status : check_shape(host, plugin, c->shape);
}

static dp_status_t check_dtype(const dp_host_t *host, const char *plugin, bool bf16, dp_dtype_t dtype)
{
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
        {"kv_heads", c->kv_heads},          {"head_dim", c->head_dim},
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
    if (c->heads % c->kv_heads != 0)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: heads is %u, not a multiple of kv_heads = %u", plugin, c->heads,
                       c->kv_heads);
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
        {"kv_heads * head_dim", n->kv_heads, n->head_dim, &n->k_width},
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
    return DP_OK;
}

static bool lay_out_params(attn_dims_t *n)
{
    const struct {
        size_t rows, columns, *offset;
    } tensors[] = {
        {1, n->hidden, &n->params.norm},        {n->hidden, n->q_width, &n->params.wq},
        {n->hidden, n->k_width, &n->params.wk}, {n->hidden, n->v_width, &n->params.wv},
        {n->o_width, n->hidden, &n->params.wo},
    };
    size_t end = 0, count, bytes;
    bool overflow = false;

    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++) {
        *tensors[i].offset = end;
        overflow |= __builtin_mul_overflow(tensors[i].rows, tensors[i].columns, &count);
        overflow |= __builtin_add_overflow(end, count, &end);
    }
    n->params.count = end;
    overflow |= __builtin_mul_overflow(end, sizeof(double), &bytes);
    return !overflow && bytes <= PTRDIFF_MAX;
}

dp_status_t attn_too_large(const dp_host_t *host, const char *plugin, const attn_dims_t *n)
{
    return DP_FAIL(host, DP_ERR_INVALID,
                   "%s: batch %u, sequence %u, hidden %u, heads %u, head_dim %u, value_dim %u need more bytes than an "
                   "address space has: use smaller sizes",
                   plugin, n->batch, n->sequence, n->hidden, n->heads, n->head_dim, n->value_dim);
}

dp_status_t attn_dims_init(const dp_host_t *host, const char *plugin, bool bf16, const dp_attention_config_t *c,
                           attn_dims_t *n)
{
    dp_status_t status = check_structs(host, plugin, c);

    if (status >= 0)
        status = check_dtype(host, plugin, bf16, c->shape->dtype);
    if (status >= 0)
        status = check_counts(host, plugin, c);
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
        .kv_heads = c->kv_heads,
        .group = c->heads / c->kv_heads,
        .head_dim = c->head_dim,
        .value_dim = c->value_dim != 0 ? c->value_dim : c->head_dim,
        .norm_eps = c->shape->norm_eps != 0 ? (double)c->shape->norm_eps : 1e-6,
        .rope_theta = c->rope_theta != 0 ? (double)c->rope_theta : 10000.0,
        .scale = 1.0 / sqrt((double)c->head_dim),
    };
    status = set_widths(host, plugin, n);
    if (status < 0)
        return status;
    return lay_out_params(n) ? DP_OK : attn_too_large(host, plugin, n);
}

static dp_param_t matrix(const char *name, size_t offset, size_t end, uint32_t rows)
{
    return (dp_param_t){.name = name, .kind = DP_PARAM_MATRIX, .offset = offset, .count = end - offset, .fan_in = rows};
}

void attn_list_params(const attn_dims_t *n, dp_param_t *out)
{
    out[0] = (dp_param_t){.name = "norm",
                          .kind = DP_PARAM_VECTOR,
                          .offset = n->params.norm,
                          .count = n->hidden,
                          .fan_in = n->hidden,
                          .start = 1};
    out[1] = matrix("wq", n->params.wq, n->params.wk, n->hidden);
    out[2] = matrix("wk", n->params.wk, n->params.wv, n->hidden);
    out[3] = matrix("wv", n->params.wv, n->params.wo, n->hidden);
    out[4] = matrix("wo", n->params.wo, n->params.count, n->o_width);
}
