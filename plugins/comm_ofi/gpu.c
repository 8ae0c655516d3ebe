/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * gpu.c: host functions in the order of CUDA streams that may wait for other ranks, which the
 * driver's own (cuLaunchHostFunc) may not: they share a thread. Ours only says that the stream has
 * come to function n of a queue; a thread of ours runs it, while the stream waits for the word that
 * the thread writes behind it. A queue belongs to what it works for, not to a stream: an end of a
 * channel, say, whose sends come one after the other on whatever streams. */
#include "gpu.h"

#include "plugins/comm/calls.h"
#include "plugins/common/do.h"
#include "plugins/cuda/driver.h"
#include "plugins/cuda/side.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define RING      1024 /* functions that are on their way, for each queue */
#define ARG_BYTES 64
#define IDLE_NS   (3600 * 1000000000ll)
#define FAR_AHEAD (1u << 30) /* further than any stream waits */

typedef struct entry {
    dp_launch_fn fn;
    unsigned char arg[ARG_BYTES];
} entry_t;

typedef struct worker worker_t;
struct gpu_queue {
    gpu_queue_t *next; /* of its worker's */
    worker_t *worker;
    uint32_t come;    /* functions that a stream has come to */
    dp_signal_t room; /* functions that are done with */
    uint32_t *done;   /* the same, for the stream to wait for */
    uint32_t tail;    /* functions enqueued */
    entry_t *ring;
};

/* A thread: for one queue whose functions may wait, or for all those whose functions do not. */
struct worker {
    worker_t *next;
    gpu_t *gpu;
    gpu_queue_t *queues;
    dp_signal_t come; /* moves with any of its queues */
    bool stop, running;
    pthread_t thread;
};

struct gpu {
    const dp_host_t *host;
    const cuda_driver_t *cu;
    const dp_device_vt_t *vt;
    dp_device_t *device;
    CUcontext context;
    CUstream side;
    CUdevice ordinal;
    unsigned wait_flags;
    worker_t *workers;
    worker_t *errands; /* the one for functions that do not wait */
    bool watched;
    pthread_mutex_t lock; /* of the failure, and of who moves `come` */
    dp_status_t failure;
    char message[400];
};

static void keep_failure(gpu_t *gpu, dp_status_t status)
{
    const char *message = DP_HAS(gpu->host, dp_host_t, last_error) ? gpu->host->last_error(gpu->host) : "";

    pthread_mutex_lock(&gpu->lock);
    if (gpu->failure == DP_OK) {
        snprintf(gpu->message, sizeof(gpu->message), "%s", message);
        __atomic_store_n(&gpu->failure, status, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&gpu->lock);
}

static dp_status_t check_gpu(void *arg)
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

/* ---- the thread ---- */

static void release_waits(const gpu_queue_t *queue, uint32_t count)
{
    __atomic_store_n(queue->done, count, __ATOMIC_RELEASE);
}

/* After a failure nothing runs any more, whatever stream it is on: only close is legal. */
static void run_all(gpu_queue_t *queue)
{
    gpu_t *gpu = queue->worker->gpu;
    uint32_t n = queue->room.value;

    while (n != __atomic_load_n(&queue->come, __ATOMIC_ACQUIRE)) {
        const entry_t *e = &queue->ring[n % RING];
        dp_status_t status = __atomic_load_n(&gpu->failure, __ATOMIC_ACQUIRE);

        if (status == DP_OK) {
            status = e->fn((void *)(uintptr_t)e->arg);
            if (status < 0)
                keep_failure(gpu, status);
        }
        release_waits(queue, ++n);
        gpu->host->post(gpu->host, &queue->room, n);
    }
}

static gpu_queue_t *queues_of(worker_t *worker)
{
    return __atomic_load_n(&worker->queues, __ATOMIC_ACQUIRE);
}

static void *run_worker(void *arg)
{
    worker_t *worker = arg;
    gpu_t *gpu = worker->gpu;
    const dp_host_t *host = gpu->host;
    uint32_t seen = 0;

    if (gpu->cu->cuCtxSetCurrent(gpu->context) != CUDA_SUCCESS) {
        (void)DP_FAIL(host, DP_ERR_DEVICE, "a thread of comm_ofi cannot use the device");
        keep_failure(gpu, DP_ERR_DEVICE);
    }
    for (;;) {
        dp_status_t status = host->wait(host, &worker->come, seen + 1, IDLE_NS, "an idle thread waits for its stream");

        if (status == DP_ERR_TIMEOUT)
            continue;
        if (status < 0 || __atomic_load_n(&worker->stop, __ATOMIC_ACQUIRE))
            break;
        seen = __atomic_load_n(&worker->come.value, __ATOMIC_ACQUIRE);
        for (gpu_queue_t *queue = queues_of(worker); queue != NULL; queue = queue->next)
            run_all(queue);
    }
    for (gpu_queue_t *queue = queues_of(worker); queue != NULL; queue = queue->next)
        /* the job is over, or the stream is idle */
        release_waits(queue, queue->room.value + FAR_AHEAD);
    return NULL;
}

static void wake_worker(worker_t *worker)
{
    gpu_t *gpu = worker->gpu;

    pthread_mutex_lock(&gpu->lock);
    gpu->host->post(gpu->host, &worker->come, worker->come.value + 1);
    pthread_mutex_unlock(&gpu->lock);
}

/* The driver's thread is here. */
static void CUDA_CB come(void *arg)
{
    gpu_queue_t *queue = arg;

    __atomic_fetch_add(&queue->come, 1, __ATOMIC_RELEASE);
    wake_worker(queue->worker);
}

/* ---- the caller ---- */

dp_status_t ofi_gpu_launch(gpu_queue_t *queue, dp_stream_t *s, dp_launch_fn fn, const void *arg, size_t bytes)
{
    gpu_t *gpu = queue->worker->gpu;
    const dp_host_t *host = gpu->host;
    CUstream native = gpu->vt->stream_native(s);
    dp_status_t status;
    entry_t *e;

    if (bytes > ARG_BYTES)
        return DP_FAIL(host, DP_ERR_INVALID, "a function of comm_ofi takes %zu bytes", bytes);
    DO(host->wait(host, &queue->room, queue->tail + 1 - RING, -1, "a full stream has no room for more work"));
    e = &queue->ring[queue->tail % RING];
    e->fn = fn;
    memcpy(e->arg, arg, bytes);
    status = CUDA_CHECK(host, gpu->cu->cuLaunchHostFunc(native, come, queue), "enqueueing a host function");
    if (status == DP_OK)
        status = CUDA_CHECK(
            host,
            gpu->cu->cuStreamWaitValue32(native, (CUdeviceptr)(uintptr_t)queue->done, ++queue->tail, gpu->wait_flags),
            "enqueueing a wait for a host function");
    return status;
}

dp_status_t ofi_gpu_copy(gpu_t *gpu, void *to, const void *from, size_t bytes)
{
    dp_status_t status;

    if (bytes == 0)
        return DP_OK;
    status = CUDA_CHECK(
        gpu->host, gpu->cu->cuMemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, gpu->side),
        "copying %zu bytes between host and device", bytes);
    return status == DP_OK ? cuda_side_settle(gpu->host, gpu->cu, gpu->side, "a copy between host and device") : status;
}

/* ---- memory that others reach by themselves ---- */

static int attribute(const gpu_t *gpu, CUdevice_attribute which)
{
    int value = 0;

    return gpu->cu->cuDeviceGetAttribute(&value, which, gpu->ordinal) == CUDA_SUCCESS ? value : 0;
}

/* Either the device keeps the order of what comes from outside, or a stream's wait flushes what
 * came before. */
bool ofi_gpu_sees_writes(gpu_t *gpu)
{
    if (attribute(gpu, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER)
        return true;
    if (attribute(gpu, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES) == 0)
        return false;
    gpu->wait_flags |= CU_STREAM_WAIT_VALUE_FLUSH;
    return true;
}

int ofi_gpu_ordinal(const gpu_t *gpu)
{
    return (int)gpu->ordinal;
}

dp_status_t ofi_gpu_range(gpu_t *gpu, const void *at, uint64_t *base_out, size_t *bytes_out, uint64_t *id_out)
{
    CUdeviceptr base = 0;
    unsigned long long id = 0;
    dp_status_t status =
        CUDA_CHECK(gpu->host, gpu->cu->cuMemGetAddressRange(&base, bytes_out, (CUdeviceptr)(uintptr_t)at),
                   "asking what memory %p is of", at);

    if (gpu->cu->cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, (CUdeviceptr)(uintptr_t)at) != CUDA_SUCCESS)
        id = 0;
    *base_out = base;
    *id_out = id;
    return status;
}

/* ---- opening ---- */

size_t ofi_gpu_queue_bytes(void)
{
    return sizeof(gpu_queue_t) + sizeof(worker_t) + RING * sizeof(entry_t) + CACHE_LINE;
}

static void queue_free(gpu_t *gpu, gpu_queue_t *queue)
{
    if (queue->ring != NULL)
        gpu->host->release(gpu->host, queue->ring);
    if (queue->done != NULL)
        gpu->vt->host_release(gpu->device, queue->done);
    gpu->host->release(gpu->host, queue);
}

static dp_status_t start_worker(worker_t *worker)
{
    sigset_t all, before;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&worker->thread, NULL, run_worker, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return DP_FAIL(worker->gpu->host, DP_ERR_NOMEM, "no thread for what streams are to do: %s", strerror(error));
    pthread_setname_np(worker->thread, "dp-ofi-gpu");
    worker->running = true;
    return DP_OK;
}

static dp_status_t hire(gpu_t *gpu, worker_t **worker_out)
{
    worker_t *worker = gpu->host->allocate(gpu->host, sizeof(*worker), 64);

    if (worker == NULL)
        return DP_FAIL(gpu->host, DP_ERR_NOMEM, "no memory for a thread");
    memset(worker, 0, sizeof(*worker));
    worker->gpu = gpu;
    worker->next = gpu->workers;
    gpu->workers = worker;
    *worker_out = worker;
    return start_worker(worker);
}

dp_status_t ofi_gpu_queue_open(gpu_t *gpu, bool waits, gpu_queue_t **queue_out)
{
    const dp_host_t *host = gpu->host;
    gpu_queue_t *queue = host->allocate(host, sizeof(*queue), 64);
    worker_t *worker = gpu->errands;
    void *done = NULL;
    dp_status_t status = DP_OK;

    if (queue == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "no memory for a queue");
    memset(queue, 0, sizeof(*queue));
    queue->ring = host->allocate(host, RING * sizeof(entry_t), 64);
    if (queue->ring == NULL)
        status = DP_FAIL(host, DP_ERR_NOMEM, "no memory for a queue");
    if (status == DP_OK)
        status = gpu->vt->host_allocate(gpu->device, CACHE_LINE, &done);
    queue->done = done;
    if (status == DP_OK && waits)
        status = hire(gpu, &worker);
    if (status < 0) {
        queue_free(gpu, queue);
        return status;
    }
    *queue->done = 0;
    queue->worker = worker;
    queue->next = worker->queues;
    __atomic_store_n(&worker->queues, queue, __ATOMIC_RELEASE);
    *queue_out = queue;
    return DP_OK;
}

dp_status_t ofi_gpu_open(const dp_host_t *host, const dp_device_vt_t *vt, dp_device_t *device, gpu_t **gpu_out)
{
    const cuda_driver_t *cu;
    dp_status_t status;
    gpu_t *gpu;

    DO(cuda_driver(host, &cu));
    gpu = host->allocate(host, sizeof(*gpu), 64);
    if (gpu == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "no memory for the threads of a device");
    memset(gpu, 0, sizeof(*gpu));
    gpu->host = host;
    gpu->cu = cu;
    gpu->vt = vt;
    gpu->device = device;
    gpu->wait_flags = CU_STREAM_WAIT_VALUE_GEQ;
    pthread_mutex_init(&gpu->lock, NULL);
    status = CUDA_CHECK(host, cu->cuCtxGetCurrent(&gpu->context), "asking for the current context");
    if (status == DP_OK)
        status = cuda_current(host, &gpu->ordinal);
    if (status == DP_OK)
        status = cuda_side_open(host, cu, &gpu->side);
    if (status == DP_OK)
        status = hire(gpu, &gpu->errands);
    if (status == DP_OK)
        status = vt->watch(device, check_gpu, gpu);
    gpu->watched = status == DP_OK;
    if (status < 0) {
        ofi_gpu_close(gpu);
        return status;
    }
    *gpu_out = gpu;
    return DP_OK;
}

void ofi_gpu_stop(gpu_t *gpu)
{
    if (gpu == NULL)
        return;
    for (worker_t *worker = gpu->workers; worker != NULL; worker = worker->next) {
        if (!worker->running)
            continue;
        __atomic_store_n(&worker->stop, true, __ATOMIC_RELEASE);
        wake_worker(worker);
        pthread_join(worker->thread, NULL);
        worker->running = false;
    }
    if (gpu->watched)
        gpu->vt->unwatch(gpu->device, check_gpu, gpu);
    gpu->watched = false;
}

void ofi_gpu_close(gpu_t *gpu)
{
    const dp_host_t *host;

    if (gpu == NULL)
        return;
    host = gpu->host;
    ofi_gpu_stop(gpu);
    cuda_side_close(gpu->cu, gpu->side);
    while (gpu->workers != NULL) {
        worker_t *worker = gpu->workers;

        gpu->workers = worker->next;
        while (worker->queues != NULL) {
            gpu_queue_t *queue = worker->queues;

            worker->queues = queue->next;
            queue_free(gpu, queue);
        }
        host->release(host, worker);
    }
    pthread_mutex_destroy(&gpu->lock);
    host->release(host, gpu);
}
