/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * passes.c: forward, backward for the input and backward for the weights of the CUDA attention block. */
#include "passes.h"

enum { THREADS = 256 };

static void *in(const void *region, size_t offset_bytes)
{
    return (char *)(uintptr_t)region + offset_bytes;
}

dp_status_t dp_attention_multiply(const dp_attention_pass_t *p, const dp_gemm_shape_t *shape, double alpha,
                                  const void *a, const void *b, double beta, void *c)
{
    const dp_gemm_operands_t operands = {alpha, beta, a, b, c, p->workspace};

    if (p->rehearsal)
        return dp_gemm_prepare(p->attention->gemm, shape);
    return dp_gemm_run(p->attention->gemm, shape, &operands, p->stream);
}

#define LAUNCH(pass, kernel, grid, ...)                                                                      \
    ((pass)->rehearsal                                                                                       \
         ? DP_OK                                                                                             \
         : dp_cuda_launch((pass)->attention->host, (pass)->attention->cu, (pass)->attention->kernels.kernel, \
                          (grid), DP_DIM(THREADS), 0, (pass)->stream, __VA_ARGS__))

static dp_status_t copy(const dp_attention_pass_t *p, void *to, const void *from, size_t bytes)
{
    const dp_attention_t *a = p->attention;

    if (p->rehearsal || to == from)
        return DP_OK;
    return DP_CU(
        a->host,
        a->cu->cuMemcpyDtoDAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, p->stream),
        "%s: copying %zu bytes", a->vt->plugin, bytes);
}

static dp_status_t rotate(const dp_attention_pass_t *p, void *to, const void *from, uint32_t heads,
                          int32_t sign)
{
    dp_attention_t *a = p->attention;
    uint32_t half = a->head_dim / 2;

    return LAUNCH(p, rotate, DP_DIM(a->tokens), &to, &from, &a->rope, &heads, &a->sequence, &half, &sign);
}

/* out = n w. */
static dp_status_t project(const dp_attention_pass_t *p, const void *n, const void *w, uint32_t width,
                           void *out)
{
    const dp_attention_t *a = p->attention;
    const dp_gemm_shape_t shape = {
        .in = a->dtype, .out = a->dtype, .m = a->tokens, .n = width, .k = a->hidden};

    return dp_attention_multiply(p, &shape, 1, n, w, 0, out);
}

/* dn (+)= dout w^T, in the type of sums. */
static dp_status_t project_back(const dp_attention_pass_t *p, const void *dout, const void *w, uint32_t width,
                                double beta, void *dn)
{
    const dp_attention_t *a = p->attention;
    const dp_gemm_shape_t shape = {
        .in = a->dtype, .out = a->sums, .transpose_b = true, .m = a->tokens, .n = a->hidden, .k = width};

    return dp_attention_multiply(p, &shape, 1, dout, w, beta, dn);
}

/* dw += left^T right over all tokens, in the type of sums. */
static dp_status_t project_weight(const dp_attention_pass_t *p, const void *left, uint32_t rows,
                                  const void *right, uint32_t columns, void *dw)
{
    const dp_attention_t *a = p->attention;
    const dp_gemm_shape_t shape = {
        .in = a->dtype, .out = a->sums, .transpose_a = true, .m = rows, .n = columns, .k = a->tokens};

    return dp_attention_multiply(p, &shape, 1, left, right, 1, dw);
}

dp_attention_tensors_t dp_attention_view(const dp_attention_t *a, const dp_io_t *io)
{
    return (dp_attention_tensors_t){
        .q = in(io->saved, a->saved.q),
        .k = in(io->saved, a->saved.k),
        .v = in(io->saved, a->saved.v),
        .out = in(io->saved, a->saved.heads_out),
        .saved = in(io->saved, a->saved.core),
        .scratch = in(io->scratch, a->scratch.shared),
        .dout = in(io->scratch, a->scratch.dheads),
        .delta = in(io->scratch, a->scratch.delta),
        .dq = in(io->scratch, a->scratch.dq),
        .dk = in(io->scratch, a->scratch.dk),
        .dv = in(io->scratch, a->scratch.dv),
    };
}

static const void *parameter(const dp_attention_t *a, const dp_io_t *io, size_t offset)
{
    return in(io->params, offset * a->bytes);
}

/* q, k and v of all tokens. x is read before anything else is written: y may be x. */
static dp_status_t forward_projections(const dp_attention_pass_t *p, const dp_io_t *io)
{
    dp_attention_t *a = p->attention;
    void *normalized = in(io->saved, a->saved.normalized), *inv_rms = in(io->saved, a->saved.inv_rms);
    void *n = in(io->scratch, a->scratch.shared), *q = in(io->saved, a->saved.q),
         *k = in(io->saved, a->saved.k);
    const void *gain = parameter(a, io, a->params.norm), *x = io->x;
    dp_status_t st = LAUNCH(p, normalize, DP_DIM(a->tokens), &normalized, &inv_rms, &n, &x, &gain, &a->hidden,
                            &a->norm_eps);

    if (st >= 0)
        st = project(p, n, parameter(a, io, a->params.wq), a->q_width, q);
    if (st >= 0)
        st = project(p, n, parameter(a, io, a->params.wk), a->k_width, k);
    if (st >= 0)
        st = project(p, n, parameter(a, io, a->params.wv), a->v_width, in(io->saved, a->saved.v));
    if (st >= 0)
        st = rotate(p, q, q, a->heads, 1);
    if (st >= 0)
        st = rotate(p, k, k, a->kv_heads, 1);
    return st;
}

static dp_status_t forward(const dp_attention_pass_t *p, const dp_io_t *io)
{
    const dp_attention_t *a = p->attention;
    const dp_attention_tensors_t t = dp_attention_view(a, io);
    const dp_gemm_shape_t out = {
        .in = a->dtype, .out = a->dtype, .m = a->tokens, .n = a->hidden, .k = a->o_width};
    dp_status_t st = forward_projections(p, io);

    if (st >= 0)
        st = a->vt->forward(p, &t);
    if (st >= 0)
        st = copy(p, io->y, io->x, (size_t)a->tokens * a->hidden * a->bytes);
    if (st >= 0)
        st = dp_attention_multiply(p, &out, 1, t.out, parameter(a, io, a->params.wo), 1, io->y);
    return st;
}

/* The gradients of q, k and v, rotated back, take the places of q, k and v. */
static dp_status_t backward_core(const dp_attention_pass_t *p, const dp_io_t *io)
{
    dp_attention_t *a = p->attention;
    const dp_attention_tensors_t t = dp_attention_view(a, io);
    const void *dy = in(io->saved, a->saved.dy);
    const dp_gemm_shape_t dheads = {.in = a->dtype,
                                    .out = a->dtype,
                                    .transpose_b = true,
                                    .m = a->tokens,
                                    .n = a->o_width,
                                    .k = a->hidden};
    size_t tokens = a->tokens;
    dp_status_t st = dp_attention_multiply(p, &dheads, 1, dy, parameter(a, io, a->params.wo), 0,
                                           in(io->scratch, a->scratch.dheads));

    if (st >= 0 && !a->vt->makes_delta)
        st = LAUNCH(p, dot_rows, DP_DIM(dp_cuda_blocks(tokens * a->heads, THREADS / 32)), (void *)&t.delta,
                    (void *)&t.dout, (void *)&t.out, &tokens, &a->heads, &a->sequence, &a->value_dim);
    if (st >= 0)
        st = a->vt->backward(p, &t);
    if (st >= 0)
        st = rotate(p, in(io->saved, a->saved.q), t.dq, a->heads, -1);
    if (st >= 0)
        st = rotate(p, in(io->saved, a->saved.k), t.dk, a->kv_heads, -1);
    if (st >= 0)
        st = copy(p, in(io->saved, a->saved.v), t.dv, (size_t)a->tokens * a->v_width * a->bytes);
    return st;
}

/* dn, and the gain's gradient of it, which is wanted even where dx is not. */
static dp_status_t backward_projections(const dp_attention_pass_t *p, const dp_io_t *io)
{
    dp_attention_t *a = p->attention;
    void *dn = in(io->scratch, a->scratch.shared), *dnorm = in(io->saved, a->saved.dnorm);
    const void *normalized = in(io->saved, a->saved.normalized);
    size_t tokens = a->tokens;
    dp_status_t st =
        project_back(p, in(io->saved, a->saved.q), parameter(a, io, a->params.wq), a->q_width, 0, dn);

    if (st >= 0)
        st = project_back(p, in(io->saved, a->saved.k), parameter(a, io, a->params.wk), a->k_width, 1, dn);
    if (st >= 0)
        st = project_back(p, in(io->saved, a->saved.v), parameter(a, io, a->params.wv), a->v_width, 1, dn);
    if (st >= 0)
        st = LAUNCH(p, gain_gradient, DP_DIM(dp_cuda_blocks(a->hidden, 32)), &dnorm, &dn, &normalized,
                    &tokens, &a->hidden);
    return st;
}

/* dy is kept before dx is written: dx may be dy. */
static dp_status_t backward_input(const dp_attention_pass_t *p, const dp_io_t *io)
{
    dp_attention_t *a = p->attention;
    void *dy = in(io->saved, a->saved.dy), *dn = in(io->scratch, a->scratch.shared), *dx = io->dx;
    const void *normalized = in(io->saved, a->saved.normalized), *inv_rms = in(io->saved, a->saved.inv_rms);
    const void *gain = parameter(a, io, a->params.norm);
    dp_status_t st = copy(p, dy, io->dy, (size_t)a->tokens * a->hidden * a->bytes);

    if (st >= 0)
        st = backward_core(p, io);
    if (st >= 0)
        st = backward_projections(p, io);
    if (st >= 0 && dx != NULL)
        st = LAUNCH(p, normalize_backward, DP_DIM(a->tokens), &dx, &dy, &dn, &gain, &normalized, &inv_rms,
                    &a->hidden);
    return st;
}

static dp_status_t backward_weight(const dp_attention_pass_t *p, const dp_io_t *io)
{
    dp_attention_t *a = p->attention;
    void *n = in(io->scratch, a->scratch.shared), *grads = io->grads, *dnorm = in(io->saved, a->saved.dnorm);
    const void *normalized = in(io->saved, a->saved.normalized), *gain = parameter(a, io, a->params.norm);
    size_t hidden = a->hidden;
    const struct {
        const void *left, *right;
        uint32_t rows, columns;
        size_t at;
    } weights[] = {
        {n, in(io->saved, a->saved.q), a->hidden, a->q_width, a->params.wq},
        {n, in(io->saved, a->saved.k), a->hidden, a->k_width, a->params.wk},
        {n, in(io->saved, a->saved.v), a->hidden, a->v_width, a->params.wv},
        {in(io->saved, a->saved.heads_out), in(io->saved, a->saved.dy), a->o_width, a->hidden, a->params.wo},
    };
    dp_status_t st = LAUNCH(p, apply_gain, DP_DIM(a->tokens), &n, &normalized, &gain, &a->hidden);

    for (size_t i = 0; i < sizeof(weights) / sizeof(weights[0]) && st >= 0; i++)
        st = project_weight(p, weights[i].left, weights[i].rows, weights[i].right, weights[i].columns,
                            in(grads, weights[i].at * a->sum_bytes));
    if (st >= 0)
        st = LAUNCH(p, accumulate, DP_DIM(dp_cuda_blocks(hidden, THREADS)), &grads, &dnorm, &hidden);
    return st;
}

enum {
    NEED_PARAMS = 1,
    NEED_GRADS = 2,
    NEED_SAVED = 4,
    NEED_SCRATCH = 8,
    NEED_X = 16,
    NEED_Y = 32,
    NEED_DY = 64
};

static dp_status_t check_io(const dp_attention_t *a, const char *pass, const dp_io_t *io, unsigned needs)
{
    if (io->struct_size < sizeof(*io))
        return DP_FAIL(a->host, DP_ERR_INVALID, "%s: %s: io.struct_size is %u, this plugin needs %zu",
                       a->vt->plugin, pass, io->struct_size, sizeof(*io));
    {
        const struct {
            const char *name;
            const void *pointer;
        } all[] = {
            {"params", io->params}, {"grads", io->grads}, {"saved", io->saved}, {"scratch", io->scratch},
            {"x", io->x},           {"y", io->y},         {"dy", io->dy}};

        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
            if (all[i].pointer == NULL && (needs >> i & 1) != 0)
                return DP_FAIL(a->host, DP_ERR_INVALID, "%s: %s of micro-batch %d: io.%s is NULL",
                               a->vt->plugin, pass, (int)io->microbatch, all[i].name);
    }
    return DP_OK;
}

typedef dp_status_t (*pass_fn)(const dp_attention_pass_t *p, const dp_io_t *io);

static dp_status_t run(dp_attention_t *a, const char *name, pass_fn pass, unsigned needs, const dp_io_t *io,
                       dp_stream_t *s)
{
    dp_attention_pass_t p = {.attention = a};
    dp_status_t st = check_io(a, name, io, needs);

    if (st < 0)
        return st;
    p.stream = a->device_vt->stream_native(s);
    if (p.stream == NULL)
        return DP_FAIL(a->host, DP_ERR_UNSUPPORTED,
                       "%s: %s: the stream has no CUDA stream: use one of device_cuda", a->vt->plugin, name);
    p.workspace = in(io->scratch, a->scratch.workspace);
    return pass(&p, io);
}

dp_status_t dp_attention_block_forward(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)
{
    return run(a, "forward", forward, NEED_PARAMS | NEED_SAVED | NEED_SCRATCH | NEED_X | NEED_Y, io, s);
}

dp_status_t dp_attention_block_backward_input(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)
{
    return run(a, "backward_input", backward_input, NEED_PARAMS | NEED_SAVED | NEED_SCRATCH | NEED_DY, io, s);
}

dp_status_t dp_attention_block_backward_weight(dp_attention_t *a, const dp_io_t *io, dp_stream_t *s)
{
    return run(a, "backward_weight", backward_weight, NEED_PARAMS | NEED_GRADS | NEED_SAVED | NEED_SCRATCH,
               io, s);
}

dp_status_t dp_attention_rehearse(dp_attention_t *a)
{
    static char nowhere[DP_ATTENTION_ALIGN];
    const dp_attention_pass_t p = {.attention = a, .rehearsal = true};
    const dp_io_t io = {.struct_size = sizeof(io),
                        .params = nowhere,
                        .grads = nowhere,
                        .saved = nowhere,
                        .scratch = nowhere,
                        .x = nowhere,
                        .y = nowhere,
                        .dy = nowhere,
                        .dx = nowhere};
    dp_status_t st = forward(&p, &io);

    if (st >= 0)
        st = backward_input(&p, &io);
    if (st >= 0)
        st = backward_weight(&p, &io);
    return st;
}
