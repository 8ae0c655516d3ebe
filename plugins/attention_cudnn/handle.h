/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * handle.h: cuDNN's handle of a rank and a device, which its instances share: cuDNN makes 16
 * streams for each handle and priority, which take places in the device's hardware queues. */
#ifndef ATTENTION_CUDNN_HANDLE_H
#define ATTENTION_CUDNN_HANDLE_H

#include "dnn.h"

#include "../cuda/driver.h"

#include <stdbool.h>

typedef struct attn_handle attn_handle_t;

/** The handle of this host on the current context's device. dnn is kept: tables are alike. */
dp_status_t attn_handle_open(const dp_host_t *host, const attn_dnn_t *dnn, attn_handle_t **handle_out);
/** Gives it back; the last one ends it. NULL is allowed. */
void attn_handle_close(attn_handle_t *handle);

cudnnHandle_t attn_handle_native(const attn_handle_t *handle);
/** Nobody else uses the handle, whose stream this is, until it is unlocked; not after a failure.
 *  passing: the stream goes before the handle does, and a later one may get the same address. */
dp_status_t attn_handle_lock(attn_handle_t *handle, CUstream stream, bool passing);
void attn_handle_unlock(attn_handle_t *handle);

#endif
