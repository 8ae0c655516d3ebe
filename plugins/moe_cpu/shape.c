/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * shape.c: checks a configuration and lays out parameters, saved, work and scratch memory. */
#include "moe_cpu.h"

#include <math.h>
#include <stdbool.h>

enum { MOST_EXPERTS = 1 << 20 };

/* a * b as a count that kernels and BLAS can index with 32 bits. */
static bool product(int64_t a, int64_t b, int32_t *out)
{
    int64_t p;

    if (__builtin_mul_overflow(a, b, &p) || p > INT32_MAX)
        return false;
    *out = (int32_t)p;
    return true;
}

static dp_status_t check_spread(const dp_host_t *host, const dp_moe_config_t *c)
{
    const uint32_t ranks = (uint32_t)c->comm_size, replicas = c->replicas;

    if (replicas == 0 && c->experts % ranks != 0)
        return DP_FAIL(host, DP_ERR_INVALID,
                       "moe_cpu: %u experts cannot be spread evenly over an expert group of %u ranks",
                       c->experts, ranks);
    if (replicas != 0 && (replicas < c->experts || replicas > MOST_EXPERTS || replicas % ranks != 0))
        return DP_FAIL(
            host, DP_ERR_INVALID,
            "moe_cpu: %u replicas of %u experts on an expert group of %u ranks: must be at least one "
            "for each expert, at most %d, and as many on every rank",
            replicas, c->experts, ranks, MOST_EXPERTS);
    return DP_OK;
}

static dp_status_t check_config(const dp_host_t *host, const dp_moe_config_t *c)
{
    const dp_block_shape_t *s = &c->shape;

    if (c->struct_size < sizeof(*c))
        return DP_FAIL(host, DP_ERR_INVALID, "moe_cpu: the configuration has %u bytes, this plugin needs %zu",
                       c->struct_size, sizeof(*c));
    if (s->dtype != DP_F32 && s->dtype != DP_F64)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "moe_cpu computes in DP_F32 and DP_F64, not in dtype %d",
                       (int)s->dtype);
    if (s->batch == 0 || s->sequence == 0 || s->hidden == 0)
        return DP_FAIL(host, DP_ERR_INVALID,
                       "moe_cpu: batch %u, sequence %u, hidden %u: each must be at least 1", s->batch,
                       s->sequence, s->hidden);
    if (c->experts == 0 || c->experts > MOST_EXPERTS || c->expert_hidden == 0)
        return DP_FAIL(host, DP_ERR_INVALID,
                       "moe_cpu: %u experts of width %u: must be 1 to %d, and at least 1", c->experts,
                       c->expert_hidden, MOST_EXPERTS);
    if (c->top_k == 0 || c->top_k > c->experts)
        return DP_FAIL(host, DP_ERR_INVALID, "moe_cpu: top_k %u: must be 1 to the number of experts, %u",
                       c->top_k, c->experts);
    if (c->gate != DP_GATE_SOFTMAX && c->gate != DP_GATE_SIGMOID)
        return DP_FAIL(host, DP_ERR_INVALID, "moe_cpu: gate %d is neither softmax (0) nor sigmoid (1)",
                       (int)c->gate);
    if (c->normalize > 1)
        return DP_FAIL(host, DP_ERR_INVALID, "moe_cpu: normalize %u: must be 0 or 1", c->normalize);
    if (!isfinite(c->scale) || c->scale < 0 || !isfinite(c->aux_alpha) || c->aux_alpha < 0 ||
        !isfinite(s->norm_eps) || s->norm_eps < 0)
        return DP_FAIL(host, DP_ERR_INVALID,
                       "moe_cpu: scale %g, aux_alpha %g, norm_eps %g: none may be negative or infinite",
                       (double)c->scale, (double)c->aux_alpha, (double)s->norm_eps);
    if (c->comm_size < 1 || c->comm_rank < 0 || c->comm_rank >= c->comm_size)
        return DP_FAIL(host, DP_ERR_INVALID, "moe_cpu: rank %d of an expert group of %d", c->comm_rank,
                       c->comm_size);
    return check_spread(host, c);
}

dp_status_t moe_shape_init(const dp_host_t *host, const dp_moe_config_t *c, moe_shape_t *n)
{
    const size_t element = dp_dtype_bytes(c->shape.dtype);
    int32_t hidden, scores, sent, width;
    uint32_t per_rank;
    dp_status_t status = check_config(host, c);

    if (status < 0)
        return status;
    n->replicated = c->replicas != 0;
    n->replicas = (int32_t)(n->replicated ? c->replicas : c->experts);
    per_rank = (uint32_t)(n->replicas / c->comm_size);
    /* Every index of a kernel and every dimension given to BLAS is checked here, none later. */
    if (!product(c->shape.batch, c->shape.sequence, &n->tokens) || !product(c->shape.hidden, 1, &n->hidden) ||
        n->hidden > INT32_MAX / 8 || !product(c->experts, 1, &n->experts) ||
        !product(c->expert_hidden, 1, &n->ffn) || !product(c->shared_experts, c->expert_hidden, &n->shared) ||
        !product(n->tokens, n->experts, &scores) || !product(n->tokens, c->top_k, &sent) ||
        !product(n->tokens, n->hidden, &hidden) ||
        !product(n->tokens, c->top_k < per_rank ? c->top_k : per_rank, &n->pair_rows) ||
        !product(n->pair_rows, c->comm_size, &n->rows) || !product(n->hidden, n->ffn, &width) ||
        !product(n->hidden, n->shared, &width))
        return DP_FAIL(
            host, DP_ERR_OVERFLOW,
            "moe_cpu: batch %u x sequence %u, hidden %u, %u experts of width %u, top_k %u, %d ranks: "
            "more rows or elements than 32 bits can count; use smaller micro-batches",
            c->shape.batch, c->shape.sequence, c->shape.hidden, c->experts, c->expert_hidden, c->top_k,
            c->comm_size);
    n->top_k = (int32_t)c->top_k;
    n->rank = c->comm_rank;
    n->ranks = c->comm_size;
    n->local = (int32_t)per_rank;
    n->row_bytes = sizeof(moe_head_t) + ((size_t)n->hidden * element + 15) / 16 * 16;
    n->stride = (int32_t)(n->row_bytes / element);
    n->dtype = c->shape.dtype;
    n->gate = c->gate;
    n->normalize = (int32_t)c->normalize;
    n->scale = c->scale > 0 ? c->scale : 1;
    n->aux_alpha = c->aux_alpha;
    n->norm_eps = c->shape.norm_eps > 0 ? c->shape.norm_eps : 1e-6;
    return DP_OK;
}

/* The next place in a block of memory; sticky once it no longer fits. */
typedef struct cursor {
    size_t bytes;
    bool overflow;
} cursor_t;

static size_t take(cursor_t *c, int64_t rows, int64_t columns, size_t element)
{
    size_t at = c->bytes, need;

    if (__builtin_mul_overflow((size_t)rows, (size_t)columns, &need) ||
        __builtin_mul_overflow(need, element, &need) || __builtin_add_overflow(need, 63, &need) ||
        __builtin_add_overflow(at, need / 64 * 64, &c->bytes))
        c->overflow = true;
    return at;
}

static void layout_params(const moe_shape_t *n, moe_layout_t *l)
{
    const size_t d = (size_t)n->hidden, f = (size_t)n->ffn, shared = (size_t)n->shared,
                 experts = (size_t)n->experts;

    l->norm = 0;
    l->router = d;
    l->bias = l->router + d * experts;
    l->shared_gate = l->bias + experts;
    l->shared_up = l->shared_gate + d * shared;
    l->shared_down = l->shared_up + d * shared;
    l->expert = l->shared_down + d * shared;
    l->expert_count = 3 * d * f;
    l->param_count = l->expert + (size_t)n->local * l->expert_count;
    l->nparams = 3 + (n->shared > 0 ? 3u : 0u) + 3 * (uint32_t)n->local;
}

static bool layout_saved(const moe_shape_t *n, moe_layout_t *l, size_t element)
{
    cursor_t c = {0, false};

    l->saved.h = take(&c, n->tokens, n->hidden, element);
    l->saved.rstd = take(&c, n->tokens, 1, element);
    l->saved.scores = take(&c, n->tokens, n->experts, element);
    l->saved.weights = take(&c, n->tokens, n->top_k, element);
    l->saved.chosen = take(&c, n->tokens, n->top_k, sizeof(int32_t));
    l->saved.place = take(&c, n->tokens, n->top_k, sizeof(int32_t));
    l->saved.replica = n->replicated ? take(&c, n->tokens, n->top_k, sizeof(int32_t)) : l->saved.chosen;
    l->saved.out_offsets = take(&c, n->ranks, 1, sizeof(int32_t));
    l->saved.out_counts = take(&c, n->ranks, 1, sizeof(int32_t));
    l->saved.in_offsets = take(&c, n->ranks, 1, sizeof(int32_t));
    l->saved.in_counts = take(&c, n->ranks, 1, sizeof(int32_t));
    l->saved.cells = take(&c, n->local, n->ranks, sizeof(int32_t));
    l->saved.dnorm = take(&c, n->hidden, 1, element);
    l->saved.shared_gate = take(&c, n->tokens, n->shared, element);
    l->saved.shared_up = take(&c, n->tokens, n->shared, element);
    l->saved.shared_act = take(&c, n->tokens, n->shared, element);
    l->saved.own_dy = take(&c, n->shared > 0 ? n->tokens : 0, n->hidden, element);
    l->saved.x = take(&c, n->rows, n->hidden, element);
    l->saved.gate = take(&c, n->rows, n->ffn, element);
    l->saved.up = take(&c, n->rows, n->ffn, element);
    l->saved.act = take(&c, n->rows, n->ffn, element);
    l->saved.dy = take(&c, n->rows, n->hidden, element);
    l->saved.bytes = c.bytes;
    return !c.overflow;
}

static bool layout_work(const moe_shape_t *n, moe_layout_t *l, size_t element)
{
    const int64_t sent = (int64_t)n->tokens * n->top_k;
    cursor_t c = {0, false};

    l->work.rows = take(&c, n->rows > sent ? n->rows : sent, (int64_t)n->row_bytes, 1);
    l->work.shared = take(&c, n->tokens, n->hidden, element);
    l->work.dweights = take(&c, n->tokens, n->top_k, sizeof(double));
    l->work.weights = take(&c, n->rows, 1, element);
    l->work.own_dy = take(&c, n->shared > 0 ? 0 : n->tokens, n->hidden, element);
    l->work.bytes = c.bytes;
    return !c.overflow;
}

static bool layout_scratch(const moe_shape_t *n, moe_layout_t *l, size_t element)
{
    const int64_t ints =
        2 * (int64_t)n->experts + n->ranks + (n->replicated ? n->experts + 1 + 2 * (int64_t)n->replicas : 0);
    cursor_t c = {0, false};

    l->scratch.n = take(&c, n->tokens, n->hidden, element);
    l->scratch.hidden = take(&c, n->tokens, n->ffn > n->shared ? n->ffn : n->shared, element);
    l->scratch.dweights = take(&c, n->tokens, 1, sizeof(double));
    l->scratch.sums = take(&c, n->experts, 1, sizeof(double));
    l->scratch.pick = take(&c, n->experts, 1, sizeof(double));
    l->scratch.ints = take(&c, ints, 1, sizeof(int32_t));
    l->scratch.bytes = c.bytes;
    return !c.overflow;
}

dp_status_t moe_layout_init(const dp_host_t *host, const moe_shape_t *n, moe_layout_t *l)
{
    const size_t element = dp_dtype_bytes(n->dtype);

    layout_params(n, l);
    if (!layout_saved(n, l, element) || !layout_work(n, l, element) || !layout_scratch(n, l, element))
        return DP_FAIL(host, DP_ERR_OVERFLOW,
                       "moe_cpu: the memory of one micro-batch does not fit this machine's addresses");
    return DP_OK;
}
