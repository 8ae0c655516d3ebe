/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * device_cuda.c: the table of dp.device/1 for a GPU, memory, copies, sums and failures. */
#include "device_cuda.h"

#include "plugins/common/check.h"
#include "plugins/common/do.h"

#include <stdio.h>
#include <string.h>

CUDA_IMAGE(device_kernels);

static void device_close(dp_device_t *device);
static dp_status_t device_allocate(dp_device_t *device, size_t bytes, void **memory_out);
static void device_release(dp_device_t *device, void *memory);

/* ---- open and close ---- */

static dp_status_t check_device_config(const dp_host_t *host, const dp_device_config_t *config)
{
    DO(DP_TAKE(host, "device_cuda", dp_device_config_t, DP_DEVICE_CONFIG_MIN, NULL, config));
    if (config->queue_length > QUEUE_LENGTH_MAX || (config->queue_length & (config->queue_length - 1)) != 0)
        return DP_FAIL(host, DP_ERR_INVALID, "queue_length %u: it must be a power of two up to %u",
                       config->queue_length, QUEUE_LENGTH_MAX);
    return DP_OK;
}

/* Streams beside the lanes': of this plugin, the transport, attention, the trainer (side.h). */
enum { SIDE_STREAMS = 4, DEVICES_MAX = 64 };
static int ranks_here[DEVICES_MAX];

static dp_status_t find_device(dp_device_t *device, const dp_device_config_t *config)
{
    const dp_host_t *host = device->host;
    const cuda_driver_t *cu = device->cu;
    int count = 0, ordinal;
    dp_status_t status;

    DO(CUDA_CHECK(host, cu->cuDeviceGetCount(&count), "counting devices"));
    if (count < 1 || config->device > (uint32_t)count)
        return DP_FAIL(host, DP_ERR_INVALID, "there is no CUDA device %u, counted from 1: the driver sees %d",
                       config->device, count);
    ordinal = config->device > 0 ? (int)config->device - 1 : (int)(config->local_rank % (uint32_t)count);
    status = CUDA_CHECK(host, cu->cuDeviceGet(&device->number, ordinal), "looking up device %d", ordinal);
    if (status == DP_OK)
        status = CUDA_CHECK(host, cu->cuDevicePrimaryCtxRetain(&device->context, device->number), "starting device %d",
                            ordinal);
    if (status < 0)
        return status;
    device->retained = true;
    status = cuda_device_make_current(device);
    if (status == DP_OK)
        status = CUDA_CHECK(
            host, cu->cuDeviceGetAttribute(&device->sm_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device->number),
            "asking for the number of multiprocessors");
    return status;
}

/* Ranks of this process that are threads share the hardware queues of a device. Streams of a queue
 * run in the order of enqueueing: two ranks that wait for each other in one queue wait for ever.
 * Each process has its own queues. */
static dp_status_t count_in(dp_device_t *device)
{
    const int ranks = __atomic_add_fetch(&ranks_here[device->number % DEVICES_MAX], 1, __ATOMIC_ACQ_REL);
    const int streams = ranks * DP_LANE_COUNT + SIDE_STREAMS;

    device->counted = true;
    if (ranks < 2 || streams <= device->cu->queues)
        return DP_OK;
    return DP_FAIL(
        device->host, DP_ERR_UNSUPPORTED,
        "%d ranks of this process on CUDA device %d have %d streams, and it has %d hardware queues "
        "(CUDA_DEVICE_MAX_CONNECTIONS, 32 at most): ranks that wait for each other would hang; start ranks as "
        "processes, or at most %d as threads",
        ranks, (int)device->number, streams, device->cu->queues,
        device->cu->queues < 2 * DP_LANE_COUNT + SIDE_STREAMS ? 1
                                                              : (device->cu->queues - SIDE_STREAMS) / DP_LANE_COUNT);
}

static void count_out(dp_device_t *device)
{
    if (device->counted)
        __atomic_sub_fetch(&ranks_here[device->number % DEVICES_MAX], 1, __ATOMIC_ACQ_REL);
}

static dp_status_t load_device_kernels(dp_device_t *device)
{
    const cuda_kernel_t kernels[] = {{"device_add_f32", &device->add_f32},
                                     {"device_add_f64", &device->add_f64},
                                     {"device_stamp", &device->stamp},
                                     {"device_echo", &device->echo}};
    dp_status_t status = cuda_module_load(device->host, cuda_image_device_kernels, &device->module);

    return status == DP_OK ? cuda_kernels(device->host, device->module, kernels, 4) : status;
}

static dp_status_t open_service(dp_device_t *device)
{
    const dp_host_t *host = device->host;
    dp_status_t status = cuda_side_open(host, device->cu, &device->service);

    if (status == DP_OK)
        status =
            CUDA_CHECK(host, device->cu->cuEventCreate(&device->order, CU_EVENT_DISABLE_TIMING), "making an event");
    if (status == DP_OK)
        status = CUDA_CHECK(host, device->cu->cuEventCreate(&device->fork, CU_EVENT_DISABLE_TIMING), "making an event");
    return status;
}

/* The driver copies and fills by kernels that it loads when they are first needed: that waits for
 * all streams of the process, which in a step may wait for other ranks. The memory is kept, since
 * giving it back may wait as well. */
static dp_status_t load_driver_kernels(dp_device_t *device)
{
    enum { BYTES = 4096 };
    const cuda_driver_t *cu = device->cu;
    const dp_host_t *host = device->host;
    CUdeviceptr at;
    dp_status_t status;

    DO(device_allocate(device, 2 * BYTES, &device->touched));
    at = (CUdeviceptr)(uintptr_t)device->touched;
    status = CUDA_CHECK(host, cu->cuMemsetD32Async(at, 0, BYTES / 4, device->service), "filling memory");
    if (status == DP_OK)
        status = CUDA_CHECK(host, cu->cuMemcpyAsync(at + BYTES, at, BYTES, device->service), "copying memory");
    return status < 0 ? status : cuda_side_settle(host, cu, device->service, "first copies");
}

static int64_t job_limit(const dp_host_t *host)
{
    const dp_host_limits_t *limits = host->get_service(host, DP_HOST_LIMITS);

    return limits != NULL && limits->hang_ns > 0 ? limits->hang_ns : 30000000000;
}

static dp_status_t device_open(const dp_host_t *host, const dp_device_config_t *config, dp_device_t **device_out)
{
    const cuda_driver_t *cu;
    dp_device_t *device;
    dp_status_t status = check_device_config(host, config);

    if (status == DP_OK)
        status = cuda_driver(host, &cu);
    if (status < 0)
        return status;
    device = host->allocate(host, sizeof(*device), 64);
    if (device == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "no memory for a device");
    memset(device, 0, sizeof(*device));
    device->host = host;
    device->cu = cu;
    device->hang_ns = job_limit(host);
    pthread_mutex_init(&device->lock, NULL);
    pthread_mutex_init(&device->watch_lock, NULL);
    status = find_device(device, config);
    if (status == DP_OK)
        status = count_in(device);
    if (status == DP_OK)
        status = load_device_kernels(device);
    if (status == DP_OK)
        status = cuda_partition_open(device, config);
    if (status == DP_OK)
        status = open_service(device);
    if (status == DP_OK)
        status = load_driver_kernels(device);
    if (status == DP_OK)
        status = cuda_stamps_open(device);
    if (status == DP_OK)
        status = cuda_graphs_open(device);
    if (status < 0) {
        device_close(device);
        return status;
    }
    *device_out = device;
    return DP_OK;
}

static void close_events(dp_device_t *device)
{
    while (device->events != NULL)
        cuda_event_close(device->events);
}

static void device_close(dp_device_t *device)
{
    const dp_host_t *host;
    const cuda_driver_t *cu;

    if (device == NULL)
        return;
    host = device->host;
    cu = device->cu;
    if (device->retained)
        (void)cuda_device_make_current(device);
    device->capture_origin = NULL;
    while (device->streams != NULL)
        cuda_stream_close(device->streams);
    if (device->left_behind)
        return; /* what runs there still uses all of this */
    count_out(device);
    cuda_graphs_close(device);
    device_release(device, device->touched);
    close_events(device);
    cuda_stamps_close(device);
    if (device->order != NULL)
        (void)cu->cuEventDestroy(device->order);
    if (device->fork != NULL)
        (void)cu->cuEventDestroy(device->fork);
    cuda_side_close(cu, device->service);
    cuda_partition_close(device);
    cuda_module_unload(device->module);
    if (device->retained)
        (void)cu->cuDevicePrimaryCtxRelease(device->number);
    while (device->watches != NULL) {
        watch_t *w = device->watches;

        device->watches = w->next;
        host->release(host, w);
    }
    pthread_mutex_destroy(&device->watch_lock);
    pthread_mutex_destroy(&device->lock);
    host->release(host, device);
}

dp_status_t cuda_device_make_current(dp_device_t *device)
{
    return CUDA_CHECK(device->host, device->cu->cuCtxSetCurrent(device->context),
                      "making the device's context current");
}

/* ---- memory ---- */

static dp_status_t zero_now(dp_device_t *device, CUdeviceptr at, size_t bytes)
{
    dp_status_t status = CUDA_CHECK(device->host, device->cu->cuMemsetD8Async(at, 0, bytes, device->service),
                                    "zeroing %zu bytes", bytes);

    return status < 0 ? status : cuda_side_settle(device->host, device->cu, device->service, "zeroing new memory");
}

static dp_status_t device_allocate(dp_device_t *device, size_t bytes, void **memory_out)
{
    const dp_host_t *host = device->host;
    CUdeviceptr at = 0;
    size_t some = bytes > 0 ? bytes : 1;
    dp_status_t status = cuda_device_make_current(device);

    if (status == DP_OK)
        status = CUDA_CHECK(host, device->cu->cuMemAlloc(&at, some), "device memory of %zu bytes", some);
    if (status < 0)
        return status;
    status = zero_now(device, at, some);
    if (status < 0) {
        (void)device->cu->cuMemFree(at);
        return status;
    }
    *memory_out = (void *)(uintptr_t)at;
    return DP_OK;
}

static void device_release(dp_device_t *device, void *memory)
{
    if (memory != NULL && cuda_device_make_current(device) == DP_OK)
        (void)device->cu->cuMemFree((CUdeviceptr)(uintptr_t)memory);
}

/* With unified addresses the host's pointer is the device's. */
static dp_status_t host_allocate(dp_device_t *device, size_t bytes, void **memory_out)
{
    const dp_host_t *host = device->host;
    const cuda_driver_t *cu = device->cu;
    size_t some = bytes > 0 ? bytes : 1;
    CUdeviceptr at = 0;
    void *memory = NULL;
    dp_status_t status = cuda_device_make_current(device);

    if (status == DP_OK)
        status =
            CUDA_CHECK(host, cu->cuMemHostAlloc(&memory, some, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                       "host memory of %zu bytes for the device", some);
    if (status < 0)
        return status;
    status = CUDA_CHECK(host, cu->cuMemHostGetDevicePointer(&at, memory, 0), "mapping host memory");
    if (status == DP_OK && at != (CUdeviceptr)(uintptr_t)memory)
        status = DP_FAIL(host, DP_ERR_UNSUPPORTED, "host and device see shared memory at different addresses");
    if (status < 0) {
        (void)cu->cuMemFreeHost(memory);
        return status;
    }
    memset(memory, 0, some);
    *memory_out = memory;
    return DP_OK;
}

static void host_release(dp_device_t *device, void *memory)
{
    if (memory != NULL && cuda_device_make_current(device) == DP_OK)
        (void)device->cu->cuMemFreeHost(memory);
}

static dp_status_t check_enqueued(dp_stream_t *s, CUresult result, const char *what, size_t bytes)
{
    dp_status_t status =
        CUDA_CHECK(s->device->host, result, "stream %s: %s %zu bytes", cuda_lane_name(s->lane), what, bytes);

    if (status == DP_OK)
        cuda_stream_entered(s);
    return status;
}

static dp_status_t device_copy(dp_stream_t *s, void *to, const void *from, size_t bytes)
{
    dp_status_t status = bytes > 0 ? cuda_stream_enter(s) : DP_OK;

    if (status < 0 || bytes == 0)
        return status;
    return check_enqueued(
        s, s->device->cu->cuMemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, s->cu),
        "copying", bytes);
}

static dp_status_t device_zero(dp_stream_t *s, void *memory, size_t bytes)
{
    dp_status_t status = bytes > 0 ? cuda_stream_enter(s) : DP_OK;

    if (status < 0 || bytes == 0)
        return status;
    return check_enqueued(s, s->device->cu->cuMemsetD8Async((CUdeviceptr)(uintptr_t)memory, 0, bytes, s->cu), "zeroing",
                          bytes);
}

/* As many blocks as keep the stream's multiprocessors busy. */
static unsigned add_blocks(const dp_stream_t *s, size_t count)
{
    unsigned sms = s->device->sms[s->lane] > 0 ? s->device->sms[s->lane] : (unsigned)s->device->sm_count;
    unsigned wanted = cuda_blocks(count, 256 * 4);

    return wanted < 8 * sms ? wanted : 8 * sms;
}

static dp_status_t device_add(dp_stream_t *s, void *to, const void *from, size_t count, dp_dtype_t dtype)
{
    dp_device_t *device = s->device;
    CUfunction function = dtype == DP_F32 ? device->add_f32 : device->add_f64;
    dp_status_t status;

    if (dtype != DP_F32 && dtype != DP_F64)
        return DP_FAIL(device->host, DP_ERR_UNSUPPORTED, "adding tensors of dtype %d: f32 and f64 are possible",
                       (int)dtype);
    if (count == 0)
        return DP_OK;
    status = cuda_stream_enter(s);
    if (status == DP_OK)
        status = cuda_launch(device->host, device->cu, function, CUDA_DIM(add_blocks(s, count)), CUDA_DIM(256), 0,
                             s->cu, &to, &from, &count);
    if (status == DP_OK)
        cuda_stream_entered(s);
    return status;
}

static void *stream_native(dp_stream_t *s)
{
    return s->cu;
}

/* ---- failures ---- */

dp_status_t cuda_device_keep_failure(dp_device_t *device, dp_status_t status)
{
    const dp_host_t *host = device->host;
    const char *message = DP_HAS(host, dp_host_t, last_error) ? host->last_error(host) : "";

    pthread_mutex_lock(&device->lock);
    if (!device->failed) {
        device->first.status = status;
        snprintf(device->first.message, sizeof(device->first.message), "%s", message);
        __atomic_store_n(&device->failed, true, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&device->lock);
    return status;
}

static dp_status_t tell_failure(dp_device_t *device)
{
    failure_t first;

    pthread_mutex_lock(&device->lock);
    first = device->first;
    pthread_mutex_unlock(&device->lock);
    return DP_FAIL(device->host, first.status, "%s", first.message);
}

dp_status_t cuda_device_ask_watches(dp_device_t *device)
{
    dp_status_t status = DP_OK;

    if (__atomic_load_n(&device->failed, __ATOMIC_ACQUIRE))
        return tell_failure(device);
    pthread_mutex_lock(&device->watch_lock);
    for (watch_t *w = device->watches; w != NULL && status >= 0; w = w->next)
        status = w->check(w->arg);
    pthread_mutex_unlock(&device->watch_lock);
    return status < 0 ? cuda_device_keep_failure(device, status) : DP_OK;
}

/* A fault of the device shows on each stream. During a capture the driver may not be asked. */
static dp_status_t query_error(dp_device_t *device)
{
    dp_status_t status;
    CUresult result = CUDA_SUCCESS;

    DO(cuda_device_ask_watches(device));
    (void)cuda_device_make_current(device);
    pthread_mutex_lock(&device->lock);
    for (dp_stream_t *s = device->streams; s != NULL && device->capture_origin == NULL; s = s->next) {
        result = device->cu->cuStreamQuery(s->cu);
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
            break;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&device->lock);
    status = CUDA_CHECK(device->host, result, "work on the device failed");
    return status < 0 ? cuda_device_keep_failure(device, status) : DP_OK;
}

static dp_status_t device_watch(dp_device_t *device, dp_watch_fn check, void *arg)
{
    watch_t *w = device->host->allocate(device->host, sizeof(*w), 16);

    if (w == NULL)
        return DP_FAIL(device->host, DP_ERR_NOMEM, "no memory for a watch");
    w->check = check;
    w->arg = arg;
    pthread_mutex_lock(&device->watch_lock);
    w->next = device->watches;
    device->watches = w;
    pthread_mutex_unlock(&device->watch_lock);
    return DP_OK;
}

static void device_unwatch(dp_device_t *device, dp_watch_fn check, void *arg)
{
    watch_t *found = NULL;

    pthread_mutex_lock(&device->watch_lock);
    for (watch_t **at = &device->watches; *at != NULL && found == NULL;) {
        if ((*at)->check == check && (*at)->arg == arg) {
            found = *at;
            *at = found->next;
        } else {
            at = &(*at)->next;
        }
    }
    pthread_mutex_unlock(&device->watch_lock);
    device->host->release(device->host, found);
}

static dp_status_t device_partition(dp_device_t *device, uint32_t sms[DP_LANE_COUNT])
{
    memcpy(sms, device->sms, sizeof(device->sms));
    return DP_OK;
}

static const dp_device_vt_t table = {
    .struct_size = sizeof(dp_device_vt_t),
    .caps = DP_DEVICE_CAP_GRAPH | DP_DEVICE_CAP_EXPORT,
    .kind = "cuda",
    .open = device_open,
    .close = device_close,
    .allocate = device_allocate,
    .release = device_release,
    .copy = device_copy,
    .zero = device_zero,
    .add = device_add,
    .stream_open = cuda_stream_open,
    .stream_close = cuda_stream_close,
    .stream_native = stream_native,
    .event_open = cuda_event_open,
    .event_close = cuda_event_close,
    .event_record = cuda_event_record,
    .stream_wait = cuda_event_wait,
    .stamp = cuda_stamp_put,
    .synchronize = cuda_stream_synchronize,
    .query_error = query_error,
    .partition = device_partition,
    .capture_begin = cuda_graph_begin,
    .capture_end = cuda_graph_end,
    .graph_launch = cuda_graph_launch,
    .graph_close = cuda_graph_close,
    .watch = device_watch,
    .unwatch = device_unwatch,
    .host_allocate = host_allocate,
    .host_release = host_release,
};

static const void *cuda_interface(const char *id)
{
    return strcmp(id, DP_IFACE_DEVICE) == 0 ? &table : NULL;
}

DP_PLUGIN_DEFINE(device_cuda) = {
    DP_PLUGIN_HEAD,
    .name = "device_cuda",
    .version = DP_VERSION,
    .summary = "a CUDA GPU: partitions are green contexts",
    .get_interface = cuda_interface,
};
