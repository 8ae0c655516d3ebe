/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_cudnn_graph.c: cuDNN, where it is installed, knows attention_cudnn's graphs as flash
 * attention. Needs no GPU: cuDNN is told of one by description, and what it compiles is loaded by a
 * driver that takes everything (tests/fake_cuda/loading_driver.c). */
#include "plugins/attention_cudnn/plan.h"
#include "tests/support/cuda_host.h"
#include "tests/support/debug.h"

#include <check.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* NVIDIA H200, written by hand from its data sheet. */
static const char h200[] =
    "{\"deviceVer\":900,\"multiProcessorCount\":132,\"maxGridSize\":[2147483647,65535,65535],"
    "\"maxBlockSize\":[1024,1024,64],\"deviceName\":\"NVIDIA H200\",\"driverVer\":13000,\"cudaDeviceId\":0,"
    "\"regsPerBlock\":65536,\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,\"l2CacheSize\":62914560,"
    "\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":232448,"
    "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"pciDeviceId\":0,\"maxCtasPerSM\":32,"
    "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
    "\"totalGlobalMem\":150000000000}";

static cuda_host_t host;
static attn_dnn_t dnn;
static cudnnBackendDescriptor_t device;
static char kernels_path[PATH_MAX];

/* cuDNN unloads NVRTC after use, and its C++ runtime then loses what it set aside for exceptions: a
 * leak to AddressSanitizer. Kept mapped, it loses nothing. */
static void keep_nvrtc(void)
{
    if (dlopen("libnvrtc.so.13", RTLD_LAZY | RTLD_NODELETE) == NULL) {
        dlopen("libnvrtc.so.12", RTLD_LAZY | RTLD_NODELETE);
    }
}

static void start(void)
{
    keep_nvrtc();
    cuda_host_open(&host);
    ck_assert_msg(attn_dnn_load(&host.host, 128, &dnn) == DP_OK, "%s", host.message);
    ck_assert_int_eq(dnn.cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &device),
                     CUDNN_STATUS_SUCCESS);
    ck_assert_int_eq(dnn.cudnnBackendSetAttribute(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                                  sizeof(h200), h200),
                     CUDNN_STATUS_SUCCESS);
    ck_assert_int_eq(dnn.cudnnBackendFinalize(device), CUDNN_STATUS_SUCCESS);
    unlink(kernels_path);
}

static void stop(void)
{
    dnn.cudnnBackendDestroyDescriptor(device);
    unlink(kernels_path);
    ck_assert_int_eq(host.allocations, 0);
}

/* The kernels loaded since start() or the last call, one a line. */
static void loaded_kernels(char *names, size_t capacity)
{
    FILE *f = fopen(kernels_path, "r");
    size_t n = 0;

    if (f != NULL) {
        n = fread(names, 1, capacity - 1, f);
        fclose(f);
    }
    names[n] = '\0';
    unlink(kernels_path);
}

/* Builds and plans one direction; returns the plan's workspace. */
static size_t check_plan(const attn_sdpa_shape_t *s, bool backward, size_t operations)
{
    const char *wanted = backward ? "sm90_flash_bprop_wgmma" : "sm90_flash_fprop_wgmma";
    attn_sdpa_graph_t graph;
    attn_sdpa_search_t search;
    attn_sdpa_plan_t plan;
    dp_status_t status = backward ? attn_sdpa_backward_graph(&host.host, &dnn, s, &graph)
                                  : attn_sdpa_forward_graph(&host.host, &dnn, s, &graph);
    char names[4096];
    size_t workspace;

    ck_assert_msg(status == DP_OK, "%s", host.message);
    ck_assert_uint_eq(graph.noperations, operations);
    status = attn_sdpa_plan_make(&graph, s->deterministic, device, &search, &plan);
    ck_assert_msg(status == DP_OK, "%s of %d x %d heads, dims %d/%d: %s", backward ? "backward" : "forward",
                  (int)s->heads, (int)s->kv_heads, (int)s->head_dim, (int)s->value_dim, host.message);
    loaded_kernels(names, sizeof(names));
    /* Names are cuDNN's own business; these are those of 9.19. */
    if (dnn.cudnnGetVersion() / 100 == 919)
        ck_assert_msg(strstr(names, wanted) != NULL, "loaded \"%s\", not a kernel %s", names, wanted);
    else
        ck_assert_str_ne(names, "");
    workspace = plan.workspace;
    attn_sdpa_plan_close(&plan);
    attn_sdpa_graph_close(&graph);
    return workspace;
}

static const attn_sdpa_shape_t shapes[] = {
    /* batch, heads, kv_heads, sequence, head_dim, value_dim */
    {1, 128, 128, 4096, 192, 128, false}, {2, 32, 32, 2048, 128, 128, false}, {2, 32, 32, 2048, 64, 64, false},
    {1, 64, 8, 4096, 128, 128, false},    {1, 16, 1, 1000, 64, 64, false},    {1, 16, 4, 2048, 192, 128, false},
};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

START_TEST(forward_and_backward_are_flash_attention)
{
    const attn_sdpa_shape_t s = shapes[_i];

    check_plan(&s, false, 14);
    check_plan(&s, true, s.heads == s.kv_heads ? 22 : 24);
}
END_TEST

START_TEST(deterministic_backward_is_flash_attention)
{
    attn_sdpa_shape_t s = shapes[_i];
    const size_t scores = (size_t)(2 * s.batch * s.heads * s.sequence * s.sequence);
    size_t workspace;

    s.deterministic = true;
    workspace = check_plan(&s, true, s.heads == s.kv_heads ? 21 : 23);
    if (s.sequence % 64 == 0 && dnn.cudnnGetVersion() / 100 == 919)
        ck_assert_uint_ge(workspace, scores);
}
END_TEST

START_TEST(what_no_engine_does_is_said)
{
    const attn_sdpa_shape_t wide = {1, 8, 8, 512, 576, 512, false};
    attn_sdpa_graph_t graph;
    attn_sdpa_search_t search;
    attn_sdpa_plan_t plan;

    ck_assert_int_eq(attn_sdpa_backward_graph(&host.host, &dnn, &wide, &graph), DP_OK);
    ck_assert_int_lt(attn_sdpa_plan_make(&graph, false, device, &search, &plan), 0);
    ck_assert_ptr_nonnull(strstr(host.message, "cuDNN"));
    ck_assert_ptr_null(plan.plan);
    attn_sdpa_graph_close(&graph);
}
END_TEST

START_TEST(a_graph_that_cannot_be_is_refused)
{
    /* 8 query heads cannot share 3 */
    const attn_sdpa_shape_t uneven = {1, 8, 3, 64, 64, 64, false};
    attn_sdpa_graph_t graph;

    ck_assert_int_lt(attn_sdpa_forward_graph(&host.host, &dnn, &uneven, &graph), 0);
    ck_assert_ptr_nonnull(strstr(host.message, "describing attention"));
    attn_sdpa_graph_close(&graph);
}
END_TEST

START_TEST(a_missing_library_is_named)
{
    attn_dnn_t other;

    debug_set("lib.cudnn", "/nowhere/libcudnn.so.9");
    ck_assert_int_eq(attn_dnn_load(&host.host, 128, &other), DP_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(host.message, "/nowhere/libcudnn.so.9"));
    ck_assert_ptr_nonnull(strstr(host.message, "lib.cudnn"));
    debug_set("lib.cudnn", NULL);
}
END_TEST

/* libcuda.so.1 is looked up by that name, in a folder that must be known when the program
 * starts. */
static void start_again(char **argv)
{
    const char *path = getenv("LD_LIBRARY_PATH"), *build = getenv("DP_TEST_BUILDDIR");
    char folder[] = "/tmp/dp_cudnn_XXXXXX", link[PATH_MAX], target[PATH_MAX], paths[3 * PATH_MAX];

    if (build == NULL || mkdtemp(folder) == NULL) {
        fprintf(stderr, "%s: DP_TEST_BUILDDIR is not set, or /tmp cannot be written: use make check\n", argv[0]);
        exit(1);
    }
    snprintf(link, sizeof(link), "%s/libcuda.so.1", folder);
    snprintf(target, sizeof(target), "%s/tests/fake_cuda/.libs/libcuda_loading.so", build);
    snprintf(paths, sizeof(paths), "%s%s%s", folder, path != NULL ? ":" : "", path != NULL ? path : "");
    if (symlink(target, link) != 0)
        exit(1);
    setenv("LD_LIBRARY_PATH", paths, 1);
    setenv("DP_CUDNN_FOLDER", folder, 1);
    execv("/proc/self/exe", argv);
    exit(1);
}

static void skip_without_cudnn(const char *program)
{
    void *library = dlopen("libcudnn.so.9", RTLD_NOW);

    if (library == NULL) {
        fprintf(stderr, "%s: SKIP: no cuDNN: %s\n", program, dlerror());
        exit(77);
    }
}

/* cuDNN's libraries leak a little as they are unloaded. Where they stay, the leak checker can tell
 * that it was theirs. */
static void keep_libraries(void)
{
    static const char *const names[] = {"libcudnn.so.9",
                                        "libcudnn_graph.so.9",
                                        "libcudnn_ops.so.9",
                                        "libcudnn_heuristic.so.9",
                                        "libcudnn_engines_precompiled.so.9",
                                        "libcudnn_engines_runtime_compiled.so.9"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        (void)dlopen(names[i], RTLD_LAZY | RTLD_NODELETE);
}

static void remove_folder(const char *folder)
{
    char link[PATH_MAX];

    snprintf(link, sizeof(link), "%s/libcuda.so.1", folder);
    unlink(link);
    rmdir(folder);
}

int main(int argc, char **argv)
{
    const char *folder = getenv("DP_CUDNN_FOLDER");
    Suite *s = suite_create("cudnn_graph");
    TCase *tc = tcase_create("cudnn_graph");
    SRunner *sr;
    int failed;

    (void)argc;
    if (folder == NULL) {
        skip_without_cudnn(argv[0]);
        start_again(argv);
    }
    debug_set("lib.cudnn", NULL);
    keep_libraries();
    snprintf(kernels_path, sizeof(kernels_path), "%s/kernels", folder);
    setenv("DP_LOADED_KERNELS", kernels_path, 1);
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, start, stop);
    tcase_add_loop_test(tc, forward_and_backward_are_flash_attention, 0, N_SHAPES);
    tcase_add_loop_test(tc, deterministic_backward_is_flash_attention, 0, N_SHAPES);
    tcase_add_test(tc, what_no_engine_does_is_said);
    tcase_add_test(tc, a_graph_that_cannot_be_is_refused);
    tcase_add_test(tc, a_missing_library_is_named);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    remove_folder(folder);
    return failed == 0 ? 0 : 1;
}
