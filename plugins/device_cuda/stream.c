/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * stream.c: streams, events, and the host's waits for them: it asks, and sleeps in between. */
#include "device_cuda.h"
#include "plugins/common/do.h"

#include <sched.h>
#include <string.h>

static const char *const names[DP_LANE_COUNT] = {"compute", "all-to-all", "p2p", "reduce"};

const char *cuda_lane_name(dp_lane_t lane)
{
    return names[lane];
}

/* ---- streams ---- */

static dp_status_t make_stream(dp_device_t *device, dp_stream_t *s)
{
    const cuda_driver_t *cu = device->cu;
    int side = s->lane != DP_LANE_COMPUTE;
    CUresult result =
        device->green[side] != NULL
            ? cu->cuGreenCtxStreamCreate(&s->cu, device->green[side], CU_STREAM_NON_BLOCKING, device->priority[side])
            : cu->cuStreamCreateWithPriority(&s->cu, CU_STREAM_NON_BLOCKING, device->priority[side]);
    dp_status_t status = CUDA_CHECK(device->host, result, "making stream %s", cuda_lane_name(s->lane));

    for (int i = 0; i < MILESTONES && status == DP_OK; i++)
        status =
            CUDA_CHECK(device->host, cu->cuEventCreate(&s->milestones[i], CU_EVENT_DISABLE_TIMING), "making an event");
    return status;
}

static void free_stream(dp_stream_t *s)
{
    dp_device_t *device = s->device;

    for (int i = 0; i < MILESTONES; i++)
        if (s->milestones[i] != NULL)
            (void)device->cu->cuEventDestroy(s->milestones[i]);
    if (s->cu != NULL)
        (void)device->cu->cuStreamDestroy(s->cu);
    device->host->release(device->host, s);
}

dp_status_t cuda_stream_open(dp_device_t *device, dp_lane_t lane, dp_stream_t **stream_out)
{
    const dp_host_t *host = device->host;
    dp_status_t status;
    dp_stream_t *s;

    DO(cuda_device_make_current(device));
    if ((uint32_t)lane >= DP_LANE_COUNT)
        return DP_FAIL(host, DP_ERR_INVALID, "there is no lane %d", (int)lane);
    s = host->allocate(host, sizeof(*s), 64);
    if (s == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "no memory for stream %s", names[lane]);
    memset(s, 0, sizeof(*s));
    s->device = device;
    s->lane = lane;
    status = make_stream(device, s);
    if (status < 0) {
        free_stream(s);
        return status;
    }
    pthread_mutex_lock(&device->lock);
    s->next = device->streams;
    device->streams = s;
    pthread_mutex_unlock(&device->lock);
    *stream_out = s;
    return DP_OK;
}

bool cuda_stream_idle(dp_stream_t *s, dp_status_t *status_out)
{
    CUresult result = s->device->cu->cuStreamQuery(s->cu);

    *status_out = DP_OK;
    if (result == CUDA_ERROR_NOT_READY)
        return false;
    *status_out = CUDA_CHECK(s->device->host, result, "stream %s: work on the device failed", cuda_lane_name(s->lane));
    if (*status_out < 0)
        cuda_device_keep_failure(s->device, *status_out);
    return true;
}

/* The job is over and the host's wait does not wait any more. */
static bool leave_stream(dp_stream_t *s, dp_status_t *status_out)
{
    const dp_host_t *host = s->device->host;
    int64_t deadline = host->now_ns(host) + LEAVE_NS;

    while (!cuda_stream_idle(s, status_out)) {
        if (host->now_ns(host) >= deadline)
            return false;
        sched_yield();
    }
    return true;
}

void cuda_stream_close(dp_stream_t *s)
{
    dp_device_t *device;
    dp_stream_t **at;
    dp_status_t status;

    if (s == NULL)
        return;
    device = s->device;
    if (cuda_device_make_current(device) == DP_OK)
        (void)cuda_stream_synchronize(s, LEAVE_NS);
    pthread_mutex_lock(&device->lock);
    for (at = &device->streams; *at != s; at = &(*at)->next)
        ;
    *at = s->next;
    pthread_mutex_unlock(&device->lock);
    if (device->capture_origin == s)
        device->capture_origin = NULL;
    if (!cuda_stream_idle(s, &status)) {
        device->host->log(device->host, DP_LOG_WARN, "device_cuda",
                          "a kernel on a stream does not return: the stream is left behind");
        device->left_behind = true;
        device->host->release(device->host, s);
        return;
    }
    free_stream(s);
}

/* Streams that get work during a capture belong to it, with or without an event. */
dp_status_t cuda_stream_enter(dp_stream_t *s)
{
    dp_device_t *device = s->device;

    if (device->capture_origin == NULL || s->captured == device->captures)
        return DP_OK;
    s->captured = device->captures;
    return CUDA_CHECK(device->host, device->cu->cuStreamWaitEvent(s->cu, device->fork, 0), "stream %s joins a capture",
                      cuda_lane_name(s->lane));
}

void cuda_stream_entered(dp_stream_t *s)
{
    dp_device_t *device = s->device;

    if (++s->enqueued % MILESTONE_EVERY != 0 || device->capture_origin != NULL ||
        s->recorded - s->reached == MILESTONES)
        return;
    if (device->cu->cuEventRecord(s->milestones[s->recorded % MILESTONES], s->cu) == CUDA_SUCCESS)
        s->recorded++;
}

/* ---- waiting ---- */

/* A number that grows as long as any stream makes progress. */
static uint64_t count_progress(dp_device_t *device)
{
    uint64_t sum = cuda_stamps_delivered(device);

    for (dp_stream_t *s = device->streams; s != NULL; s = s->next) {
        while (s->reached != s->recorded &&
               device->cu->cuEventQuery(s->milestones[s->reached % MILESTONES]) == CUDA_SUCCESS)
            s->reached++;
        sum += s->reached;
    }
    return sum;
}

/* Short at first: steps of small models end soon. */
static int64_t slice_ns(int64_t waited_ns)
{
    int64_t slice = waited_ns / 8;

    return slice < 20000 ? 20000 : slice > 1000000 ? 1000000 : slice;
}

/* Until the stream is idle, the device has failed, or the time is over. */
static dp_status_t wait_idle(dp_stream_t *s, int64_t timeout_ns, bool *left_out)
{
    dp_device_t *device = s->device;
    const dp_host_t *host = device->host;
    dp_signal_t never = {0, 0};
    int64_t start = host->now_ns(host), since = start, limit = timeout_ns < 0 ? device->hang_ns : timeout_ns;
    uint64_t seen = timeout_ns < 0 ? count_progress(device) : 0;
    dp_status_t status, idle = DP_OK;

    for (;;) {
        int64_t now = host->now_ns(host), slice = slice_ns(now - start);

        *left_out = cuda_stream_idle(s, &idle);
        if (*left_out)
            return idle < 0 ? idle : cuda_device_ask_watches(device);
        status = cuda_device_ask_watches(device);
        if (host->aborted(host) < 0) {
            *left_out = leave_stream(s, &idle);
            return *left_out ? host->aborted(host)
                             : DP_FAIL(host, DP_ERR_TIMEOUT, "a kernel on stream %s does not return",
                                       cuda_lane_name(s->lane));
        }
        if (status < 0)
            return status;
        if (timeout_ns < 0 && count_progress(device) != seen) {
            seen = count_progress(device);
            since = now;
        }
        if (now - since >= limit)
            return timeout_ns < 0
                       ? DP_FAIL(host, DP_ERR_TIMEOUT, "stream %s makes no progress, nor does any other of its device",
                                 cuda_lane_name(s->lane))
                       : DP_FAIL(host, DP_ERR_TIMEOUT, "stream %s is not done after %.3g s", cuda_lane_name(s->lane),
                                 (double)timeout_ns * 1e-9);
        cuda_stamps_deliver(device);
        (void)host->wait(host, &never, 1, slice < limit - (now - since) ? slice : limit - (now - since),
                         "synchronize waits for a stream");
    }
}

dp_status_t cuda_stream_synchronize(dp_stream_t *s, int64_t timeout_ns)
{
    dp_device_t *device = s->device;
    dp_status_t status, late;
    bool left = false;

    if (device->capture_origin != NULL)
        return DP_FAIL(device->host, DP_ERR_INVALID, "stream %s cannot be waited for while a step is captured",
                       cuda_lane_name(s->lane));
    /* fails on a device that has failed: the stream says so better */
    (void)cuda_device_make_current(device);
    status = wait_idle(s, timeout_ns, &left);
    cuda_stamps_deliver(device);
    /* why it has: this stream left */
    if (left && status == DP_ERR_TIMEOUT && device->host->aborted(device->host) < 0)
        return DP_FAIL(device->host, DP_ERR_ABORTED, "stream %s: the job has ended, as no rank made progress",
                       cuda_lane_name(s->lane));
    if (status == DP_OK && (late = cuda_stamps_calibrate_late(device)) < 0)
        status = late;
    return status;
}

/* ---- events ---- */

dp_status_t cuda_event_open(dp_device_t *device, dp_event_t **event_out)
{
    const dp_host_t *host = device->host;
    dp_event_t *event;
    dp_status_t status;

    DO(cuda_device_make_current(device));
    event = host->allocate(host, sizeof(*event), 64);
    if (event == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "no memory for an event");
    memset(event, 0, sizeof(*event));
    event->device = device;
    status = CUDA_CHECK(host, device->cu->cuEventCreate(&event->cu, CU_EVENT_DISABLE_TIMING), "making an event");
    if (status < 0) {
        host->release(host, event);
        return status;
    }
    event->next = device->events;
    device->events = event;
    *event_out = event;
    return DP_OK;
}

void cuda_event_close(dp_event_t *event)
{
    dp_device_t *device;
    dp_event_t **at;

    if (event == NULL)
        return;
    device = event->device;
    for (at = &device->events; *at != event; at = &(*at)->next)
        ;
    *at = event->next;
    (void)device->cu->cuEventDestroy(event->cu);
    device->host->release(device->host, event);
}

dp_status_t cuda_event_record(dp_event_t *event, dp_stream_t *s)
{
    dp_device_t *device = s->device;
    dp_status_t status;

    if (event->device != device)
        return DP_FAIL(device->host, DP_ERR_INVALID, "an event cannot be recorded on a stream of another device");
    status = cuda_stream_enter(s);
    if (status == DP_OK)
        status = CUDA_CHECK(device->host, device->cu->cuEventRecord(event->cu, s->cu),
                            "recording an event on stream %s", cuda_lane_name(s->lane));
    if (status < 0)
        return status;
    event->recorded = true;
    event->capture = device->capture_origin != NULL ? device->captures : 0;
    cuda_stream_entered(s);
    return DP_OK;
}

/* A record made outside of a capture is no edge inside of it, and the other way round: there, a
 * graph is launched behind and before everything else (graph.c). */
dp_status_t cuda_event_wait(dp_stream_t *s, dp_event_t *event)
{
    dp_device_t *device = s->device;
    uint32_t now = device->capture_origin != NULL ? device->captures : 0;
    dp_status_t status;

    if (event->device != device)
        return DP_FAIL(device->host, DP_ERR_INVALID, "a stream cannot wait for an event of another device");
    if (!event->recorded || event->capture != now)
        return DP_OK;
    status = cuda_stream_enter(s);
    if (status == DP_OK)
        status = CUDA_CHECK(device->host, device->cu->cuStreamWaitEvent(s->cu, event->cu, 0),
                            "stream %s waits for an event", cuda_lane_name(s->lane));
    return status;
}
