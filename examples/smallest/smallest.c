/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * smallest.c: the smallest trainer. `dualpipe run -n 2 -- smallest`: DualPipe over two stages y = tanh(x W), which
 * learn to turn a row of numbers around. A stage is three callbacks: forward, backward, weight gradient. */
#include <dualpipe/dualpipe.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { M = 16, N = 8 }; /* micro-batches of one row, numbers in a row */
typedef struct saved {
    double x[N], y[N], dz[N]; /* z = x W */
} saved_t;

static dp_status_t forward(void *call)
{
    const dp_segment_call_t *c = call;
    const double(*W)[N] = c->params, *target = c->target;
    saved_t *s = c->saved;

    memcpy(s->x, c->x != NULL ? c->x : c->input, sizeof(s->x)); /* the first stage gets the trainer's input */
    for (int j = 0; j < N; j++) {
        double z = 0;
        for (int i = 0; i < N; i++)
            z += s->x[i] * W[i][j];
        s->y[j] = tanh(z);
        if (target != NULL) /* the last stage makes the loss */
            *c->loss += 0.5 * pow(s->y[j] - target[j], 2);
    }
    if (c->y != NULL)
        memcpy(c->y, s->y, sizeof(s->y));
    return DP_OK;
}

static dp_status_t backward(void *call)
{
    const dp_segment_call_t *c = call;
    const double(*W)[N] = c->params, *dy = c->dy, *target = c->target;
    double *dx = c->dx;
    saved_t *s = c->saved;

    for (int j = 0; j < N; j++)
        s->dz[j] = (1 - s->y[j] * s->y[j]) * (dy ? dy[j] : c->loss_scale * (s->y[j] - target[j]));
    for (int i = 0; i < N && dx != NULL; i++) {
        dx[i] = 0;
        for (int j = 0; j < N; j++)
            dx[i] += s->dz[j] * W[i][j];
    }
    return DP_OK;
}

static dp_status_t weight(void *call)
{
    const dp_segment_call_t *c = call;
    const saved_t *s = c->saved;

    for (int k = 0; k < N * N; k++)
        ((double *)c->grads)[k] += s->x[k / N] * s->dz[k % N];
    return DP_OK;
}

/* The engine asks for a pass; the stream runs it when its turn comes. */
#define PUT(pass)                                                                                            \
    static dp_status_t put_##pass(void *device, const dp_segment_call_t *call, dp_stream_t *s)               \
    {                                                                                                        \
        return ((const dp_device_vt_t *)device)->launch(s, pass, call, sizeof(*call));                       \
    }
PUT(forward)
PUT(backward)
PUT(weight)

static dp_status_t build(void *user, const dp_build_context_t *at, int stage, int n, dp_stage_t **out)
{
    const dp_param_t w = {.name = "W", .count = N * N, .expert = -1};
    dp_part_t part = {.struct_size = sizeof(part), .nsegments = 1, .params = &w};

    (void)user, (void)stage, (void)n; /* all stages are alike */
    part.sizes = (dp_block_sizes_t){sizeof(part.sizes), sizeof(saved_t), 0, 0, w.count, .nparams = 1};
    part.segments[0] = (dp_segment_t){sizeof(dp_segment_t),  "tanh",      DP_ROLE_OTHER, DP_LANE_COMPUTE,
                                      (void *)at->device_vt, put_forward, put_backward,  put_weight};
    return dp_stage_create(&part, 1, N * sizeof(double), DP_F64, out);
}

/* First values, then gradient descent; each rank has a copy of each stage. */
static void learn(int step, int stage, double *W, const double *dW)
{
    for (int k = 0; k < N * N; k++)
        W[k] = step == 0 ? 0.3 * cos(k * k + stage) : W[k] - 0.5 * dW[k];
}

int main(void)
{
    double x[M][N], target[M][N];
    const void *inputs[M], *targets[M];
    dp_step_t step = {.struct_size = sizeof(step), .inputs = inputs, .targets = targets};
    dp_pipeline_options_t options = {.struct_size = sizeof(options), .microbatches = M, .build = build};
    dp_pipeline_t *p = NULL;
    dp_chunk_view_t chunk;
    dp_status_t st = dp_group_join(NULL, &options.group);

    options.boundary_bytes = N * sizeof(double), options.dtype = DP_F64;
    st = st < 0 ? st : dp_pipeline_open(&options, &p);
    for (int k = 0; k < M * N; k++) {
        x[k / N][k % N] = target[k / N][N - 1 - k % N] = 0.7 * sin(k * k);
        inputs[k / N] = x[k / N], targets[k / N] = target[k / N];
    }
    for (int n = 0; n <= 400 && st == DP_OK; n++) {
        for (int c = 0; c < 2 && dp_pipeline_chunk(p, c, &chunk) == DP_OK; c++)
            learn(n, chunk.stage, chunk.params, chunk.grads);
        st = dp_pipeline_step(p, &step);
        if (st == DP_OK && dp_group_rank(options.group) == 0 && n % 50 == 0)
            printf("step %3d  loss %.4f\n", n, step.loss / M);
    }
    if (st < 0)
        fprintf(stderr, "smallest: %s\n", dp_last_error());
    dp_pipeline_close(p);
    dp_group_leave(options.group);
    return st < 0;
}
