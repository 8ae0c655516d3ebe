/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_hook_cupti.c: kernels of a real device on the host's clock, each at the operation that
 * launched it; without CUPTI, what is said. The fake driver's kernels are none that CUPTI sees:
 * with it, only the second. */
#include "gpu.h"

#include <dualpipe/profiler.h>

#include "tests/support/debug.h"
#include "tests/support/suite.h"

CUDA_IMAGE(kernels);

static const dp_profiler_vt_t *load(void)
{
    const dp_plugin_t *plugin;
    const void *table;

    GPU_OK(dp_plugin_load("hook_cupti", &plugin));
    GPU_OK(dp_plugin_interface(plugin, DP_IFACE_PROFILER, sizeof(dp_profiler_vt_t), &table));
    return table;
}

START_TEST(without_cupti_the_message_names_what_was_tried)
{
    dp_profiler_config_t config = {.struct_size = sizeof(config)};
    dp_group_options_t options = {.struct_size = sizeof(options)};
    const dp_profiler_vt_t *vt = load();
    dp_profiler_t *profiler = NULL;
    dp_group_t *group;

    GPU_OK(dp_group_local(1, &options, &group));
    debug_set("lib.cupti", "/nowhere/libcupti.so");
    ck_assert_int_eq(vt->open(dp_group_host(group), &config, &profiler), DP_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "/nowhere/libcupti.so"));
    debug_set("lib.cupti", "libm.so.6");
    ck_assert_int_eq(vt->open(dp_group_host(group), &config, &profiler), DP_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(dp_last_error(), "cuptiActivityRegisterCallbacks"));
    config.struct_size = 4;
    ck_assert_int_eq(vt->open(dp_group_host(group), &config, &profiler), DP_ERR_INVALID);
    ck_assert_ptr_null(profiler);
    vt->close(NULL);
    dp_group_leave(group);
}
END_TEST

START_TEST(kernels_belong_to_their_operations)
{
    dp_profiler_config_t config = {.struct_size = sizeof(config)};
    const dp_profiler_vt_t *vt = load();
    dp_profiler_t *profilers[2];
    dp_activity_t out[16];
    size_t count;
    CUdeviceptr to, from;
    double factor = 2;
    size_t n = 100000;
    int64_t before, after;
    CUmodule module;
    CUfunction f;
    gpu_t gpu;

    gpu_open(&gpu);
    for (int i = 0; i < 2; i++)
        GPU_OK(vt->open(gpu.host, &config, &profilers[i]));
    GPU_OK(cuda_module_load(gpu.host, cuda_image_kernels, &module));
    GPU_OK(cuda_kernel(gpu.host, module, "dp_test_scale_f32", &f));
    to = gpu_memory(&gpu, NULL, n * 4);
    from = gpu_memory(&gpu, NULL, n * 4);
    before = gpu.host->now_ns(gpu.host);
    for (int i = 0; i < 2; i++)
        for (uint64_t operation = 1; operation <= 3; operation++) {
            vt->begin(profilers[i], operation, "an operation");
            GPU_OK(
                cuda_launch(gpu.host, gpu.cu, f, CUDA_DIM(64), CUDA_DIM(256), 0, gpu.stream, &to, &from, &factor, &n));
            vt->end(profilers[i]);
        }
    GPU_CU(&gpu, cuStreamSynchronize(gpu.stream));
    after = gpu.host->now_ns(gpu.host);
    for (int i = 0; i < 2; i++) {
        GPU_OK(vt->collect(profilers[i], out, 16, &count, NULL));
        ck_assert_uint_eq(count, 3);
        for (size_t k = 0; k < 3; k++) {
            ck_assert_uint_eq(out[k].operation, k + 1);
            ck_assert_uint_eq(out[k].kind, DP_ACTIVITY_KERNEL);
            ck_assert_str_eq(out[k].name, "dp_test_scale_f32");
            ck_assert_int_lt(out[k].start_ns, out[k].end_ns);
            ck_assert_int_ge(out[k].start_ns, before - 1000000);
            ck_assert_int_le(out[k].end_ns, after + 1000000);
        }
    }
    for (int i = 0; i < 2; i++)
        vt->close(profilers[i]);
    gpu_close(&gpu);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("hook_cupti");

    if (!gpu_is_fake())
        gpu_or_skip("test_hook_cupti");
    SUITE_ADD(suite, without_cupti_the_message_names_what_was_tried);
    if (!gpu_is_fake())
        SUITE_ADD(suite, kernels_belong_to_their_operations);
    return suite_run(suite);
}
