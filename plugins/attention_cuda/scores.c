/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * scores.c: run_softmax(q k^T) v and its gradient by batched products and a softmax kernel, block
 * by block.
 *
 * A block is all keys up to its last query, for some queries of some heads. Its scores live in
 * scratch; the gradients of keys and values are summed over blocks in the type of sums, in the
 * order of the queries. Query head h belongs to key/value head h / group, so that one product runs
 * over the g-th query head of every key/value head of the block.
 *
 * Documents have any length, and products are prepared for some. So a micro-batch of documents is
 * cut into blocks of queries wherever they end, and the keys of a block begin with the document of
 * its first query, rounded down to a multiple of the block's rows. */
#include "scores.h"

#include "plugins/common/do.h"

#include "plugins/common/debug.h"

#include <stdlib.h>

CUDA_IMAGE(attention_scores);

enum { MOST_ROWS = 256, FEWEST_ROWS = 16, ARRAYS = 4, THREADS = 256, MAX_BLOCKS = 65536 };
#define DEFAULT_BUDGET ((size_t)256 << 20)

typedef struct scores {
    attn_score_blocks_t blocks;
    CUmodule module;
    CUfunction softmax, softmax_backward, store_heads;
    uint32_t packed_heads; /* key/value heads of a block of documents */
    /* in scratch; where T is S, p are the logits and ds the gradients */
    size_t logits, gradients, p, ds, dk, dv;
} scores_t;

uint32_t attn_score_pitch(uint32_t columns)
{
    return (columns + 7) / 8 * 8;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

attn_score_blocks_t attn_score_blocks(const dp_attention_t *a, size_t budget)
{
    attn_score_blocks_t b = {.kv_heads = 1, .pitch = attn_score_pitch(a->n.sequence)};
    /* a query of one key/value head, in one array */
    const size_t row = (size_t)a->n.group * b.pitch * a->sum_bytes;
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
    uint32_t sequence;             /* of the batch */
    uint32_t extent;               /* tokens of one, or with documents of a micro-batch */
    uint32_t kv, kv_heads;         /* first key/value head, and how many */
    uint32_t first, rows;          /* queries */
    uint32_t keys, columns, pitch; /* the first key, and how many */
} block_t;

static void *element_at(const void *base, size_t elements, size_t bytes)
{
    return (char *)(uintptr_t)base + elements * bytes;
}

/* The token `first` of the block's sequence, head `head` of heads that are `dim` wide. */
static void *token_at(const block_t *b, const void *tensor, uint32_t first, uint32_t width, uint32_t head, uint32_t dim)
{
    const dp_attention_t *a = b->pass->attention;

    return element_at(tensor, ((size_t)b->sequence * a->n.sequence + first) * width + (size_t)head * dim, a->bytes);
}

static void *scratch_at(const block_t *b, size_t offset)
{
    return element_at(b->t->scratch, offset, 1);
}

/* The scores of query head `member` of every group. */
static void *member_scores(const block_t *b, size_t offset, uint32_t member, size_t bytes)
{
    return element_at(scratch_at(b, offset), (size_t)member * b->rows * b->pitch, bytes);
}

static int64_t score_stride(const block_t *b)
{
    return (int64_t)b->pass->attention->n.group * b->rows * b->pitch;
}

/* scores = alpha * left right^T over dim, for each member of the groups: left [rows, dim] per query
 * head, right [keys, dim] per key/value head. */
static dp_status_t make_scores(const block_t *b, double alpha, const void *left, uint32_t left_width, const void *right,
                               uint32_t right_width, uint32_t dim, size_t offset)
{
    const dp_attention_t *a = b->pass->attention;
    const cuda_gemm_shape_t shape = {.in = a->n.dtype,
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
        status = attn_multiply(
            b->pass, &shape, alpha, token_at(b, left, b->first, left_width, b->kv * a->n.group + g, dim),
            token_at(b, right, b->keys, right_width, b->kv, dim), 0, member_scores(b, offset, g, a->sum_bytes));
    return status;
}

/* out[rows, dim] = alpha * scores right, per query head. */
static dp_status_t apply_scores(const block_t *b, double alpha, size_t offset, const void *right, uint32_t right_width,
                                uint32_t dim, void *out, uint32_t out_width)
{
    const dp_attention_t *a = b->pass->attention;
    const cuda_gemm_shape_t shape = {.in = a->n.dtype,
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
                               token_at(b, right, b->keys, right_width, b->kv, dim), 0,
                               token_at(b, out, b->first, out_width, b->kv * a->n.group + g, dim));
    return status;
}

/* sums[keys, dim] += alpha * scores^T right, per key/value head, by query head in order. */
static dp_status_t gather_scores(const block_t *b, double alpha, size_t offset, const void *right, uint32_t right_width,
                                 uint32_t dim, size_t sums)
{
    const dp_attention_t *a = b->pass->attention;
    const cuda_gemm_shape_t shape = {.in = a->n.dtype,
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
                                     .stride_c = (int64_t)b->extent * dim};
    void *out = element_at(scratch_at(b, sums), (size_t)b->keys * dim, a->sum_bytes);
    dp_status_t status = DP_OK;

    for (uint32_t g = 0; g < a->n.group && status >= 0; g++)
        status = attn_multiply(b->pass, &shape, alpha, member_scores(b, offset, g, a->bytes),
                               token_at(b, right, b->first, right_width, b->kv * a->n.group + g, dim), 1, out);
    return status;
}

/* Statistics and delta of the block's heads; [batch, heads, sequence], or [heads, T]. */
static void *statistics_at(const block_t *b, const void *base)
{
    const dp_attention_t *a = b->pass->attention;

    return element_at(base, ((size_t)b->sequence * a->n.heads + (size_t)b->kv * a->n.group) * b->extent, a->sum_bytes);
}

static const void *inverse_sums(const dp_attention_t *a, const void *saved)
{
    return element_at(saved, (size_t)a->n.tokens * a->n.heads, a->sum_bytes);
}

static dp_status_t run_softmax(const block_t *b)
{
    const dp_attention_t *a = b->pass->attention;
    const scores_t *s = a->core;
    void *p = scratch_at(b, s->p), *logits = scratch_at(b, s->logits), *largest = statistics_at(b, b->t->saved);
    void *inv_sum = statistics_at(b, inverse_sums(a, b->t->saved));
    block_t c = *b;

    if (b->pass->rehearsal)
        return DP_OK;
    return cuda_launch(a->host, a->cu, s->softmax, CUDA_DIM(b->kv_heads * a->n.group * b->rows), CUDA_DIM(THREADS), 0,
                       b->pass->stream, &p, &logits, &largest, &inv_sum, &c.rows, &c.columns, &c.pitch, &c.first,
                       &c.keys, (void *)&b->pass->starts, &c.extent);
}

static dp_status_t softmax_backward(const block_t *b)
{
    const dp_attention_t *a = b->pass->attention;
    const scores_t *s = a->core;
    void *p = scratch_at(b, s->p), *ds = scratch_at(b, s->ds), *logits = scratch_at(b, s->logits);
    void *dp = scratch_at(b, s->gradients), *largest = statistics_at(b, b->t->saved);
    void *inv_sum = statistics_at(b, inverse_sums(a, b->t->saved)), *delta = statistics_at(b, b->t->delta);
    block_t c = *b;

    if (b->pass->rehearsal)
        return DP_OK;
    return cuda_launch(a->host, a->cu, s->softmax_backward, CUDA_DIM(b->kv_heads * a->n.group * b->rows),
                       CUDA_DIM(THREADS), 0, b->pass->stream, &p, &ds, &logits, &dp, &largest, &inv_sum, &delta,
                       &c.rows, &c.columns, &c.pitch, &c.first, &c.keys, (void *)&b->pass->starts, &c.extent);
}

static dp_status_t forward_block(const block_t *b)
{
    const dp_attention_t *a = b->pass->attention;
    const scores_t *s = a->core;
    const attn_tensors_t *t = b->t;

    DO(make_scores(b, a->n.scale, t->q, a->n.q_width, t->k, a->n.k_width, a->n.head_dim, s->logits));
    DO(run_softmax(b));
    return apply_scores(b, 1, s->p, t->v, a->n.v_width, a->n.value_dim, t->out, a->n.o_width);
}

static dp_status_t backward_block(const block_t *b)
{
    const dp_attention_t *a = b->pass->attention;
    const scores_t *s = a->core;
    const attn_tensors_t *t = b->t;

    DO(make_scores(b, a->n.scale, t->q, a->n.q_width, t->k, a->n.k_width, a->n.head_dim, s->logits));
    DO(make_scores(b, 1, t->dout, a->n.o_width, t->v, a->n.v_width, a->n.value_dim, s->gradients));
    DO(softmax_backward(b));
    DO(gather_scores(b, 1, s->p, t->dout, a->n.o_width, a->n.value_dim, s->dv));
    DO(gather_scores(b, a->n.scale, s->ds, t->q, a->n.q_width, a->n.head_dim, s->dk));
    return apply_scores(b, a->n.scale, s->ds, t->k, a->n.k_width, a->n.head_dim, t->dq, a->n.q_width);
}

static dp_status_t clear_sums(const block_t *b, size_t offset, uint32_t dim)
{
    const dp_attention_t *a = b->pass->attention;
    const size_t bytes = (size_t)b->kv_heads * b->extent * dim * a->sum_bytes;

    if (b->pass->rehearsal)
        return DP_OK;
    return CUDA_CHECK(a->host,
                      a->cu->cuMemsetD8Async((CUdeviceptr)(uintptr_t)scratch_at(b, offset), 0, bytes, b->pass->stream),
                      "%s: clearing %zu bytes", a->vt->plugin, bytes);
}

/* The block's sums of keys or values go to their places in a gradient. */
static dp_status_t store_sums(const block_t *b, size_t offset, uint32_t dim, void *gradient, uint32_t row_width)
{
    const dp_attention_t *a = b->pass->attention;
    const scores_t *s = a->core;
    void *to = token_at(b, gradient, 0, row_width, b->kv, dim), *from = scratch_at(b, offset);
    const size_t count = (size_t)b->kv_heads * b->extent * dim, blocks = (count + THREADS - 1) / THREADS;
    uint32_t kv_heads = b->kv_heads, extent = b->extent;
    size_t width = row_width;

    if (b->pass->rehearsal)
        return DP_OK;
    return cuda_launch(a->host, a->cu, s->store_heads, CUDA_DIM(blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS),
                       CUDA_DIM(THREADS), 0, b->pass->stream, &to, &from, &kv_heads, &extent, &dim, &width);
}

/* Rows of blocks between the first query of one and the oldest key that it can see. */
static uint32_t most_behind(const dp_attention_t *a, uint32_t rows)
{
    return (a->n.sequence - 1 + rows - 1) / rows * rows;
}

/* Where the keys of a block of documents begin; for all that there can be, at the earliest. */
static uint32_t oldest_key(const block_t *b, uint32_t rows, uint32_t *document)
{
    const attn_pass_t *p = b->pass;
    const uint32_t most = most_behind(p->attention, rows);

    if (p->documents == 0)
        return b->first > most ? b->first - most : 0;
    while (p->ends[*document] <= b->first)
        ++*document;
    return *document > 0 ? p->ends[*document - 1] / rows * rows : 0;
}

static dp_status_t visit_keys(block_t *b, uint32_t keys, dp_status_t (*visit)(const block_t *b))
{
    b->keys = keys;
    b->columns = b->first - keys + b->rows;
    b->pitch = attn_score_pitch(b->columns);
    return visit(b);
}

/* Without documents the last two blocks, with keys from anywhere on, are all there can be. */
static dp_status_t over_documents(block_t *b, uint32_t rows, dp_status_t (*visit)(const block_t *b))
{
    const attn_pass_t *p = b->pass;
    const uint32_t tokens = p->attention->n.tokens;
    uint32_t document = 0;
    dp_status_t status = DP_OK;

    for (b->first = p->documents > 0 ? 0 : (tokens / rows - 1) * rows; b->first < p->tokens; b->first += rows) {
        const uint32_t oldest = oldest_key(b, rows, &document);

        b->rows = smaller(rows, tokens - b->first);
        for (uint32_t keys = oldest; keys <= (p->documents > 0 ? oldest : b->first) && status >= 0; keys += rows)
            status = visit_keys(b, keys, visit);
    }
    return status;
}

static dp_status_t over_queries(block_t *b, dp_status_t (*visit)(const block_t *b))
{
    const dp_attention_t *a = b->pass->attention;
    const scores_t *s = a->core;
    const uint32_t before = b->sequence * a->n.sequence, tokens = smaller(a->n.sequence, b->pass->tokens - before);
    dp_status_t status = DP_OK;

    if (b->pass->starts != NULL)
        return over_documents(b, s->blocks.rows, visit);
    for (b->first = 0; b->first < tokens && status >= 0; b->first += s->blocks.rows) {
        b->rows = smaller(s->blocks.rows, a->n.sequence - b->first);
        status = visit_keys(b, 0, visit);
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

    DO(clear_sums(b, s->dk, a->n.head_dim));
    DO(clear_sums(b, s->dv, a->n.value_dim));
    DO(over_queries(b, backward_block));
    DO(store_sums(b, s->dk, a->n.head_dim, b->t->dk, a->n.k_width));
    return store_sums(b, s->dv, a->n.value_dim, b->t->dv, a->n.v_width);
}

/* A rehearsal needs one sequence, or a document as long as the micro-batch. */
static dp_status_t over_heads(const attn_pass_t *pass, const attn_tensors_t *t, dp_status_t (*visit)(block_t *b))
{
    const dp_attention_t *a = pass->attention;
    const scores_t *s = a->core;
    const bool packed = pass->starts != NULL;
    const uint32_t heads = packed ? s->packed_heads : s->blocks.kv_heads;
    const uint32_t sequences = packed || pass->rehearsal ? 1 : (pass->tokens - 1) / a->n.sequence + 1;
    block_t b = {.pass = pass, .t = t, .extent = packed ? a->n.tokens : a->n.sequence};
    dp_status_t status = DP_OK;

    for (b.sequence = 0; b.sequence < sequences; b.sequence++)
        for (b.kv = 0; b.kv < a->n.kv_heads && status >= 0; b.kv += heads) {
            b.kv_heads = smaller(heads, a->n.kv_heads - b.kv);
            status = visit(&b);
        }
    return status;
}

static dp_status_t forward_scores(const attn_pass_t *pass, const attn_tensors_t *t)
{
    return over_heads(pass, t, forward_heads);
}

static dp_status_t backward_scores(const attn_pass_t *pass, const attn_tensors_t *t)
{
    return over_heads(pass, t, backward_heads);
}

static dp_status_t read_budget(const dp_attention_t *a, size_t *budget_out)
{
    char number[32];
    const char *text = debug_value("attention_cuda.score_bytes", number, sizeof(number));
    char *end;
    unsigned long long value;
    dp_status_t status = debug_check(a->host, "attention_cuda", "score_bytes");

    *budget_out = DEFAULT_BUDGET;
    if (status < 0 || text == NULL)
        return status;
    value = strtoull(text, &end, 10);
    if (*end != '\0' || *text == '-' || value == 0 || value > PTRDIFF_MAX)
        return DP_FAIL(
            a->host, DP_ERR_INVALID,
            "attention_cuda: DUALPIPE_DEBUG=attention_cuda.score_bytes is \"%s\": it must be a number of bytes", text);
    *budget_out = (size_t)value;
    return DP_OK;
}

/* Blocks of documents have more keys, and sums of all tokens, but fewer heads at a time. */
static dp_status_t lay_out_scores(dp_attention_t *a, scores_t *s)
{
    layout_t l = {.alignment = ATTN_ALIGN};
    const bool apart = a->bytes != a->sum_bytes;
    const uint32_t fewer = (uint32_t)attn_larger(a->n.batch, 2), rows = s->blocks.rows;
    const size_t packed_row = (size_t)a->n.group * attn_score_pitch(most_behind(a, rows) + rows);
    size_t scores, sums;

    s->packed_heads = (uint32_t)attn_larger(s->blocks.kv_heads / fewer, 1);
    scores = attn_larger(s->blocks.block_bytes / a->sum_bytes, (size_t)s->packed_heads * rows * packed_row);
    sums = attn_larger((size_t)s->blocks.kv_heads * a->n.sequence, (size_t)s->packed_heads * a->n.tokens);

    s->logits = layout_take(&l, 1, scores, a->sum_bytes);
    s->gradients = layout_take(&l, 1, scores, a->sum_bytes);
    s->p = apart ? layout_take(&l, 1, scores, a->bytes) : s->logits;
    s->ds = apart ? layout_take(&l, 1, scores, a->bytes) : s->gradients;
    s->dk = layout_take(&l, sums, a->n.head_dim, a->sum_bytes);
    s->dv = layout_take(&l, sums, a->n.value_dim, a->sum_bytes);
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
    s->blocks = attn_score_blocks(a, budget);
    return lay_out_scores(a, s);
}

static void close_core(dp_attention_t *a)
{
    scores_t *s = a->core;

    cuda_module_unload(s->module);
    a->host->release(a->host, s);
}

const attn_core_t scores_core = {
    .plugin = "attention_cuda",
    .takes = ATTN_TAKES_BF16 | ATTN_TAKES_LATENT | ATTN_TAKES_DOCUMENTS,
    .open = open_core,
    .close = close_core,
    .forward = forward_scores,
    .backward = backward_scores,
};
