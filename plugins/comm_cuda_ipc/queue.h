/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * queue.h: what one call puts on a stream. */
#ifndef COMM_CUDA_IPC_QUEUE_H
#define COMM_CUDA_IPC_QUEUE_H

#include "comm_cuda_ipc.h"

typedef struct queue {
    dp_comm_t *comm;
    CUstream stream;
    CUevent mark;
    bool kernels; /* values come from device memory */
    bool capturing;
} queue_t;
dp_status_t ipc_queue_enter(dp_comm_t *comm, dp_stream_t *s, queue_t *queue_out);
/* Marks what was put on the stream; returns `status` when that is a failure. */
dp_status_t ipc_queue_leave(const queue_t *q, dp_status_t status);
dp_status_t ipc_queue_run(const queue_t *q, const plan_t *plan);
dp_status_t ipc_queue_launch(const queue_t *q, CUfunction function, uint32_t blocks, uint32_t threads, void *args,
                             const char *what);
/* For a kernel: what is base on the host, and counter in a graph. */
ipc_value_t ipc_queue_value(const queue_t *q, const uint32_t *counter, uint32_t base, uint32_t delta);
/* Waits until the side stream has done its work. [blocks] */
dp_status_t ipc_queue_settle(dp_comm_t *comm);
dp_status_t ipc_queue_upload(dp_comm_t *comm, void *to, const void *from, size_t bytes);
dp_status_t ipc_queue_download(dp_comm_t *comm, void *to, const void *from, size_t bytes);

#endif
