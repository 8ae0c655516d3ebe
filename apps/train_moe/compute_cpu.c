/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * compute_cpu.c: the trainer's own computations on devices that run host functions: segments of
 * host functions made of the kernels; the optimizer's run at once, in the caller. */
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

struct compute {
    dp_dtype_t dtype;
    const kernels_t *kernels;
    size_t tokens, hidden; /* T, d */
    double norm_eps;
    int tied;
};

/* Of this micro-batch; memory is laid out for k->tokens. */
static size_t tokens_of(const compute_t *k, const dp_segment_call_t *c)
{
    return c->tokens > 0 ? c->tokens : k->tokens;
}

/* embedding: saved holds dy [T, d] from backward_input to backward_weight, then the tokens */

static uint8_t *saved_tokens(const compute_t *k, const dp_segment_call_t *c)
{
    return (uint8_t *)c->saved + k->tokens * k->hidden * dp_dtype_bytes(k->dtype);
}

static dp_status_t embedding_forward(void *self, const dp_segment_call_t *c)
{
    const compute_t *k = self;

    memcpy(saved_tokens(k, c), c->input, tokens_of(k, c));
    k->kernels->embed(c->params, c->input, c->y, tokens_of(k, c), k->hidden);
    return DP_OK;
}

static dp_status_t embedding_backward_input(void *self, const dp_segment_call_t *c)
{
    const compute_t *k = self;

    memcpy(c->saved, c->dy, tokens_of(k, c) * k->hidden * dp_dtype_bytes(k->dtype));
    return DP_OK;
}

static dp_status_t embedding_backward_weight(void *self, const dp_segment_call_t *c)
{
    const compute_t *k = self;

    k->kernels->embed_backward(c->grads, saved_tokens(k, c), c->saved, tokens_of(k, c), k->hidden);
    return DP_OK;
}

/* ---- head ---- */

static dp_status_t head_forward(void *self, const dp_segment_call_t *c)
{
    const compute_t *k = self;
    const double loss = k->kernels->head(c->params, k->norm_eps, c->x, c->target, c->output, c->saved, c->scratch,
                                         tokens_of(k, c), k->hidden, k->tied);

    *c->loss += loss;
    return DP_OK;
}

static dp_status_t head_backward_input(void *self, const dp_segment_call_t *c)
{
    const compute_t *k = self;

    k->kernels->head_backward_input(c->params, c->loss_scale, c->saved, c->scratch, c->dx, tokens_of(k, c), k->hidden,
                                    k->tied);
    return DP_OK;
}

static dp_status_t head_backward_weight(void *self, const dp_segment_call_t *c)
{
    const compute_t *k = self;

    k->kernels->head_backward_weight(c->params, c->grads, c->saved, c->scratch, tokens_of(k, c), k->hidden, k->tied);
    return DP_OK;
}

/* ---- the optimizer ---- */

static dp_status_t adamw(compute_t *compute, const adamw_factors_t *factors, const adamw_tensor_t *chunk,
                         const adamw_ranges_t *ranges, dp_stream_t *s)
{
    (void)s;
    adamw_update_chunk(compute->dtype, factors, chunk, ranges);
    return DP_OK;
}

static dp_status_t balance(compute_t *compute, double rate, const adamw_tensor_t *bias, dp_stream_t *s)
{
    (void)s;
    balance_update(compute->dtype, rate, bias->params, bias->grads, bias->count);
    return DP_OK;
}

static dp_status_t squares(compute_t *compute, const void *values, size_t count, double *sums_out, dp_stream_t *s)
{
    (void)s;
    sum_of_squares(compute->dtype, values, count, sums_out);
    return DP_OK;
}

/* ---- */

static void sizes(const compute_t *compute, dp_block_sizes_t *embedding, dp_block_sizes_t *head)
{
    const size_t T = compute->tokens, d = compute->hidden, element = dp_dtype_bytes(compute->dtype);

    embedding->saved_bytes = T * d * element + T;
    head->saved_bytes = head_saved_count(T, d) * element;
    head->scratch_bytes = head_scratch_count(T, d) * element;
}

static dp_status_t open_cpu(const dp_host_t *host, const compute_config_t *config, compute_t **compute_out)
{
    const dp_block_shape_t *shape = &config->shape;
    const uint32_t needed = DP_DEVICE_CAP_HOST_MEMORY | DP_DEVICE_CAP_LAUNCH;
    compute_t *compute;

    (void)host;
    if ((config->device_vt->caps & needed) != needed)
        return dp_fail(DP_ERR_UNSUPPORTED,
                       "this device cannot run host functions on host memory, which the trainer's embedding, head and "
                       "optimizer for --device cpu are made of");
    if (shape->dtype != DP_F32 && shape->dtype != DP_F64)
        return dp_fail(DP_ERR_UNSUPPORTED, "--device cpu computes in f32 or f64");
    compute = calloc(1, sizeof(*compute));
    if (compute == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the ends of the model");
    *compute = (compute_t){
        .dtype = shape->dtype,
        .kernels = kernels_of(shape->dtype),
        .tokens = (size_t)shape->batch * shape->sequence,
        .hidden = shape->hidden,
        .norm_eps = shape->norm_eps > 0 ? (double)shape->norm_eps : 1e-6,
        .tied = config->tied != 0,
    };
    *compute_out = compute;
    return DP_OK;
}

static void close_cpu(compute_t *compute)
{
    free(compute);
}

const compute_vt_t compute_cpu = {
    .struct_size = sizeof(compute_cpu),
    .open = open_cpu,
    .close = close_cpu,
    .sizes = sizes,
    .embedding = {.struct_size = sizeof(dp_segment_t),
                  .name = "embedding",
                  .host_forward = embedding_forward,
                  .host_backward_input = embedding_backward_input,
                  .host_backward_weight = embedding_backward_weight},
    .head = {.struct_size = sizeof(dp_segment_t),
             .name = "head",
             .host_forward = head_forward,
             .host_backward_input = head_backward_input,
             .host_backward_weight = head_backward_weight},
    .adamw = adamw,
    .balance = balance,
    .sum_of_squares = squares,
};
