/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * event.c: points in streams, as counters that the stream posts when it gets there. */
#include "device_cpu.h"
#include "plugins/common/do.h"

#include <string.h>

typedef struct cpu_event_wait {
    dp_stream_t *waiter, *stream;
    dp_signal_t *signal;
    uint64_t position;
    uint32_t target;
} event_wait_t;

/* Closed events are used again, freed with the device: a worker may be about to post them. */
dp_status_t cpu_event_open(dp_device_t *device, dp_event_t **event_out)
{
    const dp_host_t *host = device->host;
    dp_event_t *event = device->free_events;

    if (event != NULL) {
        device->free_events = event->free;
    } else {
        event = host->allocate(host, sizeof(*event), LINE_BYTES);
        if (event == NULL)
            return DP_FAIL(host, DP_ERR_NOMEM, "no memory for an event");
        memset(event, 0, sizeof(*event));
        event->device = device;
        event->next = device->events;
        device->events = event;
    }
    event->stream = NULL;
    *event_out = event;
    return DP_OK;
}

void cpu_event_close(dp_event_t *event)
{
    if (event == NULL)
        return;
    event->free = event->device->free_events;
    event->device->free_events = event;
}

static bool signal_reached(const dp_signal_t *signal, uint32_t target)
{
    return (int32_t)(__atomic_load_n(&signal->value, __ATOMIC_ACQUIRE) - target) >= 0;
}

/* Records of one stream pass in order, so the event's own counter does. A record on another stream
 * while one is still on its way would let the counter run ahead of it: that record is counted by
 * the stream instead. */
dp_status_t cpu_event_record(dp_event_t *event, dp_stream_t *s)
{
    bool own = event->writer == s || signal_reached(&event->done, event->count);
    dp_signal_t *signal = own ? &event->done : &s->marked;
    uint32_t target = (own ? event->count : s->marks) + 1;
    uint64_t position = s->tail;

    if (event->device != s->device)
        return DP_FAIL(s->host, DP_ERR_INVALID, "an event cannot be recorded on a stream of another device");
    DO(cpu_stream_put_mark(s, signal, target));
    if (own) {
        event->count = target;
        event->writer = s;
    } else {
        s->marks = target;
    }
    event->stream = s;
    event->position = position;
    event->signal = signal;
    event->target = target;
    return DP_OK;
}

/* The stream had failed before it got to `position`. */
static bool is_tainted(const dp_stream_t *s, uint64_t position)
{
    return __atomic_load_n(&s->failed, __ATOMIC_ACQUIRE) && s->failed_at < position;
}

static dp_status_t wait_here(void *arg)
{
    const event_wait_t *w = arg;
    const dp_host_t *host = w->waiter->host;
    failure_t failure;
    dp_status_t status =
        cpu_device_wait(w->waiter->device, w->signal, w->target, -1, "a stream waits for an event of another stream");

    if (status == DP_ERR_TIMEOUT && host->aborted(host) == DP_OK)
        return DP_FAIL(host, status, "stream %s waits for stream %s, and neither makes progress",
                       cpu_stream_name(w->waiter), cpu_stream_name(w->stream));
    if (status < 0 || !is_tainted(w->stream, w->position))
        return status;
    pthread_mutex_lock(&w->stream->device->lock);
    failure = w->stream->failure;
    pthread_mutex_unlock(&w->stream->device->lock);
    return DP_FAIL(host, failure.status, "%s", failure.message);
}

dp_status_t cpu_event_wait(dp_stream_t *s, dp_event_t *event)
{
    event_wait_t w = {s, event->stream, event->signal, event->position, event->target};

    if (event->device != s->device)
        return DP_FAIL(s->host, DP_ERR_INVALID, "a stream cannot wait for an event of another device");
    if (w.stream == NULL || w.stream == s)
        return DP_OK;
    if (signal_reached(w.signal, w.target) && !is_tainted(w.stream, w.position))
        return DP_OK;
    return cpu_stream_put(s, wait_here, &w, sizeof(w));
}
