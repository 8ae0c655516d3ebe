/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * share.c: the device as it would be if it had no more multiprocessors than the partition, for
 * cuDNN to plan for.
 *
 * cuDNN 9.19 takes no other number of multiprocessors for attention on sm_90 than the device has,
 * but it takes a description of a device. Whether kernels planned so are faster on the partition
 * only a GPU can show. */
#include "share.h"

#include "plugins/common/debug.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 8192 };

typedef cudnnBackendDescriptor_t object_t;

/* The description with another number behind its "multiprocessorCount". */
static bool replace_count(const char *from, uint32_t sms, char to[MOST])
{
    static const char key[] = "\"multiProcessorCount\":";
    const char *at = strstr(from, key);
    int n;

    if (at == NULL)
        return false;
    at += sizeof(key) - 1;
    n = snprintf(to, MOST, "%.*s%u%s", (int)(at - from), from, sms, at + strspn(at, " 0123456789"));
    return n > 0 && n < MOST;
}

dp_status_t attn_sdpa_device_resized(const dp_host_t *host, const attn_dnn_t *dnn, object_t device, uint32_t sms,
                                     object_t *resized_out)
{
    static const char what[] = "describing the partition";
    char text[MOST] = "", other[MOST];
    object_t resized = NULL;
    int64_t count = 0;
    dp_status_t status = attn_dnn_check(host, dnn,
                                        dnn->cudnnBackendGetAttribute(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                                                      CUDNN_TYPE_CHAR, MOST - 1, &count, text),
                                        what);

    if (status >= 0 && !replace_count(text, sms, other))
        status =
            DP_FAIL(host, DP_ERR_UNSUPPORTED,
                    "cuDNN describes the device without a multiProcessorCount: leave DUALPIPE_DEBUG=cudnn.share away");
    if (status >= 0)
        status = attn_dnn_check(host, dnn,
                                dnn->cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &resized), what);
    if (status >= 0)
        status = attn_dnn_check(host, dnn,
                                dnn->cudnnBackendSetAttribute(resized, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                                              CUDNN_TYPE_CHAR, (int64_t)strlen(other) + 1, other),
                                what);
    if (status >= 0)
        status = attn_dnn_check(host, dnn, dnn->cudnnBackendFinalize(resized), what);
    if (status < 0 && resized != NULL)
        dnn->cudnnBackendDestroyDescriptor(resized);
    else
        *resized_out = resized;
    return status;
}

dp_status_t attn_sdpa_device_of_share(const dp_host_t *host, const attn_dnn_t *dnn, cudnnHandle_t handle, uint32_t sms,
                                      object_t *device_out)
{
    static const char what[] = "asking for the device";
    char text[16];
    const char *wish = debug_value("cudnn.share", text, sizeof(text));
    object_t device = NULL;
    dp_status_t status = debug_check(host, "cudnn", "share");

    *device_out = NULL;
    if (status < 0)
        return status;
    if (wish == NULL || strcmp(wish, "1") != 0 || sms == 0)
        return DP_OK;
    status = attn_dnn_check(host, dnn, dnn->cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &device),
                            what);
    if (status >= 0)
        status = attn_dnn_check(
            host, dnn,
            dnn->cudnnBackendSetAttribute(device, CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle), what);
    if (status >= 0)
        status = attn_dnn_check(host, dnn, dnn->cudnnBackendFinalize(device), what);
    if (status >= 0)
        status = attn_sdpa_device_resized(host, dnn, device, sms, device_out);
    if (device != NULL)
        dnn->cudnnBackendDestroyDescriptor(device);
    return status;
}
