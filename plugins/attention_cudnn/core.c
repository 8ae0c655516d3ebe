/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * core.c: two plans and a handle, made in open(); a step sets pointers and runs them.
 *
 * Plans are for the whole device, whatever the partition: the partition's stream confines their
 * kernels. A plan for a description of the device with the partition's 112 multiprocessors ran at
 * an eighth of the speed (H200, cuDNN 9.19). */
#include "core.h"
#include "handle.h"
#include "plan.h"

#include "plugins/common/do.h"

#include <math.h>
#include <string.h>

enum { LARGEST_DIM = 256, DIM_STEP = 8 };

typedef struct cudnn_core {
    attn_dnn_t dnn;
    attn_handle_t *shared;
    cudnnHandle_t handle;            /* the shared one */
    cudnnBackendDescriptor_t device; /* to plan for */
    attn_sdpa_graph_t forward_graph, backward_graph;
    attn_sdpa_plan_t forward, backward;
    float scale, masked, one;
    size_t dq_sums, workspace; /* in scratch */
} cudnn_core_t;

static dp_status_t check_cudnn_shape(const dp_attention_t *a)
{
    const struct {
        const char *field;
        uint32_t value;
    } dims[] = {{"head_dim", a->n.head_dim}, {"value_dim", a->n.value_dim}};

    if (a->n.dtype != DP_BF16)
        return DP_FAIL(a->host, DP_ERR_UNSUPPORTED,
                       "attention_cudnn: shape.dtype is %s: only DP_BF16 is supported; attention_cuda takes the others",
                       a->n.dtype == DP_F32 ? "DP_F32" : "DP_F64");
    for (int i = 0; i < 2; i++)
        if (dims[i].value % DIM_STEP != 0 || dims[i].value > LARGEST_DIM)
            return DP_FAIL(a->host, DP_ERR_UNSUPPORTED,
                           "attention_cudnn: %s is %u, it must be a multiple of %d up to %d; attention_cuda "
                           "takes others",
                           dims[i].field, dims[i].value, DIM_STEP, LARGEST_DIM);
    return DP_OK;
}

static attn_sdpa_shape_t shape_of(const dp_attention_t *a)
{
    return (attn_sdpa_shape_t){.batch = a->n.batch,
                               .heads = a->n.heads,
                               .kv_heads = a->n.kv_heads,
                               .sequence = a->n.sequence,
                               .head_dim = a->n.head_dim,
                               .value_dim = a->n.value_dim,
                               .deterministic = a->deterministic};
}

static dp_status_t make_plans(const dp_attention_t *a, cudnn_core_t *c)
{
    const attn_sdpa_shape_t shape = shape_of(a);
    attn_sdpa_search_t search;

    DO(attn_sdpa_device_open(a->host, &c->dnn, c->handle, &c->device));
    DO(attn_sdpa_forward_graph(a->host, &c->dnn, &shape, &c->forward_graph));
    DO(attn_sdpa_plan_make(&c->forward_graph, shape.deterministic, c->device, &search, &c->forward));
    DO(attn_sdpa_backward_graph(a->host, &c->dnn, &shape, &c->backward_graph));
    return attn_sdpa_plan_make(&c->backward_graph, shape.deterministic, c->device, &search, &c->backward);
}

static dp_status_t lay_out_core(dp_attention_t *a, cudnn_core_t *c)
{
    const size_t rows = (size_t)a->n.tokens * a->n.heads;
    const size_t workspace =
        c->forward.workspace > c->backward.workspace ? c->forward.workspace : c->backward.workspace;
    layout_t l = {.alignment = ATTN_ALIGN};

    c->dq_sums = layout_take(&l, a->deterministic ? 0 : rows, a->n.head_dim, sizeof(float));
    c->workspace = layout_take(&l, 1, workspace, 1);
    a->core_scratch_bytes = l.bytes;
    a->core_saved_bytes = rows * sizeof(float);
    if (l.overflow)
        return DP_FAIL(a->host, DP_ERR_INVALID,
                       "attention_cudnn: a workspace of %zu bytes is more than an address space has", workspace);
    return DP_OK;
}

static dp_status_t open_core(dp_attention_t *a)
{
    cudnn_core_t *c;

    DO(check_cudnn_shape(a));
    c = a->host->allocate(a->host, sizeof(*c), 64);
    if (c == NULL)
        return DP_FAIL(a->host, DP_ERR_NOMEM, "attention_cudnn: no memory for an instance");
    memset(c, 0, sizeof(*c));
    c->scale = (float)a->n.scale;
    c->masked = -INFINITY;
    c->one = 1;
    a->core = c;
    DO(attn_dnn_load(a->host, a->n.sequence, &c->dnn));
    DO(attn_handle_open(a->host, &c->dnn, &c->shared));
    c->handle = attn_handle_native(c->shared);
    DO(make_plans(a, c));
    return lay_out_core(a, c);
}

static void close_core(dp_attention_t *a)
{
    cudnn_core_t *c = a->core;

    attn_sdpa_plan_close(&c->backward);
    attn_sdpa_plan_close(&c->forward);
    attn_sdpa_graph_close(&c->backward_graph);
    attn_sdpa_graph_close(&c->forward_graph);
    if (c->device != NULL)
        c->dnn.cudnnBackendDestroyDescriptor(c->device);
    attn_handle_close(c->shared);
    a->host->release(a->host, c);
}

static dp_status_t run_plan(const attn_pass_t *pass, const attn_sdpa_plan_t *plan, const int64_t *ids,
                            void *const *pointers, size_t count, void *workspace)
{
    cudnn_core_t *c = pass->attention->core;
    dp_status_t status;

    DO(attn_handle_lock(c->shared, pass->stream, pass->warm_up));
    status = attn_sdpa_plan_run(plan, c->handle, ids, pointers, count, workspace);
    attn_handle_unlock(c->shared);
    return status;
}

static void *scratch_at(const attn_tensors_t *t, size_t offset)
{
    return (char *)t->scratch + offset;
}

static dp_status_t run_forward_plan(const attn_pass_t *pass, const attn_tensors_t *t)
{
    static const int64_t ids[] = {SDPA_Q, SDPA_K, SDPA_V, SDPA_OUT, SDPA_STATS, SDPA_SCALE, SDPA_MASKED};
    cudnn_core_t *c = pass->attention->core;
    void *const pointers[] = {(void *)t->q, (void *)t->k, (void *)t->v, t->out, t->saved, &c->scale, &c->masked};

    if (pass->rehearsal)
        return DP_OK;
    return run_plan(pass, &c->forward, ids, pointers, sizeof(ids) / sizeof(ids[0]), scratch_at(t, c->workspace));
}

static dp_status_t run_backward_plan(const attn_pass_t *pass, const attn_tensors_t *t)
{
    static const int64_t ids[] = {SDPA_Q,  SDPA_K,  SDPA_V,        SDPA_OUT,   SDPA_STATS,  SDPA_DOUT, SDPA_DQ,
                                  SDPA_DK, SDPA_DV, SDPA_ROW_SUMS, SDPA_SCALE, SDPA_MASKED, SDPA_ONE,  SDPA_DQ_SUMS};
    const dp_attention_t *a = pass->attention;
    cudnn_core_t *c = a->core;
    void *const pointers[] = {
        (void *)t->q, (void *)t->k, (void *)t->v, t->out,    t->saved,   (void *)t->dout, t->dq,
        t->dk,        t->dv,        t->delta,     &c->scale, &c->masked, &c->one,         scratch_at(t, c->dq_sums)};
    /* the sums of dq come last */
    const size_t count = sizeof(ids) / sizeof(ids[0]) - (a->deterministic ? 1 : 0);

    if (pass->rehearsal)
        return DP_OK;
    return run_plan(pass, &c->backward, ids, pointers, count, scratch_at(t, c->workspace));
}

const attn_core_t cudnn_core = {
    .plugin = "attention_cudnn",
    .takes = ATTN_TAKES_BF16 | ATTN_TAKES_LATENT,
    .makes_delta = true,
    .open = open_core,
    .close = close_core,
    .forward = run_forward_plan,
    .backward = run_backward_plan,
};
