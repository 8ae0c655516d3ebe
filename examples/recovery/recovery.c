/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * recovery.c: a trainer that outlives its ranks. `dualpipe run -n 2 --respawn 1 -- recovery 1 7`
 * kills rank 1 in step 7 and replaces it. The losses are those of `recovery` alone, to the last
 * bit: diff them. recover.h says what each call of `train` is for. */
#include <dualpipe/dualpipe.h>
#include <dualpipe/run.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { MICROBATCHES = 8, STEPS = 20, CHUNKS = 2, MOST_STAGES = 16 };

/* What training is made of besides the parameters: `register_state` names all of it. */
static double *momentum[CHUNKS], losses[STEPS];

static dp_stage_t *stages[MOST_STAGES]; /* a recovery makes new ones */
static int nstages;

/* ---- the model of dualpipe.h: each stage is y = w x ---- */

static dp_status_t forward(void *self, const dp_segment_call_t *call)
{
    const double w = *(const double *)call->params, *x = call->x != NULL ? call->x : call->input;
    double *saved = call->saved;

    (void)self;
    saved[0] = *x;
    if (call->y != NULL) {
        *(double *)call->y = w * *x;
    } else { /* the last stage */
        saved[1] = w * *x - *(const double *)call->target;
        *call->loss += 0.5 * saved[1] * saved[1];
    }
    return DP_OK;
}

static dp_status_t backward_input(void *self, const dp_segment_call_t *call)
{
    double *saved = call->saved, *dx = call->dx;

    (void)self;
    saved[1] = call->dy != NULL ? *(const double *)call->dy : call->loss_scale * saved[1];
    if (dx != NULL) /* NULL in the first stage */
        *dx = *(const double *)call->params * saved[1];
    return DP_OK;
}

static dp_status_t backward_weight(void *self, const dp_segment_call_t *call)
{
    const double *saved = call->saved;

    (void)self;
    *(double *)call->grads += saved[0] * saved[1];
    return DP_OK;
}

static dp_status_t build(void *user, const dp_build_context_t *context, int32_t stage, int32_t count,
                         dp_stage_t **stage_out)
{
    const dp_segment_t segment = {.struct_size = sizeof(segment),
                                  .name = "scale",
                                  .host_forward = forward,
                                  .host_backward_input = backward_input,
                                  .host_backward_weight = backward_weight};
    const dp_param_t weights = {.name = "w", .count = 1};
    const dp_block_sizes_t sizes = {
        .struct_size = sizeof(sizes), .saved_bytes = 2 * sizeof(double), .param_count = 1, .nparams = 1};
    const dp_part_t part = {
        .struct_size = sizeof(part), .nsegments = 1, .segments = &segment, .sizes = &sizes, .param_list = &weights};
    dp_status_t status;

    (void)user, (void)context, (void)stage, (void)count;
    if (nstages == MOST_STAGES)
        return dp_fail(DP_ERR_INVALID, "recovery: no room for more than %d stages", MOST_STAGES);
    status = dp_stage_create(&part, 1, sizeof(double), DP_F64, stage_out);
    if (status == DP_OK)
        stages[nstages++] = *stage_out;
    return status;
}

/* ---- training ---- */

static dp_status_t register_state(dp_pipeline_t *pipeline)
{
    const dp_state_t of_job = {.struct_size = sizeof(of_job),
                               .name = "losses",
                               .scope = DP_STATE_JOB,
                               .host = 1,
                               .memory = losses,
                               .dtype = DP_F64,
                               .count = STEPS};
    dp_status_t status = dp_pipeline_register_state(pipeline, &of_job);

    for (int c = 0; c < dp_pipeline_chunks(pipeline) && status == DP_OK; c++) {
        dp_chunk_view_t chunk = {.struct_size = sizeof(chunk)};
        dp_state_t of_chunk = {.struct_size = sizeof(of_chunk),
                               .name = "momentum",
                               .scope = DP_STATE_PARAMS,
                               .chunk = c,
                               .host = 1,
                               .dtype = DP_F64};

        status = dp_pipeline_chunk(pipeline, c, &chunk);
        if (status == DP_OK)
            of_chunk.memory = momentum[c] = calloc(chunk.param_count, sizeof(double));
        if (status == DP_OK)
            status = dp_pipeline_register_state(pipeline, &of_chunk);
    }
    return status;
}

/* step -1: first values. Else behind the commit: nothing here waits for another rank. */
static dp_status_t update(dp_pipeline_t *pipeline, int64_t step)
{
    dp_chunk_view_t chunk = {.struct_size = sizeof(chunk)};

    for (int c = 0; c < dp_pipeline_chunks(pipeline); c++) {
        const dp_status_t status = dp_pipeline_chunk(pipeline, c, &chunk);
        double *w = chunk.params;
        const double *dw = chunk.grads;

        if (status < 0)
            return status;
        for (size_t i = 0; i < chunk.param_count; i++) {
            momentum[c][i] = step < 0 ? 0 : 0.5 * momentum[c][i] + dw[i];
            w[i] = step < 0 ? 1 + 0.1 * chunk.stage : w[i] - 0.05 * momentum[c][i];
        }
    }
    return DP_OK;
}

static dp_status_t run_step(dp_pipeline_t *pipeline, int64_t number)
{
    double x[MICROBATCHES], target[MICROBATCHES];
    const void *inputs[MICROBATCHES], *targets[MICROBATCHES];
    dp_step_t step = {.struct_size = sizeof(step), .inputs = inputs, .targets = targets};
    dp_status_t status;

    for (int m = 0; m < MICROBATCHES; m++) {
        x[m] = sin((double)number + m);
        target[m] = 2 * x[m];
        inputs[m] = &x[m];
        targets[m] = &target[m];
    }
    status = dp_pipeline_step(pipeline, &step);
    if (status == DP_OK)
        status = dp_pipeline_commit(pipeline); /* the step counts, on all ranks or on none */
    if (status == DP_OK)
        status = update(pipeline, number);
    if (status == DP_OK)
        losses[number] = step.loss;
    return status;
}

/* death: the step in which this rank kills itself; -1: none. */
static dp_status_t train(dp_pipeline_t *pipeline, dp_group_t *group, int64_t death)
{
    int64_t step = 0, first;
    dp_status_t status = update(pipeline, -1);

    if (status == DP_OK) /* a new rank gets the state of its mirror */
        status = dp_pipeline_recover(pipeline, DP_OK, &step);
    first = step;
    while (status == DP_OK && step <= STEPS) {
        if (step == death && first == 0)
            raise(SIGKILL);
        /* behind the last step the barrier keeps all together until everybody has made it */
        status = step < STEPS ? run_step(pipeline, step) : dp_group_barrier(group);
        if (status == DP_OK)
            step++;
        else /* DP_ERR_LOST: nobody has the state any more; read a checkpoint (state.h) */
            status = dp_pipeline_recover(pipeline, status, &step);
    }
    return status;
}

int main(int argc, char **argv)
{
    dp_pipeline_options_t options = {.struct_size = sizeof(options),
                                     .microbatches = MICROBATCHES,
                                     .boundary_bytes = sizeof(double),
                                     .dtype = DP_F64,
                                     .build = build};
    dp_pipeline_t *pipeline = NULL;
    dp_status_t status = dp_group_join(NULL, &options.group);
    const int rank = dp_group_rank(options.group);

    if (status == DP_OK)
        status = dp_pipeline_open(&options, &pipeline);
    if (status == DP_OK)
        status = register_state(pipeline);
    if (status == DP_OK)
        status = train(pipeline, options.group, argc > 2 && atoi(argv[1]) == rank ? atoi(argv[2]) : -1);
    for (int n = 0; n < STEPS && status == DP_OK && rank == 0; n++)
        printf("step %2d  loss %a\n", n, losses[n]);
    if (status < 0)
        fprintf(stderr, "recovery: %s\n", dp_last_error());
    dp_pipeline_close(pipeline);
    for (int i = 0; i < nstages; i++)
        dp_stage_free(stages[i]);
    for (int c = 0; c < CHUNKS; c++)
        free(momentum[c]);
    dp_group_leave(options.group);
    return status < 0;
}
