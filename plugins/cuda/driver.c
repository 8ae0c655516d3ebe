/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * driver.c: finds the driver and fills its table, once for each plugin. */
#include "driver.h"

#include "plugins/common/do.h"

#include "plugins/common/debug.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_OF(function)  NAME_OF_(function)
#define NAME_OF_(function) #function

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cuda_driver_t table;
static int ready;

void *cuda_library(const char *key, const char *const names[], char *tried, size_t tried_bytes)
{
    char named[1024];
    const char *chosen = debug_value(key, named, sizeof(named));
    const char *const only[] = {chosen, NULL};
    size_t used = 0;

    if (tried_bytes > 0)
        tried[0] = '\0';
    for (const char *const *name = chosen != NULL ? only : names; *name != NULL; name++) {
        void *library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
        const char *why;

        if (library != NULL)
            return library;
        why = dlerror();
        if (used < tried_bytes) {
            int n = snprintf(tried + used, tried_bytes - used, "%s%s", used > 0 ? "; " : "", why != NULL ? why : *name);

            used += n > 0 ? (size_t)n : 0;
        }
    }
    return NULL;
}

/* The first name that the library lacks, or NULL. */
static const char *fill_table(void *library, cuda_driver_t *cu)
{
#define OPTIONAL(function) *(void **)&cu->function = dlsym(library, NAME_OF(function));
#define REQUIRED(function)                                                                                             \
    OPTIONAL(function)                                                                                                 \
    if (cu->function == NULL)                                                                                          \
        return NAME_OF(function);
    CUDA_REQUIRED(REQUIRED)
    CUDA_OPTIONAL(OPTIONAL)
#undef OPTIONAL
#undef REQUIRED
    return NULL;
}

static const char *describe_result(const cuda_driver_t *cu, CUresult result)
{
    const char *text = NULL;

    return cu->cuGetErrorString(result, &text) == CUDA_SUCCESS && text != NULL ? text : "an unknown error";
}

/* CUDA reads the variable at its start, which may be over. */
static void choose_queues(cuda_driver_t *cu)
{
    const char *text;
    int count;

    if (cu->cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED)
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    cu->queues = text != NULL ? atoi(text) : 8;
    cu->queues = cu->queues < 1 ? 1 : cu->queues > 32 ? 32 : cu->queues;
}

static dp_status_t start_driver(const dp_host_t *host)
{
    static const char *const names[] = {"libcuda.so.1", "libcuda.so", NULL};
    cuda_driver_t cu;
    char tried[512];
    const char *missing;
    CUresult result;
    int count = 0;
    void *library;

    if (debug_check(host, "lib", "cuda, cublaslt, cudnn, nccl, cupti, cutlass") < 0)
        return DP_ERR_INVALID;
    memset(&cu, 0, sizeof(cu));
    library = cuda_library("lib.cuda", names, tried, sizeof(tried));
    if (library == NULL)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "no CUDA device: the driver was not found (%s)", tried);
    missing = fill_table(library, &cu);
    if (missing != NULL)
        return DP_FAIL(
            host, DP_ERR_UNSUPPORTED,
            "no CUDA device: the driver has no %s; it is older than this plugin, which was built for CUDA %d.%d",
            missing, CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
    choose_queues(&cu);
    result = cu.cuInit(0);
    if (result != CUDA_SUCCESS)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "no CUDA device: cuInit says \"%s\"", describe_result(&cu, result));
    result = cu.cuDeviceGetCount(&count);
    if (result != CUDA_SUCCESS || count == 0)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "no CUDA device: the driver sees none (%s)",
                       result != CUDA_SUCCESS ? describe_result(&cu, result) : "count 0; is CUDA_VISIBLE_DEVICES set?");
    (void)cu.cuDriverGetVersion(&cu.version);
    table = cu;
    __atomic_store_n(&ready, 1, __ATOMIC_RELEASE);
    return DP_OK;
}

dp_status_t cuda_driver(const dp_host_t *host, const cuda_driver_t **cu_out)
{
    dp_status_t status = DP_OK;

    if (!__atomic_load_n(&ready, __ATOMIC_ACQUIRE)) {
        pthread_mutex_lock(&lock);
        if (!ready)
            status = start_driver(host);
        pthread_mutex_unlock(&lock);
    }
    if (status == DP_OK)
        *cu_out = &table;
    return status;
}

static dp_status_t status_of_result(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        return DP_ERR_NOMEM;
    case CUDA_ERROR_NOT_SUPPORTED:
        return DP_ERR_UNSUPPORTED;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_DEVICE:
        return DP_ERR_INVALID;
    default:
        return DP_ERR_DEVICE;
    }
}

dp_status_t cuda_check(const dp_host_t *host, CUresult result, const char *file, int line, const char *fmt, ...)
{
    char what[512];
    va_list args;

    if (result == CUDA_SUCCESS)
        return DP_OK;
    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    return host->fail(host, status_of_result(result), file, line, "%s: the CUDA driver says \"%s\" (%d)", what,
                      describe_result(&table, result), (int)result);
}

dp_status_t cuda_current(const dp_host_t *host, CUdevice *device_out)
{
    const cuda_driver_t *cu;
    CUcontext context = NULL;

    DO(cuda_driver(host, &cu));
    DO(CUDA_CHECK(host, cu->cuCtxGetCurrent(&context), "asking for the current context"));
    if (context == NULL)
        return DP_FAIL(host, DP_ERR_DEVICE, "no CUDA context is current in this thread: open device_cuda in it first");
    return CUDA_CHECK(host, cu->cuCtxGetDevice(device_out), "asking for the current device");
}
