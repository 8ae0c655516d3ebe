/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * handle.c: one handle of cuDNN for a rank and a device, counted. */
#include "handle.h"

#include <pthread.h>
#include <string.h>

struct attn_handle {
    attn_handle_t *next;
    const dp_host_t *host;
    CUdevice device;
    unsigned users;
    attn_dnn_t dnn;
    cudnnHandle_t native;
    CUstream stream; /* that it has; NULL: set it */
    pthread_mutex_t lock;
};

static attn_handle_t *handles;
static pthread_mutex_t handles_lock = PTHREAD_MUTEX_INITIALIZER;

/* The streams that cuDNN makes are there before the first step: those for the default stream are
 * for the lane that computes, which has the same priority. */
static dp_status_t make_handle(const dp_host_t *host, const attn_dnn_t *dnn, CUdevice device,
                               attn_handle_t **handle_out)
{
    attn_handle_t *h = host->allocate(host, sizeof(*h), 64);
    dp_status_t status;

    if (h == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "attention_cudnn: no memory for a handle");
    *h = (attn_handle_t){.host = host, .device = device, .dnn = *dnn};
    status = attn_dnn_check(host, dnn, dnn->cudnnCreate(&h->native), "opening it");
    if (status >= 0)
        status = attn_dnn_check(host, dnn, dnn->cudnnSetStream(h->native, NULL), "making its streams");
    if (status < 0) {
        if (h->native != NULL)
            dnn->cudnnDestroy(h->native);
        host->release(host, h);
        return status;
    }
    pthread_mutex_init(&h->lock, NULL);
    *handle_out = h;
    return DP_OK;
}

/* Two handles and the lanes have more streams than a device has hardware queues, and cuDNN's wait
 * for events of its rank. On an H200 two ranks as threads trained twice and stood still once. */
static void warn_of_queues(const dp_host_t *host, CUdevice device)
{
    static bool said;

    for (const attn_handle_t *h = handles; h != NULL && !said; h = h->next)
        if (h->device == device) {
            said = true;
            host->log(host, DP_LOG_WARN, "attention_cudnn",
                      "several ranks of this process use cuDNN on one device, with 16 streams each and 32 hardware "
                      "queues in all: a step may stand still; start ranks as processes, or take attention_cuda");
        }
}

dp_status_t attn_handle_open(const dp_host_t *host, const attn_dnn_t *dnn, attn_handle_t **handle_out)
{
    CUdevice device;
    attn_handle_t *h;
    dp_status_t status = cuda_current(host, &device);

    if (status < 0)
        return status;
    pthread_mutex_lock(&handles_lock);
    for (h = handles; h != NULL && (h->host != host || h->device != device); h = h->next) {
    }
    if (h == NULL) {
        warn_of_queues(host, device);
        status = make_handle(host, dnn, device, &h);
        if (status >= 0) {
            h->next = handles;
            handles = h;
        }
    }
    if (status >= 0) {
        h->users++;
        *handle_out = h;
    }
    pthread_mutex_unlock(&handles_lock);
    return status;
}

void attn_handle_close(attn_handle_t *h)
{
    attn_handle_t **at = &handles;

    if (h == NULL)
        return;
    pthread_mutex_lock(&handles_lock);
    if (--h->users == 0) {
        while (*at != h)
            at = &(*at)->next;
        *at = h->next;
        h->dnn.cudnnDestroy(h->native);
        pthread_mutex_destroy(&h->lock);
        h->host->release(h->host, h);
    }
    pthread_mutex_unlock(&handles_lock);
}

cudnnHandle_t attn_handle_native(const attn_handle_t *h)
{
    return h->native;
}

dp_status_t attn_handle_lock(attn_handle_t *h, CUstream stream, bool passing)
{
    dp_status_t status = DP_OK;

    pthread_mutex_lock(&h->lock);
    if (h->stream != stream)
        status = attn_dnn_check(h->host, &h->dnn, h->dnn.cudnnSetStream(h->native, stream), "setting the stream");
    h->stream = status >= 0 && !passing ? stream : NULL;
    if (status < 0)
        pthread_mutex_unlock(&h->lock);
    return status;
}

void attn_handle_unlock(attn_handle_t *h)
{
    pthread_mutex_unlock(&h->lock);
}
