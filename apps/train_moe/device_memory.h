/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * device_memory.h: memory of this rank's device for what the trainer keeps, and copies between it
 * and the host. All calls but those that free wait for the device. */
#ifndef TRAIN_MOE_DEVICE_MEMORY_H
#define TRAIN_MOE_DEVICE_MEMORY_H

#include <dualpipe/advanced.h>
#include <dualpipe/dualpipe.h>

typedef struct device_memory {
    const dp_device_vt_t *vt;
    dp_device_t *device;
    /* for copies and the optimizer; NULL where the device's memory is the host's */
    dp_stream_t *stream;
} device_memory_t;

dp_status_t device_memory_open(device_memory_t *m, const dp_build_context_t *context);
/* Before the pipeline closes the device. A zeroed *m is allowed. */
void device_memory_close(device_memory_t *m);

/* Zeroed. */
dp_status_t device_memory_allocate(device_memory_t *m, size_t bytes, void **memory_out);
void device_memory_free(device_memory_t *m, void *memory);
/* Zeroed, and the host reads and writes it too. */
dp_status_t device_memory_allocate_shared(device_memory_t *m, size_t bytes, void **memory_out);
void device_memory_free_shared(device_memory_t *m, void *memory);

dp_status_t device_memory_put(device_memory_t *m, void *to_device, const void *from_host, size_t bytes);
dp_status_t device_memory_get(device_memory_t *m, void *to_host, const void *from_device, size_t bytes);
/* Waits for what was put on m->stream. */
dp_status_t device_memory_finish(device_memory_t *m);

#endif
