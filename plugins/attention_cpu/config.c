/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * config.c: checks a configuration and lays out parameters, saved and scratch memory. */
#include "internal.h"

#include <limits.h>
#include <math.h>
#include <stdbool.h>

/* Refuses a width or count that BLAS, whose sizes are ints, cannot be given. */
static dp_status_t product(const dp_host_t *host, const char *what, size_t a, size_t b, size_t *out)
{
    if (__builtin_mul_overflow(a, b, out) || *out > INT_MAX)
        return DP_FAIL(host, DP_ERR_INVALID,
                       "attention_cpu: %s = %zu * %zu is more than %d: use smaller sizes", what, a, b,
                       INT_MAX);
    return DP_OK;
}

static dp_status_t check_positive(const dp_host_t *host, const char *field, uint32_t value)
{
    if (value == 0)
        return DP_FAIL(host, DP_ERR_INVALID, "attention_cpu: %s is 0, it must be at least 1", field);
    if (value > INT_MAX)
        return DP_FAIL(host, DP_ERR_INVALID, "attention_cpu: %s is %u, more than %d", field, value, INT_MAX);
    return DP_OK;
}

static dp_status_t check_device(const dp_host_t *host, const dp_attention_config_t *c)
{
    if (c->device_vt == NULL || c->device == NULL)
        return DP_FAIL(host, DP_ERR_INVALID, "attention_cpu: %s is NULL, it needs an open device",
                       c->device_vt == NULL ? "device_vt" : "device");
    if (!DP_HAS(c->device_vt, dp_device_vt_t, launch))
        return DP_FAIL(
            host, DP_ERR_UNSUPPORTED,
            "attention_cpu: device_vt has no launch(): use a device whose streams run host functions, "
            "device_cpu say");
    if ((c->device_vt->caps & DP_DEVICE_CAP_HOST_MEMORY) == 0)
        return DP_FAIL(
            host, DP_ERR_UNSUPPORTED,
            "attention_cpu: device_vt.caps is 0x%x without DP_DEVICE_CAP_HOST_MEMORY: the host cannot read "
            "this device's memory",
            c->device_vt->caps);
    return DP_OK;
}

static dp_status_t check_fields(const dp_host_t *host, const dp_attention_config_t *c)
{
    const struct {
        const char *field;
        uint32_t value;
    } positive[] = {
        {"shape.batch", c->shape.batch},   {"shape.sequence", c->shape.sequence},
        {"shape.hidden", c->shape.hidden}, {"heads", c->heads},
        {"kv_heads", c->kv_heads},         {"head_dim", c->head_dim},
    };
    if (c->struct_size < sizeof(*c))
        return DP_FAIL(host, DP_ERR_INVALID, "attention_cpu: config.struct_size is %u, this plugin needs %zu",
                       c->struct_size, sizeof(*c));
    if (c->shape.struct_size < sizeof(c->shape))
        return DP_FAIL(host, DP_ERR_INVALID,
                       "attention_cpu: config.shape.struct_size is %u, this plugin needs %zu",
                       c->shape.struct_size, sizeof(c->shape));
    if (c->shape.dtype != DP_F32 && c->shape.dtype != DP_F64)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       "attention_cpu: shape.dtype is %d (%s): only DP_F32 and DP_F64 are supported",
                       (int)c->shape.dtype, c->shape.dtype == DP_BF16 ? "DP_BF16" : "not a real type");
    for (size_t i = 0; i < sizeof(positive) / sizeof(positive[0]); i++) {
        dp_status_t st = check_positive(host, positive[i].field, positive[i].value);
        if (st < 0)
            return st;
    }
    if (c->value_dim > INT_MAX)
        return DP_FAIL(host, DP_ERR_INVALID, "attention_cpu: value_dim is %u, more than %d", c->value_dim,
                       INT_MAX);
    if (c->head_dim % 2 != 0)
        return DP_FAIL(host, DP_ERR_INVALID,
                       "attention_cpu: head_dim is %u, it must be even: RoPE rotates pairs", c->head_dim);
    if (c->heads % c->kv_heads != 0)
        return DP_FAIL(host, DP_ERR_INVALID, "attention_cpu: heads is %u, not a multiple of kv_heads = %u",
                       c->heads, c->kv_heads);
    if (!isfinite(c->shape.norm_eps) || c->shape.norm_eps < 0)
        return DP_FAIL(host, DP_ERR_INVALID,
                       "attention_cpu: shape.norm_eps is %g, it must be 0 (default) or positive",
                       (double)c->shape.norm_eps);
    if (!isfinite(c->rope_theta) || c->rope_theta < 0)
        return DP_FAIL(host, DP_ERR_INVALID,
                       "attention_cpu: rope_theta is %g, it must be 0 (default) or positive",
                       (double)c->rope_theta);
    return check_device(host, c);
}

static dp_status_t set_widths(dp_attention_t *a)
{
    const struct {
        const char *what;
        size_t left, right, *out;
    } products[] = {
        {"shape.batch * shape.sequence", a->batch, a->sequence, &a->tokens},
        {"heads * head_dim", a->heads, a->head_dim, &a->q_width},
        {"kv_heads * head_dim", a->kv_heads, a->head_dim, &a->k_width},
        {"kv_heads * value_dim", a->kv_heads, a->value_dim, &a->v_width},
        {"heads * value_dim", a->heads, a->value_dim, &a->o_width},
    };
    for (size_t i = 0; i < sizeof(products) / sizeof(products[0]); i++) {
        dp_status_t st =
            product(a->host, products[i].what, products[i].left, products[i].right, products[i].out);
        if (st < 0)
            return st;
    }
    return DP_OK;
}

/* Appends an array of rows x columns elements to a region; offset and end in bytes. */
typedef struct layout {
    size_t element_bytes, end;
    bool overflow;
} layout_t;

static size_t append(layout_t *l, size_t rows, size_t columns)
{
    size_t at = l->end, bytes;

    l->overflow |= __builtin_mul_overflow(rows, columns, &bytes);
    l->overflow |= __builtin_mul_overflow(bytes, l->element_bytes, &bytes);
    l->overflow |= __builtin_add_overflow(bytes, at + ALIGN_BYTES - 1, &l->end);
    l->end -= l->end % ALIGN_BYTES;
    l->overflow |= l->end > PTRDIFF_MAX;
    return at;
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
    overflow |= __builtin_mul_overflow(end, a->element_bytes, &bytes);
    return !overflow && bytes <= PTRDIFF_MAX;
}

static bool lay_out_saved(dp_attention_t *a)
{
    attention_saved_t *s = &a->saved;
    layout_t l = {.element_bytes = a->element_bytes};

    s->normalized = append(&l, a->tokens, a->hidden);
    s->inv_rms = append(&l, a->tokens, 1);
    s->q = append(&l, a->tokens, a->q_width);
    s->k = append(&l, a->tokens, a->k_width);
    s->v = append(&l, a->tokens, a->v_width);
    s->row_max = append(&l, a->tokens, a->heads);
    s->inv_sum = append(&l, a->tokens, a->heads);
    s->heads_out = append(&l, a->tokens, a->o_width);
    s->dy = append(&l, a->tokens, a->hidden);
    s->dnorm = append(&l, 1, a->hidden);
    s->bytes = l.end;
    return !l.overflow;
}

/* `rows` shares its memory with what only the attention itself needs: it is live before or after, never
 * meanwhile. */
static bool lay_out_scratch(dp_attention_t *a)
{
    attention_scratch_t *s = &a->scratch;
    layout_t rows = {.element_bytes = a->element_bytes}, l = rows;

    s->rows = append(&rows, a->tokens, a->hidden);
    s->tile = append(&l, QUERY_BLOCK, KEY_BLOCK);
    s->dtile = append(&l, QUERY_BLOCK, KEY_BLOCK);
    s->dheads = append(&l, a->tokens, a->o_width);
    s->delta = append(&l, a->tokens, a->heads);
    s->dq = append(&l, a->sequence, a->group * a->head_dim);
    s->dk = append(&l, KEY_BLOCK, a->head_dim);
    s->dv = append(&l, KEY_BLOCK, a->value_dim);
    s->bytes = l.end > rows.end ? l.end : rows.end;
    return !l.overflow && !rows.overflow;
}

static bool lay_out_rope(dp_attention_t *a)
{
    layout_t l = {.element_bytes = a->element_bytes};

    append(&l, a->sequence, a->head_dim);
    a->rope_bytes = l.end;
    return !l.overflow;
}

dp_status_t attention_configure(dp_attention_t *a, const dp_attention_config_t *c)
{
    dp_status_t st = check_fields(a->host, c);
    if (st < 0)
        return st;

    a->device_vt = c->device_vt;
    a->passes = c->shape.dtype == DP_F32 ? &attention_passes_f32 : &attention_passes_f64;
    a->element_bytes = c->shape.dtype == DP_F32 ? sizeof(float) : sizeof(double);
    a->batch = c->shape.batch;
    a->sequence = c->shape.sequence;
    a->hidden = c->shape.hidden;
    a->heads = c->heads;
    a->kv_heads = c->kv_heads;
    a->group = a->heads / a->kv_heads;
    a->head_dim = c->head_dim;
    a->value_dim = c->value_dim != 0 ? c->value_dim : c->head_dim;
    a->norm_eps = c->shape.norm_eps != 0 ? (double)c->shape.norm_eps : 1e-6;
    a->rope_theta = c->rope_theta != 0 ? (double)c->rope_theta : 10000.0;
    a->softmax_scale = 1.0 / sqrt((double)a->head_dim);

    st = set_widths(a);
    if (st < 0)
        return st;
    if (!lay_out_params(a) || !lay_out_saved(a) || !lay_out_scratch(a) || !lay_out_rope(a))
        return DP_FAIL(
            a->host, DP_ERR_INVALID,
            "attention_cpu: batch %zu, sequence %zu, hidden %zu, heads %zu, head_dim %zu, value_dim %zu need "
            "more bytes than an address space has: use smaller sizes",
            a->batch, a->sequence, a->hidden, a->heads, a->head_dim, a->value_dim);
    return DP_OK;
}
