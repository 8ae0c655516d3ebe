/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * share.h: a device that is told to be as large as the partition. */
#ifndef ATTENTION_CUDNN_SHARE_H
#define ATTENTION_CUDNN_SHARE_H

#include "dnn.h"

/** With DUALPIPE_DEBUG=cudnn.share=1 a description of the handle's device with `sms`
 *  multiprocessors, for attn_sdpa_plan_make, to be destroyed; NULL without, or where sms is 0. */
dp_status_t attn_sdpa_device_of_share(const dp_host_t *host, const attn_dnn_t *dnn, cudnnHandle_t handle, uint32_t sms,
                                      cudnnBackendDescriptor_t *device_out);

/** The same device with `sms` multiprocessors. device: a finalised DEVICEPROP descriptor. */
dp_status_t attn_sdpa_device_resized(const dp_host_t *host, const attn_dnn_t *dnn, cudnnBackendDescriptor_t device,
                                     uint32_t sms, cudnnBackendDescriptor_t *resized_out);

#endif
