/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * fake.c: start, devices, contexts, errors on request and the state of the fake driver. */
#include "fake.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_changed = PTHREAD_COND_INITIALIZER;

static bool initialised;
static CUresult broken;
static struct CUctx_st contexts[FAKE_DEVICES_MAX];
static __thread CUcontext current;
static bool loading;     /* a thread has the context for itself */
static pthread_t loader; /* which */

/* ---- errors on request ---- */

#define RULES 32

typedef struct rule {
    char name[64];
    unsigned countdown;
    int code;
} rule_t;

static rule_t rules[RULES];
static unsigned nrules;
static const char *without = "";

static void read_rules(void)
{
    const char *text = getenv("DP_FAKE_FAIL");
    char one[128];
    int used;

    while (text != NULL && nrules < RULES && sscanf(text, "%127[^,]%n", one, &used) == 1) {
        rule_t *r = &rules[nrules];

        r->countdown = 1;
        r->code = CUDA_ERROR_UNKNOWN;
        if (sscanf(one, "%63[^:]:%u:%d", r->name, &r->countdown, &r->code) >= 1)
            nrules++;
        text += used;
        if (*text == ',')
            text++;
    }
    if (getenv("DP_FAKE_WITHOUT") != NULL)
        without = strdup(getenv("DP_FAKE_WITHOUT"));
}

static CUresult asked_to_fail(const char *name)
{
    CUresult result = CUDA_SUCCESS;
    const char *at;

    for (unsigned i = 0; i < nrules; i++)
        if (strcmp(rules[i].name, name) == 0 && rules[i].countdown > 0 && --rules[i].countdown == 0)
            result = (CUresult)rules[i].code;
    at = strstr(without, name);
    if (at != NULL && (at[strlen(name)] == '\0' || at[strlen(name)] == ','))
        result = CUDA_ERROR_NOT_SUPPORTED;
    return result;
}

CUresult fake_enter(const char *name, bool needs_context)
{
    CUresult result;

    pthread_mutex_lock(&fake_lock);
    while (needs_context && loading && !pthread_equal(loader, pthread_self()))
        pthread_cond_wait(&fake_changed, &fake_lock);
    result = !initialised                       ? CUDA_ERROR_NOT_INITIALIZED
             : needs_context && current == NULL ? CUDA_ERROR_INVALID_CONTEXT
             : broken != CUDA_SUCCESS           ? broken
                                                : asked_to_fail(name);
    pthread_mutex_unlock(&fake_lock);
    return result;
}

/* What the first use of a kernel of a library does: see first_use.h. */
FAKE_EXPORT void fake_load_kernel(void)
{
    pthread_mutex_lock(&fake_lock);
    while (loading)
        pthread_cond_wait(&fake_changed, &fake_lock);
    loading = true;
    loader = pthread_self();
    pthread_mutex_unlock(&fake_lock);
    device_drain(fake_device());
    pthread_mutex_lock(&fake_lock);
    loading = false;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
}

void fake_break(CUresult result, const char *why)
{
    fprintf(stderr, "fake CUDA device: %s\n", why);
    pthread_mutex_lock(&fake_lock);
    if (broken == CUDA_SUCCESS)
        /* fake_broken reads it without the lock */
        __atomic_store_n(&broken, result, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
}

CUresult fake_broken(void)
{
    return __atomic_load_n(&broken, __ATOMIC_RELAXED);
}

/* Half of a process's start; those of a machine start one after the other. */
static void start_slowly(void)
{
    const char *text = getenv("DP_FAKE_START_MS");
    const long ms = text != NULL ? atol(text) / 2 : 0;
    Dl_info self;
    int turn;

    if (ms <= 0 || dladdr((void *)(uintptr_t)start_slowly, &self) == 0)
        return;
    turn = open(self.dli_fname, O_RDONLY | O_CLOEXEC);
    if (turn >= 0)
        flock(turn, LOCK_EX);
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
    if (turn >= 0)
        close(turn);
}

FAKE_EXPORT CUresult cuInit(unsigned flags)
{
    CUresult result;

    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    if (!initialised) {
        start_slowly();
        read_rules();
        for (int i = 0; i < FAKE_DEVICES_MAX; i++)
            contexts[i].device = i;
    }
    initialised = true;
    result = fake_device_count() > 0 ? asked_to_fail("cuInit") : CUDA_ERROR_NO_DEVICE;
    pthread_mutex_unlock(&fake_lock);
    return result;
}

FAKE_EXPORT CUresult cuDriverGetVersion(int *version)
{
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

#define NAMES(X)                                                                                                       \
    X(CUDA_SUCCESS, "no error")                                                                                        \
    X(CUDA_ERROR_INVALID_VALUE, "invalid argument")                                                                    \
    X(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                                                       \
    X(CUDA_ERROR_NOT_INITIALIZED, "initialization error")                                                              \
    X(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")                                                      \
    X(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                                                             \
    X(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid")                                                      \
    X(CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                                                            \
    X(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                                                            \
    X(CUDA_ERROR_NOT_FOUND, "named symbol not found")                                                                  \
    X(CUDA_ERROR_NOT_READY, "device not ready")                                                                        \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")                                          \
    X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch")                                   \
    X(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated")                                            \
    X(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure")                                                          \
    X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled")                                        \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices")                    \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed")                                                         \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped")        \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region")              \
    X(CUDA_ERROR_NOT_SUPPORTED, "operation not supported")                                                             \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing")                       \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture")                \
    X(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences")              \
    X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began")                     \
    X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work")                                        \
    X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream")                  \
    X(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream")            \
    X(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "invalid resource configuration")                                     \
    X(CUDA_ERROR_INVALID_RESOURCE_TYPE, "invalid resource type")                                                       \
    X(CUDA_ERROR_UNKNOWN, "unknown error")

FAKE_EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
    switch (error) {
#define TEXT(code, words)                                                                                              \
    case code:                                                                                                         \
        *text = words;                                                                                                 \
        return CUDA_SUCCESS;
        NAMES(TEXT)
#undef TEXT
    default:
        *text = NULL;
        return CUDA_ERROR_INVALID_VALUE;
    }
}

FAKE_EXPORT CUresult cuGetErrorName(CUresult error, const char **text)
{
    switch (error) {
#define TEXT(code, words)                                                                                              \
    case code:                                                                                                         \
        *text = #code;                                                                                                 \
        return CUDA_SUCCESS;
        NAMES(TEXT)
#undef TEXT
    default:
        *text = NULL;
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* ---- devices ---- */

int fake_device_count(void)
{
    const char *text = getenv("DP_FAKE_DEVICES");
    int count = text != NULL ? atoi(text) : 1;

    return count < 0 ? 0 : count > FAKE_DEVICES_MAX ? FAKE_DEVICES_MAX : count;
}

static bool device_known(CUdevice device)
{
    return device >= 0 && device < fake_device_count();
}

FAKE_EXPORT CUresult cuDeviceGetCount(int *count)
{
    ENTER_ANYWHERE(cuDeviceGetCount);
    *count = fake_device_count();
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER_ANYWHERE(cuDeviceGet);
    if (!device_known(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    ENTER_ANYWHERE(cuDeviceGetName);
    if (!device_known(device))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)length, "libdualpipe fake device");
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    ENTER_ANYWHERE(cuDeviceGetUuid);
    memset(uuid, 0x5a, sizeof(*uuid));
    uuid->bytes[0] = (char)device;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    ENTER_ANYWHERE(cuDeviceTotalMem);
    (void)device;
    *bytes = (size_t)8 << 30;
    return CUDA_SUCCESS;
}

/* An H200's, where a kernel or a plugin asks. */
FAKE_EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    ENTER_ANYWHERE(cuDeviceGetAttribute);
    if (!device_known(device))
        return CUDA_ERROR_INVALID_DEVICE;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = FAKE_SMS;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = 9;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = 0;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT:
        *value = 4;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
        *value = 32;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = EMU_THREADS;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        *value = 2048;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
        *value = 48 << 10;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = 227 << 10;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        *value = 228 << 10;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
        *value = 50 << 20;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
        *value = 1;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
        *value = 1980000;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
        *value = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
        *value = 3;
        return CUDA_SUCCESS;
    default:
        *value = 0;
        return CUDA_SUCCESS;
    }
}

FAKE_EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    ENTER_ANYWHERE(cuDeviceCanAccessPeer);
    if (!device_known(device) || !device_known(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer;
    return CUDA_SUCCESS;
}

/* ---- contexts: the primary ones ---- */

struct CUctx_st *fake_context(int device)
{
    return &contexts[device];
}

int fake_device(void)
{
    return current->device;
}

FAKE_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    ENTER_ANYWHERE(cuDevicePrimaryCtxRetain);
    if (!device_known(device))
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&fake_lock);
    if (contexts[device].retained++ == 0)
        start_slowly();
    pthread_mutex_unlock(&fake_lock);
    *context = &contexts[device];
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    CUresult result = CUDA_SUCCESS;

    pthread_mutex_lock(&fake_lock);
    if (!device_known(device) || contexts[device].retained == 0)
        result = CUDA_ERROR_INVALID_CONTEXT;
    else
        contexts[device].retained--;
    pthread_mutex_unlock(&fake_lock);
    return result;
}

FAKE_EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    ENTER_ANYWHERE(cuCtxSetCurrent);
    current = context;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    ENTER_ANYWHERE(cuCtxGetCurrent);
    *context = current;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    ENTER(cuCtxGetDevice);
    *device = current->device;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER(cuCtxGetStreamPriorityRange);
    if (least != NULL)
        *least = 0;
    if (greatest != NULL)
        *greatest = -5;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    ENTER(cuCtxEnablePeerAccess);
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return peer == current ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
