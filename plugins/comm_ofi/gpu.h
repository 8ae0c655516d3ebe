/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * gpu.h: devices whose memory the host cannot reach, and whose streams run no host functions that wait: CUDA. What
 * a stream gets to do is done by a thread for each stream, while the stream waits; data are staged through host
 * memory. */
#ifndef COMM_OFI_GPU_H
#define COMM_OFI_GPU_H

#include <dualpipe/comm.h>

typedef struct gpu gpu_t;

/* `device` is of kind "cuda", and the caller's thread has its context. */
dp_status_t gpu_open(const dp_host_t *host, const dp_device_vt_t *vt, dp_device_t *device, gpu_t **gpu_out);
/* Ends the threads: nothing of ours runs any more. */
void gpu_stop(gpu_t *gpu);
void gpu_close(gpu_t *gpu);
/* As launch() of the device. Of fn only: gpu_copy. */
dp_status_t gpu_launch(gpu_t *gpu, dp_stream_t *s, dp_launch_fn fn, const void *arg, size_t bytes);
/* Between host and device, or within the device; done when it returns. */
dp_status_t gpu_copy(gpu_t *gpu, void *to, const void *from, size_t bytes);
size_t gpu_memory_bytes(void);

#endif
