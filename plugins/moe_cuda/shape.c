/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * shape.c: checks a configuration and lays out parameters, saved, work and scratch memory. */
#include "moe_cuda.h"

#include <math.h>

enum { MOST_EXPERTS = 1 << 14 }; /* one block scans them all */

/* a * b as a count that kernels can index with 32 bits. */
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
                       "moe_cuda: %u experts cannot be spread evenly over an expert group of %u ranks",
                       c->experts, ranks);
    if (replicas != 0 && (replicas < c->experts || replicas > MOST_EXPERTS || replicas % ranks != 0))
        return DP_FAIL(host, DP_ERR_INVALID,
                       "moe_cuda: %u replicas of %u experts on an expert group of %u ranks: must be at least "
                       "one for each expert, at most %d, and as many on every rank",
                       replicas, c->experts, ranks, MOST_EXPERTS);
    return DP_OK;
}

static dp_status_t check_config(const dp_host_t *host, const dp_moe_config_t *c)
{
    const dp_block_shape_t *s = &c->shape;

    if (c->struct_size < offsetof(dp_moe_config_t, capacity))
        return DP_FAIL(host, DP_ERR_INVALID,
                       "moe_cuda: the configuration has %u bytes, this plugin needs %zu", c->struct_size,
                       offsetof(dp_moe_config_t, capacity));
    if (s->dtype != DP_F32 && s->dtype != DP_F64 && s->dtype != DP_BF16)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       "moe_cuda computes in DP_F32, DP_F64 and DP_BF16, not in dtype %d", (int)s->dtype);
    if (s->batch == 0 || s->sequence == 0 || s->hidden == 0)
        return DP_FAIL(host, DP_ERR_INVALID,
                       "moe_cuda: batch %u, sequence %u, hidden %u: each must be at least 1", s->batch,
                       s->sequence, s->hidden);
    if (c->experts == 0 || c->experts > MOST_EXPERTS || c->expert_hidden == 0)
        return DP_FAIL(host, DP_ERR_INVALID,
                       "moe_cuda: %u experts of width %u: must be 1 to %d, and at least 1", c->experts,
                       c->expert_hidden, MOST_EXPERTS);
    if (c->top_k == 0 || c->top_k > c->experts)
        return DP_FAIL(host, DP_ERR_INVALID, "moe_cuda: top_k %u: must be 1 to the number of experts, %u",
                       c->top_k, c->experts);
    if (c->gate != DP_GATE_SOFTMAX && c->gate != DP_GATE_SIGMOID)
        return DP_FAIL(host, DP_ERR_INVALID, "moe_cuda: gate %d is neither softmax (0) nor sigmoid (1)",
                       (int)c->gate);
    if (c->normalize > 1)
        return DP_FAIL(host, DP_ERR_INVALID, "moe_cuda: normalize %u: must be 0 or 1", c->normalize);
    if (!isfinite(c->scale) || c->scale < 0 || !isfinite(c->aux_alpha) || c->aux_alpha < 0 ||
        !isfinite(s->norm_eps) || s->norm_eps < 0)
        return DP_FAIL(host, DP_ERR_INVALID,
                       "moe_cuda: scale %g, aux_alpha %g, norm_eps %g: none may be negative or infinite",
                       (double)c->scale, (double)c->aux_alpha, (double)s->norm_eps);
    if (c->comm_size < 1 || c->comm_size > MOE_MOST_RANKS || c->comm_rank < 0 || c->comm_rank >= c->comm_size)
        return DP_FAIL(host, DP_ERR_INVALID, "moe_cuda: rank %d of an expert group of %d (at most %d)",
                       c->comm_rank, c->comm_size, MOE_MOST_RANKS);
    return check_spread(host, c);
}

/* Room for `even` rows, the share if all experts got as many, times the capacity asked for; at most `all`. */
static int64_t room(double capacity, double even, int64_t all)
{
    const double rows = ceil(capacity * even);

    return capacity > 0 && rows < (double)all ? (int64_t)rows : all;
}

static bool init_rows(const dp_moe_config_t *c, double capacity, moe_shape_t *shape)
{
    moe_dims_t *n = &shape->n;
    const double sent = (double)n->tokens * c->top_k;
    const int64_t each = n->local < (int32_t)c->top_k ? n->local : (int32_t)c->top_k;
    int32_t all;

    if (!product(n->tokens, each, &all))
        return false;
    n->pair_rows = (int32_t)room(capacity, sent / n->ranks, all);
    if (!product(n->pair_rows, n->ranks, &all))
        return false;
    shape->arrivals = (int32_t)room(capacity, sent, all);
    n->rows = shape->arrivals;
    n->padded = 0;
    if (shape->products != MOE_PADDED)
        return true;
    if (!product(n->tokens, n->ranks, &all))
        return false;
    n->padded = (int32_t)room(capacity, sent / n->local, all);
    return product(n->padded, n->local, &n->rows);
}

dp_status_t moe_shape_init(const dp_host_t *host, const dp_moe_config_t *c, moe_products_t products,
                           moe_shape_t *shape)
{
    const size_t element = dp_dtype_bytes(c->shape.dtype);
    moe_dims_t *n = &shape->n;
    double capacity = 0;
    int32_t unused;
    dp_status_t status = check_config(host, c);

    if (status < 0)
        return status;
    if (c->struct_size >= offsetof(dp_moe_config_t, capacity) + sizeof(c->capacity))
        capacity = (double)c->capacity;
    if (!isfinite(capacity) || capacity < 0)
        return DP_FAIL(host, DP_ERR_INVALID, "moe_cuda: capacity %g: must be 0 or positive", capacity);
    shape->dtype = c->shape.dtype;
    shape->products = products;
    shape->replicated = c->replicas != 0;
    shape->aux_alpha = (double)c->aux_alpha;
    n->replicas = (int32_t)(shape->replicated ? c->replicas : c->experts);
    n->rank = c->comm_rank;
    n->ranks = c->comm_size;
    n->local = n->replicas / c->comm_size;
    n->top_k = (int32_t)c->top_k;
    /* Every 32-bit index of a kernel is checked here, none later. */
    if (!product(c->shape.batch, c->shape.sequence, &n->tokens) || !product(c->shape.hidden, 1, &n->hidden) ||
        n->hidden > INT32_MAX / 8 || n->tokens > 65535 * MOE_STRIP || !product(c->experts, 1, &n->experts) ||
        !product(c->expert_hidden, 1, &n->ffn) || !product(c->shared_experts, c->expert_hidden, &n->shared) ||
        !product(n->tokens, c->top_k, &unused) || !product(n->tokens, n->experts, &unused) ||
        !product(n->hidden, n->ffn, &unused) || !product(n->hidden, n->shared, &unused) ||
        !init_rows(c, capacity, shape))
        return DP_FAIL(host, DP_ERR_OVERFLOW,
                       "moe_cuda: batch %u x sequence %u, hidden %u, %u experts of width %u, top_k %u, %d "
                       "ranks: more rows or elements than 32 bits can count; use smaller micro-batches",
                       c->shape.batch, c->shape.sequence, c->shape.hidden, c->experts, c->expert_hidden,
                       c->top_k, c->comm_size);
    n->row_bytes = (int64_t)(sizeof(moe_head_t) + ((size_t)n->hidden * element + 15) / 16 * 16);
    n->vectors = (size_t)n->hidden * element % 16 == 0 && (size_t)n->ffn * element % 16 == 0;
    n->softmax = c->gate == DP_GATE_SOFTMAX;
    n->normalize = (int32_t)c->normalize;
    n->scale = c->scale > 0 ? (double)c->scale : 1;
    n->norm_eps = c->shape.norm_eps > 0 ? (double)c->shape.norm_eps : 1e-6;
    n->aux = shape->aux_alpha * n->experts / ((double)n->top_k * n->tokens) / n->tokens;
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

static void layout_params(const moe_dims_t *n, moe_layout_t *l)
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

static bool layout_saved(const moe_shape_t *shape, moe_layout_t *l, size_t real, size_t sum)
{
    const moe_dims_t *n = &shape->n;
    const size_t i32 = sizeof(int32_t);
    cursor_t c = {0, false};

    l->saved.h = take(&c, n->tokens, n->hidden, real);
    l->saved.rstd = take(&c, n->tokens, 1, sum);
    l->saved.scores = take(&c, n->tokens, n->experts, sum);
    l->saved.weights = take(&c, n->tokens, n->top_k, sum);
    l->saved.chosen = take(&c, n->tokens, n->top_k, i32);
    l->saved.replica = take(&c, n->tokens, n->top_k, i32);
    l->saved.place = take(&c, n->tokens, n->top_k, i32);
    l->saved.counts = take(&c, n->experts, 1, i32);
    l->saved.out_offsets = take(&c, n->ranks, 1, i32);
    l->saved.out_counts = take(&c, n->ranks, 1, i32);
    l->saved.in_offsets = take(&c, n->ranks, 1, i32);
    l->saved.in_counts = take(&c, n->ranks, 1, i32);
    l->saved.from = take(&c, n->ranks, n->local + 1, i32);
    l->saved.cells = take(&c, n->local, n->ranks, i32);
    l->saved.first = take(&c, n->local, n->ranks, i32);
    l->saved.group_rows = take(&c, n->local, 1, i32);
    l->saved.group_first = take(&c, n->local, 1, i32);
    l->saved.dnorm = take(&c, n->hidden, 1, sum);
    l->saved.shared_gate = take(&c, n->tokens, n->shared, real);
    l->saved.shared_up = take(&c, n->tokens, n->shared, real);
    l->saved.shared_act = take(&c, n->tokens, n->shared, real);
    l->saved.own_dy = take(&c, n->shared > 0 ? n->tokens : 0, n->hidden, real);
    l->saved.back = take(&c, n->rows, 1, i32);
    l->saved.arrived_weights = take(&c, n->rows, 1, sum);
    l->saved.x = take(&c, n->rows, n->hidden, real);
    l->saved.gate = take(&c, n->rows, n->ffn, real);
    l->saved.up = take(&c, n->rows, n->ffn, real);
    l->saved.act = take(&c, n->rows, n->ffn, real);
    l->saved.dy = take(&c, n->rows, n->hidden, real);
    l->saved.bytes = c.bytes;
    return !c.overflow;
}

static bool layout_work(const moe_shape_t *shape, moe_layout_t *l, size_t real, size_t sum)
{
    const moe_dims_t *n = &shape->n;
    const int64_t sent = (int64_t)n->tokens * n->top_k;
    cursor_t c = {0, false};

    l->work.rows = take(&c, shape->arrivals > sent ? shape->arrivals : sent, n->row_bytes, 1);
    l->work.own = take(&c, n->tokens, n->hidden, sum);
    l->work.dweights = take(&c, n->tokens, n->top_k, sizeof(double));
    l->work.own_dy = take(&c, n->shared > 0 ? 0 : n->tokens, n->hidden, real);
    l->work.padded = take(&c, n->padded > 0 ? n->rows : 0, n->hidden, real);
    l->work.bytes = c.bytes;
    return !c.overflow;
}

static bool layout_scratch(const moe_shape_t *shape, moe_layout_t *l, size_t workspace, size_t real,
                           size_t sum)
{
    const moe_dims_t *n = &shape->n;
    const int64_t chunks = ((int64_t)n->tokens * n->top_k + MOE_CHUNK - 1) / MOE_CHUNK;
    const int64_t strips = (n->tokens + MOE_STRIP - 1) / MOE_STRIP * (int64_t)n->hidden * (int64_t)sum;
    const int64_t split = shape->dtype == DP_BF16 ? (int64_t)n->tokens * n->experts * 4 : 0;
    cursor_t c = {0, false};

    l->scratch.normed = take(&c, n->tokens, n->hidden, real);
    l->scratch.strips = take(&c, strips > split ? strips : split, 1, 1);
    l->scratch.histogram = take(&c, chunks, n->experts, sizeof(int32_t));
    l->scratch.starts = take(&c, n->replicas, 1, sizeof(int32_t));
    l->scratch.list = take(&c, n->replicas, 1, sizeof(int32_t));
    l->scratch.list_first = take(&c, n->experts + 1, 1, sizeof(int32_t));
    l->scratch.partial = take(&c, n->tokens, 1, sizeof(double));
    l->scratch.workspace = take(&c, (int64_t)workspace, 1, 1);
    l->scratch.bytes = c.bytes;
    return !c.overflow;
}

dp_status_t moe_layout_init(const dp_host_t *host, const moe_shape_t *shape, size_t workspace,
                            moe_layout_t *l)
{
    const size_t real = dp_dtype_bytes(shape->dtype),
                 sum = dp_dtype_bytes(dp_dtype_accumulator(shape->dtype));

    layout_params(&shape->n, l);
    if (!layout_saved(shape, l, real, sum) || !layout_work(shape, l, real, sum) ||
        !layout_scratch(shape, l, workspace, real, sum))
        return DP_FAIL(host, DP_ERR_OVERFLOW,
                       "moe_cuda: the memory of one micro-batch does not fit this machine's addresses");
    return DP_OK;
}
