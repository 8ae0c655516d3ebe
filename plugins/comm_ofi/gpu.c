/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * gpu.c: host functions in the order of CUDA streams that may wait for other ranks, which the driver's own
 * (cuLaunchHostFunc) may not: they share a thread. Ours only says that the stream has come to function n; a thread of
 * ours runs it, while the stream waits for the word that the thread writes behind it. */
#include "gpu.h"

#include "plugins/cuda/driver.h"
#include "plugins/cuda/side.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define LANES     8    /* streams that one instance is used on */
#define RING      2048 /* functions that are on their way, for each */
#define ARG_BYTES 64
#define IDLE_NS   (3600 * 1000000000ll)
#define FAR_AHEAD (1u << 30) /* further than any stream waits */

typedef struct entry {
    dp_launch_fn fn;
    unsigned char arg[ARG_BYTES];
} entry_t;

typedef struct lane {
    gpu_t *gpu;
    dp_stream_t *stream; /* NULL: not in use */
    dp_signal_t come;    /* functions that the stream has come to */
    dp_signal_t room;    /* functions that are done with */
    uint32_t *done;      /* the same, for the stream to wait for */
    uint32_t tail;       /* functions enqueued */
    entry_t *ring;
    bool stop, running;
    pthread_t thread;
} lane_t;

struct gpu {
    const dp_host_t *host;
    const cuda_driver_t *cu;
    const dp_device_vt_t *vt;
    dp_device_t *device;
    CUcontext context;
    CUstream side;
    lane_t lanes[LANES];
    uint32_t *words; /* a line for each lane */
    bool watched;
    pthread_mutex_t lock; /* of the failure */
    dp_status_t failure;
    char message[400];
};

static void keep_failure(gpu_t *gpu, dp_status_t status)
{
    const char *message = DP_HAS(gpu->host, dp_host_t, last_error) ? gpu->host->last_error(gpu->host) : "";

    pthread_mutex_lock(&gpu->lock);
    if (gpu->failure == DP_OK) {
        gpu->failure = status;
        snprintf(gpu->message, sizeof(gpu->message), "%s", message);
    }
    pthread_mutex_unlock(&gpu->lock);
}

static dp_status_t check(void *arg)
{
    gpu_t *gpu = arg;
    dp_status_t status;
    char message[sizeof(gpu->message)];

    pthread_mutex_lock(&gpu->lock);
    status = gpu->failure;
    memcpy(message, gpu->message, sizeof(message));
    pthread_mutex_unlock(&gpu->lock);
    return status < 0 ? DP_FAIL(gpu->host, status, "%s", message) : DP_OK;
}

/* ---- the thread of a lane ---- */

static void let_go(const lane_t *lane, uint32_t count)
{
    __atomic_store_n(lane->done, count, __ATOMIC_RELEASE);
}

static void *work(void *arg)
{
    lane_t *lane = arg;
    gpu_t *gpu = lane->gpu;
    const dp_host_t *host = gpu->host;
    bool failed = gpu->cu->cuCtxSetCurrent(gpu->context) != CUDA_SUCCESS;
    uint32_t n = 0;

    if (failed) {
        (void)DP_FAIL(host, DP_ERR_DEVICE, "a thread of comm_ofi cannot use the device");
        keep_failure(gpu, DP_ERR_DEVICE);
    }
    for (;;) {
        dp_status_t status = host->wait(host, &lane->come, n + 1, IDLE_NS, "an idle thread waits for its stream");
        const entry_t *e = &lane->ring[n % RING];

        if (status == DP_ERR_TIMEOUT)
            continue;
        if (status < 0 || __atomic_load_n(&lane->stop, __ATOMIC_ACQUIRE))
            break;
        status = failed ? DP_OK : e->fn((void *)(uintptr_t)e->arg);
        if (status < 0) {
            keep_failure(gpu, status);
            failed = true;
        }
        let_go(lane, ++n);
        host->post(host, &lane->room, n);
    }
    let_go(lane, n + FAR_AHEAD); /* the job is over, or the stream is idle */
    return NULL;
}

/* The driver's thread is here. */
static void CUDA_CB come(void *arg)
{
    lane_t *lane = arg;

    lane->gpu->host->post(lane->gpu->host, &lane->come, lane->come.value + 1);
}

/* ---- the caller ---- */

static dp_status_t lane_of(gpu_t *gpu, dp_stream_t *s, lane_t **lane_out)
{
    for (int i = 0; i < LANES; i++) {
        lane_t *lane = &gpu->lanes[i];

        if (lane->stream == NULL)
            lane->stream = s;
        if (lane->stream == s) {
            *lane_out = lane;
            return DP_OK;
        }
    }
    return DP_FAIL(gpu->host, DP_ERR_UNSUPPORTED, "comm_ofi is used on more than %d streams of a device", LANES);
}

dp_status_t gpu_launch(gpu_t *gpu, dp_stream_t *s, dp_launch_fn fn, const void *arg, size_t bytes)
{
    const dp_host_t *host = gpu->host;
    CUstream native = gpu->vt->stream_native(s);
    dp_status_t status;
    lane_t *lane = NULL;
    entry_t *e;

    if (bytes > ARG_BYTES)
        return DP_FAIL(host, DP_ERR_INVALID, "a function of comm_ofi takes %zu bytes", bytes);
    status = lane_of(gpu, s, &lane);
    if (status == DP_OK)
        status = host->wait(host, &lane->room, lane->tail + 1 - RING, -1, "a full stream has no room for more work");
    if (status < 0)
        return status;
    e = &lane->ring[lane->tail % RING];
    e->fn = fn;
    memcpy(e->arg, arg, bytes);
    status = CUDA_CHECK(host, gpu->cu->cuLaunchHostFunc(native, come, lane), "enqueueing a host function");
    if (status == DP_OK)
        status = CUDA_CHECK(host,
                            gpu->cu->cuStreamWaitValue32(native, (CUdeviceptr)(uintptr_t)lane->done, ++lane->tail,
                                                         CU_STREAM_WAIT_VALUE_GEQ),
                            "enqueueing a wait for a host function");
    return status;
}

dp_status_t gpu_copy(gpu_t *gpu, void *to, const void *from, size_t bytes)
{
    dp_status_t status;

    if (bytes == 0)
        return DP_OK;
    status = CUDA_CHECK(
        gpu->host, gpu->cu->cuMemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, gpu->side),
        "copying %zu bytes between host and device", bytes);
    return status == DP_OK ? cuda_side_settle(gpu->host, gpu->cu, gpu->side, "a copy between host and device") : status;
}

/* ---- opening ---- */

size_t gpu_memory_bytes(void)
{
    return sizeof(gpu_t) + LANES * RING * sizeof(entry_t);
}

static dp_status_t start(gpu_t *gpu, lane_t *lane)
{
    sigset_t all, before;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&lane->thread, NULL, work, lane);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return DP_FAIL(gpu->host, DP_ERR_NOMEM, "no thread for a stream: %s", strerror(error));
    pthread_setname_np(lane->thread, "dp-ofi-gpu");
    lane->running = true;
    return DP_OK;
}

static dp_status_t start_all(gpu_t *gpu)
{
    const dp_host_t *host = gpu->host;
    void *memory = NULL;
    dp_status_t status = gpu->vt->host_allocate(gpu->device, LANES * 64, &memory);

    gpu->words = memory;
    for (int i = 0; i < LANES && status == DP_OK; i++) {
        lane_t *lane = &gpu->lanes[i];

        lane->gpu = gpu;
        lane->done = gpu->words + i * 16;
        lane->ring = host->allocate(host, RING * sizeof(entry_t), 64);
        status = lane->ring != NULL ? start(gpu, lane) : DP_FAIL(host, DP_ERR_NOMEM, "no memory for a queue");
    }
    if (status == DP_OK)
        status = gpu->vt->watch(gpu->device, check, gpu);
    gpu->watched = status == DP_OK;
    return status;
}

dp_status_t gpu_open(const dp_host_t *host, const dp_device_vt_t *vt, dp_device_t *device, gpu_t **gpu_out)
{
    const cuda_driver_t *cu;
    dp_status_t status = cuda_driver(host, &cu);
    gpu_t *gpu;

    if (status < 0)
        return status;
    gpu = host->allocate(host, sizeof(*gpu), 64);
    if (gpu == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "no memory for the threads of a device");
    memset(gpu, 0, sizeof(*gpu));
    gpu->host = host;
    gpu->cu = cu;
    gpu->vt = vt;
    gpu->device = device;
    pthread_mutex_init(&gpu->lock, NULL);
    status = CUDA_CHECK(host, cu->cuCtxGetCurrent(&gpu->context), "asking for the current context");
    if (status == DP_OK)
        status = cuda_side_open(host, cu, &gpu->side);
    if (status == DP_OK)
        status = start_all(gpu);
    if (status < 0) {
        gpu_close(gpu);
        return status;
    }
    *gpu_out = gpu;
    return DP_OK;
}

void gpu_stop(gpu_t *gpu)
{
    if (gpu == NULL)
        return;
    for (int i = 0; i < LANES; i++) {
        lane_t *lane = &gpu->lanes[i];

        if (!lane->running)
            continue;
        __atomic_store_n(&lane->stop, true, __ATOMIC_RELEASE);
        gpu->host->post(gpu->host, &lane->come, lane->come.value + 1);
        pthread_join(lane->thread, NULL);
        lane->running = false;
    }
    if (gpu->watched)
        gpu->vt->unwatch(gpu->device, check, gpu);
    gpu->watched = false;
}

void gpu_close(gpu_t *gpu)
{
    const dp_host_t *host;

    if (gpu == NULL)
        return;
    host = gpu->host;
    gpu_stop(gpu);
    cuda_side_close(gpu->cu, gpu->side);
    for (int i = 0; i < LANES; i++)
        if (gpu->lanes[i].ring != NULL)
            host->release(host, gpu->lanes[i].ring);
    if (gpu->words != NULL)
        gpu->vt->host_release(gpu->device, gpu->words);
    pthread_mutex_destroy(&gpu->lock);
    host->release(host, gpu);
}
