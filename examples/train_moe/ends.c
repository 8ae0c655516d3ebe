/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * ends.c: puts the kernels of kernels.h on streams: each segment function launches one job. */
#include "ends.h"

#include <math.h>
#include <string.h>

#define REAL    float
#define NAME(x) x##_f32
#define EXP     expf
#define SQRT    sqrtf
#include "kernels.h"
#undef REAL
#undef NAME
#undef EXP
#undef SQRT

#define REAL    double
#define NAME(x) x##_f64
#define EXP     exp
#define SQRT    sqrt
#include "kernels.h"

typedef struct job {
    const ends_t *ends;
    dp_segment_call_t call;
} job_t;
_Static_assert(sizeof(job_t) <= DP_LAUNCH_ARG_MAX, "a job fits a launch");

static dp_status_t launch(void *self, const dp_segment_call_t *call, dp_stream_t *s, dp_launch_fn fn)
{
    const job_t job = {self, *call};

    return job.ends->device_vt->launch(s, fn, &job, sizeof(job));
}

/* ---- embedding: saved holds dy [T, d] from backward_input to backward_weight, then the tokens ---- */

static uint8_t *saved_tokens(const job_t *j)
{
    return (uint8_t *)j->call.saved + j->ends->tokens * j->ends->hidden * dp_dtype_bytes(j->ends->dtype);
}

static dp_status_t run_embedding_forward(void *arg)
{
    const job_t *j = arg;
    const size_t T = j->ends->tokens, d = j->ends->hidden;

    memcpy(saved_tokens(j), j->call.input, T);
    if (j->ends->dtype == DP_F64)
        embed_forward_f64(j->call.params, j->call.input, j->call.y, T, d);
    else
        embed_forward_f32(j->call.params, j->call.input, j->call.y, T, d);
    return DP_OK;
}

static dp_status_t run_embedding_backward_input(void *arg)
{
    const job_t *j = arg;

    memcpy(j->call.saved, j->call.dy, j->ends->tokens * j->ends->hidden * dp_dtype_bytes(j->ends->dtype));
    return DP_OK;
}

static dp_status_t run_embedding_backward_weight(void *arg)
{
    const job_t *j = arg;

    if (j->ends->dtype == DP_F64)
        embed_backward_f64(j->call.grads, saved_tokens(j), j->call.saved, j->ends->tokens, j->ends->hidden);
    else
        embed_backward_f32(j->call.grads, saved_tokens(j), j->call.saved, j->ends->tokens, j->ends->hidden);
    return DP_OK;
}

static dp_status_t embedding_forward(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    return launch(self, call, s, run_embedding_forward);
}

static dp_status_t embedding_backward_input(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    return launch(self, call, s, run_embedding_backward_input);
}

static dp_status_t embedding_backward_weight(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    return launch(self, call, s, run_embedding_backward_weight);
}

/* ---- head ---- */

static dp_status_t run_head_forward(void *arg)
{
    const job_t *j = arg;
    const dp_segment_call_t *c = &j->call;
    const size_t T = j->ends->tokens, d = j->ends->hidden;
    const double eps = j->ends->norm_eps;
    const double loss =
        j->ends->dtype == DP_F64
            ? head_forward_f64(c->params, eps, c->x, c->target, c->output, c->saved, T, d)
            : head_forward_f32(c->params, (float)eps, c->x, c->target, c->output, c->saved, T, d);

    if (c->loss != NULL)
        *c->loss += loss;
    return DP_OK;
}

static dp_status_t run_head_backward_input(void *arg)
{
    const job_t *j = arg;
    const dp_segment_call_t *c = &j->call;

    if (j->ends->dtype == DP_F64)
        head_backward_input_f64(c->params, c->loss_scale, c->saved, c->dx, j->ends->tokens, j->ends->hidden);
    else
        head_backward_input_f32(c->params, c->loss_scale, c->saved, c->dx, j->ends->tokens, j->ends->hidden);
    return DP_OK;
}

static dp_status_t run_head_backward_weight(void *arg)
{
    const job_t *j = arg;
    const dp_segment_call_t *c = &j->call;

    if (j->ends->dtype == DP_F64)
        head_backward_weight_f64(c->params, c->grads, c->saved, j->ends->tokens, j->ends->hidden);
    else
        head_backward_weight_f32(c->params, c->grads, c->saved, j->ends->tokens, j->ends->hidden);
    return DP_OK;
}

static dp_status_t head_forward(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    return launch(self, call, s, run_head_forward);
}

static dp_status_t head_backward_input(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    return launch(self, call, s, run_head_backward_input);
}

static dp_status_t head_backward_weight(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    return launch(self, call, s, run_head_backward_weight);
}

/* ---- parts ---- */

static size_t round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

dp_status_t ends_init(ends_t *ends, const dp_device_vt_t *device_vt, const dp_block_shape_t *shape)
{
    const uint32_t needed = DP_DEVICE_CAP_HOST_MEMORY | DP_DEVICE_CAP_LAUNCH;
    const uint32_t d = shape->hidden;

    if ((device_vt->caps & needed) != needed)
        return dp_fail(DP_ERR_UNSUPPORTED,
                       "this device cannot run host functions on host memory, which the embedding "
                       "and the head of this trainer are made of: use --device cpu");
    *ends = (ends_t){
        .device_vt = device_vt,
        .dtype = shape->dtype,
        .tokens = (size_t)shape->batch * shape->sequence,
        .hidden = d,
        .norm_eps = shape->norm_eps > 0 ? (double)shape->norm_eps : 1e-6,
        /* Every layer adds about 1 to an embedding of about 1. */
        .embedding_params = {{"table", DP_PARAM_MATRIX, 0, (size_t)VOCAB * d, 1, 0, -1}},
        .head_params = {{"norm", DP_PARAM_VECTOR, 0, d, 0, 1, -1},
                        {"w", DP_PARAM_MATRIX, d, (size_t)d * VOCAB, d, 0, -1}},
    };
    return DP_OK;
}

void ends_embedding(ends_t *ends, dp_part_t *part_out)
{
    const size_t boundary = ends->tokens * ends->hidden * dp_dtype_bytes(ends->dtype);

    *part_out = (dp_part_t){
        .struct_size = sizeof(dp_part_t),
        .nsegments = 1,
        .segments = {{sizeof(dp_segment_t), "embedding", DP_ROLE_OTHER, DP_LANE_COMPUTE, ends,
                      embedding_forward, embedding_backward_input, embedding_backward_weight}},
        .sizes = {.struct_size = sizeof(dp_block_sizes_t),
                  .saved_bytes = round_up(boundary + ends->tokens),
                  .param_count = VOCAB * ends->hidden,
                  .nparams = 1},
        .params = ends->embedding_params,
        .prefix = "embedding.",
    };
}

void ends_head(ends_t *ends, dp_part_t *part_out)
{
    const size_t saved = ends->tokens * (2 * ends->hidden + 1 + VOCAB);

    *part_out = (dp_part_t){
        .struct_size = sizeof(dp_part_t),
        .nsegments = 1,
        .segments = {{sizeof(dp_segment_t), "head", DP_ROLE_OTHER, DP_LANE_COMPUTE, ends, head_forward,
                      head_backward_input, head_backward_weight}},
        .sizes = {.struct_size = sizeof(dp_block_sizes_t),
                  .saved_bytes = round_up(saved * dp_dtype_bytes(ends->dtype)),
                  .param_count = (VOCAB + 1) * ends->hidden,
                  .nparams = 2},
        .params = ends->head_params,
        .prefix = "head.",
    };
}
