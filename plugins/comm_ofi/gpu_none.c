/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * gpu_none.c: gpu.h where this was built without CUDA: gpu_open is never called, and so the others
 * are not. */
#include "gpu.h"

static dp_status_t nothing(void)
{
    return DP_ERR_UNSUPPORTED;
}

dp_status_t ofi_gpu_open(const dp_host_t *host, const dp_device_vt_t *vt, dp_device_t *device, gpu_t **gpu_out)
{
    (void)host, (void)vt, (void)device, (void)gpu_out;
    return nothing();
}

void ofi_gpu_stop(gpu_t *gpu)
{
    (void)gpu;
}

void ofi_gpu_close(gpu_t *gpu)
{
    (void)gpu;
}

dp_status_t ofi_gpu_queue_open(gpu_t *gpu, bool waits, gpu_queue_t **queue_out)
{
    (void)gpu, (void)waits, (void)queue_out;
    return nothing();
}

size_t ofi_gpu_queue_bytes(void)
{
    return 0;
}

dp_status_t ofi_gpu_launch(gpu_queue_t *queue, dp_stream_t *s, dp_launch_fn fn, const void *arg, size_t bytes)
{
    (void)queue, (void)s, (void)fn, (void)arg, (void)bytes;
    return nothing();
}

dp_status_t ofi_gpu_copy(gpu_t *gpu, void *to, const void *from, size_t bytes)
{
    (void)gpu, (void)to, (void)from, (void)bytes;
    return nothing();
}

bool ofi_gpu_sees_writes(gpu_t *gpu)
{
    (void)gpu;
    return false;
}

int ofi_gpu_ordinal(const gpu_t *gpu)
{
    (void)gpu;
    return 0;
}

dp_status_t ofi_gpu_range(gpu_t *gpu, const void *at, uint64_t *base_out, size_t *bytes_out, uint64_t *id_out)
{
    (void)gpu, (void)at, (void)base_out, (void)bytes_out, (void)id_out;
    return nothing();
}
