/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * gpu.h: devices whose memory the host cannot reach, and whose streams run no host functions that
 * wait: CUDA. What a stream gets to do is done by threads of ours, while the stream waits. */
#ifndef COMM_OFI_GPU_H
#define COMM_OFI_GPU_H

#include <dualpipe/comm.h>

#include <stdbool.h>

typedef struct gpu gpu_t;
/* Functions that run one after the other, in the order of their calls: the streams that they are
 * put on keep to it. */
typedef struct gpu_queue gpu_queue_t;

/* `device` is of kind "cuda", and the caller's thread has its context. */
dp_status_t ofi_gpu_open(const dp_host_t *host, const dp_device_vt_t *vt, dp_device_t *device, gpu_t **gpu_out);
/* Ends the threads: nothing of ours runs any more. */
void ofi_gpu_stop(gpu_t *gpu);
void ofi_gpu_close(gpu_t *gpu);
/* Lives as long as gpu. waits: its functions wait for other ranks, and have their own thread. */
dp_status_t ofi_gpu_queue_open(gpu_t *gpu, bool waits, gpu_queue_t **queue_out);
size_t ofi_gpu_queue_bytes(void);
/* As launch() of the device. Of fn only: gpu_copy. */
dp_status_t ofi_gpu_launch(gpu_queue_t *queue, dp_stream_t *s, dp_launch_fn fn, const void *arg, size_t bytes);
/* Between host and device, or within the device; done when it returns. */
dp_status_t ofi_gpu_copy(gpu_t *gpu, void *to, const void *from, size_t bytes);
/* From here on others write memory of the device, and what a stream does behind a function of ours
 * sees it; false where the device cannot promise that. */
bool ofi_gpu_sees_writes(gpu_t *gpu);
int ofi_gpu_ordinal(const gpu_t *gpu);
/* The allocation around `at`, and what tells it from a later one at its place (0: nothing does). */
dp_status_t ofi_gpu_range(gpu_t *gpu, const void *at, uint64_t *base_out, size_t *bytes_out, uint64_t *id_out);
#endif
