/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * swap_comm.c: another comm backend under a running pipeline. `dualpipe run -n 4 -- swap_comm shm
 * ofi auto` trains, and every ten steps has the ranks talk over the next backend of the list. The
 * losses are those of `swap_comm shm`, to the last bit: diff them. */
#include <dualpipe/dualpipe.h>
#include <dualpipe/run.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MICROBATCHES = 8, WIDTH = 16, EACH = 10, STEPS = 60, MOST_STAGES = 64 };

/* y = x + tanh(w x), element by element. */
typedef struct saved {
    double x[WIDTH], t[WIDTH], dt[WIDTH];
} saved_t;

typedef struct stages {
    dp_stage_t *made[MOST_STAGES]; /* a swap makes them anew: they hold instances of the backend */
    int count;
} stages_t;

static dp_status_t forward(void *self, const dp_segment_call_t *call)
{
    const double *w = call->params, *x = call->x != NULL ? call->x : call->input, *target = call->target;
    double *y = call->y;
    saved_t *saved = call->saved;

    (void)self;
    for (int i = 0; i < WIDTH; i++) {
        saved->x[i] = x[i];
        saved->t[i] = tanh(w[i] * x[i]);
        if (y != NULL)
            y[i] = x[i] + saved->t[i];
        if (target != NULL)
            *call->loss += 0.5 * (x[i] + saved->t[i] - target[i]) * (x[i] + saved->t[i] - target[i]);
    }
    return DP_OK;
}

static dp_status_t backward_input(void *self, const dp_segment_call_t *call)
{
    const double *w = call->params, *dy = call->dy, *target = call->target;
    double *dx = call->dx;
    saved_t *saved = call->saved;

    (void)self;
    for (int i = 0; i < WIDTH; i++) {
        double of_y = dy != NULL ? dy[i] : call->loss_scale * (saved->x[i] + saved->t[i] - target[i]);

        saved->dt[i] = of_y * (1 - saved->t[i] * saved->t[i]);
        if (dx != NULL)
            dx[i] = of_y + saved->dt[i] * w[i];
    }
    return DP_OK;
}

static dp_status_t backward_weight(void *self, const dp_segment_call_t *call)
{
    const saved_t *saved = call->saved;
    double *dw = call->grads;

    (void)self;
    for (int i = 0; i < WIDTH; i++)
        dw[i] += saved->dt[i] * saved->x[i];
    return DP_OK;
}

static dp_status_t build(void *user, const dp_build_context_t *context, int32_t stage, int32_t count,
                         dp_stage_t **stage_out)
{
    const dp_segment_t segment = {.struct_size = sizeof(segment),
                                  .name = "tanh",
                                  .host_forward = forward,
                                  .host_backward_input = backward_input,
                                  .host_backward_weight = backward_weight};
    const dp_param_t weights = {.name = "w", .count = WIDTH};
    const dp_block_sizes_t sizes = {
        .struct_size = sizeof(sizes), .saved_bytes = sizeof(saved_t), .param_count = WIDTH, .nparams = 1};
    const dp_part_t part = {
        .struct_size = sizeof(part), .nsegments = 1, .segments = &segment, .sizes = &sizes, .param_list = &weights};
    stages_t *stages = user;
    dp_status_t status;

    (void)context, (void)stage, (void)count;
    if (stages->count == MOST_STAGES)
        return dp_fail(DP_ERR_INVALID, "swap_comm: no room for more than %d stages", MOST_STAGES);
    status = dp_stage_create(&part, 1, WIDTH * sizeof(double), DP_F64, stage_out);
    if (status == DP_OK)
        stages->made[stages->count++] = *stage_out;
    return status;
}

/* Parameters stay where they are when the backend is swapped. */
static dp_status_t update(dp_pipeline_t *pipeline, int step)
{
    dp_chunk_view_t chunk = {.struct_size = sizeof(chunk)};

    for (int c = 0; c < dp_pipeline_chunks(pipeline); c++) {
        dp_status_t status = dp_pipeline_chunk(pipeline, c, &chunk);
        double *w = chunk.params;
        const double *dw = chunk.grads;

        if (status < 0)
            return status;
        for (int i = 0; i < WIDTH; i++)
            w[i] = step == 0 ? 0.3 * cos(i + chunk.stage) : w[i] - 0.05 * dw[i];
    }
    return DP_OK;
}

static dp_status_t swap_to(dp_pipeline_t *pipeline, const char *comm, int32_t rank, int32_t size)
{
    dp_status_t status = dp_pipeline_swap_comm(pipeline, comm);

    if (status == DP_OK && rank == 0)
        fprintf(stderr, "%s: ranks 0 and 1 talk over %s, ranks 0 and %d over %s\n", comm,
                size > 1 ? dp_pipeline_comm(pipeline, 0, 1) : "nothing", size - 1,
                dp_pipeline_comm(pipeline, 0, size - 1));
    return status;
}

static dp_status_t train(dp_pipeline_t *pipeline, char **comms, int ncomms, int32_t rank, int32_t size)
{
    static double x[MICROBATCHES][WIDTH], target[MICROBATCHES][WIDTH];
    const void *inputs[MICROBATCHES], *targets[MICROBATCHES];
    dp_step_t step = {.struct_size = sizeof(step), .inputs = inputs, .targets = targets};
    dp_status_t status = DP_OK;

    for (int m = 0; m < MICROBATCHES; m++) {
        for (int i = 0; i < WIDTH; i++) {
            x[m][i] = 0.7 * sin(m * WIDTH + i);
            target[m][i] = 1.5 * x[m][i];
        }
        inputs[m] = x[m];
        targets[m] = target[m];
    }
    for (int n = 0; n < STEPS && status == DP_OK; n++) {
        if (n > 0 && n % EACH == 0 && ncomms > 1)
            status = swap_to(pipeline, comms[n / EACH % ncomms], rank, size);
        if (status == DP_OK)
            status = update(pipeline, n);
        if (status == DP_OK)
            status = dp_pipeline_step(pipeline, &step);
        if (status == DP_OK && rank == 0)
            printf("step %2d  loss %a\n", n, step.loss);
    }
    return status;
}

int main(int argc, char **argv)
{
    stages_t stages = {.count = 0};
    dp_pipeline_options_t options = {.struct_size = sizeof(options),
                                     .microbatches = MICROBATCHES,
                                     .comm = argc > 1 ? argv[1] : NULL,
                                     .boundary_bytes = WIDTH * sizeof(double),
                                     .dtype = DP_F64,
                                     .build = build,
                                     .user = &stages};
    dp_pipeline_t *pipeline = NULL;
    dp_status_t status = dp_group_join(NULL, &options.group);

    if (status == DP_OK)
        status = dp_pipeline_open(&options, &pipeline);
    if (status == DP_OK)
        status = train(pipeline, argv + 1, argc - 1, dp_group_rank(options.group), dp_group_size(options.group));
    if (status < 0)
        fprintf(stderr, "swap_comm: %s\n", dp_last_error());
    dp_pipeline_close(pipeline);
    for (int i = 0; i < stages.count; i++)
        dp_stage_free(stages.made[i]);
    dp_group_leave(options.group);
    return status < 0;
}
