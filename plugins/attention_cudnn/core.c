/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * core.c: two plans and a handle, made in open(); a step sets pointers and runs them.
 *
 * Plans are for the whole device, whatever the partition: cuDNN 9.19 refuses another number of multiprocessors for attention
 * on sm_90. The partition's stream confines the kernels all the same. */
#include "core.h"
#include "plan.h"

#include <math.h>
#include <string.h>

enum { LARGEST_DIM = 256, DIM_STEP = 8 };

typedef struct cudnn_core {
    dp_dnn_t dnn;
    cudnnHandle_t handle;
    CUstream stream; /* that the handle has */
    dp_sdpa_graph_t forward_graph, backward_graph;
    dp_sdpa_plan_t forward, backward;
    float scale, masked, one;
    size_t dq_sums, workspace; /* in scratch */
} cudnn_core_t;

static dp_status_t check_shape(const dp_attention_t *a)
{
    const struct {
        const char *field;
        uint32_t value;
    } dims[] = {{"head_dim", a->head_dim}, {"value_dim", a->value_dim}};

    if (a->dtype != DP_BF16)
        return DP_FAIL(
            a->host, DP_ERR_UNSUPPORTED,
            "attention_cudnn: shape.dtype is %s: only DP_BF16 is supported; attention_cuda takes the others",
            a->dtype == DP_F32 ? "DP_F32" : "DP_F64");
    for (int i = 0; i < 2; i++)
        if (dims[i].value % DIM_STEP != 0 || dims[i].value > LARGEST_DIM)
            return DP_FAIL(a->host, DP_ERR_UNSUPPORTED,
                           "attention_cudnn: %s is %u, it must be a multiple of %d up to %d; attention_cuda "
                           "takes others",
                           dims[i].field, dims[i].value, DIM_STEP, LARGEST_DIM);
    return DP_OK;
}

static dp_sdpa_shape_t shape_of(const dp_attention_t *a)
{
    return (dp_sdpa_shape_t){.batch = a->batch,
                             .heads = a->heads,
                             .kv_heads = a->kv_heads,
                             .sequence = a->sequence,
                             .head_dim = a->head_dim,
                             .value_dim = a->value_dim,
                             .deterministic = a->deterministic};
}

static dp_status_t make_plans(const dp_attention_t *a, cudnn_core_t *c)
{
    const dp_sdpa_shape_t shape = shape_of(a);
    dp_sdpa_search_t search;
    dp_status_t st = dp_sdpa_forward_graph(a->host, &c->dnn, &shape, &c->forward_graph);

    if (st >= 0)
        st = dp_sdpa_plan_make(&c->forward_graph, shape.deterministic, NULL, &search, &c->forward);
    if (st >= 0)
        st = dp_sdpa_backward_graph(a->host, &c->dnn, &shape, &c->backward_graph);
    if (st >= 0)
        st = dp_sdpa_plan_make(&c->backward_graph, shape.deterministic, NULL, &search, &c->backward);
    return st;
}

static dp_status_t lay_out(dp_attention_t *a, cudnn_core_t *c)
{
    const size_t rows = (size_t)a->tokens * a->heads;
    const size_t workspace =
        c->forward.workspace > c->backward.workspace ? c->forward.workspace : c->backward.workspace;
    dp_attention_layout_t l = {0, false};

    c->dq_sums = dp_attention_append(&l, a->deterministic ? 0 : rows, a->head_dim, sizeof(float));
    c->workspace = dp_attention_append(&l, 1, workspace, 1);
    a->core_scratch_bytes = l.end;
    a->core_saved_bytes = rows * sizeof(float);
    if (l.overflow)
        return DP_FAIL(a->host, DP_ERR_INVALID,
                       "attention_cudnn: a workspace of %zu bytes is more than an address space has",
                       workspace);
    return DP_OK;
}

static dp_status_t open_core(dp_attention_t *a)
{
    cudnn_core_t *c;
    dp_status_t st = check_shape(a);

    if (st < 0)
        return st;
    c = a->host->allocate(a->host, sizeof(*c), 64);
    if (c == NULL)
        return DP_FAIL(a->host, DP_ERR_NOMEM, "attention_cudnn: no memory for an instance");
    memset(c, 0, sizeof(*c));
    c->scale = (float)a->scale;
    c->masked = -INFINITY;
    c->one = 1;
    a->core = c;
    st = dp_dnn_load(a->host, &c->dnn);
    if (st >= 0)
        st = dp_dnn_check(a->host, &c->dnn, c->dnn.cudnnCreate(&c->handle), "opening it");
    if (st >= 0)
        st = make_plans(a, c);
    if (st >= 0)
        st = lay_out(a, c);
    return st;
}

static void close_core(dp_attention_t *a)
{
    cudnn_core_t *c = a->core;

    dp_sdpa_plan_close(&c->backward);
    dp_sdpa_plan_close(&c->forward);
    dp_sdpa_graph_close(&c->backward_graph);
    dp_sdpa_graph_close(&c->forward_graph);
    if (c->handle != NULL)
        c->dnn.cudnnDestroy(c->handle);
    a->host->release(a->host, c);
}

static dp_status_t use_stream(const dp_attention_pass_t *pass, cudnn_core_t *c)
{
    dp_status_t st;

    if (c->stream == pass->stream)
        return DP_OK;
    st = dp_dnn_check(pass->attention->host, &c->dnn, c->dnn.cudnnSetStream(c->handle, pass->stream),
                      "setting the stream");
    if (st >= 0)
        c->stream = pass->stream;
    return st;
}

static void *scratch(const dp_attention_tensors_t *t, size_t offset)
{
    return (char *)t->scratch + offset;
}

static dp_status_t forward(const dp_attention_pass_t *pass, const dp_attention_tensors_t *t)
{
    static const int64_t ids[] = {DP_SDPA_Q,     DP_SDPA_K,     DP_SDPA_V,     DP_SDPA_OUT,
                                  DP_SDPA_STATS, DP_SDPA_SCALE, DP_SDPA_MASKED};
    cudnn_core_t *c = pass->attention->core;
    void *const pointers[] = {(void *)t->q, (void *)t->k, (void *)t->v, t->out,
                              t->saved,     &c->scale,    &c->masked};
    dp_status_t st;

    if (pass->rehearsal)
        return DP_OK;
    st = use_stream(pass, c);
    if (st < 0)
        return st;
    return dp_sdpa_plan_run(&c->forward, c->handle, ids, pointers, sizeof(ids) / sizeof(ids[0]),
                            scratch(t, c->workspace));
}

static dp_status_t backward(const dp_attention_pass_t *pass, const dp_attention_tensors_t *t)
{
    static const int64_t ids[] = {DP_SDPA_Q,     DP_SDPA_K,        DP_SDPA_V,     DP_SDPA_OUT,
                                  DP_SDPA_STATS, DP_SDPA_DOUT,     DP_SDPA_DQ,    DP_SDPA_DK,
                                  DP_SDPA_DV,    DP_SDPA_ROW_SUMS, DP_SDPA_SCALE, DP_SDPA_MASKED,
                                  DP_SDPA_ONE,   DP_SDPA_DQ_SUMS};
    const dp_attention_t *a = pass->attention;
    cudnn_core_t *c = a->core;
    void *const pointers[] = {
        (void *)t->q, (void *)t->k, (void *)t->v, t->out,     t->saved, (void *)t->dout,       t->dq, t->dk,
        t->dv,        t->delta,     &c->scale,    &c->masked, &c->one,  scratch(t, c->dq_sums)};
    const size_t count =
        sizeof(ids) / sizeof(ids[0]) - (a->deterministic ? 1 : 0); /* the sums of dq come last */
    dp_status_t st;

    if (pass->rehearsal)
        return DP_OK;
    st = use_stream(pass, c);
    if (st < 0)
        return st;
    return dp_sdpa_plan_run(&c->backward, c->handle, ids, pointers, count, scratch(t, c->workspace));
}

const dp_attention_core_t dp_cudnn_core = {
    .plugin = "attention_cudnn",
    .makes_delta = true,
    .open = open_core,
    .close = close_core,
    .forward = forward,
    .backward = backward,
};
