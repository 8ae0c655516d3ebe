/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * scores.c: softmax(q k^T) v and its gradient by batched products and a softmax kernel, block by block.
 *
 * A block is all keys up to its last query, for some queries of some heads. Its scores live in scratch; the gradients
 * of keys and values are summed over blocks in the type of sums, in the order of the queries. Query head h belongs to
 * key/value head h / group, so that one product runs over the g-th query head of every key/value head of the block. */
#include "scores.h"

#include <stdlib.h>

CUDA_IMAGE(attention_scores);

enum { MOST_ROWS = 256, FEWEST_ROWS = 16, ARRAYS = 4, THREADS = 256, MAX_BLOCKS = 65536 };
#define DEFAULT_BUDGET ((size_t)256 << 20)

typedef struct scores {
    score_blocks_t blocks;
    CUmodule module;
    CUfunction softmax, softmax_backward, store_heads;
    size_t logits, gradients, p, ds, dk, dv; /* in scratch; where T is S, p are the logits and ds the gradients */
} scores_t;

uint32_t score_pitch(uint32_t columns)
{
    return (columns + 7) / 8 * 8;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

score_blocks_t score_blocks(const dp_attention_t *a, size_t budget)
{
    score_blocks_t b = {.kv_heads = 1, .pitch = score_pitch(a->n.sequence)};
    const size_t row = (size_t)a->n.group * b.pitch * a->sum_bytes; /* a query of one key/value head, in one array */
    const size_t fit = budget / ARRAYS / row;

    b.rows = smaller(a->n.sequence, MOST_ROWS);
    if (fit < b.rows)
        b.rows = smaller(b.rows, fit < FEWEST_ROWS ? FEWEST_ROWS : (uint32_t)fit / FEWEST_ROWS * FEWEST_ROWS);
    else
        b.kv_heads = fit / b.rows < a->n.kv_heads ? (uint32_t)(fit / b.rows) : a->n.kv_heads;
    b.block_bytes = (size_t)b.kv_heads * b.rows * row;
    return b;
}

/* Where a pass is. */
typedef struct block {
    const attn_pass_t *pass;
    const attn_tensors_t *t;
    uint32_t sequence;       /* of the batch */
    uint32_t kv, kv_heads;   /* first key/value head, and how many */
    uint32_t first, rows;    /* queries */
    uint32_t columns, pitch; /* keys */
} block_t;

static void *at(const void *base, size_t elements, size_t bytes)
{
    return (char *)(uintptr_t)base + elements * bytes;
}

/* The token `first` of the block's sequence, head `head` of heads that are `dim` wide. */
static void *token(const block_t *b, const void *tensor, uint32_t first, uint32_t width, uint32_t head, uint32_t dim)
{
    const dp_attention_t *a = b->pass->attention;

    return at(tensor, ((size_t)b->sequence * a->n.sequence + first) * width + (size_t)head * dim, a->bytes);
}

static void *scratch(const block_t *b, size_t offset)
{
    return at(b->t->scratch, offset, 1);
}

/* The scores of query head `member` of every group. */
static void *member_scores(const block_t *b, size_t offset, uint32_t member, size_t bytes)
{
    return at(scratch(b, offset), (size_t)member * b->rows * b->pitch, bytes);
}

static int64_t score_stride(const block_t *b)
{
    return (int64_t)b->pass->attention->n.group * b->rows * b->pitch;
}

/* scores = alpha * left right^T over dim, for each member of the groups: left [rows, dim] per query head, right [keys,
 * dim] per key/value head. */
static dp_status_t make_scores(const block_t *b, double alpha, const void *left, uint32_t left_width, const void *right,
                               uint32_t right_width, uint32_t dim, size_t offset)
{
    const dp_attention_t *a = b->pass->attention;
    const gemm_shape_t shape = {.in = a->n.dtype,
                                .out = a->sums,
                                .transpose_b = true,
                                .m = b->rows,
                                .n = b->columns,
                                .k = dim,
                                .batch = b->kv_heads,
                                .lda = left_width,
                                .ldb = right_width,
                                .ldc = b->pitch,
                                .stride_a = (int64_t)a->n.group * dim,
                                .stride_b = dim,
                                .stride_c = score_stride(b)};
    dp_status_t status = DP_OK;

    for (uint32_t g = 0; g < a->n.group && status >= 0; g++)
        status =
            attn_multiply(b->pass, &shape, alpha, token(b, left, b->first, left_width, b->kv * a->n.group + g, dim),
                          token(b, right, 0, right_width, b->kv, dim), 0, member_scores(b, offset, g, a->sum_bytes));
    return status;
}

/* out[rows, dim] = alpha * scores right, per query head. */
static dp_status_t apply_scores(const block_t *b, double alpha, size_t offset, const void *right, uint32_t right_width,
                                uint32_t dim, void *out, uint32_t out_width)
{
    const dp_attention_t *a = b->pass->attention;
    const gemm_shape_t shape = {.in = a->n.dtype,
                                .out = a->n.dtype,
                                .m = b->rows,
                                .n = dim,
                                .k = b->columns,
                                .batch = b->kv_heads,
                                .lda = b->pitch,
                                .ldb = right_width,
                                .ldc = out_width,
                                .stride_a = score_stride(b),
                                .stride_b = dim,
                                .stride_c = (int64_t)a->n.group * dim};
    dp_status_t status = DP_OK;

    for (uint32_t g = 0; g < a->n.group && status >= 0; g++)
        status = attn_multiply(b->pass, &shape, alpha, member_scores(b, offset, g, a->bytes),
                               token(b, right, 0, right_width, b->kv, dim), 0,
                               token(b, out, b->first, out_width, b->kv * a->n.group + g, dim));
    return status;
}

/* sums[keys, dim] += alpha * scores^T right, per key/value head, over its query heads one after the other. */
static dp_status_t gather_scores(const block_t *b, double alpha, size_t offset, const void *right, uint32_t right_width,
                                 uint32_t dim, size_t sums)
{
    const dp_attention_t *a = b->pass->attention;
    const gemm_shape_t shape = {.in = a->n.dtype,
                                .out = a->sums,
                                .transpose_a = true,
                                .m = b->columns,
                                .n = dim,
                                .k = b->rows,
                                .batch = b->kv_heads,
                                .lda = b->pitch,
                                .ldb = right_width,
                                .ldc = dim,
                                .stride_a = score_stride(b),
                                .stride_b = (int64_t)a->n.group * dim,
                                .stride_c = (int64_t)a->n.sequence * dim};
    dp_status_t status = DP_OK;

    for (uint32_t g = 0; g < a->n.group && status >= 0; g++)
        status =
            attn_multiply(b->pass, &shape, alpha, member_scores(b, offset, g, a->bytes),
                          token(b, right, b->first, right_width, b->kv * a->n.group + g, dim), 1, scratch(b, sums));
    return status;
}

/* Statistics and delta of the block's heads; [batch, heads, sequence]. */
static void *statistics(const block_t *b, const void *base)
{
    const dp_attention_t *a = b->pass->attention;

    return at(base, ((size_t)b->sequence * a->n.heads + (size_t)b->kv * a->n.group) * a->n.sequence, a->sum_bytes);
}

static const void *inverse_sums(const dp_attention_t *a, const void *saved)
{
    return at(saved, (size_t)a->n.tokens * a->n.heads, a->sum_bytes);
}

static dp_status_t softmax(const block_t *b)
{
    const dp_attention_t *a = b->pass->attention;
    const scores_t *s = a->core;
    void *p = scratch(b, s->p), *logits = scratch(b, s->logits), *largest = statistics(b, b->t->saved);
    void *inv_sum = statistics(b, inverse_sums(a, b->t->saved));
    block_t c = *b;

    if (b->pass->rehearsal)
        return DP_OK;
    return cuda_launch(a->host, a->cu, s->softmax, CUDA_DIM(b->kv_heads * a->n.group * b->rows), CUDA_DIM(THREADS), 0,
                       b->pass->stream, &p, &logits, &largest, &inv_sum, &c.rows, &c.columns, &c.pitch, &c.first,
                       (void *)&a->n.sequence);
}

static dp_status_t softmax_backward(const block_t *b)
{
    const dp_attention_t *a = b->pass->attention;
    const scores_t *s = a->core;
    void *p = scratch(b, s->p), *ds = scratch(b, s->ds), *logits = scratch(b, s->logits);
    void *dp = scratch(b, s->gradients), *largest = statistics(b, b->t->saved);
    void *inv_sum = statistics(b, inverse_sums(a, b->t->saved)), *delta = statistics(b, b->t->delta);
    block_t c = *b;

    if (b->pass->rehearsal)
        return DP_OK;
    return cuda_launch(a->host, a->cu, s->softmax_backward, CUDA_DIM(b->kv_heads * a->n.group * b->rows),
                       CUDA_DIM(THREADS), 0, b->pass->stream, &p, &ds, &logits, &dp, &largest, &inv_sum, &delta,
                       &c.rows, &c.columns, &c.pitch, &c.first, (void *)&a->n.sequence);
}

static dp_status_t forward_block(const block_t *b)
{
    const dp_attention_t *a = b->pass->attention;
    const scores_t *s = a->core;
    const attn_tensors_t *t = b->t;
    dp_status_t status = make_scores(b, a->n.scale, t->q, a->n.q_width, t->k, a->n.k_width, a->n.head_dim, s->logits);

    if (status >= 0)
        status = softmax(b);
    if (status >= 0)
        status = apply_scores(b, 1, s->p, t->v, a->n.v_width, a->n.value_dim, t->out, a->n.o_width);
    return status;
}

static dp_status_t backward_block(const block_t *b)
{
    const dp_attention_t *a = b->pass->attention;
    const scores_t *s = a->core;
    const attn_tensors_t *t = b->t;
    dp_status_t status = make_scores(b, a->n.scale, t->q, a->n.q_width, t->k, a->n.k_width, a->n.head_dim, s->logits);

    if (status >= 0)
        status = make_scores(b, 1, t->dout, a->n.o_width, t->v, a->n.v_width, a->n.value_dim, s->gradients);
    if (status >= 0)
        status = softmax_backward(b);
    if (status >= 0)
        status = gather_scores(b, 1, s->p, t->dout, a->n.o_width, a->n.value_dim, s->dv);
    if (status >= 0)
        status = gather_scores(b, a->n.scale, s->ds, t->q, a->n.q_width, a->n.head_dim, s->dk);
    if (status >= 0)
        status = apply_scores(b, a->n.scale, s->ds, t->k, a->n.k_width, a->n.head_dim, t->dq, a->n.q_width);
    return status;
}

static dp_status_t clear(const block_t *b, size_t offset, uint32_t dim)
{
    const dp_attention_t *a = b->pass->attention;
    const size_t bytes = (size_t)b->kv_heads * a->n.sequence * dim * a->sum_bytes;

    if (b->pass->rehearsal)
        return DP_OK;
    return CUDA_CHECK(a->host,
                      a->cu->cuMemsetD8Async((CUdeviceptr)(uintptr_t)scratch(b, offset), 0, bytes, b->pass->stream),
                      "%s: clearing %zu bytes", a->vt->plugin, bytes);
}

/* The block's sums of keys or values go to their places in a gradient. */
static dp_status_t store(const block_t *b, size_t offset, uint32_t dim, void *gradient, uint32_t row_width)
{
    const dp_attention_t *a = b->pass->attention;
    const scores_t *s = a->core;
    void *to = token(b, gradient, 0, row_width, b->kv, dim), *from = scratch(b, offset);
    const size_t count = (size_t)b->kv_heads * a->n.sequence * dim, blocks = (count + THREADS - 1) / THREADS;
    uint32_t kv_heads = b->kv_heads;
    size_t width = row_width;

    if (b->pass->rehearsal)
        return DP_OK;
    return cuda_launch(a->host, a->cu, s->store_heads, CUDA_DIM(blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS),
                       CUDA_DIM(THREADS), 0, b->pass->stream, &to, &from, &kv_heads, (void *)&a->n.sequence, &dim,
                       &width);
}

static dp_status_t over_queries(block_t *b, dp_status_t (*visit)(const block_t *b))
{
    const dp_attention_t *a = b->pass->attention;
    const scores_t *s = a->core;
    dp_status_t status = DP_OK;

    for (b->first = 0; b->first < a->n.sequence && status >= 0; b->first += s->blocks.rows) {
        b->rows = smaller(s->blocks.rows, a->n.sequence - b->first);
        b->columns = b->first + b->rows;
        b->pitch = score_pitch(b->columns);
        status = visit(b);
    }
    return status;
}

static dp_status_t forward_heads(block_t *b)
{
    return over_queries(b, forward_block);
}

static dp_status_t backward_heads(block_t *b)
{
    const dp_attention_t *a = b->pass->attention;
    const scores_t *s = a->core;
    dp_status_t status = clear(b, s->dk, a->n.head_dim);

    if (status >= 0)
        status = clear(b, s->dv, a->n.value_dim);
    if (status >= 0)
        status = over_queries(b, backward_block);
    if (status >= 0)
        status = store(b, s->dk, a->n.head_dim, b->t->dk, a->n.k_width);
    if (status >= 0)
        status = store(b, s->dv, a->n.value_dim, b->t->dv, a->n.v_width);
    return status;
}

/* A rehearsal needs one sequence: the others are like it. */
static dp_status_t over_heads(const attn_pass_t *pass, const attn_tensors_t *t, dp_status_t (*visit)(block_t *b))
{
    const dp_attention_t *a = pass->attention;
    const scores_t *s = a->core;
    block_t b = {.pass = pass, .t = t};
    dp_status_t status = DP_OK;

    for (b.sequence = 0; b.sequence < (pass->rehearsal ? 1 : a->n.batch); b.sequence++)
        for (b.kv = 0; b.kv < a->n.kv_heads && status >= 0; b.kv += s->blocks.kv_heads) {
            b.kv_heads = smaller(s->blocks.kv_heads, a->n.kv_heads - b.kv);
            status = visit(&b);
        }
    return status;
}

static dp_status_t forward(const attn_pass_t *pass, const attn_tensors_t *t)
{
    return over_heads(pass, t, forward_heads);
}

static dp_status_t backward(const attn_pass_t *pass, const attn_tensors_t *t)
{
    return over_heads(pass, t, backward_heads);
}

static dp_status_t read_budget(const dp_attention_t *a, size_t *budget_out)
{
    const char *text = getenv("DUALPIPE_ATTENTION_SCORE_BYTES");
    char *end;
    unsigned long long value;

    *budget_out = DEFAULT_BUDGET;
    if (text == NULL || *text == '\0')
        return DP_OK;
    value = strtoull(text, &end, 10);
    if (*end != '\0' || *text == '-' || value == 0 || value > PTRDIFF_MAX)
        return DP_FAIL(a->host, DP_ERR_INVALID,
                       "attention_cuda: DUALPIPE_ATTENTION_SCORE_BYTES is \"%s\": it must be a number of bytes", text);
    *budget_out = (size_t)value;
    return DP_OK;
}

static dp_status_t lay_out(dp_attention_t *a, scores_t *s)
{
    layout_t l = {.alignment = ATTN_ALIGN};
    const bool apart = a->bytes != a->sum_bytes;
    const size_t scores = s->blocks.block_bytes / a->sum_bytes;

    s->logits = layout_take(&l, 1, scores, a->sum_bytes);
    s->gradients = layout_take(&l, 1, scores, a->sum_bytes);
    s->p = apart ? layout_take(&l, 1, scores, a->bytes) : s->logits;
    s->ds = apart ? layout_take(&l, 1, scores, a->bytes) : s->gradients;
    s->dk = layout_take(&l, (size_t)s->blocks.kv_heads * a->n.sequence, a->n.head_dim, a->sum_bytes);
    s->dv = layout_take(&l, (size_t)s->blocks.kv_heads * a->n.sequence, a->n.value_dim, a->sum_bytes);
    a->core_scratch_bytes = l.bytes;
    a->core_saved_bytes = 2 * (size_t)a->n.tokens * a->n.heads * a->sum_bytes;
    if (l.overflow)
        return DP_FAIL(a->host, DP_ERR_INVALID,
                       "attention_cuda: sequence %u and heads %u need more bytes than an "
                       "address space has: use smaller sizes",
                       a->n.sequence, a->n.heads);
    return DP_OK;
}

static dp_status_t open_core(dp_attention_t *a)
{
    static const char *const names[] = {"softmax", "softmax_backward", "store_heads"};
    scores_t *s = a->host->allocate(a->host, sizeof(*s), 64);
    size_t budget;
    dp_status_t status;

    if (s == NULL)
        return DP_FAIL(a->host, DP_ERR_NOMEM, "attention_cuda: no memory for an instance");
    *s = (scores_t){.module = NULL};
    a->core = s;
    {
        CUfunction *const functions[] = {&s->softmax, &s->softmax_backward, &s->store_heads};

        status = attn_load_kernels(a, cuda_image_attention_scores, names, functions, 3, &s->module);
    }
    if (status >= 0)
        status = read_budget(a, &budget);
    if (status < 0)
        return status;
    s->blocks = score_blocks(a, budget);
    return lay_out(a, s);
}

static void close_core(dp_attention_t *a)
{
    scores_t *s = a->core;

    cuda_module_unload(s->module);
    a->host->release(a->host, s);
}

const attn_core_t scores_core = {
    .plugin = "attention_cuda",
    .open = open_core,
    .close = close_core,
    .forward = forward,
    .backward = backward,
};
