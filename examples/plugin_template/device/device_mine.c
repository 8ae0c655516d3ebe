/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * device_mine.c: a device to start from: the CPU, each stream a thread that works through a ring of
 * entries.
 *
 * Two counters carry everything: `filled`, how many entries were put into a stream, wakes its
 * thread; `done`, how many it has finished, is what synchronize waits for, and an event is a stream
 * and a number of entries. A stream that has failed goes on counting but runs nothing, so nobody
 * waits for it in vain. */
#define _GNU_SOURCE /* pthread_timedjoin_np */
#include <dualpipe/device.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUEUE_LENGTH     4096
#define QUEUE_LENGTH_MAX (1u << 20)
#define MESSAGE_BYTES    1024
#define IDLE_NS          (3600 * 1000000000ll)
#define LEAVE_SECONDS    10 /* that a thread gets to leave a function once the job has ended */

typedef struct entry {
    dp_launch_fn fn;
    _Alignas(16) unsigned char arg[DP_LAUNCH_ARG_MAX];
} entry_t;

typedef struct failure {
    dp_status_t status;
    char message[MESSAGE_BYTES];
} failure_t;

struct dp_stream {
    dp_device_t *device;
    dp_stream_t *next; /* in the device's list; closed ones stay in it, as events may name them */
    entry_t *ring;
    pthread_t thread;
    int running;
    uint64_t put, finished; /* entries; the caller's, and the thread's, which others read */
    dp_signal_t filled, done;
    int failed; /* set after the two below */
    uint64_t failed_at;
    failure_t failure; /* under device->lock */
};

struct dp_event {
    dp_device_t *device;
    dp_event_t *next, **self; /* in the device's list, for close */
    dp_stream_t *stream;      /* of the latest record; NULL: none yet */
    uint64_t position;        /* entries of it that are done there */
};

struct dp_device {
    const dp_host_t *host;
    uint32_t queue_length;
    pthread_mutex_t lock; /* of the list of streams and of all failures */
    dp_stream_t *streams;
    dp_event_t *events;
    int failed;
    failure_t first;
};

/* ---- waiting ---- */

static uint64_t progress(dp_device_t *device)
{
    uint64_t sum = 0;

    pthread_mutex_lock(&device->lock);
    for (dp_stream_t *s = device->streams; s != NULL; s = s->next)
        sum += __atomic_load_n(&s->finished, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&device->lock);
    return sum;
}

/* Until `s` has finished `count` entries. timeout_ns < 0: the job's limit, counted from the last
 * entry that any stream of the device finished: the wait that really hangs is to be the one that
 * says so. */
static dp_status_t wait_done(dp_stream_t *s, uint64_t count, int64_t timeout_ns, const char *what)
{
    const dp_host_t *host = s->device->host;
    uint64_t before;
    dp_status_t status;

    do {
        before = progress(s->device);
        status = host->wait(host, &s->done, (uint32_t)count, timeout_ns, what);
    } while (status == DP_ERR_TIMEOUT && timeout_ns < 0 && host->aborted(host) >= 0 && progress(s->device) != before);
    return status;
}

static dp_status_t failure_of(dp_stream_t *s)
{
    dp_device_t *device = s->device;
    failure_t failure;

    if (!__atomic_load_n(&s->failed, __ATOMIC_ACQUIRE))
        return DP_OK;
    pthread_mutex_lock(&device->lock);
    failure = s->failure;
    pthread_mutex_unlock(&device->lock);
    return DP_FAIL(device->host, failure.status, "%s", failure.message);
}

/* ---- the thread ---- */

/* The message is this thread's, where nobody reads it: it is kept for the thread that asks. */
static void keep_failure(dp_stream_t *s, dp_status_t status)
{
    dp_device_t *device = s->device;
    const char *message = device->host->last_error(device->host);

    pthread_mutex_lock(&device->lock);
    s->failure.status = status;
    if (message[0] != '\0')
        snprintf(s->failure.message, sizeof(s->failure.message), "%s", message);
    else
        snprintf(s->failure.message, sizeof(s->failure.message), "a function on a stream returned status %d", status);
    if (!device->failed) {
        device->first = s->failure;
        __atomic_store_n(&device->failed, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&device->lock);
    s->failed_at = s->finished;
    __atomic_store_n(&s->failed, 1, __ATOMIC_RELEASE);
}

/* 0: it was the last one. */
static int run_entry(dp_stream_t *s)
{
    entry_t *e = &s->ring[s->finished % s->device->queue_length];
    const int last = e->fn == NULL;
    dp_status_t status = last || s->failed ? DP_OK : e->fn(e->arg);

    if (status < 0)
        keep_failure(s, status);
    __atomic_store_n(&s->finished, s->finished + 1, __ATOMIC_RELEASE);
    s->device->host->post(s->device->host, &s->done, (uint32_t)s->finished);
    return !last;
}

/* Leaves when told to, and when the job has ended and nothing is left to do: no wait would last
 * then. */
static void *work(void *arg)
{
    dp_stream_t *s = arg;
    const dp_host_t *host = s->device->host;
    dp_status_t status;

    do {
        while ((uint32_t)s->finished != __atomic_load_n(&s->filled.value, __ATOMIC_ACQUIRE))
            if (!run_entry(s))
                return NULL;
        status = host->wait(host, &s->filled, (uint32_t)s->finished + 1, IDLE_NS, "an idle stream waits for work");
    } while (status >= 0 || (status == DP_ERR_TIMEOUT && host->aborted(host) >= 0));
    return NULL;
}

/* False when a function does not return. The clock of pthread_timedjoin_np may jump: hence a second
 * at a time. */
static int join(dp_stream_t *s)
{
    for (int i = 0; i < LEAVE_SECONDS && s->running; i++) {
        struct timespec until;

        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        s->running = pthread_timedjoin_np(s->thread, NULL, &until) != 0;
    }
    return !s->running;
}

/* ---- streams ---- */

static dp_status_t stream_put(dp_stream_t *s, dp_launch_fn fn, const void *arg, size_t bytes)
{
    dp_device_t *device = s->device;
    entry_t *e = &s->ring[s->put % device->queue_length];
    dp_status_t status = DP_OK;

    if (s->put - __atomic_load_n(&s->finished, __ATOMIC_ACQUIRE) >= device->queue_length)
        status = wait_done(s, s->put - device->queue_length + 1, -1, "a full stream has no room for more work");
    if (status < 0)
        return status;
    e->fn = fn;
    if (bytes > 0)
        memcpy(e->arg, arg, bytes);
    s->put++;
    device->host->post(device->host, &s->filled, (uint32_t)s->put);
    return DP_OK;
}

static dp_status_t mine_synchronize(dp_stream_t *s, int64_t timeout_ns)
{
    const dp_host_t *host = s->device->host;
    dp_status_t status = wait_done(s, s->put, timeout_ns, "synchronize waits for a stream"), failure;
    const int over = host->aborted(host) < 0;

    if (status < 0 && over &&
        /* the job has ended: the caller may free what the stream used only once it is at rest */
        !join(s))
        return DP_FAIL(host, DP_ERR_TIMEOUT, "a function on a stream does not return");
    failure = over || status != DP_ERR_TIMEOUT ? failure_of(s) : DP_OK;
    status = failure < 0 ? failure : status;
    if (over && status == DP_ERR_TIMEOUT) /* why the job has ended: no function hangs here */
        return DP_FAIL(host, DP_ERR_ABORTED, "stream: the job has ended, as no rank made progress");
    return status;
}

static dp_status_t mine_stream_open(dp_device_t *device, dp_lane_t lane, dp_stream_t **stream_out)
{
    const dp_host_t *host = device->host;
    const size_t ring_bytes = device->queue_length * sizeof(entry_t);
    sigset_t all, before;
    dp_stream_t *s;
    int error;

    if ((uint32_t)lane >= DP_LANE_COUNT)
        return DP_FAIL(host, DP_ERR_INVALID, "device_mine: there is no lane %d", (int)lane);
    s = host->allocate(host, sizeof(*s), 64);
    if (s == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "device_mine: no memory for a stream");
    memset(s, 0, sizeof(*s));
    s->device = device;
    s->ring = host->allocate(host, ring_bytes, 64);
    if (s->ring == NULL) {
        host->release(host, s);
        return DP_FAIL(host, DP_ERR_NOMEM, "device_mine: no memory for a queue of %u entries", device->queue_length);
    }
    sigfillset(&all); /* signals are the program's */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&s->thread, NULL, work, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        host->release(host, s->ring);
        host->release(host, s);
        return DP_FAIL(host, DP_ERR_NOMEM, "device_mine: no thread for a stream: %s", strerror(error));
    }
    s->running = 1;
    pthread_mutex_lock(&device->lock);
    s->next = device->streams;
    device->streams = s;
    pthread_mutex_unlock(&device->lock);
    *stream_out = s;
    return DP_OK;
}

static void mine_stream_close(dp_stream_t *s)
{
    if (s == NULL || s->ring == NULL)
        return;
    if (s->running)
        /* the last entry; when the job has ended the thread leaves by itself */
        (void)stream_put(s, NULL, NULL, 0);
    if (!join(s)) {
        s->device->host->log(s->device->host, DP_LOG_WARN, "device_mine",
                             "a function on a stream does not return: its thread is left behind");
        return;
    }
    s->device->host->release(s->device->host, s->ring);
    s->ring = NULL;
}

static void *mine_stream_native(dp_stream_t *s)
{
    (void)s;
    return NULL;
}

/* ---- events ---- */

static dp_status_t mine_event_open(dp_device_t *device, dp_event_t **event_out)
{
    dp_event_t *event = device->host->allocate(device->host, sizeof(*event), 16);

    if (event == NULL)
        return DP_FAIL(device->host, DP_ERR_NOMEM, "device_mine: no memory for an event");
    *event = (dp_event_t){.device = device, .next = device->events, .self = &device->events};
    if (event->next != NULL)
        event->next->self = &event->next;
    device->events = event;
    *event_out = event;
    return DP_OK;
}

static void mine_event_close(dp_event_t *event)
{
    if (event == NULL)
        return;
    *event->self = event->next;
    if (event->next != NULL)
        event->next->self = event->self;
    event->device->host->release(event->device->host, event);
}

static dp_status_t mine_event_record(dp_event_t *event, dp_stream_t *s)
{
    if (event->device != s->device)
        return DP_FAIL(s->device->host, DP_ERR_INVALID, "an event cannot be recorded on a stream of another device");
    event->stream = s;
    event->position = s->put;
    return DP_OK;
}

/* Nothing runs on data that were never made: whoever waits for a stream that had failed by then
 * fails as well. */
static dp_status_t run_wait(void *arg)
{
    const dp_event_t *event = arg;
    dp_stream_t *s = event->stream;
    dp_status_t status = wait_done(s, event->position, -1, "a stream waits for an event of another stream");

    if (status >= 0 && __atomic_load_n(&s->failed, __ATOMIC_ACQUIRE) && s->failed_at < event->position)
        status = failure_of(s);
    return status;
}

static dp_status_t mine_stream_wait(dp_stream_t *s, dp_event_t *event)
{
    if (event->device != s->device)
        return DP_FAIL(s->device->host, DP_ERR_INVALID, "a stream cannot wait for an event of another device");
    if (event->stream == NULL || event->stream == s)
        return DP_OK;
    /* as it is now: a later record is another matter */
    return stream_put(s, run_wait, event, sizeof(*event));
}

/* ---- work ---- */

typedef struct job {
    void *to;
    const void *from;
    size_t count;
    dp_dtype_t dtype;
} job_t;

static dp_status_t run_copy(void *arg)
{
    const job_t *j = arg;

    if (j->from != NULL)
        memmove(j->to, j->from, j->count);
    else
        memset(j->to, 0, j->count);
    return DP_OK;
}

static dp_status_t run_add(void *arg)
{
    const job_t *j = arg;

    for (size_t i = 0; i < j->count; i++)
        if (j->dtype == DP_F32)
            ((float *)j->to)[i] += ((const float *)j->from)[i];
        else
            ((double *)j->to)[i] += ((const double *)j->from)[i];
    return DP_OK;
}

static dp_status_t mine_copy(dp_stream_t *s, void *to, const void *from, size_t bytes)
{
    const job_t job = {.to = to, .from = from, .count = bytes};

    return bytes > 0 ? stream_put(s, run_copy, &job, sizeof(job)) : DP_OK;
}

static dp_status_t mine_zero(dp_stream_t *s, void *memory, size_t bytes)
{
    return mine_copy(s, memory, NULL, bytes);
}

static dp_status_t mine_add(dp_stream_t *s, void *to, const void *from, size_t count, dp_dtype_t dtype)
{
    const job_t job = {to, from, count, dtype};

    if (dtype != DP_F32 && dtype != DP_F64)
        return DP_FAIL(s->device->host, DP_ERR_UNSUPPORTED, "adding tensors of dtype %d: use f32 or f64", (int)dtype);
    return count > 0 ? stream_put(s, run_add, &job, sizeof(job)) : DP_OK;
}

static dp_status_t mine_launch(dp_stream_t *s, dp_launch_fn fn, const void *arg, size_t bytes)
{
    if (bytes > DP_LAUNCH_ARG_MAX)
        return DP_FAIL(s->device->host, DP_ERR_INVALID, "a launch carries at most %d bytes of argument, not %zu",
                       DP_LAUNCH_ARG_MAX, bytes);
    return stream_put(s, fn, arg, bytes);
}

typedef struct stamp {
    const dp_host_t *host;
    int64_t *slot;
} stamp_t;

static dp_status_t run_stamp(void *arg)
{
    const stamp_t *stamp = arg;

    *stamp->slot = stamp->host->now_ns(stamp->host);
    return DP_OK;
}

static dp_status_t mine_stamp(dp_stream_t *s, int64_t *slot)
{
    const stamp_t stamp = {s->device->host, slot};

    return stream_put(s, run_stamp, &stamp, sizeof(stamp));
}

/* ---- the device ---- */

static dp_status_t mine_allocate(dp_device_t *device, size_t bytes, void **memory_out)
{
    void *memory = device->host->allocate(device->host, bytes > 0 ? bytes : 1, 256);

    if (memory == NULL)
        return DP_FAIL(device->host, DP_ERR_NOMEM, "device_mine: no memory for %zu bytes", bytes);
    memset(memory, 0, bytes);
    *memory_out = memory;
    return DP_OK;
}

static void mine_release(dp_device_t *device, void *memory)
{
    if (memory != NULL)
        device->host->release(device->host, memory);
}

static dp_status_t mine_query_error(dp_device_t *device)
{
    failure_t first;

    if (!__atomic_load_n(&device->failed, __ATOMIC_ACQUIRE))
        return DP_OK;
    pthread_mutex_lock(&device->lock);
    first = device->first;
    pthread_mutex_unlock(&device->lock);
    return DP_FAIL(device->host, first.status, "%s", first.message);
}

static dp_status_t mine_partition(dp_device_t *device, uint32_t sms[DP_LANE_COUNT])
{
    (void)device;
    memset(sms, 0, DP_LANE_COUNT * sizeof(*sms)); /* no lane is confined */
    return DP_OK;
}

static dp_status_t mine_open(const dp_host_t *host, const dp_device_config_t *config, dp_device_t **device_out)
{
    const uint32_t length = config->queue_length != 0 ? config->queue_length : QUEUE_LENGTH;
    dp_device_t *device;
    dp_status_t status;

    status = DP_TAKE(host, "device_mine", dp_device_config_t, DP_DEVICE_CONFIG_MIN, NULL, config);
    if (status < 0)
        return status;
    if (length > QUEUE_LENGTH_MAX || (length & (length - 1)) != 0)
        return DP_FAIL(host, DP_ERR_INVALID, "device_mine: queue_length %u: it must be a power of two up to %u", length,
                       QUEUE_LENGTH_MAX);
    if (config->cores != NULL || config->comm_sms != 0)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "device_mine: it confines no lane: give no cores and no comm_sms");
    device = host->allocate(host, sizeof(*device), 16);
    if (device == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "device_mine: no memory for a device");
    memset(device, 0, sizeof(*device));
    device->host = host;
    device->queue_length = length;
    pthread_mutex_init(&device->lock, NULL);
    *device_out = device;
    return DP_OK;
}

static void mine_close(dp_device_t *device)
{
    int left_behind = 0;

    if (device == NULL)
        return;
    for (dp_stream_t *s = device->streams; s != NULL; s = s->next) {
        mine_stream_close(s);
        left_behind |= s->running;
    }
    if (left_behind)
        return; /* that thread still uses all of this */
    while (device->events != NULL)
        mine_event_close(device->events);
    while (device->streams != NULL) {
        dp_stream_t *s = device->streams;

        device->streams = s->next;
        device->host->release(device->host, s);
    }
    pthread_mutex_destroy(&device->lock);
    device->host->release(device->host, device);
}

static const dp_device_vt_t table = {
    .struct_size = sizeof(table),
    .caps = DP_DEVICE_CAP_HOST_MEMORY | DP_DEVICE_CAP_LAUNCH,
    .kind = "cpu",
    .open = mine_open,
    .close = mine_close,
    .allocate = mine_allocate,
    .release = mine_release,
    .copy = mine_copy,
    .zero = mine_zero,
    .add = mine_add,
    .stream_open = mine_stream_open,
    .stream_close = mine_stream_close,
    .stream_native = mine_stream_native,
    .event_open = mine_event_open,
    .event_close = mine_event_close,
    .event_record = mine_event_record,
    .stream_wait = mine_stream_wait,
    .launch = mine_launch,
    .stamp = mine_stamp,
    .synchronize = mine_synchronize,
    .query_error = mine_query_error,
    .partition = mine_partition,
};

static const void *get_interface(const char *id)
{
    return strcmp(id, DP_IFACE_DEVICE) == 0 ? &table : NULL;
}

DP_PLUGIN_DEFINE(device_mine) = {
    DP_PLUGIN_HEAD,
    .name = "device_mine",
    .version = "0.1",
    .summary = "a template: the CPU, streams are threads",
    .get_interface = get_interface,
};
