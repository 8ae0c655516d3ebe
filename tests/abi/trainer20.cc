// SPDX-FileCopyrightText: The libdualpipe authors
// SPDX-License-Identifier: MIT
// trainer20.cc: a trainer in C++20 with the strictest warnings, by dualpipe.hpp: stages y = w x learn to double a number.
//     trainer20 [build|forward]     throws in that function: the job ends with what() as its message, status 3
#include <dualpipe/dualpipe.hpp>
#include <dualpipe/number.h>
#include <dualpipe/plan.h>
#include <dualpipe/run.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace
{
constexpr int M = 8;
const char *thrower = "";
std::vector<dp_stage_t *> made;

const double &of(const void *memory)
{
    return *static_cast<const double *>(memory);
}

void throw_in(const char *where)
{
    if (std::strcmp(thrower, where) == 0)
        throw std::runtime_error("no bricks");
}

dp_status_t forward(void *, const dp_segment_call_t *call)
{
    const double w = of(call->params), x = of(call->x != nullptr ? call->x : call->input);
    double *const saved = static_cast<double *>(call->saved);

    throw_in("forward");
    saved[0] = x;
    if (call->y != nullptr) {
        *static_cast<double *>(call->y) = w * x;
    } else {
        saved[1] = w * x - of(call->target);
        *call->loss += 0.5 * saved[1] * saved[1];
    }
    return DP_OK;
}

dp_status_t backward(void *, const dp_segment_call_t *call)
{
    double *const saved = static_cast<double *>(call->saved);

    saved[1] = call->dy != nullptr ? of(call->dy) : call->loss_scale * saved[1];
    if (call->dx != nullptr)
        *static_cast<double *>(call->dx) = of(call->params) * saved[1];
    return DP_OK;
}

dp_status_t weight(void *, const dp_segment_call_t *call)
{
    const double *const saved = static_cast<const double *>(call->saved);

    *static_cast<double *>(call->grads) += saved[0] * saved[1];
    return DP_OK;
}

dp_status_t build(void *, const dp_build_context_t *, int32_t, int32_t, dp_stage_t **stage_out)
{
    auto segment = dualpipe::sized<dp_segment_t>();
    auto sizes = dualpipe::sized<dp_block_sizes_t>();
    auto part = dualpipe::sized<dp_part_t>();
    dp_param_t w{};

    throw_in("build");
    segment.name = "times w";
    segment.host_forward = dualpipe::guarded<forward>;
    segment.host_backward_input = dualpipe::guarded<backward>;
    segment.host_backward_weight = dualpipe::guarded<weight>;
    w.name = "w";
    w.count = sizes.param_count = sizes.nparams = 1;
    sizes.saved_bytes = 2 * sizeof(double);
    part.nsegments = 1;
    part.segments = &segment;
    part.sizes = &sizes;
    part.param_list = &w;
    const dp_status_t status = dp_stage_create(&part, 1, sizeof(double), DP_F64, stage_out);
    if (status >= 0)
        made.push_back(*stage_out);
    return status;
}

dp_status_t train(dp_pipeline_t *pipeline, std::array<double, 2> &losses)
{
    std::array<double, M> data, wanted;
    std::array<const void *, M> inputs, targets;
    auto step = dualpipe::sized<dp_step_t>();
    auto chunk = dualpipe::sized<dp_chunk_view_t>();

    for (size_t m = 0; m < M; m++) {
        data[m] = 0.5 * static_cast<double>(m);
        wanted[m] = 2 * data[m];
        inputs[m] = &data[m];
        targets[m] = &wanted[m];
    }
    step.inputs = inputs.data();
    step.targets = targets.data();
    for (int n = 0; n < 50; n++) {
        for (int32_t c = 0; c < dp_pipeline_chunks(pipeline); c++) {
            if (const dp_status_t status = dp_pipeline_chunk(pipeline, c, &chunk); status < 0)
                return status;
            dp_number_set(DP_F64, chunk.params, 0, n == 0 ? 1 : of(chunk.params) - 0.1 * of(chunk.grads));
        }
        if (const dp_status_t status = dp_pipeline_step(pipeline, &step); status < 0)
            return status;
        losses[n != 0] = step.loss;
    }
    return DP_OK;
}
} // namespace

int main(int argc, char **argv)
{
    auto options = dualpipe::sized<dp_pipeline_options_t>();
    dp_pipeline_t *pipeline = nullptr;
    std::array<double, 2> losses{1, 1};
    dp_status_t status = dp_group_join(nullptr, &options.group);

    thrower = argc > 1 ? argv[1] : "";
    options.microbatches = M;
    options.boundary_bytes = sizeof(double);
    options.dtype = DP_F64;
    options.build = dualpipe::guarded<build>;
    if (status >= 0)
        status = dp_pipeline_open(&options, &pipeline);
    if (status >= 0)
        status = train(pipeline, losses);
    if (status < 0)
        std::fprintf(stderr, "trainer20: %s\n", dp_last_error());
    dp_pipeline_close(pipeline);
    for (dp_stage_t *stage : made)
        dp_stage_free(stage);
    dp_group_leave(options.group);
    return status < 0 ? 3 : losses[1] < 1e-6 ? 0 : 1;
}
