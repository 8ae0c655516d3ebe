/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * gpu.h: a device for tests that talk to the driver themselves. CUDA does not survive fork(), and
 * Check forks for each test: open the rig inside a test, never around it. */
#ifndef DP_TESTS_GPU_H
#define DP_TESTS_GPU_H

#include <dualpipe/group.h>
#include <dualpipe/plugin.h>

#include "cuda/driver.h"
#include "cuda/launch.h"
#include "cuda/module.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <check.h>

typedef struct gpu {
    dp_group_t *group;
    const dp_host_t *host;
    const cuda_driver_t *cu;
    CUdevice device;
    CUcontext context;
    CUstream stream;
} gpu_t;

/* Fails the test with the library's message. */
#define GPU_OK(call)                                                                                                   \
    do {                                                                                                               \
        dp_status_t gpu_status = (call);                                                                               \
        ck_assert_msg(gpu_status == DP_OK, "%s: %s: %s", #call, dp_status_name(gpu_status), dp_last_error());          \
    } while (0)
#define GPU_CU(gpu, call) GPU_OK(CUDA_CHECK((gpu)->host, (gpu)->cu->call, #call))

/* A test through the fake driver: speed and the like mean nothing there. */
static inline bool gpu_is_fake(void)
{
    return getenv("DP_TEST_FAKE") != NULL;
}

/* An emulated GPU in make check, which leaves long cases to make check-long. */
static inline bool gpu_is_hurried(void)
{
    const char *all = getenv("DP_TEST_LONG");

    return gpu_is_fake() && all != NULL && strcmp(all, "0") == 0;
}

/* libcuda_races.so, which tests/gpu/check_races.sh names. */
static inline bool gpu_sees_races(void)
{
    return getenv("DP_TEST_RACES") != NULL;
}

static inline void gpu_open(gpu_t *gpu)
{
    dp_group_options_t options = {.struct_size = sizeof(options)};

    memset(gpu, 0, sizeof(*gpu));
    GPU_OK(dp_group_local(1, &options, &gpu->group));
    gpu->host = dp_group_host(gpu->group);
    GPU_OK(cuda_driver(gpu->host, &gpu->cu));
    GPU_CU(gpu, cuDeviceGet(&gpu->device, 0));
    GPU_CU(gpu, cuDevicePrimaryCtxRetain(&gpu->context, gpu->device));
    GPU_CU(gpu, cuCtxSetCurrent(gpu->context));
    GPU_CU(gpu, cuStreamCreateWithPriority(&gpu->stream, CU_STREAM_NON_BLOCKING, 0));
}

static inline void gpu_close(gpu_t *gpu)
{
    GPU_CU(gpu, cuStreamDestroy(gpu->stream));
    GPU_CU(gpu, cuDevicePrimaryCtxRelease(gpu->device));
    dp_group_leave(gpu->group);
}

/* Device memory, filled with what `from` holds; NULL: with NaN. */
static inline CUdeviceptr gpu_memory(gpu_t *gpu, const void *from, size_t bytes)
{
    CUdeviceptr at = 0;

    GPU_CU(gpu, cuMemAlloc(&at, bytes));
    if (from != NULL)
        GPU_CU(gpu, cuMemcpyHtoD(at, from, bytes));
    else
        GPU_CU(gpu, cuMemsetD8(at, 0xff, bytes));
    return at;
}

/* What the stream has left at `from`, once it is done. */
static inline void gpu_read(gpu_t *gpu, void *to, CUdeviceptr from, size_t bytes)
{
    GPU_CU(gpu, cuStreamSynchronize(gpu->stream));
    GPU_CU(gpu, cuMemcpyDtoH(to, from, bytes));
}

/* The arguments of a suite, on device_cuda; two more than there were. */
static inline char **gpu_suite_arguments(int argc, char **argv)
{
    static char device[] = "--device", cuda[] = "device_cuda";
    static char *with[64]; /* as long as the program, as argv */

    if (argc + 3 > (int)(sizeof(with) / sizeof(with[0])))
        exit(1);
    memcpy(with, argv, (size_t)argc * sizeof(*with));
    with[argc] = device;
    with[argc + 1] = cuda;
    return with;
}

/* Exits with 77 when there is no device; looks in a separate process. */
static inline void gpu_or_skip(const char *program)
{
    pid_t child = fork();
    int status = 0;

    if (child == 0) {
        dp_group_options_t options = {.struct_size = sizeof(options)};
        const cuda_driver_t *cu;
        dp_group_t *group;

        if (dp_group_local(1, &options, &group) != DP_OK || cuda_driver(dp_group_host(group), &cu) != DP_OK) {
            fprintf(stderr, "%s: SKIP: %s\n", program, dp_last_error());
            _exit(77);
        }
        _exit(0);
    }
    if (child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 77)
        exit(77);
}

#endif
