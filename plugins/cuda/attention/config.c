/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * config.c: what the attention block of the CUDA plugins accepts, and the sizes that follow from it. */
#include "attention.h"

#include <limits.h>
#include <math.h>

static dp_status_t check_structs(const dp_host_t *host, const char *plugin, const dp_attention_config_t *c)
{
    if (c->struct_size < sizeof(*c))
        return DP_FAIL(host, DP_ERR_INVALID, "%s: config.struct_size is %u, this plugin needs %zu", plugin,
                       c->struct_size, sizeof(*c));
    if (c->shape.struct_size < sizeof(c->shape))
        return DP_FAIL(host, DP_ERR_INVALID, "%s: config.shape.struct_size is %u, this plugin needs %zu",
                       plugin, c->shape.struct_size, sizeof(c->shape));
    if (c->shape.dtype != DP_F32 && c->shape.dtype != DP_F64 && c->shape.dtype != DP_BF16)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "%s: shape.dtype is %d: use DP_F32, DP_F64 or DP_BF16",
                       plugin, (int)c->shape.dtype);
    return DP_OK;
}

static dp_status_t check_counts(const dp_host_t *host, const char *plugin, const dp_attention_config_t *c)
{
    const struct {
        const char *field;
        uint32_t value;
    } positive[] = {
        {"shape.batch", c->shape.batch},   {"shape.sequence", c->shape.sequence},
        {"shape.hidden", c->shape.hidden}, {"heads", c->heads},
        {"kv_heads", c->kv_heads},         {"head_dim", c->head_dim},
    };

    for (size_t i = 0; i < sizeof(positive) / sizeof(positive[0]); i++) {
        if (positive[i].value == 0)
            return DP_FAIL(host, DP_ERR_INVALID, "%s: %s is 0, it must be at least 1", plugin,
                           positive[i].field);
        if (positive[i].value > INT_MAX)
            return DP_FAIL(host, DP_ERR_INVALID, "%s: %s is %u, more than %d", plugin, positive[i].field,
                           positive[i].value, INT_MAX);
    }
    if (c->value_dim > INT_MAX)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: value_dim is %u, more than %d", plugin, c->value_dim,
                       INT_MAX);
    if (c->head_dim % 2 != 0)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: head_dim is %u, it must be even: RoPE rotates pairs",
                       plugin, c->head_dim);
    if (c->heads % c->kv_heads != 0)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: heads is %u, not a multiple of kv_heads = %u", plugin,
                       c->heads, c->kv_heads);
    return DP_OK;
}

static dp_status_t check_reals(const dp_host_t *host, const char *plugin, const dp_attention_config_t *c)
{
    if (!isfinite(c->shape.norm_eps) || c->shape.norm_eps < 0)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: shape.norm_eps is %g, it must be 0 (default) or positive",
                       plugin, (double)c->shape.norm_eps);
    if (!isfinite(c->rope_theta) || c->rope_theta < 0)
        return DP_FAIL(host, DP_ERR_INVALID, "%s: rope_theta is %g, it must be 0 (default) or positive",
                       plugin, (double)c->rope_theta);
    return DP_OK;
}

/* Refuses a count that cuBLASLt, whose sizes are ints, may not take. */
static dp_status_t product(const dp_attention_t *a, const char *what, uint32_t left, uint32_t right,
                           uint32_t *out)
{
    const uint64_t value = (uint64_t)left * right;

    if (value > INT_MAX)
        return DP_FAIL(a->host, DP_ERR_INVALID, "%s: %s = %u * %u is more than %d: use smaller sizes",
                       a->vt->plugin, what, left, right, INT_MAX);
    *out = (uint32_t)value;
    return DP_OK;
}

static dp_status_t set_widths(dp_attention_t *a)
{
    const struct {
        const char *what;
        uint32_t left, right, *out;
    } products[] = {
        {"shape.batch * shape.sequence", a->batch, a->sequence, &a->tokens},
        {"heads * head_dim", a->heads, a->head_dim, &a->q_width},
        {"kv_heads * head_dim", a->kv_heads, a->head_dim, &a->k_width},
        {"kv_heads * value_dim", a->kv_heads, a->value_dim, &a->v_width},
        {"heads * value_dim", a->heads, a->value_dim, &a->o_width},
    };

    for (size_t i = 0; i < sizeof(products) / sizeof(products[0]); i++) {
        dp_status_t st = product(a, products[i].what, products[i].left, products[i].right, products[i].out);

        if (st < 0)
            return st;
    }
    return DP_OK;
}

static bool lay_out_params(dp_attention_t *a)
{
    const struct {
        size_t rows, columns, *offset;
    } tensors[] = {
        {1, a->hidden, &a->params.norm},        {a->hidden, a->q_width, &a->params.wq},
        {a->hidden, a->k_width, &a->params.wk}, {a->hidden, a->v_width, &a->params.wv},
        {a->o_width, a->hidden, &a->params.wo},
    };
    size_t end = 0, count, bytes;
    bool overflow = false;

    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++) {
        *tensors[i].offset = end;
        overflow |= __builtin_mul_overflow(tensors[i].rows, tensors[i].columns, &count);
        overflow |= __builtin_add_overflow(end, count, &end);
    }
    a->params.count = end;
    overflow |= __builtin_mul_overflow(end, sizeof(double), &bytes);
    return !overflow && bytes <= PTRDIFF_MAX;
}

dp_status_t dp_attention_configure(dp_attention_t *a, const dp_attention_config_t *c)
{
    dp_status_t st = check_structs(a->host, a->vt->plugin, c);

    if (st >= 0)
        st = check_counts(a->host, a->vt->plugin, c);
    if (st >= 0)
        st = check_reals(a->host, a->vt->plugin, c);
    if (st < 0)
        return st;
    a->dtype = c->shape.dtype;
    a->sums = a->dtype == DP_F64 ? DP_F64 : DP_F32;
    a->bytes = dp_dtype_bytes(a->dtype);
    a->sum_bytes = dp_dtype_bytes(a->sums);
    a->batch = c->shape.batch;
    a->sequence = c->shape.sequence;
    a->hidden = c->shape.hidden;
    a->heads = c->heads;
    a->kv_heads = c->kv_heads;
    a->group = c->heads / c->kv_heads;
    a->head_dim = c->head_dim;
    a->value_dim = c->value_dim != 0 ? c->value_dim : c->head_dim;
    a->norm_eps = c->shape.norm_eps != 0 ? (double)c->shape.norm_eps : 1e-6;
    a->rope_theta = c->rope_theta != 0 ? (double)c->rope_theta : 10000.0;
    a->scale = 1.0 / sqrt((double)a->head_dim);
    a->deterministic = c->deterministic != 0;
    st = set_widths(a);
    if (st < 0)
        return st;
    if (!lay_out_params(a))
        return DP_FAIL(
            a->host, DP_ERR_INVALID,
            "%s: parameters of hidden %u, heads %u, head_dim %u, value_dim %u need more bytes than an "
            "address space has: use smaller sizes",
            a->vt->plugin, a->hidden, a->heads, a->head_dim, a->value_dim);
    return DP_OK;
}

size_t dp_attention_append(dp_attention_layout_t *l, size_t rows, size_t columns, size_t element_bytes)
{
    const size_t at = l->end;
    size_t bytes;

    l->overflow |= __builtin_mul_overflow(rows, columns, &bytes);
    l->overflow |= __builtin_mul_overflow(bytes, element_bytes, &bytes);
    l->overflow |= __builtin_add_overflow(bytes, at + DP_ATTENTION_ALIGN - 1, &l->end);
    l->end -= l->end % DP_ATTENTION_ALIGN;
    l->overflow |= l->end > PTRDIFF_MAX;
    return at;
}
