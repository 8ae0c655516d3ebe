/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * passes.c: forward and both backwards of the CUDA attention block. */
#include "block.h"

#include "plugins/common/do.h"

#include <stdlib.h>
#include <string.h>

static void *in_region(const void *region, size_t offset_bytes)
{
    return (char *)(uintptr_t)region + offset_bytes;
}

/* An array of saved or of the backward buffer. */
static void *saved_array(const dp_io_t *io, size_t at)
{
    return layout_find(io->saved, io->backward_buffer, at);
}

dp_status_t attn_multiply(const attn_pass_t *p, const cuda_gemm_shape_t *shape, double alpha, const void *a,
                          const void *b, double beta, void *c)
{
    const cuda_gemm_operands_t operands = {alpha, beta, a, b, c, p->workspace};

    if (p->rehearsal)
        return cuda_gemm_prepare(p->attention->gemm, shape);
    return cuda_gemm_run(p->attention->gemm, shape, &operands, p->stream);
}

#define LAUNCH_OF(threads, pass, kernel, grid, ...)                                                                    \
    ((pass)->rehearsal                                                                                                 \
         ? DP_OK                                                                                                       \
         : cuda_launch((pass)->attention->host, (pass)->attention->cu, (pass)->attention->kernels.kernel, (grid),      \
                       CUDA_DIM(threads), 0, (pass)->stream, __VA_ARGS__))
#define LAUNCH(pass, kernel, grid, ...) LAUNCH_OF(ATTN_THREADS, pass, kernel, grid, __VA_ARGS__)

/* A block per row, with a thread for each 16 bytes or each few of them. */
#define LAUNCH_ROWS(pass, kernel, rows, width, ...)                                                                    \
    LAUNCH_OF(attn_row_threads((pass)->attention, width), pass, kernel, CUDA_DIM(rows), __VA_ARGS__)

static dp_status_t copy_memory(const attn_pass_t *p, void *to, const void *from, size_t bytes)
{
    const dp_attention_t *a = p->attention;

    if (p->rehearsal || to == from)
        return DP_OK;
    return CUDA_CHECK(
        a->host, a->cu->cuMemcpyDtoDAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, p->stream),
        "%s: copying %zu bytes", a->vt->plugin, bytes);
}

/* Rows behind the first `rows` become zeros. */
static dp_status_t clear_behind(const attn_pass_t *p, const void *tensor, uint32_t rows, uint32_t width)
{
    const dp_attention_t *a = p->attention;
    const size_t row = (size_t)width * a->bytes, bytes = (a->n.tokens - rows) * row;

    if (p->rehearsal || bytes == 0)
        return DP_OK;
    return CUDA_CHECK(
        a->host, a->cu->cuMemsetD8Async((CUdeviceptr)(uintptr_t)in_region(tensor, rows * row), 0, bytes, p->stream),
        "%s: clearing %zu bytes", a->vt->plugin, bytes);
}

static dp_status_t find_starts(const attn_pass_t *p)
{
    dp_attention_t *a = p->attention;
    void *starts = p->starts;
    const uint32_t *ends = p->ends;
    uint32_t documents = p->documents;

    return starts == NULL
               ? DP_OK
               : LAUNCH(p, starts, CUDA_DIM(documents + 1), &starts, (void *)&ends, &documents, &a->n.tokens);
}

/* Of each head the last 2 * half elements turn, behind `own` others. */
static dp_status_t rotate_heads(const attn_pass_t *p, void *to, const void *from, uint32_t heads, uint32_t own,
                                uint32_t half, int32_t sign)
{
    dp_attention_t *a = p->attention;
    uint32_t *starts = p->starts;

    return LAUNCH(p, rotate, CUDA_DIM(p->tokens), &to, &from, &a->rope, &starts, &heads, &own, &a->n.sequence, &half,
                  &sign);
}

/* out = rows w; w [from, to]. */
static dp_status_t project_rows(const attn_pass_t *p, const void *rows, uint32_t from, const void *w, uint32_t to,
                                void *out)
{
    const dp_attention_t *a = p->attention;
    const cuda_gemm_shape_t shape = {.in = a->n.dtype, .out = a->n.dtype, .m = p->rows, .n = to, .k = from};

    return attn_multiply(p, &shape, 1, rows, w, 0, out);
}

/* drows (+)= dout w^T, in the type of sums. */
static dp_status_t project_back(const attn_pass_t *p, const void *dout, uint32_t to, const void *w, uint32_t from,
                                double beta, void *drows)
{
    const dp_attention_t *a = p->attention;
    const cuda_gemm_shape_t shape = {
        .in = a->n.dtype, .out = a->sums, .transpose_b = true, .m = p->rows, .n = from, .k = to};

    return attn_multiply(p, &shape, 1, dout, w, beta, drows);
}

/* dw += left^T right over all tokens, in the type of sums. */
static dp_status_t project_weight(const attn_pass_t *p, const void *left, uint32_t rows, const void *right,
                                  uint32_t columns, void *dw)
{
    const dp_attention_t *a = p->attention;
    const cuda_gemm_shape_t shape = {
        .in = a->n.dtype, .out = a->sums, .transpose_a = true, .m = rows, .n = columns, .k = p->rows};

    return attn_multiply(p, &shape, 1, left, right, 1, dw);
}

attn_tensors_t attn_view(const dp_attention_t *a, const dp_io_t *io)
{
    return (attn_tensors_t){
        .q = saved_array(io, a->saved.q),
        .k = saved_array(io, a->saved.k),
        .v = saved_array(io, a->saved.v),
        .out = saved_array(io, a->saved.heads_out),
        .saved = saved_array(io, a->saved.core),
        .scratch = in_region(io->scratch, a->scratch.shared),
        .dout = in_region(io->scratch, a->scratch.dheads),
        .delta = in_region(io->scratch, a->scratch.delta),
        .dq = in_region(io->scratch, a->scratch.dq),
        .dk = in_region(io->scratch, a->scratch.dk),
        .dv = in_region(io->scratch, a->scratch.dv),
    };
}

static const void *find_parameter(const dp_attention_t *a, const dp_io_t *io, size_t offset)
{
    return in_region(io->params, offset * a->bytes);
}

/* ---- latents ---- */

/* Of queries, or of keys and values. */
typedef struct latent {
    uint32_t rank, stride; /* elements of a token in `down`, which begins with the latent */
    const void *w, *gain;
    void *normalized, *inv_rms, *down, *dgain; /* saved */
    /* scratch: behind the norm, or the gradient of that in the type of sums */
    void *rows;
    size_t w_at, gain_at; /* parameters, in elements */
} latent_t;

static latent_t latent_of(const dp_attention_t *a, const dp_io_t *io, bool queries)
{
    const size_t w_at = queries ? a->n.params.q_down : a->n.params.kv_down;
    const size_t gain_at = queries ? a->n.params.q_norm : a->n.params.kv_norm;

    return (latent_t){
        .rank = queries ? a->n.q_rank : a->n.kv_rank,
        .stride = queries ? a->n.q_rank : a->n.down_width,
        .w = find_parameter(a, io, w_at),
        .gain = find_parameter(a, io, gain_at),
        .normalized = saved_array(io, queries ? a->saved.q_latent.normalized : a->saved.kv_latent.normalized),
        .inv_rms = saved_array(io, queries ? a->saved.q_latent.inv_rms : a->saved.kv_latent.inv_rms),
        .down = saved_array(io, queries ? a->saved.q_latent.down : a->saved.kv_latent.down),
        .dgain = saved_array(io, queries ? a->saved.q_latent.dgain : a->saved.kv_latent.dgain),
        .rows = in_region(io->scratch, a->scratch.latent),
        .w_at = w_at,
        .gain_at = gain_at,
    };
}

static dp_status_t latent_forward(const attn_pass_t *p, latent_t *l, const void *n)
{
    dp_attention_t *a = p->attention;

    DO(project_rows(p, n, a->n.hidden, l->w, l->stride, l->down));
    return LAUNCH_ROWS(p, normalize, p->rows, l->rank, &l->normalized, &l->inv_rms, &l->rows, &l->down, &l->stride,
                       (void *)&l->gain, &l->rank, &a->n.norm_eps);
}

/* What the norm has made of it, once more; its other results are thrown away. */
static dp_status_t latent_again(const attn_pass_t *p, latent_t *l, const dp_io_t *io)
{
    dp_attention_t *a = p->attention;
    void *unread = in_region(io->scratch, a->scratch.delta);

    return LAUNCH_ROWS(p, normalize, p->rows, l->rank, &l->normalized, &unread, &l->rows, &l->down, &l->stride,
                       (void *)&l->gain, &l->rank, &a->n.norm_eps);
}

/* From the gradient in l->rows to that of `down`, and to dn. */
static dp_status_t latent_back(const attn_pass_t *p, latent_t *l, double beta, void *dn)
{
    dp_attention_t *a = p->attention;
    const void *dy = NULL; /* nothing goes past the norm */
    size_t tokens = p->tokens;

    DO(LAUNCH(p, gain_gradient, CUDA_DIM(cuda_blocks(l->rank, 32)), &l->dgain, &l->rows, &l->normalized, &tokens,
              &l->rank));
    DO(LAUNCH_ROWS(p, normalize_backward, p->rows, l->rank, &l->down, &l->stride, (void *)&dy, &l->rows,
                   (void *)&l->gain, &l->normalized, &l->inv_rms, &l->rank));
    return project_back(p, l->down, l->stride, l->w, a->n.hidden, beta, dn);
}

/* Gradients of its matrix and gain; l->rows: the latent behind its norm once more. */
static dp_status_t latent_weight(const attn_pass_t *p, latent_t *l, const dp_io_t *io, const void *n)
{
    dp_attention_t *a = p->attention;
    void *dgain = in_region(io->grads, l->gain_at * a->sum_bytes);
    size_t count = l->rank;

    DO(project_weight(p, n, a->n.hidden, l->down, l->stride, in_region(io->grads, l->w_at * a->sum_bytes)));
    DO(LAUNCH(p, accumulate, CUDA_DIM(cuda_blocks(count, ATTN_THREADS)), &dgain, &l->dgain, &count));
    return LAUNCH_ROWS(p, apply_gain, p->rows, l->rank, &l->rows, &l->normalized, (void *)&l->gain, &l->rank);
}

/* q, k and v of latents; the keys' own parts lie where their gradients will. */
static dp_status_t project_latents(const attn_pass_t *p, const dp_io_t *io, const void *n)
{
    dp_attention_t *a = p->attention;
    latent_t q = latent_of(a, io, true), kv = latent_of(a, io, false);
    void *queries = saved_array(io, a->saved.q), *keys = saved_array(io, a->saved.k),
         *own = in_region(io->scratch, a->scratch.dk);
    void *common = in_region(kv.down, kv.rank * a->bytes);
    uint32_t half = a->n.rope_dim / 2, *starts = p->starts;

    DO(q.rank > 0 ? latent_forward(p, &q, n) : DP_OK);
    DO(project_rows(p, q.rank > 0 ? q.rows : n, q.rank > 0 ? q.rank : a->n.hidden,
                    find_parameter(a, io, a->n.params.wq), a->n.q_width, queries));
    DO(latent_forward(p, &kv, n));
    DO(project_rows(p, kv.rows, kv.rank, find_parameter(a, io, a->n.params.wk), a->own_width, own));
    DO(project_rows(p, kv.rows, kv.rank, find_parameter(a, io, a->n.params.wv), a->n.v_width,
                    saved_array(io, a->saved.v)));
    DO(rotate_heads(p, queries, queries, a->n.heads, a->n.key_dim, half, 1));
    return LAUNCH(p, join_keys, CUDA_DIM(p->rows), &keys, &own, &common, &kv.stride, &a->rope, &starts, &a->n.heads,
                  &a->n.key_dim, &a->n.sequence, &half);
}

/* The core's gradients of q and k become those of the products that q and k were made of. */
static dp_status_t split_latents(const attn_pass_t *p, const dp_io_t *io, const attn_tensors_t *t)
{
    dp_attention_t *a = p->attention;
    const latent_t kv = latent_of(a, io, false);
    void *own = saved_array(io, a->saved.k), *common = in_region(kv.down, kv.rank * a->bytes);
    uint32_t half = a->n.rope_dim / 2, stride = kv.stride, *starts = p->starts;

    DO(rotate_heads(p, saved_array(io, a->saved.q), t->dq, a->n.heads, a->n.key_dim, half, -1));
    DO(LAUNCH(p, split_keys, CUDA_DIM(p->tokens), &own, &common, &stride, (void *)&t->dk, &a->rope, &starts,
              &a->n.heads, &a->n.key_dim, &a->n.sequence, &half));
    return clear_behind(p, own, p->tokens, a->own_width);
}

static dp_status_t latents_back(const attn_pass_t *p, const dp_io_t *io, void *dn)
{
    dp_attention_t *a = p->attention;
    latent_t q = latent_of(a, io, true), kv = latent_of(a, io, false);
    const void *wq = find_parameter(a, io, a->n.params.wq), *dq = saved_array(io, a->saved.q);

    DO(q.rank > 0 ? project_back(p, dq, a->n.q_width, wq, q.rank, 0, q.rows)
                  : project_back(p, dq, a->n.q_width, wq, a->n.hidden, 0, dn));
    if (q.rank > 0)
        DO(latent_back(p, &q, 0, dn));
    DO(project_back(p, saved_array(io, a->saved.k), a->own_width, find_parameter(a, io, a->n.params.wk), kv.rank, 0,
                    kv.rows));
    DO(project_back(p, saved_array(io, a->saved.v), a->n.v_width, find_parameter(a, io, a->n.params.wv), kv.rank, 1,
                    kv.rows));
    return latent_back(p, &kv, 1, dn);
}

static dp_status_t latents_weight(const attn_pass_t *p, const dp_io_t *io, const void *n)
{
    dp_attention_t *a = p->attention;
    latent_t q = latent_of(a, io, true), kv = latent_of(a, io, false);
    void *const dwq = in_region(io->grads, a->n.params.wq * a->sum_bytes);

    DO(q.rank > 0 ? latent_weight(p, &q, io, n) : DP_OK);
    DO(project_weight(p, q.rank > 0 ? q.rows : n, q.rank > 0 ? q.rank : a->n.hidden, saved_array(io, a->saved.q),
                      a->n.q_width, dwq));
    DO(latent_weight(p, &kv, io, n));
    DO(project_weight(p, kv.rows, kv.rank, saved_array(io, a->saved.k), a->own_width,
                      in_region(io->grads, a->n.params.wk * a->sum_bytes)));
    return project_weight(p, kv.rows, kv.rank, saved_array(io, a->saved.v), a->n.v_width,
                          in_region(io->grads, a->n.params.wv * a->sum_bytes));
}

/* ---- heads without latents ---- */

static dp_status_t project_heads(const attn_pass_t *p, const dp_io_t *io, const void *n)
{
    const dp_attention_t *a = p->attention;
    void *q = saved_array(io, a->saved.q), *k = saved_array(io, a->saved.k);

    DO(project_rows(p, n, a->n.hidden, find_parameter(a, io, a->n.params.wq), a->n.q_width, q));
    DO(project_rows(p, n, a->n.hidden, find_parameter(a, io, a->n.params.wk), a->n.k_width, k));
    DO(project_rows(p, n, a->n.hidden, find_parameter(a, io, a->n.params.wv), a->n.v_width,
                    saved_array(io, a->saved.v)));
    DO(rotate_heads(p, q, q, a->n.heads, 0, a->n.head_dim / 2, 1));
    return rotate_heads(p, k, k, a->n.kv_heads, 0, a->n.head_dim / 2, 1);
}

static dp_status_t heads_back(const attn_pass_t *p, const dp_io_t *io, void *dn)
{
    const dp_attention_t *a = p->attention;
    const uint32_t d = a->n.hidden;

    DO(project_back(p, saved_array(io, a->saved.q), a->n.q_width, find_parameter(a, io, a->n.params.wq), d, 0, dn));
    DO(project_back(p, saved_array(io, a->saved.k), a->n.k_width, find_parameter(a, io, a->n.params.wk), d, 1, dn));
    return project_back(p, saved_array(io, a->saved.v), a->n.v_width, find_parameter(a, io, a->n.params.wv), d, 1, dn);
}

static dp_status_t heads_weight(const attn_pass_t *p, const dp_io_t *io, const void *n)
{
    const dp_attention_t *a = p->attention;
    const struct {
        const void *right;
        uint32_t columns;
        size_t at;
    } weights[] = {
        {saved_array(io, a->saved.q), a->n.q_width, a->n.params.wq},
        {saved_array(io, a->saved.k), a->n.k_width, a->n.params.wk},
        {saved_array(io, a->saved.v), a->n.v_width, a->n.params.wv},
    };
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < sizeof(weights) / sizeof(weights[0]) && status >= 0; i++)
        status = project_weight(p, n, a->n.hidden, weights[i].right, weights[i].columns,
                                in_region(io->grads, weights[i].at * a->sum_bytes));
    return status;
}

/* ---- passes ---- */

/* q, k and v of what is behind the norm. */
static dp_status_t project_all(const attn_pass_t *p, const dp_io_t *io, const void *n)
{
    const dp_attention_t *a = p->attention;

    DO(find_starts(p));
    DO(a->n.kv_rank > 0 ? project_latents(p, io, n) : project_heads(p, io, n));
    DO(clear_behind(p, saved_array(io, a->saved.q), p->rows, a->n.q_width));
    DO(clear_behind(p, saved_array(io, a->saved.k), p->rows, a->n.k_width));
    return clear_behind(p, saved_array(io, a->saved.v), p->rows, a->n.v_width);
}

/* Behind the tokens come zeros: the product for the gradient of wo sums over that as well. */
static dp_status_t forward_core(const attn_pass_t *p, const dp_io_t *io)
{
    const attn_tensors_t t = attn_view(p->attention, io);
    dp_status_t status = p->attention->vt->forward(p, &t);

    return status < 0 ? status : clear_behind(p, t.out, p->tokens, p->attention->n.o_width);
}

/* x is read before anything else is written: y may be x. */
static dp_status_t forward_projections(const attn_pass_t *p, const dp_io_t *io)
{
    dp_attention_t *a = p->attention;
    void *normalized = saved_array(io, a->saved.normalized), *inv_rms = saved_array(io, a->saved.inv_rms);
    void *n = in_region(io->scratch, a->scratch.shared);
    const void *gain = find_parameter(a, io, a->n.params.norm), *x = io->x;

    DO(LAUNCH_ROWS(p, normalize, p->tokens, a->n.hidden, &normalized, &inv_rms, &n, &x, &a->n.hidden, &gain,
                   &a->n.hidden, &a->n.norm_eps));
    DO(clear_behind(p, normalized, p->tokens, a->n.hidden));
    DO(clear_behind(p, n, p->tokens, a->n.hidden));
    return project_all(p, io, n);
}

static dp_status_t run_forward(const attn_pass_t *p, const dp_io_t *io)
{
    const dp_attention_t *a = p->attention;
    const cuda_gemm_shape_t out = {
        .in = a->n.dtype, .out = a->n.dtype, .m = p->rows, .n = a->n.hidden, .k = a->n.o_width};
    const size_t bytes = (size_t)p->tokens * a->n.hidden * a->bytes;
    /* that ends with its tokens */
    void *y = p->rows == p->tokens ? io->y : in_region(io->scratch, a->scratch.shared);

    DO(forward_projections(p, io));
    DO(forward_core(p, io));
    DO(copy_memory(p, y, io->x, bytes));
    DO(attn_multiply(p, &out, 1, saved_array(io, a->saved.heads_out), find_parameter(a, io, a->n.params.wo), 1, y));
    return copy_memory(p, io->y, y, bytes);
}

/* What forward left in the backward buffer: all but the last product, or the norms of latents. */
static dp_status_t run_recompute(const attn_pass_t *p, const dp_io_t *io)
{
    dp_attention_t *a = p->attention;
    void *n = in_region(io->scratch, a->scratch.shared);
    const void *normalized = saved_array(io, a->saved.normalized), *gain = find_parameter(a, io, a->n.params.norm);
    latent_t q = latent_of(a, io, true), kv = latent_of(a, io, false);
    dp_status_t status = DP_OK;

    if (a->recompute >= DP_RECOMPUTE_FULL) {
        status = LAUNCH_ROWS(p, apply_gain, p->rows, a->n.hidden, &n, &normalized, &gain, &a->n.hidden);
        if (status >= 0)
            status = project_all(p, io, n);
        return status < 0 ? status : forward_core(p, io);
    }
    if (q.rank > 0)
        status = latent_again(p, &q, io);
    return status >= 0 && kv.rank > 0 ? latent_again(p, &kv, io) : status;
}

/* The gradients of q, k and v, rotated back, take the places of q, k and v. */
static dp_status_t backward_core(const attn_pass_t *p, const dp_io_t *io)
{
    dp_attention_t *a = p->attention;
    const attn_tensors_t t = attn_view(a, io);
    const void *dy = saved_array(io, a->saved.dy);
    const cuda_gemm_shape_t dheads = {
        .in = a->n.dtype, .out = a->n.dtype, .transpose_b = true, .m = p->rows, .n = a->n.o_width, .k = a->n.hidden};
    uint32_t sequence = p->starts != NULL ? a->n.tokens : a->n.sequence;

    DO(find_starts(p));
    DO(attn_multiply(p, &dheads, 1, dy, find_parameter(a, io, a->n.params.wo), 0, (void *)t.dout));
    DO(clear_behind(p, t.dout, p->rows, a->n.o_width));
    if (!a->vt->makes_delta)
        DO(LAUNCH(p, dot_rows, CUDA_DIM(a->n.tokens), (void *)&t.delta, (void *)&t.dout, (void *)&t.out, &a->n.heads,
                  &sequence, &a->n.value_dim));
    DO(a->vt->backward(p, &t));
    if (a->n.kv_rank > 0)
        DO(split_latents(p, io, &t));
    if (a->n.kv_rank == 0)
        DO(rotate_heads(p, saved_array(io, a->saved.q), t.dq, a->n.heads, 0, a->n.head_dim / 2, -1));
    if (a->n.kv_rank == 0)
        DO(rotate_heads(p, saved_array(io, a->saved.k), t.dk, a->n.kv_heads, 0, a->n.head_dim / 2, -1));
    return copy_memory(p, saved_array(io, a->saved.v), t.dv, (size_t)p->tokens * a->n.v_width * a->bytes);
}

/* dn, and the gain's gradient of it, which is wanted even where dx is not. */
static dp_status_t backward_projections(const attn_pass_t *p, const dp_io_t *io)
{
    dp_attention_t *a = p->attention;
    void *dn = in_region(io->scratch, a->scratch.shared), *dnorm = saved_array(io, a->saved.dnorm);
    const void *normalized = saved_array(io, a->saved.normalized);
    size_t tokens = p->tokens;

    DO(a->n.kv_rank > 0 ? latents_back(p, io, dn) : heads_back(p, io, dn));
    return LAUNCH(p, gain_gradient, CUDA_DIM(cuda_blocks(a->n.hidden, 32)), &dnorm, &dn, &normalized, &tokens,
                  &a->n.hidden);
}

/* dy is kept before dx is written: dx may be dy. */
static dp_status_t run_backward_input(const attn_pass_t *p, const dp_io_t *io)
{
    dp_attention_t *a = p->attention;
    void *dy = saved_array(io, a->saved.dy), *dn = in_region(io->scratch, a->scratch.shared), *dx = io->dx;
    const void *normalized = saved_array(io, a->saved.normalized), *inv_rms = saved_array(io, a->saved.inv_rms);
    const void *gain = find_parameter(a, io, a->n.params.norm);

    DO(copy_memory(p, dy, io->dy, (size_t)p->tokens * a->n.hidden * a->bytes));
    DO(clear_behind(p, dy, p->tokens, a->n.hidden));
    DO(backward_core(p, io));
    DO(backward_projections(p, io));
    if (dx != NULL)
        DO(LAUNCH_ROWS(p, normalize_backward, p->tokens, a->n.hidden, &dx, &a->n.hidden, &dy, &dn, &gain, &normalized,
                       &inv_rms, &a->n.hidden));
    return DP_OK;
}

static dp_status_t run_backward_weight(const attn_pass_t *p, const dp_io_t *io)
{
    dp_attention_t *a = p->attention;
    void *n = in_region(io->scratch, a->scratch.shared), *grads = io->grads, *dnorm = saved_array(io, a->saved.dnorm);
    const void *normalized = saved_array(io, a->saved.normalized), *gain = find_parameter(a, io, a->n.params.norm);
    size_t hidden = a->n.hidden;

    DO(LAUNCH_ROWS(p, apply_gain, p->rows, a->n.hidden, &n, &normalized, &gain, &a->n.hidden));
    DO(a->n.kv_rank > 0 ? latents_weight(p, io, n) : heads_weight(p, io, n));
    DO(project_weight(p, saved_array(io, a->saved.heads_out), a->n.o_width, saved_array(io, a->saved.dy), a->n.hidden,
                      in_region(grads, a->n.params.wo * a->sum_bytes)));
    return LAUNCH(p, accumulate, CUDA_DIM(cuda_blocks(hidden, ATTN_THREADS)), &grads, &dnorm, &hidden);
}

attn_pass_t attn_pass(dp_attention_t *a, uint32_t tokens)
{
    return (attn_pass_t){.attention = a, .tokens = tokens, .rows = cuda_gemm_length(tokens, a->n.tokens)};
}

typedef dp_status_t (*pass_fn)(const attn_pass_t *p, const dp_io_t *io);

static dp_status_t run_pass(dp_attention_t *a, const char *name, pass_fn pass, unsigned needs, const dp_io_t *io,
                            dp_stream_t *s)
{
    attn_pass_t p;
    dp_io_t taken;

    DO(attn_check_io(a->host, a->vt->plugin, &a->n, a->vt->takes, name, io, needs, &taken));
    p = attn_pass(a, taken.tokens);
    p.documents = taken.documents;
    p.ends = taken.document_ends;
    p.starts = taken.documents > 0 ? in_region(io->scratch, a->scratch.starts) : NULL;
    p.stream = a->device_vt->stream_native(s);
    if (p.stream == NULL)
        return DP_FAIL(a->host, DP_ERR_UNSUPPORTED, "%s: %s: the stream has no CUDA stream: use one of device_cuda",
                       a->vt->plugin, name);
    p.workspace = in_region(io->scratch, a->scratch.workspace);
    return pass(&p, &taken);
}

dp_status_t attn_block_forward(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)
{
    return run_pass(a, "forward", run_forward, ATTN_FORWARD, io, s);
}

dp_status_t attn_block_backward_input(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)
{
    return run_pass(a, "backward_input", run_backward_input, ATTN_BACKWARD_INPUT, io, s);
}

dp_status_t attn_block_backward_weight(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)
{
    return run_pass(a, "backward_weight", run_backward_weight, ATTN_BACKWARD_WEIGHT, io, s);
}

dp_status_t attn_block_recompute(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)
{
    return run_pass(a, "recompute", run_recompute, ATTN_RECOMPUTE, io, s);
}

static dp_status_t all_passes(const attn_pass_t *p, const dp_io_t *io)
{
    DO(run_forward(p, io));
    DO(run_recompute(p, io));
    DO(run_backward_input(p, io));
    return run_backward_weight(p, io);
}

/* Passes like `kind` of every length that products are prepared for, and of documents. */
static dp_status_t all_lengths(const attn_pass_t *kind, const dp_io_t *io)
{
    dp_attention_t *a = kind->attention;
    attn_pass_t p = *kind;
    dp_status_t status = DP_OK;

    for (p.rows = p.tokens = 0; p.tokens < a->n.tokens && status >= 0;) {
        p.tokens = p.rows = cuda_gemm_length(p.tokens + 1, a->n.tokens);
        status = all_passes(&p, io);
    }
    p.starts = in_region(io->scratch, a->scratch.starts);
    return status < 0 || !(a->vt->takes & ATTN_TAKES_DOCUMENTS) ? status : all_passes(&p, io);
}

dp_status_t attn_rehearse(dp_attention_t *a)
{
    static char nowhere[ATTN_ALIGN];
    const attn_pass_t p = {.attention = a, .rehearsal = true};
    const dp_io_t io = {.struct_size = sizeof(io),
                        .params = nowhere,
                        .grads = nowhere,
                        .saved = nowhere,
                        .backward_buffer = nowhere,
                        .scratch = nowhere,
                        .x = nowhere,
                        .y = nowhere,
                        .dy = nowhere,
                        .dx = nowhere};

    return all_lengths(&p, &io);
}

/* One tensor serves as x, y, dx and dy. Offsets until the memory is there. */
static dp_io_t lay_out_io(const dp_attention_t *a, layout_t *l)
{
    dp_io_t io = {.struct_size = sizeof(io)};

    io.params = (const void *)layout_take(l, a->n.params.count, 1, a->bytes);
    io.grads = (void *)layout_take(l, a->n.params.count, 1, a->sum_bytes);
    io.saved = (void *)layout_take(l, a->saved.bytes, 1, 1);
    io.backward_buffer = (void *)layout_take(l, a->saved.backward_buffer_bytes, 1, 1);
    io.scratch = (void *)layout_take(l, a->scratch.bytes, 1, 1);
    io.x = io.dy = io.y = io.dx = (void *)layout_take(l, a->n.tokens, a->n.hidden, a->bytes);
    return io;
}

static dp_status_t warm_up_on(dp_attention_t *a, CUstream side, dp_io_t io, const void *memory)
{
    attn_pass_t p = {.attention = a, .stream = side, .warm_up = true};
    dp_status_t status;

    io.params = in_region(memory, (size_t)io.params);
    io.grads = in_region(memory, (size_t)io.grads);
    io.saved = in_region(memory, (size_t)io.saved);
    io.backward_buffer = in_region(memory, (size_t)io.backward_buffer);
    io.scratch = in_region(memory, (size_t)io.scratch);
    io.x = io.dy = io.y = io.dx = in_region(memory, (size_t)io.x);
    p.workspace = in_region(io.scratch, a->scratch.workspace);
    status = all_lengths(&p, &io);
    return status >= 0 ? cuda_side_settle(a->host, a->cu, side, "attention's first passes") : status;
}

dp_status_t attn_warm_up(dp_attention_t *a)
{
    layout_t l = {.alignment = ATTN_ALIGN};
    const dp_io_t io = lay_out_io(a, &l);
    const char *loading = getenv("CUDA_MODULE_LOADING");
    CUstream side = NULL;
    void *memory = NULL;
    dp_status_t status;

    if (loading != NULL && strcmp(loading, "EAGER") == 0)
        return DP_OK; /* nothing is left to load */
    status = l.overflow ? attn_too_large(a->host, a->vt->plugin, &a->n)
                        : a->device_vt->allocate(a->device, l.bytes, &memory);

    if (status >= 0)
        status = cuda_side_open(a->host, a->cu, &side);
    if (status >= 0)
        status = warm_up_on(a, side, io, memory);
    cuda_side_close(a->cu, side);
    a->device_vt->release(a->device, memory);
    return status;
}
