/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * device_cpu.c: the table of dp.device/1 for a CPU, memory, copies and failures of streams. */
#include "device_cpu.h"

#include "plugins/common/check.h"
#include "plugins/common/do.h"

#include <string.h>

typedef struct copy {
    void *to;
    const void *from; /* NULL: zero bytes */
    size_t bytes;
} copy_t;

typedef struct addition {
    void *to;
    const void *from;
    size_t count;
    dp_dtype_t dtype;
} addition_t;

typedef struct stamp {
    const dp_host_t *host;
    int64_t *slot;
} stamp_t;

static void device_close(dp_device_t *device);

static dp_status_t device_open(const dp_host_t *host, const dp_device_config_t *config, dp_device_t **device_out)
{
    dp_device_t *device;
    uint32_t length = config->queue_length != 0 ? config->queue_length : QUEUE_LENGTH;
    dp_status_t status;

    DO(DP_TAKE(host, "device_cpu", dp_device_config_t, DP_DEVICE_CONFIG_MIN, NULL, config));
    if (length > QUEUE_LENGTH_MAX || (length & (length - 1)) != 0)
        return DP_FAIL(host, DP_ERR_INVALID, "queue_length %u: it must be a power of two up to %u", length,
                       QUEUE_LENGTH_MAX);
    device = host->allocate(host, sizeof(*device), LINE_BYTES);
    if (device == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "no memory for a device");
    memset(device, 0, sizeof(*device));
    device->host = host;
    device->queue_length = length;
    pthread_mutex_init(&device->lock, NULL);
    status = cpu_cores_choose(device, config);
    if (status < 0) {
        device_close(device);
        return status;
    }
    *device_out = device;
    return DP_OK;
}

static void device_close(dp_device_t *device)
{
    const dp_host_t *host;
    bool left_behind = false;

    if (device == NULL)
        return;
    host = device->host;
    while (device->streams != NULL)
        cpu_stream_close(device->streams);
    for (dp_stream_t *s = device->closed; s != NULL; s = s->next)
        left_behind |= s->running;
    if (left_behind)
        return; /* that thread still uses all of this */
    while (device->closed != NULL) {
        dp_stream_t *s = device->closed;

        device->closed = s->next;
        host->release(host, s);
    }
    while (device->events != NULL) {
        dp_event_t *event = device->events;

        device->events = event->next;
        host->release(host, event);
    }
    pthread_mutex_destroy(&device->lock);
    host->release(host, device);
}

static dp_status_t device_allocate(dp_device_t *device, size_t bytes, void **memory_out)
{
    void *memory = device->host->allocate(device->host, bytes > 0 ? bytes : 1, 256);

    if (memory == NULL)
        return DP_FAIL(device->host, DP_ERR_NOMEM, "no memory for %zu bytes", bytes);
    memset(memory, 0, bytes);
    *memory_out = memory;
    return DP_OK;
}

static void device_release(dp_device_t *device, void *memory)
{
    if (memory != NULL)
        device->host->release(device->host, memory);
}

static dp_status_t run_copy(void *arg)
{
    const copy_t *c = arg;

    if (c->from != NULL)
        memcpy(c->to, c->from, c->bytes);
    else
        memset(c->to, 0, c->bytes);
    return DP_OK;
}

static dp_status_t device_copy(dp_stream_t *s, void *to, const void *from, size_t bytes)
{
    copy_t c = {to, from, bytes};

    return bytes > 0 ? cpu_stream_put(s, run_copy, &c, sizeof(c)) : DP_OK;
}

static dp_status_t device_zero(dp_stream_t *s, void *memory, size_t bytes)
{
    return device_copy(s, memory, NULL, bytes);
}

static void add_f32(float *restrict to, const float *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] += from[i];
}

static void add_f64(double *restrict to, const double *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] += from[i];
}

static dp_status_t run_add(void *arg)
{
    const addition_t *a = arg;

    if (a->dtype == DP_F32)
        add_f32(a->to, a->from, a->count);
    else
        add_f64(a->to, a->from, a->count);
    return DP_OK;
}

static dp_status_t device_add(dp_stream_t *s, void *to, const void *from, size_t count, dp_dtype_t dtype)
{
    addition_t a = {to, from, count, dtype};

    if (dtype != DP_F32 && dtype != DP_F64)
        return DP_FAIL(s->host, DP_ERR_UNSUPPORTED, "adding tensors of dtype %d: f32 and f64 are possible", (int)dtype);
    return count > 0 ? cpu_stream_put(s, run_add, &a, sizeof(a)) : DP_OK;
}

static dp_status_t device_launch(dp_stream_t *s, dp_launch_fn fn, const void *arg, size_t bytes)
{
    if (bytes > DP_LAUNCH_ARG_MAX)
        return DP_FAIL(s->host, DP_ERR_INVALID, "a launch carries at most %d bytes of argument, not %zu",
                       DP_LAUNCH_ARG_MAX, bytes);
    return cpu_stream_put(s, fn, arg, bytes);
}

static dp_status_t run_stamp(void *arg)
{
    const stamp_t *stamp = arg;

    *stamp->slot = stamp->host->now_ns(stamp->host);
    return DP_OK;
}

static dp_status_t device_stamp(dp_stream_t *s, int64_t *slot)
{
    stamp_t stamp = {s->host, slot};

    return cpu_stream_put(s, run_stamp, &stamp, sizeof(stamp));
}

static void *stream_native(dp_stream_t *s)
{
    (void)s;
    return NULL;
}

static dp_status_t query_error(dp_device_t *device)
{
    failure_t first;

    if (!__atomic_load_n(&device->failed, __ATOMIC_ACQUIRE))
        return DP_OK;
    pthread_mutex_lock(&device->lock);
    first = device->first;
    pthread_mutex_unlock(&device->lock);
    return DP_FAIL(device->host, first.status, "%s", first.message);
}

static dp_status_t device_partition(dp_device_t *device, uint32_t sms[DP_LANE_COUNT])
{
    memcpy(sms, device->sms, sizeof(device->sms));
    return DP_OK;
}

static const dp_device_vt_t table = {
    .struct_size = sizeof(dp_device_vt_t),
    .caps = DP_DEVICE_CAP_HOST_MEMORY | DP_DEVICE_CAP_LAUNCH,
    .kind = "cpu",
    .open = device_open,
    .close = device_close,
    .allocate = device_allocate,
    .release = device_release,
    .copy = device_copy,
    .zero = device_zero,
    .add = device_add,
    .stream_open = cpu_stream_open,
    .stream_close = cpu_stream_close,
    .stream_native = stream_native,
    .event_open = cpu_event_open,
    .event_close = cpu_event_close,
    .event_record = cpu_event_record,
    .stream_wait = cpu_event_wait,
    .launch = device_launch,
    .stamp = device_stamp,
    .synchronize = cpu_stream_synchronize,
    .query_error = query_error,
    .partition = device_partition,
};

static const void *cpu_interface(const char *id)
{
    return strcmp(id, DP_IFACE_DEVICE) == 0 ? &table : NULL;
}

DP_PLUGIN_DEFINE(device_cpu) = {
    DP_PLUGIN_HEAD,
    .name = "device_cpu",
    .version = DP_VERSION,
    .summary = "the CPU: streams are threads, partitions are sets of cores",
    .get_interface = cpu_interface,
};
