/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * device_memory.c: where the host reaches the device's memory a copy is a memcpy, elsewhere it goes
 * over a stream. */
#include "device_memory.h"

#include <string.h>

static int is_host_memory(const device_memory_t *m)
{
    return (m->vt->caps & DP_DEVICE_CAP_HOST_MEMORY) != 0;
}

dp_status_t device_memory_open(device_memory_t *m, const dp_build_context_t *context)
{
    *m = (device_memory_t){.vt = context->device_vt, .device = context->device};
    return is_host_memory(m) ? DP_OK : m->vt->stream_open(m->device, DP_LANE_COMPUTE, &m->stream);
}

void device_memory_close(device_memory_t *m)
{
    if (m->stream != NULL)
        m->vt->stream_close(m->stream);
    *m = (device_memory_t){0};
}

dp_status_t device_memory_allocate(device_memory_t *m, size_t bytes, void **memory_out)
{
    return m->vt->allocate(m->device, bytes > 0 ? bytes : 1, memory_out);
}

void device_memory_free(device_memory_t *m, void *memory)
{
    if (memory != NULL)
        m->vt->release(m->device, memory);
}

dp_status_t device_memory_allocate_shared(device_memory_t *m, size_t bytes, void **memory_out)
{
    if (is_host_memory(m))
        return device_memory_allocate(m, bytes, memory_out);
    if (!DP_HAS(m->vt, dp_device_vt_t, host_allocate))
        return dp_fail(DP_ERR_UNSUPPORTED, "the device plugin has no memory that host and device both reach "
                                           "(host_allocate), which the trainer's data need: use a newer one");
    return m->vt->host_allocate(m->device, bytes > 0 ? bytes : 1, memory_out);
}

void device_memory_free_shared(device_memory_t *m, void *memory)
{
    if (memory == NULL)
        return;
    if (is_host_memory(m))
        device_memory_free(m, memory);
    else
        m->vt->host_release(m->device, memory);
}

dp_status_t device_memory_finish(device_memory_t *m)
{
    return m->stream == NULL ? DP_OK : m->vt->synchronize(m->stream, -1);
}

static dp_status_t copy_bytes(device_memory_t *m, void *to, const void *from, size_t bytes)
{
    dp_status_t status;

    if (is_host_memory(m)) {
        memcpy(to, from, bytes);
        return DP_OK;
    }
    status = m->vt->copy(m->stream, to, from, bytes);
    return status == DP_OK ? device_memory_finish(m) : status;
}

dp_status_t device_memory_put(device_memory_t *m, void *to_device, const void *from_host, size_t bytes)
{
    return copy_bytes(m, to_device, from_host, bytes);
}

dp_status_t device_memory_get(device_memory_t *m, void *to_host, const void *from_device, size_t bytes)
{
    return copy_bytes(m, to_host, from_device, bytes);
}
