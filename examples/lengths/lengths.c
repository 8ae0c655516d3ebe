/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * lengths.c: micro-batches of different length, their documents, and two tensors across every
 * boundary: a residual stream, and a skip from the first part to the last that the parts between
 * know nothing of. `dualpipe run -n 2 -- lengths dualpipe` trains it, with the losses of
 * `lengths 1f1b` on one rank. docs/lengths.md has the rules. */
#include <dualpipe/dualpipe.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Micro-batches; tokens of the longest; width of a tensor. */
enum { M = 8, T = 6, W = 2, DOCUMENTS = 3, MIDDLE = 6, MODEL_PARTS = MIDDLE + 2, STEPS = 50 };

static const dp_boundary_tensor_t tensors[] = {{"stream", DP_F64, W}, {"skip", DP_F64, W}};
enum { ROW = W * sizeof(double) };

/* By micro-batch: its tokens, and where each of its documents ends, if it is divided. */
static const uint32_t lengths[M] = {6, 1, 4, 5, 6, 2, 3, 6};
static const uint32_t ends[M][DOCUMENTS] = {{2, 5, 6}, {1}, {0}, {1, 5}, {0}, {2}, {1, 2, 3}, {3, 6}};
static const uint32_t counts[M] = {3, 1, 0, 2, 0, 1, 3, 2};

static double inputs[M][T * W], targets[M][T * W];

/* The stages that this rank holds: DualPipe keeps two on each. */
typedef struct stages {
    dp_stage_t *held[2];
    int count;
} stages_t;

/* Positions begin at 0 in each document. */
static double position(uint32_t documents, const uint32_t *at, uint32_t t)
{
    uint32_t first = 0;

    for (uint32_t i = 0; i < documents && at[i] <= t; i++)
        first = at[i];
    return t - first;
}

static double *skip_of(const dp_segment_call_t *c, const void *boundary)
{
    size_t offsets[2], bytes;

    if (dp_boundary_offsets(tensors, 2, c->tokens, offsets, &bytes) < 0 || offsets[0] != 0)
        abort();
    return (double *)((uintptr_t)boundary + offsets[1]);
}

/* ---- parts ----
 * stream = skip = w * input; stream = w * stream + position; loss of w * stream + skip - target */

static dp_status_t first_forward(void *self, const dp_segment_call_t *c)
{
    const double *in = c->input, w = *(const double *)c->params;
    double *stream = c->y, *skip = skip_of(c, c->y);

    (void)self;
    for (uint32_t i = 0; i < c->tokens * W; i++)
        stream[i] = skip[i] = w * in[i];
    return DP_OK;
}

static dp_status_t first_backward(void *self, const dp_segment_call_t *c)
{
    const double *stream = c->dy, *skip = skip_of(c, c->dy);
    double *sums = c->saved;

    (void)self;
    for (uint32_t i = 0; i < c->tokens * W; i++)
        sums[i] = stream[i] + skip[i];
    return DP_OK;
}

static dp_status_t first_weight(void *self, const dp_segment_call_t *c)
{
    const double *in = c->input, *sums = c->saved;

    (void)self;
    for (uint32_t i = 0; i < c->tokens * W; i++)
        *(double *)c->grads += sums[i] * in[i];
    return DP_OK;
}

static dp_status_t middle_forward(void *self, const dp_segment_call_t *c)
{
    const double *x = c->x, w = *(const double *)c->params;
    double *y = c->y;

    (void)self;
    memcpy(c->saved, x, c->boundary_bytes);
    for (uint32_t i = 0; i < c->tokens * W; i++)
        y[i] = w * x[i] + position(c->documents, c->document_ends, i / W);
    return DP_OK;
}

static dp_status_t middle_backward(void *self, const dp_segment_call_t *c)
{
    const double *dy = c->dy, w = *(const double *)c->params;
    double *dx = c->dx;

    (void)self;
    memcpy((double *)c->saved + T * W, dy, c->boundary_bytes);
    for (uint32_t i = 0; i < c->tokens * W; i++)
        dx[i] = w * dy[i];
    return DP_OK;
}

static dp_status_t middle_weight(void *self, const dp_segment_call_t *c)
{
    const double *x = c->saved, *dy = x + T * W;

    (void)self;
    for (uint32_t i = 0; i < c->tokens * W; i++)
        *(double *)c->grads += x[i] * dy[i];
    return DP_OK;
}

static dp_status_t last_forward(void *self, const dp_segment_call_t *c)
{
    const double *stream = c->x, *skip = skip_of(c, c->x), *target = c->target, w = *(const double *)c->params;
    double *kept = c->saved, sum = 0;

    (void)self;
    for (uint32_t i = 0; i < c->tokens * W; i++) {
        kept[i] = stream[i];
        kept[T * W + i] = w * stream[i] + skip[i] - target[i];
        sum += kept[T * W + i] * kept[T * W + i];
    }
    *c->loss += sum / c->tokens;
    return DP_OK;
}

static dp_status_t last_backward(void *self, const dp_segment_call_t *c)
{
    const double w = *(const double *)c->params, factor = 2 * c->loss_scale / c->tokens;
    double *stream = c->dx, *skip = skip_of(c, c->dx), *kept = (double *)c->saved + T * W;

    (void)self;
    for (uint32_t i = 0; i < c->tokens * W; i++) {
        kept[i] *= factor;
        stream[i] = w * kept[i];
        skip[i] = kept[i];
    }
    return DP_OK;
}

static dp_segment_t segments[] = {
    {.struct_size = sizeof(dp_segment_t),
     .name = "first",
     .host_forward = first_forward,
     .host_backward_input = first_backward,
     .host_backward_weight = first_weight},
    {.struct_size = sizeof(dp_segment_t),
     .name = "middle",
     .host_forward = middle_forward,
     .host_backward_input = middle_backward,
     .host_backward_weight = middle_weight},
    {.struct_size = sizeof(dp_segment_t),
     .name = "last",
     .host_forward = last_forward,
     .host_backward_input = last_backward,
     .host_backward_weight = middle_weight},
};

/* The parts between the first and the last know the stream alone. */
static dp_status_t build(void *user, const dp_build_context_t *context, int32_t stage, int32_t stages,
                         dp_stage_t **stage_out)
{
    static const dp_block_sizes_t sizes = {
        .struct_size = sizeof(sizes), .saved_bytes = 2 * T * ROW, .param_count = 1, .nparams = 1};
    static const dp_param_t param = {.name = "w", .count = 1, .fan_in = 1};
    static const char *const prefixes[MODEL_PARTS] = {"0.", "1.", "2.", "3.", "4.", "5.", "6.", "7."};
    const int32_t first = stage * MODEL_PARTS / stages, end = (stage + 1) * MODEL_PARTS / stages;
    stages_t *held = user;
    dp_part_t parts[MODEL_PARTS];
    dp_status_t status;

    (void)context;
    for (int32_t i = first; i < end; i++) {
        const int kind = i == 0 ? 0 : i == MODEL_PARTS - 1 ? 2 : 1;

        parts[i - first] = (dp_part_t){.struct_size = sizeof(dp_part_t),
                                       .nsegments = 1,
                                       .segments = &segments[kind],
                                       .sizes = &sizes,
                                       .param_list = &param,
                                       .prefix = prefixes[i],
                                       .boundary_bytes = kind == 1 ? T * ROW : 0};
    }
    status = dp_stage_create(parts, end - first, (size_t)T * 2 * ROW, DP_F64, stage_out);
    if (status == DP_OK)
        held->held[held->count++] = *stage_out;
    return status;
}

/* ---- training ---- */

static void fill_data(void)
{
    for (int m = 0; m < M; m++)
        for (int i = 0; i < T * W; i++) {
            inputs[m][i] = 0.25 + 0.125 * ((m * 5 + i * 3) % 7);
            targets[m][i] = 1 - 0.0625 * ((m * 3 + i) % 5);
        }
}

static dp_step_t whole_step(const void *in[M], const void *target[M], dp_documents_t documents[M], double *losses)
{
    for (int m = 0; m < M; m++) {
        in[m] = inputs[m];
        target[m] = targets[m];
        documents[m] = (dp_documents_t){ends[m], counts[m]};
    }
    return (dp_step_t){.struct_size = sizeof(dp_step_t),
                       .inputs = in,
                       .targets = target,
                       .losses = losses,
                       .tokens = lengths,
                       .documents = documents};
}

/* number 0: first values. */
static dp_status_t update(dp_pipeline_t *pipeline, int number)
{
    dp_chunk_view_t view = {.struct_size = sizeof(view)};

    for (int c = 0; c < dp_pipeline_chunks(pipeline); c++) {
        const dp_status_t status = dp_pipeline_chunk(pipeline, c, &view);

        if (status < 0)
            return status;
        for (uint32_t i = 0; i < view.nparams; i++) {
            const size_t at = view.param_list[i].offset;
            double *w = (double *)view.params + at;

            *w =
                number == 0 ? 0.1 * (1 + atoi(view.param_list[i].name)) : *w - 0.001 * ((const double *)view.grads)[at];
        }
    }
    return DP_OK;
}

static dp_status_t train(dp_pipeline_t *pipeline, int rank)
{
    const void *in[M], *target[M];
    dp_documents_t documents[M];
    dp_step_t of_all = whole_step(in, target, documents, NULL);
    dp_status_t status = DP_OK;
    double tokens = 0;

    fill_data();
    for (int m = 0; m < M; m++)
        tokens += lengths[m];
    of_all.loss_scale = T / tokens; /* gradients of the mean over all tokens */
    for (int n = 0; n <= STEPS && status == DP_OK; n++) {
        status = update(pipeline, n);
        if (status == DP_OK)
            status = dp_pipeline_step(pipeline, &of_all);
        if (status == DP_OK && rank == 0 && n % 10 == 0)
            printf("step %2d  loss of a token %a\n", n, of_all.loss * T / tokens);
    }
    return status;
}

int main(int argc, char **argv)
{
    stages_t held = {.count = 0};
    dp_pipeline_options_t options = {.struct_size = sizeof(options),
                                     .method = argc > 1 ? argv[1] : NULL,
                                     .microbatches = M,
                                     .dtype = DP_F64,
                                     .tokens = T,
                                     .documents = DOCUMENTS,
                                     .build = build,
                                     .user = &held};
    dp_pipeline_t *pipeline = NULL;
    dp_status_t status = dp_group_join(NULL, &options.group);

    if (status == DP_OK)
        status = dp_boundary_offsets(tensors, 2, T, NULL, &options.boundary_bytes);
    if (status == DP_OK)
        status = dp_pipeline_open(&options, &pipeline);
    if (status == DP_OK)
        status = train(pipeline, dp_group_rank(options.group));
    if (status < 0)
        fprintf(stderr, "lengths: %s\n", dp_last_error());
    dp_pipeline_close(pipeline);
    for (int i = 0; i < held.count; i++)
        dp_stage_free(held.held[i]);
    dp_group_leave(options.group);
    return status < 0;
}
