/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * smallest.c: the smallest trainer. `dualpipe run -n 2 -- smallest` trains two stages y = tanh(x W)
 * with DualPipe, until they turn a row of numbers around. A stage is one part with one segment:
 * three functions in plain C. */
#include <dualpipe/dualpipe.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MICROBATCHES = 16, WIDTH = 8, STEPS = 400, MOST_CHUNKS = 2 };

/* What a micro-batch leaves behind for its weight gradient: z = x W, y = tanh(z). */
typedef struct saved {
    double x[WIDTH], y[WIDTH], dz[WIDTH];
} saved_t;

/* The stages that this rank holds: DualPipe keeps two on each. */
typedef struct stages {
    dp_stage_t *held[MOST_CHUNKS];
    int count;
} stages_t;

/* ---- the computation; stage.h says what `call` holds in each of the three ---- */

static dp_status_t forward(void *self, const dp_segment_call_t *call)
{
    const double(*W)[WIDTH] = call->params;
    /* the first stage gets the trainer's data */
    const double *x = call->x != NULL ? call->x : call->input;
    const double *target = call->target; /* NULL but in the last stage */
    saved_t *saved = call->saved;

    (void)self;
    memcpy(saved->x, x, sizeof(saved->x));
    for (int j = 0; j < WIDTH; j++) {
        double z = 0;

        for (int i = 0; i < WIDTH; i++)
            z += x[i] * W[i][j];
        saved->y[j] = tanh(z);
        if (target != NULL)
            *call->loss += 0.5 * (saved->y[j] - target[j]) * (saved->y[j] - target[j]);
    }
    if (call->y != NULL)
        memcpy(call->y, saved->y, sizeof(saved->y));
    return DP_OK;
}

static dp_status_t backward_input(void *self, const dp_segment_call_t *call)
{
    const double(*W)[WIDTH] = call->params;
    const double *dy = call->dy, *target = call->target;
    double *dx = call->dx;
    saved_t *saved = call->saved;

    (void)self;
    for (int j = 0; j < WIDTH; j++) {
        double of_y = dy != NULL ? dy[j] : call->loss_scale * (saved->y[j] - target[j]);

        saved->dz[j] = of_y * (1 - saved->y[j] * saved->y[j]);
    }
    for (int i = 0; i < WIDTH && dx != NULL; i++) {
        dx[i] = 0; /* overwritten, never added to */
        for (int j = 0; j < WIDTH; j++)
            dx[i] += saved->dz[j] * W[i][j];
    }
    return DP_OK;
}

static dp_status_t backward_weight(void *self, const dp_segment_call_t *call)
{
    double(*dW)[WIDTH] = call->grads;
    const saved_t *saved = call->saved;

    (void)self;
    for (int i = 0; i < WIDTH; i++)
        for (int j = 0; j < WIDTH; j++)
            dW[i][j] += saved->x[i] * saved->dz[j];
    return DP_OK;
}

/* ---- the stages: all are alike ---- */

static dp_status_t build(void *user, const dp_build_context_t *context, int32_t stage, int32_t count,
                         dp_stage_t **stage_out)
{
    const dp_segment_t segment = {
        .struct_size = sizeof(segment),
        .name = "tanh",
        .host_forward = forward,
        .host_backward_input = backward_input,
        .host_backward_weight = backward_weight,
    };
    const dp_param_t weights = {.name = "W", .count = WIDTH * WIDTH};
    const dp_block_sizes_t sizes = {
        .struct_size = sizeof(sizes),
        .saved_bytes = sizeof(saved_t),
        .param_count = WIDTH * WIDTH,
        .nparams = 1,
    };
    const dp_part_t part = {
        .struct_size = sizeof(part),
        .nsegments = 1,
        .segments = &segment,
        .sizes = &sizes,
        .param_list = &weights,
    };
    stages_t *stages = user;
    dp_status_t status = dp_stage_create(&part, 1, WIDTH * sizeof(double), DP_F64, stage_out);

    (void)context, (void)stage, (void)count;
    if (status == DP_OK)
        stages->held[stages->count++] = *stage_out;
    return status;
}

/* ---- training ---- */

/* First values, then gradient descent. Each stage is held twice, by two ranks, and both do the
 * same. */
static dp_status_t update(dp_pipeline_t *pipeline, int step)
{
    dp_chunk_view_t chunk = {.struct_size = sizeof(chunk)};
    dp_status_t status = DP_OK;

    for (int c = 0; c < dp_pipeline_chunks(pipeline) && status == DP_OK; c++) {
        double *W = NULL;
        const double *dW = NULL;

        status = dp_pipeline_chunk(pipeline, c, &chunk);
        if (status < 0)
            break;
        W = chunk.params;
        dW = chunk.grads;
        for (int k = 0; k < WIDTH * WIDTH; k++)
            W[k] = step == 0 ? 0.3 * cos(k * k + chunk.stage) : W[k] - 0.5 * dW[k];
    }
    return status;
}

static dp_status_t train(dp_pipeline_t *pipeline, int rank)
{
    static double x[MICROBATCHES][WIDTH], target[MICROBATCHES][WIDTH];
    const void *inputs[MICROBATCHES], *targets[MICROBATCHES];
    dp_step_t step = {.struct_size = sizeof(step), .inputs = inputs, .targets = targets};
    dp_status_t status = DP_OK;

    for (int m = 0; m < MICROBATCHES; m++) {
        for (int i = 0; i < WIDTH; i++)
            x[m][i] = target[m][WIDTH - 1 - i] = 0.7 * sin((m * WIDTH + i) * (m * WIDTH + i));
        inputs[m] = x[m];
        targets[m] = target[m];
    }
    for (int n = 0; n <= STEPS && status == DP_OK; n++) {
        status = update(pipeline, n);
        if (status == DP_OK)
            status = dp_pipeline_step(pipeline, &step);
        if (status == DP_OK && rank == 0 && n % 50 == 0)
            printf("step %3d  loss %.4f\n", n, step.loss / MICROBATCHES);
    }
    return status;
}

int main(void)
{
    stages_t stages = {.count = 0};
    dp_pipeline_options_t options = {
        .struct_size = sizeof(options),
        .method = "dualpipe",
        .microbatches = MICROBATCHES,
        .boundary_bytes = WIDTH * sizeof(double),
        .dtype = DP_F64,
        .build = build,
        .user = &stages,
    };
    dp_pipeline_t *pipeline = NULL;
    dp_status_t status = dp_group_join(NULL, &options.group);

    if (status == DP_OK)
        status = dp_pipeline_open(&options, &pipeline);
    if (status == DP_OK)
        status = train(pipeline, dp_group_rank(options.group));
    if (status < 0)
        fprintf(stderr, "smallest: %s\n", dp_last_error());
    dp_pipeline_close(pipeline);
    for (int i = 0; i < stages.count; i++)
        dp_stage_free(stages.held[i]);
    dp_group_leave(options.group);
    return status < 0;
}
