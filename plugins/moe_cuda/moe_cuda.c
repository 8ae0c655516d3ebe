/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_cuda.c: the plugin and its calls. A call puts kernels, products and exchanges on the stream
 * it is given and returns; what sizes they have, the device alone knows. The only state an instance
 * changes is the number of its next exchange, and with a library what that reads of groups. */
#include "moe_cuda.h"
#include "plugins/common/check.h"
#include "plugins/common/debug.h"
#include "plugins/common/do.h"
#include "plugins/common/layout.h"

#include <stdlib.h>
#include <string.h>

/* One block scans all experts; tokens are counted by the second dimension of a grid. */
static const moe_rules_t rules = {.plugin = "moe_cuda",
                                  .bf16 = true,
                                  .capacity = true,
                                  .row_alignment = MOE_ROW_ALIGNMENT,
                                  .most_experts = 1 << 14,
                                  .most_ranks = MOE_MOST_RANKS,
                                  .most_tokens = 65535 * MOE_STRIP,
                                  .most_elements = INT64_MAX};

/* One call under way; after its first failure the rest of its steps does nothing. */
typedef struct work {
    dp_moe_t *moe;
    const dp_io_t *io;
    dp_stream_t *stream;
    CUstream s;
    moe_call_t call;
    dp_status_t status;
} work_t;

static void *block_at(const void *block, size_t offset)
{
    return block != NULL ? (char *)(uintptr_t)block + offset : NULL;
}

/* A parameter by its offset in elements. */
static void *param_at(const dp_moe_t *moe, const void *params, size_t offset)
{
    return block_at(params, offset * dp_dtype_bytes(moe->dtype));
}

/* Its gradient. */
static void *grad_at(const dp_moe_t *moe, void *grads, size_t offset)
{
    return block_at(grads, offset * dp_dtype_bytes(dp_dtype_accumulator(moe->dtype)));
}

static void point_call(const dp_moe_t *moe, const dp_io_t *io, moe_call_t *c)
{
    const moe_layout_t *l = &moe->layout;

#define POINT_SAVED(type, name, rows, columns, bytes)   c->name = layout_find(io->saved, io->backward_buffer, l->name);
#define POINT_WORK(type, name, rows, columns, bytes)    c->name = block_at(io->work, l->name);
#define POINT_SCRATCH(type, name, rows, columns, bytes) c->name = block_at(io->scratch, l->name);
    MOE_SAVED(POINT_SAVED)
    MOE_WORK(POINT_WORK)
    MOE_SCRATCH(POINT_SCRATCH)
    c->own_dy = moe->n.shared > 0 ? c->shared_dy : c->passing_dy;
    c->norm = param_at(moe, io->params, l->params.norm);
    c->bias = param_at(moe, io->params, l->params.bias);
    c->router = param_at(moe, io->params, l->params.router);
    c->grad_norm = grad_at(moe, io->grads, l->params.norm);
    c->grad_bias = grad_at(moe, io->grads, l->params.bias);
    c->grad_router = grad_at(moe, io->grads, l->params.router);
    c->y = io->y;
    c->dx = io->dx;
    c->fault = moe->fault;
}

static work_t begin_call(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s, const char *call, unsigned need)
{
    static const dp_io_t nothing; /* what a call that failed before its first step looks at */
    work_t w = {.moe = moe,
                .io = &nothing,
                .stream = s,
                .call = {.n = moe->n},
                .status = moe_check_io(moe->host, rules.plugin, io, call, need)};

    if (w.status >= 0)
        w.status = moe_check(moe);
    if (w.status >= 0)
        w.status = moe_dims_of(moe->host, rules.plugin, io->io, &moe->n, &w.call.n);
    if (w.status < 0)
        return w;
    w.io = io->io;
    w.s = moe->device_vt->stream_native(s);
    point_call(moe, w.io, &w.call);
    w.call.aux_loss = io->aux_loss;
    w.call.aux_scale = (double)io->aux_scale;
    w.call.placement = moe->n.replicated ? io->placement : NULL;
    w.call.microbatch = w.io->microbatch;
    return w;
}

/* ---- launches ---- */

/* Threads that share `elements` in steps of `width` evenly. */
static unsigned threads_for(int32_t elements, int32_t width)
{
    const int32_t steps = (elements + width - 1) / width, turns = (steps + 255) / 256;

    return (unsigned)(((steps + turns - 1) / turns + 31) / 32 * 32);
}

static unsigned row_threads(const dp_moe_t *moe, int32_t elements)
{
    const int32_t width = moe->n.vectors ? (int32_t)(16 / dp_dtype_bytes(moe->dtype)) : 1;

    return threads_for(elements, width);
}

/* No more blocks than there is work for, and several times what runs at once: so the last of them
 * end together. */
static unsigned blocks_for(const dp_moe_t *moe, int64_t most)
{
    const int64_t enough = (int64_t)moe->sms * 32;

    return (unsigned)(most < enough ? most : enough);
}

static void run_kernel(work_t *w, CUfunction kernel, cuda_dim_t grid, unsigned threads)
{
    if (w->status >= 0)
        w->status = cuda_launch(w->moe->host, w->moe->cu, kernel, grid, CUDA_DIM(threads), 0, w->s, &w->call);
}

/* A block per token, or per row. */
static void run_tokens(work_t *w, CUfunction kernel)
{
    run_kernel(w, kernel, CUDA_DIM(blocks_for(w->moe, w->call.n.tokens)), row_threads(w->moe, w->call.n.hidden));
}

/* A warp per token. */
static void run_warps(work_t *w, CUfunction kernel)
{
    run_kernel(w, kernel, CUDA_DIM(cuda_blocks((size_t)w->call.n.tokens, MOE_TOKEN_THREADS / 32)), MOE_TOKEN_THREADS);
}

static void run_alone(work_t *w, CUfunction kernel)
{
    run_kernel(w, kernel, CUDA_DIM(1), MOE_SCAN_THREADS);
}

/* A block for each rank, or one; its threads share `count`. */
static void run_wide(work_t *w, CUfunction kernel, int32_t blocks, int32_t count)
{
    const int32_t threads = count < MOE_ALONE_THREADS ? (count + 31) / 32 * 32 : MOE_ALONE_THREADS;

    run_kernel(w, kernel, CUDA_DIM((unsigned)blocks), (unsigned)threads);
}

/* A block per chunk of choices. */
static void run_chunks(work_t *w, CUfunction kernel)
{
    const size_t choices = (size_t)w->call.n.tokens * (size_t)w->call.n.top_k;

    run_kernel(w, kernel, CUDA_DIM(cuda_blocks(choices, MOE_CHUNK)), threads_for(w->call.n.experts, 1));
}

static void run_elements(work_t *w, CUfunction kernel, int64_t count)
{
    run_kernel(w, kernel, CUDA_DIM(blocks_for(w->moe, (count + 255) / 256)), 256);
}

static void put_product(work_t *w, moe_form_t form, bool sums, const moe_product_t *p)
{
    if (w->status >= 0)
        w->status = moe_multiply(w->moe, form, sums, p, w->s);
}

/* ---- exchanges ---- */

/* Rows in work go to their ranks; what comes is the call's `arrived` until take_rows(). */
static void transfer_rows(work_t *w, moe_link_t *link, const int32_t *offsets, const int32_t *counts)
{
    const void *rows = NULL;
    const int32_t *arrived = NULL;

    if (w->status < 0)
        return;
    w->status = w->moe->comm_vt->exchange(link->exchange, link->number, w->call.rows, offsets, counts, &rows, &arrived,
                                          w->stream);
    if (w->status < 0)
        return;
    link->number++;
    w->call.arrived = rows;
    w->call.arrived_counts = arrived;
    w->call.room = link->room;
}

static void transfer_out(work_t *w, int32_t label)
{
    w->call.label = label;
    transfer_rows(w, &w->moe->out, w->call.out_offsets, w->call.out_counts);
}

static void transfer_back(work_t *w, int32_t label)
{
    w->call.label = label;
    transfer_rows(w, &w->moe->back, w->call.back_offsets, w->call.back_counts);
}

static void take_rows(work_t *w, moe_link_t *link)
{
    if (w->status >= 0)
        w->status = w->moe->comm_vt->exchange_release(link->exchange, link->number - 1, w->stream);
}

static void sort_rows(work_t *w)
{
    const moe_kernels_t *k = &w->moe->kernels;

    run_kernel(w, k->sort, CUDA_DIM(blocks_for(w->moe, w->call.n.rows)), row_threads(w->moe, w->call.n.hidden));
}

/* ---- products: what A, B and C are; see moe.h for the shapes ---- */

/* Over all rows that arrived, expert by expert. */
static moe_product_t grouped_product(const work_t *w, int32_t n, int32_t k)
{
    const moe_product_t p = {.rows = w->call.group_rows,
                             .first = w->call.group_first,
                             .group_b = (int64_t)w->moe->layout.params.expert_count,
                             .groups = w->call.n.local,
                             .cells = 1,
                             .m = w->call.n.rows,
                             .n = n,
                             .k = k,
                             .parts = 1,
                             .outputs = 1};

    return p;
}

/* Over this rank's tokens. */
static moe_product_t dense_product(int32_t m, int32_t n, int32_t k)
{
    const moe_product_t p = {.groups = 1, .cells = 1, .m = m, .n = n, .k = k, .parts = 1, .outputs = 1};

    return p;
}

/* C += A^T B, source rank by source rank. */
static moe_product_t cellular_product(const work_t *w, int32_t m, int32_t n)
{
    moe_product_t p = grouped_product(w, n, 0);

    p.rows = w->call.cells;
    p.first = w->call.first;
    p.group_b = 0;
    p.group_c = (int64_t)w->moe->layout.params.expert_count;
    p.cells = w->call.n.ranks;
    p.m = m;
    return p;
}

static void set_operands(moe_product_t *p, const void *a, int64_t lda, const void *b, int64_t ldb, void *c, int64_t ldc)
{
    p->a[0] = a;
    p->lda = lda;
    p->b[0] = b;
    p->ldb = ldb;
    p->c[0] = c;
    p->ldc = ldc;
}

/* ---- experts: the routed ones over rows that arrived, the shared ones over our tokens ---- */

typedef struct mlp {
    moe_glu_t glu;      /* the rows of its activation */
    const void *x, *dy; /* [rows, d] */
    void *out;          /* what it makes of x, or the gradient of x */
    int64_t stride;     /* from row to row of out */
    size_t at[3];       /* parameters: gate, up, down */
    bool shared;
} mlp_t;

/* label: of the rows that are sent. */
static mlp_t routed_experts(const work_t *w, int32_t label)
{
    const moe_call_t *c = &w->call;
    const moe_params_t *l = &w->moe->layout.params;
    const size_t matrix = (size_t)c->n.hidden * (size_t)c->n.ffn;

    return (mlp_t){.glu = {.gate = c->gate,
                           .up = (char *)c->gate + (size_t)c->n.rows * (size_t)c->n.ffn * dp_dtype_bytes(w->moe->dtype),
                           .act = c->act,
                           .weights = c->arrived_weights,
                           .source = c->source,
                           .back = c->back,
                           .first = c->in_first,
                           .heads = c->in_heads,
                           .offsets = c->back_offsets,
                           .sent = c->rows,
                           .row_bytes = c->n.row_bytes,
                           .rows = c->n.rows,
                           .ranks = c->n.ranks,
                           .width = c->n.ffn,
                           .hidden = c->n.hidden,
                           .label = label,
                           .vectors = c->n.vectors},
                   .x = c->x,
                   .dy = c->dy,
                   .out = c->rows,
                   .stride = c->n.stride,
                   .at = {l->expert, l->expert + matrix, l->expert + 2 * matrix}};
}

static mlp_t shared_experts(const work_t *w)
{
    const moe_call_t *c = &w->call;
    const moe_params_t *l = &w->moe->layout.params;

    return (mlp_t){.glu = {.gate = c->shared_gate,
                           .up = c->shared_up,
                           .act = c->shared_act,
                           .rows = c->n.tokens,
                           .width = c->n.shared,
                           .hidden = c->n.hidden,
                           .vectors = c->n.vectors},
                   .x = c->normed,
                   .dy = c->own_dy,
                   .out = c->own,
                   .stride = c->n.hidden,
                   .at = {l->shared_gate, l->shared_up, l->shared_down},
                   .shared = true};
}

static moe_product_t rows_product(const work_t *w, const mlp_t *m, int32_t n, int32_t k)
{
    return m->shared ? dense_product(w->call.n.tokens, n, k) : grouped_product(w, n, k);
}

static moe_product_t cells_product(const work_t *w, const mlp_t *m, int32_t rows, int32_t columns)
{
    return m->shared ? dense_product(rows, columns, w->call.n.tokens) : cellular_product(w, rows, columns);
}

static void *mlp_param(const work_t *w, const mlp_t *m, int which)
{
    return param_at(w->moe, w->io->params, m->at[which]);
}

static void *mlp_grad(const work_t *w, const mlp_t *m, int which)
{
    return grad_at(w->moe, w->io->grads, m->at[which]);
}

static void run_glu(work_t *w, CUfunction kernel, const moe_glu_t *g)
{
    const unsigned threads = row_threads(w->moe, g->width);
    moe_glu_t argument = *g;

    if (w->status >= 0)
        w->status = cuda_launch(w->moe->host, w->moe->cu, kernel, CUDA_DIM(blocks_for(w->moe, g->rows)),
                                CUDA_DIM(threads), 0, w->s, &argument);
}

/* A product into m->out. */
static void put_out(work_t *w, const mlp_t *m, moe_form_t form, moe_product_t *p)
{
    if (!m->shared) {
        p->map = w->call.back;
        p->apart = w->call.apart;
    }
    put_product(w, form, m->shared, p);
}

/* gate and up */
static void mlp_widen(work_t *w, const mlp_t *m)
{
    const int32_t d = w->call.n.hidden, f = m->glu.width;
    moe_product_t up = rows_product(w, m, f, d);

    if (m->shared)
        run_tokens(w, w->moe->kernels.norm_again);
    set_operands(&up, m->x, d, mlp_param(w, m, 0), f, m->glu.gate, f);
    up.outputs = 2;
    up.b[1] = mlp_param(w, m, 1);
    up.c[1] = m->glu.up;
    put_product(w, MOE_NN, false, &up);
}

static void mlp_forward(work_t *w, const mlp_t *m)
{
    const int32_t d = w->call.n.hidden, f = m->glu.width;
    moe_product_t down = rows_product(w, m, d, f);

    mlp_widen(w, m);
    run_glu(w, w->moe->kernels.activate, &m->glu);
    set_operands(&down, m->glu.act, f, mlp_param(w, m, 2), d, m->out, m->stride);
    put_out(w, m, MOE_NN, &down);
}

static void mlp_backward_input(work_t *w, const mlp_t *m)
{
    const int32_t d = w->call.n.hidden, f = m->glu.width;
    moe_product_t down = rows_product(w, m, f, d), up = rows_product(w, m, d, f);

    set_operands(&down, m->dy, d, mlp_param(w, m, 2), d, m->glu.act, f);
    put_product(w, MOE_NT, false, &down);
    run_glu(w, w->moe->kernels.activate_backward, &m->glu);
    set_operands(&up, m->glu.gate, f, mlp_param(w, m, 0), f, m->out, m->stride);
    up.parts = 2;
    up.a[1] = m->glu.up;
    up.b[1] = mlp_param(w, m, 1);
    put_out(w, m, MOE_NT, &up);
}

static void mlp_backward_weight(work_t *w, const mlp_t *m)
{
    const int32_t d = w->call.n.hidden, f = m->glu.width;
    moe_product_t up = cells_product(w, m, d, f), down = cells_product(w, m, f, d);

    if (m->shared)
        run_tokens(w, w->moe->kernels.norm_again);
    set_operands(&up, m->x, d, m->glu.gate, f, mlp_grad(w, m, 0), f);
    up.outputs = 2;
    up.b[1] = m->glu.up;
    up.c[1] = mlp_grad(w, m, 1);
    put_product(w, MOE_TN, true, &up);
    set_operands(&down, m->glu.act, f, m->dy, d, mlp_grad(w, m, 2), d);
    put_product(w, MOE_TN, true, &down);
}

static dp_status_t run_mlps(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s, const char *call, unsigned need,
                            int32_t label, void (*run)(work_t *, const mlp_t *))
{
    work_t w = begin_call(moe, io, s, call, need);
    mlp_t m;

    if (w.status >= 0) {
        m = routed_experts(&w, label);
        run(&w, &m);
    }
    if (w.status >= 0 && moe->n.shared > 0) {
        m = shared_experts(&w);
        run(&w, &m);
    }
    return w.status;
}

/* ---- the router's products ---- */

/* Whether tensor cores make them: rows are vectors of 16 bytes. */
static bool has_router_tiles(const work_t *w)
{
    const moe_dims_t *n = &w->call.n;

    return w->moe->kernels.tensor[MOE_NN][1] != NULL && n->hidden % 8 == 0 && n->experts % 8 == 0 &&
           (uintptr_t)w->call.router % 16 == 0;
}

static unsigned router_tiles(int32_t count)
{
    return (unsigned)((count + MOE_ROUTER_TILE - 1) / MOE_ROUTER_TILE);
}

static void run_router(work_t *w, CUfunction kernel, cuda_dim_t grid)
{
    if (w->status >= 0)
        w->status = cuda_launch(w->moe->host, w->moe->cu, kernel, grid, CUDA_DIM(MOE_ROUTER_THREADS), MOE_ROUTER_SHARED,
                                w->s, &w->call);
}

static void make_logits(work_t *w)
{
    const moe_dims_t *n = &w->call.n;
    moe_product_t p = dense_product(n->tokens, n->experts, n->hidden);

    if (has_router_tiles(w)) {
        w->call.slices = MOE_SLICES(n->hidden);
        run_router(w, w->moe->kernels.logits,
                   CUDA_DIM3(router_tiles(n->tokens), (unsigned)w->call.slices, router_tiles(n->experts)));
        return;
    }
    set_operands(&p, w->call.normed, n->hidden, w->call.router, n->experts, w->call.scores, n->experts);
    put_product(w, MOE_NN, true, &p);
}

/* The gradients of the logits as products take them: in bf16 as a sum of two, which logits_backward
 * leaves in scratch memory. */
static void logit_parts(work_t *w, bool lost, const void *parts[2])
{
    const moe_dims_t *n = &w->call.n;
    const int64_t count = (int64_t)n->tokens * n->experts;

    parts[0] = w->call.scores;
    parts[1] = NULL;
    if (w->moe->dtype != DP_BF16)
        return;
    if (lost)
        run_elements(w, w->moe->kernels.split, count);
    parts[0] = w->call.strips;
    parts[1] = (char *)w->call.strips + count * 2;
}

/* Gradient of n += dlogits w_router^T */
static void logits_backward(work_t *w)
{
    const moe_dims_t *n = &w->call.n;
    const void *router = w->call.router, *parts[2];
    moe_product_t p = dense_product(n->tokens, n->hidden, n->experts);

    logit_parts(w, false, parts);
    if (has_router_tiles(w)) {
        run_router(w, w->moe->kernels.router_input, CUDA_DIM2(router_tiles(n->tokens), router_tiles(n->hidden)));
        return;
    }
    set_operands(&p, parts[0], n->experts, router, n->experts, w->call.own, n->hidden);
    p.accumulate = 1;
    if (parts[1] != NULL) {
        p.parts = 2;
        p.a[1] = parts[1];
        p.b[1] = router;
    }
    put_product(w, MOE_NT, true, &p);
}

static void router_weights(work_t *w)
{
    const moe_dims_t *n = &w->call.n;
    const void *parts[2];
    moe_product_t p = dense_product(n->hidden, n->experts, n->tokens);

    logit_parts(w, true, parts);
    if (has_router_tiles(w)) {
        w->call.slices = MOE_SLICES(n->tokens);
        run_router(w, w->moe->kernels.router_weight,
                   CUDA_DIM3(router_tiles(n->hidden), (unsigned)w->call.slices, router_tiles(n->experts)));
        return;
    }
    set_operands(&p, w->call.normed, n->hidden, parts[0], n->experts, w->call.grad_router, n->experts);
    if (parts[1] != NULL) {
        p.parts = 2;
        p.a[1] = w->call.normed;
        p.b[1] = parts[1];
    }
    put_product(w, MOE_TN, true, &p);
}

/* ---- the calls of moe.h ---- */

static dp_status_t moe_route(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    const moe_kernels_t *k = &moe->kernels;
    work_t w = begin_call(moe, io, s, "route", MOE_NEED_X);

    if (w.status >= 0)
        w.status = moe_check_placement(moe->host, rules.plugin, io, &moe->n);
    w.call.input = w.io->x;
    w.call.label = MOE_DISPATCH;
    run_tokens(&w, k->norm);
    make_logits(&w);
    run_warps(&w, k->choices);
    run_chunks(&w, k->count);
    run_wide(&w, k->starts, 1, moe->n.replicas > moe->n.experts ? moe->n.replicas : moe->n.experts);
    run_chunks(&w, k->places);
    run_wide(&w, k->tokens, moe->n.ranks, w.call.n.tokens);
    if (moe->n.aux > 0 && io->aux_loss != NULL) {
        run_warps(&w, k->aux_tokens);
        run_alone(&w, k->aux_sum);
    }
    run_tokens(&w, k->pack);
    return w.status;
}

static dp_status_t moe_dispatch(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    const moe_kernels_t *k = &moe->kernels;
    work_t w = begin_call(moe, io, s, "dispatch", 0);

    transfer_out(&w, MOE_DISPATCH);
    run_kernel(&w, k->cells, CUDA_DIM2(blocks_for(moe, moe->n.pair_rows / 256 + 1), moe->n.ranks), 256);
    run_wide(&w, k->groups, 1, moe->n.replicas);
    sort_rows(&w);
    take_rows(&w, &moe->out);
    return w.status;
}

static dp_status_t moe_experts(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    return run_mlps(moe, io, s, "experts", 0, MOE_COMBINE, mlp_forward);
}

static dp_status_t moe_experts_recompute(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    return run_mlps(moe, io, s, "experts_recompute", MOE_NEED_NO_WORK, 0, mlp_widen);
}

static dp_status_t moe_combine(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    const moe_kernels_t *k = &moe->kernels;
    work_t w = begin_call(moe, io, s, "combine", MOE_NEED_Y);

    transfer_back(&w, MOE_COMBINE);
    run_alone(&w, k->due);
    run_tokens(&w, k->combine);
    take_rows(&w, &moe->back);
    return w.status;
}

static dp_status_t moe_combine_backward(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    const moe_kernels_t *k = &moe->kernels;
    work_t w = begin_call(moe, io, s, "combine_backward", MOE_NEED_DY);

    w.call.input = w.io->dy;
    w.call.label = MOE_COMBINE_BACKWARD;
    run_tokens(&w, k->pack);
    transfer_out(&w, MOE_COMBINE_BACKWARD);
    run_alone(&w, k->due);
    sort_rows(&w);
    take_rows(&w, &moe->out);
    return w.status;
}

static dp_status_t moe_experts_backward_input(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    return run_mlps(moe, io, s, "experts_backward_input", 0, MOE_DISPATCH_BACKWARD, mlp_backward_input);
}

static dp_status_t moe_experts_backward_weight(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    return run_mlps(moe, io, s, "experts_backward_weight", MOE_NEED_GRADS | MOE_NEED_NO_WORK, 0, mlp_backward_weight);
}

static dp_status_t moe_dispatch_backward(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    const moe_kernels_t *k = &moe->kernels;
    work_t w = begin_call(moe, io, s, "dispatch_backward", 0);

    transfer_back(&w, MOE_DISPATCH_BACKWARD);
    run_alone(&w, k->due);
    run_tokens(&w, k->gather);
    take_rows(&w, &moe->back);
    return w.status;
}

static dp_status_t moe_route_backward_input(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    const moe_kernels_t *k = &moe->kernels;
    work_t w = begin_call(moe, io, s, "route_backward_input", 0);
    const moe_dims_t *n = &w.call.n;
    const unsigned threads = row_threads(moe, n->hidden), strips = cuda_blocks((size_t)n->tokens, MOE_STRIP);
    const int32_t width = n->vectors ? (int32_t)(16 / dp_dtype_bytes(moe->dtype)) : 1;
    const bool held = w.io->dx != NULL && n->hidden / width <= MOE_HELD * (int32_t)threads;

    run_warps(&w, k->logits_backward);
    logits_backward(&w);
    if (held)
        run_kernel(&w, k->norm_strips, CUDA_DIM(strips), threads);
    else
        run_kernel(&w, k->gain_strips, CUDA_DIM2(cuda_blocks((size_t)n->hidden, 256), strips), 256);
    run_kernel(&w, k->gain_sum, CUDA_DIM(cuda_blocks((size_t)n->hidden, 32)), 256);
    if (w.io->dx != NULL && !held)
        run_tokens(&w, k->norm_backward);
    return w.status;
}

static dp_status_t moe_route_backward_weight(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    const moe_kernels_t *k = &moe->kernels;
    const moe_dims_t *n = &moe->n;
    size_t longest = (size_t)(n->hidden > n->experts ? n->hidden : n->experts);
    work_t w = begin_call(moe, io, s, "route_backward_weight", MOE_NEED_GRADS | MOE_NEED_NO_WORK);

    run_tokens(&w, k->norm_again);
    router_weights(&w);
    if (w.call.slices > 0)
        longest = (size_t)n->hidden * (size_t)n->experts;
    run_kernel(&w, k->vectors_backward, CUDA_DIM(cuda_blocks(longest, 256)), 256);
    return w.status;
}

/* ---- open and close ---- */

static dp_status_t check_backends(const dp_host_t *host, const dp_moe_config_t *c)
{
    dp_status_t status = check_device(host, rules.plugin, c->device_vt, c->device, "cuda");

    return status < 0 ? status : moe_check_comm(host, rules.plugin, c);
}

static void moe_close(dp_moe_t *moe)
{
    if (moe == NULL)
        return;
    moe_instance_close(moe);
    moe->host->release(moe->host, moe);
}

/* Everything behind the checks; what fails leaves the rest to moe_close(). */
static dp_status_t set_up_moe(dp_moe_t *moe, const dp_moe_config_t *c)
{
    moe_write_names(&moe->n, (char *)(moe + 1));
    DO(moe_choose_products(moe));
    DO(moe_layout_init(moe->host, &moe->n, moe->recompute, moe->dtype, moe_uses_library(moe), &moe->layout));
    DO(moe_instance_open(moe));
    return moe_open_links(&moe->n, c, &moe->out, &moe->back);
}

static dp_status_t moe_open(const dp_host_t *host, const dp_moe_config_t *config, dp_moe_t **moe_out)
{
    dp_moe_t opened = {.host = host}, *moe;
    dp_status_t status = debug_check(host, "moe_cuda", "products");

    if (status >= 0)
        status = moe_dims_init(host, &rules, config, &opened.n);
    if (status >= 0)
        opened.recompute = config->recompute;
    if (status >= 0)
        status = check_recompute(host, rules.plugin, opened.recompute);
    if (status >= 0)
        status = check_backends(host, config);
    if (status >= 0)
        status = cuda_driver(host, &opened.cu);
    if (status < 0)
        return status;
    opened.dtype = config->shape->dtype;
    opened.device_vt = config->device_vt;
    opened.device = config->device;
    opened.comm_vt = config->comm_vt;
    moe = host->allocate(host, sizeof(*moe) + moe_names_bytes(&opened.n), 64);
    if (moe == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "moe_cuda: no memory for an instance with %d experts", opened.n.local);
    *moe = opened;
    status = set_up_moe(moe, config);
    if (status < 0) {
        moe_close(moe);
        return status;
    }
    *moe_out = moe;
    return DP_OK;
}

static dp_status_t moe_sizes(const dp_moe_t *moe, dp_block_sizes_t *sizes_out)
{
    const dp_block_sizes_t sizes = {
        .struct_size = sizeof(sizes),
        .saved_bytes = moe->layout.saved_bytes,
        .backward_buffer_bytes = moe->layout.backward_buffer_bytes,
        .recomputes = moe->recompute >= DP_RECOMPUTE_MLP,
        .work_bytes = moe->layout.work_bytes,
        .scratch_bytes = moe->layout.scratch_bytes,
        .param_count = moe->layout.params.count,
        .nparams = moe->layout.params.nparams,
    };

    return answer_sizes(moe->host, rules.plugin, &sizes, sizes_out);
}

static dp_status_t moe_params(const dp_moe_t *moe, dp_param_t *params_out)
{
    moe_list_params(&moe->n, (const char *)(moe + 1), params_out);
    return DP_OK;
}

static const dp_moe_vt_t moe_vt = {
    .struct_size = sizeof(moe_vt),
    .open = moe_open,
    .close = moe_close,
    .sizes = moe_sizes,
    .params = moe_params,
    .route = moe_route,
    .dispatch = moe_dispatch,
    .experts = moe_experts,
    .combine = moe_combine,
    .combine_backward = moe_combine_backward,
    .experts_backward_input = moe_experts_backward_input,
    .experts_backward_weight = moe_experts_backward_weight,
    .dispatch_backward = moe_dispatch_backward,
    .route_backward_input = moe_route_backward_input,
    .route_backward_weight = moe_route_backward_weight,
    .experts_recompute = moe_experts_recompute,
    .about = moe_about,
};

static const void *moe_interface(const char *id)
{
    return strcmp(id, DP_IFACE_MOE) == 0 ? &moe_vt : NULL;
}

DP_PLUGIN_DEFINE(moe_cuda) = {
    DP_PLUGIN_HEAD,
    .name = "moe_cuda",
    .version = DP_VERSION,
    .summary = "mixture of SwiGLU experts on a CUDA device",
    .get_interface = moe_interface,
};
