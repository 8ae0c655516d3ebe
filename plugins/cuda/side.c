/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * side.c: one stream a device, counted. */
#include "side.h"

#include <pthread.h>

enum { DEVICES_MAX = 64 };
#define SETTLE_NS INT64_C(60000000000)

static struct {
    CUstream stream;
    unsigned users;
} sides[DEVICES_MAX]; /* by device number */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static dp_status_t make_stream(const dp_host_t *host, const cuda_driver_t *cu, CUstream *stream_out)
{
    int least = 0, greatest = 0;
    dp_status_t status =
        CUDA_CHECK(host, cu->cuCtxGetStreamPriorityRange(&least, &greatest), "asking for stream priorities");

    return status < 0 ? status
                      : CUDA_CHECK(host, cu->cuStreamCreateWithPriority(stream_out, CU_STREAM_NON_BLOCKING, greatest),
                                   "making a stream");
}

dp_status_t cuda_side_open(const dp_host_t *host, const cuda_driver_t *cu, CUstream *stream_out)
{
    CUdevice device;
    dp_status_t status = cuda_current(host, &device);

    if (status < 0)
        return status;
    if (device < 0 || device >= DEVICES_MAX)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "CUDA device %d: %d devices a process is all this plugin counts",
                       (int)device, DEVICES_MAX);
    pthread_mutex_lock(&lock);
    if (sides[device].users == 0)
        status = make_stream(host, cu, &sides[device].stream);
    if (status >= 0) {
        sides[device].users++;
        *stream_out = sides[device].stream;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

dp_status_t cuda_side_settle(const dp_host_t *host, const cuda_driver_t *cu, CUstream stream, const char *what)
{
    dp_signal_t never = {0, 0};
    const int64_t deadline = host->now_ns(host) + SETTLE_NS;
    CUresult result;

    while ((result = cu->cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY) {
        dp_status_t status = host->wait(host, &never, 1, 20000, what);

        if (status < 0 && status != DP_ERR_TIMEOUT)
            /* the job is over, and the caller's memory in use: nothing on this stream waits for
             * other ranks */
            break;
        if (host->now_ns(host) > deadline)
            return DP_FAIL(host, DP_ERR_TIMEOUT, "the device does nothing: %s", what);
    }
    if (result != CUDA_SUCCESS) {
        CUresult ended = cu->cuStreamSynchronize(stream);

        result = result == CUDA_ERROR_NOT_READY ? ended : result;
    }
    return CUDA_CHECK(host, result, "%s", what);
}

void cuda_side_close(const cuda_driver_t *cu, CUstream stream)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < DEVICES_MAX && stream != NULL; i++)
        if (sides[i].users > 0 && sides[i].stream == stream && --sides[i].users == 0)
            (void)cu->cuStreamDestroy(stream);
    pthread_mutex_unlock(&lock);
}
