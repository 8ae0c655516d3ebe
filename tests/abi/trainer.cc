// SPDX-FileCopyrightText: The libdualpipe authors
// SPDX-License-Identifier: MIT
// trainer.cc: a trainer in C++11, from the installed headers alone: each stage is y = x + x W, and all of them together learn
// to turn a row of numbers around. Takes the version that pkg-config gave; fails unless the loss goes down.
#include <dualpipe/dualpipe.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

namespace
{
const int N = 8, M = 8;

struct Saved {
    double x[N], dy[N];
};

dp_status_t forward(void *, const dp_segment_call_t *call)
{
    const double *w = static_cast<const double *>(call->params);
    const double *x = static_cast<const double *>(call->x != nullptr ? call->x : call->input);
    Saved *saved = static_cast<Saved *>(call->saved);
    double *y = static_cast<double *>(call->y);

    std::memcpy(saved->x, x, sizeof(saved->x));
    for (int j = 0; j < N; j++) {
        double z = x[j];
        for (int i = 0; i < N; i++)
            z += x[i] * w[i * N + j];
        if (y != nullptr) {
            y[j] = z;
        } else {
            saved->dy[j] = z - static_cast<const double *>(call->target)[j];
            *call->loss += 0.5 * saved->dy[j] * saved->dy[j];
        }
    }
    return DP_OK;
}

dp_status_t backward(void *, const dp_segment_call_t *call)
{
    const double *w = static_cast<const double *>(call->params), *dy = static_cast<const double *>(call->dy);
    Saved *saved = static_cast<Saved *>(call->saved);
    double *dx = static_cast<double *>(call->dx);

    for (int j = 0; j < N; j++)
        saved->dy[j] = dy != nullptr ? dy[j] : call->loss_scale * saved->dy[j];
    for (int i = 0; dx != nullptr && i < N; i++) {
        dx[i] = saved->dy[i];
        for (int j = 0; j < N; j++)
            dx[i] += saved->dy[j] * w[i * N + j];
    }
    return DP_OK;
}

dp_status_t weight(void *, const dp_segment_call_t *call)
{
    const Saved *saved = static_cast<const Saved *>(call->saved);
    double *grads = static_cast<double *>(call->grads);

    for (int k = 0; k < N * N; k++)
        grads[k] += saved->x[k / N] * saved->dy[k % N];
    return DP_OK;
}

dp_status_t build(void *user, const dp_build_context_t *, int32_t, int32_t, dp_stage_t **stage_out)
{
    dp_param_t w = {};
    dp_block_sizes_t sizes = {};
    dp_segment_t segment = {};
    dp_part_t part = {};

    w.name = "w";
    w.count = N * N;
    w.fan_in = N;
    sizes.struct_size = sizeof(sizes);
    sizes.saved_bytes = sizeof(Saved);
    sizes.param_count = w.count;
    sizes.nparams = 1;
    segment.struct_size = sizeof(segment);
    segment.name = "linear";
    segment.host_forward = forward;
    segment.host_backward_input = backward;
    segment.host_backward_weight = weight;
    part.struct_size = sizeof(part);
    part.nsegments = 1;
    part.segments = &segment;
    part.sizes = &sizes;
    part.param_list = &w;
    const dp_status_t status = dp_stage_create(&part, 1, N * sizeof(double), DP_F64, stage_out);
    if (status >= 0)
        static_cast<std::vector<dp_stage_t *> *>(user)->push_back(*stage_out);
    return status;
}

dp_status_t train(dp_pipeline_t *pipeline, double *first, double *last)
{
    double data[M][N], wanted[M][N];
    const void *inputs[M], *targets[M];
    dp_chunk_view_t chunk = {};
    dp_step_t step = {};

    chunk.struct_size = sizeof(chunk);
    step.struct_size = sizeof(step);
    step.inputs = inputs;
    step.targets = targets;
    for (int k = 0; k < M * N; k++) {
        data[k / N][k % N] = wanted[k / N][N - 1 - k % N] = std::sin(static_cast<double>(k) * k);
        inputs[k / N] = data[k / N];
        targets[k / N] = wanted[k / N];
    }
    for (int n = 0; n < 60; n++) {
        for (int c = 0; c < dp_pipeline_chunks(pipeline); c++) {
            const dp_status_t status = dp_pipeline_chunk(pipeline, c, &chunk);
            if (status < 0)
                return status;
            for (int k = 0; n > 0 && k < N * N; k++) {
                static_cast<double *>(chunk.grads)[k] *= 0.1; // the trainer's until the next step
                static_cast<double *>(chunk.params)[k] -= static_cast<double *>(chunk.grads)[k];
            }
        }
        const dp_status_t status = dp_pipeline_step(pipeline, &step);
        if (status < 0)
            return status;
        *(n == 0 ? first : last) = step.loss;
    }
    return DP_OK;
}
} // namespace

int main(int argc, char **argv)
{
    std::vector<dp_stage_t *> stages;
    dp_pipeline_options_t options = {};
    dp_pipeline_t *pipeline = nullptr;
    double first = 0, last = 0;

    if (argc < 2 || std::strcmp(argv[1], dp_version()) != 0) {
        std::fprintf(stderr, "trainer: the library is version %s\n", dp_version());
        return 1;
    }
    dp_status_t status = dp_group_join(nullptr, &options.group);
    options.struct_size = sizeof(options);
    options.microbatches = M;
    options.boundary_bytes = N * sizeof(double);
    options.dtype = DP_F64;
    options.build = build;
    options.user = &stages;
    if (status >= 0)
        status = dp_pipeline_open(&options, &pipeline);
    if (status >= 0)
        status = train(pipeline, &first, &last);
    if (status < 0)
        std::fprintf(stderr, "trainer: %s\n", dp_last_error());
    else
        std::printf("loss %g, then %g\n", first, last);
    dp_pipeline_close(pipeline);
    for (dp_stage_t *stage : stages)
        dp_stage_free(stage);
    dp_group_leave(options.group);
    return status < 0 || !(last < first / 2);
}
