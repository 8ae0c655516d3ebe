/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * stream.c: a stream's worker thread and its ring: one producer, one consumer, no lock. */
#include "device_cpu.h"
#include "plugins/common/do.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define IDLE_NS (3600 * 1000000000ll)
/* How long a worker may take to leave when the job has ended: computing is not interrupted. */
#define LEAVE_NS (10 * 1000000000ll)

static const char *const names[DP_LANE_COUNT] = {"dp-compute", "dp-all-to-all", "dp-p2p", "dp-reduce"};

const char *cpu_stream_name(const dp_stream_t *s)
{
    return names[s->lane];
}

static uint64_t count_progress(dp_device_t *device)
{
    uint64_t sum = 0;

    pthread_mutex_lock(&device->lock);
    for (dp_stream_t *s = device->streams; s != NULL; s = s->next)
        sum += __atomic_load_n(&s->head, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&device->lock);
    return sum;
}

dp_status_t cpu_device_wait(dp_device_t *device, dp_signal_t *signal, uint32_t target, int64_t timeout_ns,
                            const char *what)
{
    const dp_host_t *host = device->host;
    dp_status_t status = host->wait(host, signal, target, timeout_ns, what);

    while (status == DP_ERR_TIMEOUT && timeout_ns < 0 && host->aborted(host) == DP_OK) {
        uint64_t before = count_progress(device);

        status = host->wait(host, signal, target, timeout_ns, what);
        if (status == DP_ERR_TIMEOUT && count_progress(device) == before)
            break;
    }
    return status;
}

/* ---- the worker ---- */

static void keep_failure(dp_stream_t *s, dp_status_t status)
{
    dp_device_t *device = s->device;
    const char *message = DP_HAS(s->host, dp_host_t, last_error) ? s->host->last_error(s->host) : "";

    pthread_mutex_lock(&device->lock);
    s->failure.status = status;
    if (message[0] != '\0')
        snprintf(s->failure.message, sizeof(s->failure.message), "%s", message);
    else
        snprintf(s->failure.message, sizeof(s->failure.message), "a function on stream %s returned status %d",
                 cpu_stream_name(s), (int)status);
    if (!device->failed) {
        device->first = s->failure;
        __atomic_store_n(&device->failed, true, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&device->lock);
    s->failed_at = s->head;
    __atomic_store_n(&s->failed, true, __ATOMIC_RELEASE);
}

static void announce_room(dp_stream_t *s)
{
    if (s->announced != (uint32_t)s->head) {
        s->announced = (uint32_t)s->head;
        s->host->post(s->host, &s->drained, s->announced);
    }
}

static void execute_entry(dp_stream_t *s, entry_t *e)
{
    dp_status_t status;

    if (e->kind == ENTRY_MARK) {
        s->host->post(s->host, e->signal, e->value);
    } else if (e->kind == ENTRY_RUN && !s->failed) {
        status = e->fn(e->arg);
        if (status < 0)
            keep_failure(s, status);
    }
    __atomic_store_n(&s->head, s->head + 1, __ATOMIC_RELAXED);
    if (s->head % s->quarter == 0)
        announce_room(s);
}

/* Runs what is in the ring; false after an ENTRY_EXIT. */
static bool execute_all(dp_stream_t *s)
{
    uint32_t filled = __atomic_load_n(&s->filled.value, __ATOMIC_ACQUIRE);

    while ((uint32_t)s->head != filled) {
        entry_t *e = &s->ring[s->head & (s->length - 1)];
        bool last = e->kind == ENTRY_EXIT;

        execute_entry(s, e);
        if (last)
            return false;
    }
    announce_room(s);
    return true;
}

/* Leaves when told to, and when the job is aborted and nothing is queued. */
static void *run_entries(void *arg)
{
    dp_stream_t *s = arg;
    dp_status_t status = DP_OK;

    while (execute_all(s) && (status == DP_OK || (status == DP_ERR_TIMEOUT && s->host->aborted(s->host) == DP_OK)))
        status = s->host->wait(s->host, &s->filled, (uint32_t)s->head + 1, IDLE_NS, "an idle stream waits for work");
    s->host->post(s->host, &s->exited, 1);
    return NULL;
}

static dp_status_t start_thread(dp_stream_t *s)
{
    dp_device_t *device = s->device;
    pthread_attr_t attributes;
    sigset_t all, before;
    int error;

    s->exited.value = 0;
    pthread_attr_init(&attributes);
    if (device->confined)
        pthread_attr_setaffinity_np(&attributes, sizeof(cpu_set_t), &device->cores[s->lane != DP_LANE_COMPUTE]);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&s->thread, &attributes, run_entries, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error != 0)
        return DP_FAIL(s->host, DP_ERR_NOMEM, "cannot start a thread for stream %s: %s", cpu_stream_name(s),
                       strerror(error));
    pthread_setname_np(s->thread, cpu_stream_name(s));
    s->running = true;
    return DP_OK;
}

/* Waits for a worker that is on its way out. */
static bool join_thread(dp_stream_t *s, int64_t limit_ns)
{
    const dp_host_t *host = s->host;
    int64_t deadline = host->now_ns(host) + limit_ns;

    while (s->running) {
        struct timespec until;

        /* in slices: the call takes wall time, which may jump */
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 100000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000;
        }
        if (pthread_timedjoin_np(s->thread, NULL, &until) == 0)
            s->running = false;
        else if (host->now_ns(host) >= deadline)
            return false;
    }
    return true;
}

/* ---- the caller ---- */

static dp_status_t claim_entry(dp_stream_t *s, entry_t **entry_out)
{
    if (s->tail == s->room_until) {
        uint32_t done = __atomic_load_n(&s->drained.value, __ATOMIC_ACQUIRE);

        if ((uint32_t)s->tail - done == s->length) {
            DO(cpu_device_wait(s->device, &s->drained, done + s->quarter, -1,
                               "a full stream has no room for more work"));
            done = __atomic_load_n(&s->drained.value, __ATOMIC_ACQUIRE);
        }
        s->room_until = s->tail + s->length - ((uint32_t)s->tail - done);
    }
    *entry_out = &s->ring[s->tail & (s->length - 1)];
    return DP_OK;
}

static void publish_entry(dp_stream_t *s)
{
    s->tail++;
    s->host->post(s->host, &s->filled, (uint32_t)s->tail);
}

dp_status_t cpu_stream_put(dp_stream_t *s, dp_launch_fn fn, const void *arg, size_t bytes)
{
    entry_t *e;

    DO(claim_entry(s, &e));
    e->kind = ENTRY_RUN;
    e->fn = fn;
    if (bytes > 0)
        memcpy(e->arg, arg, bytes);
    publish_entry(s);
    return DP_OK;
}

dp_status_t cpu_stream_put_mark(dp_stream_t *s, dp_signal_t *signal, uint32_t value)
{
    entry_t *e;

    DO(claim_entry(s, &e));
    e->kind = ENTRY_MARK;
    e->signal = signal;
    e->value = value;
    publish_entry(s);
    return DP_OK;
}

static dp_status_t failure_of(dp_stream_t *s)
{
    failure_t failure;

    if (!__atomic_load_n(&s->failed, __ATOMIC_ACQUIRE))
        return DP_OK;
    pthread_mutex_lock(&s->device->lock);
    failure = s->failure;
    pthread_mutex_unlock(&s->device->lock);
    return DP_FAIL(s->host, failure.status, "%s", failure.message);
}

/* A worker announces how far it got when its ring is empty: an idle lane is not woken. */
dp_status_t cpu_stream_synchronize(dp_stream_t *s, int64_t timeout_ns)
{
    dp_status_t status =
        cpu_device_wait(s->device, &s->drained, (uint32_t)s->tail, timeout_ns, "synchronize waits for a stream");
    bool over = s->host->aborted(s->host) < 0;
    dp_status_t failure;

    /* the job is over: the worker leaves, so that the caller may free what it used, or is said not
     * to */
    if (status < 0 && over && !join_thread(s, LEAVE_NS))
        return DP_FAIL(s->host, DP_ERR_TIMEOUT, "a function on stream %s does not return", cpu_stream_name(s));
    failure = over || status != DP_ERR_TIMEOUT ? failure_of(s) : DP_OK;
    status = failure < 0 ? failure : status;
    if (over && status == DP_ERR_TIMEOUT) /* why the job has ended: this stream has left */
        return DP_FAIL(s->host, DP_ERR_ABORTED, "stream %s: the job has ended, as no rank made progress",
                       cpu_stream_name(s));
    return status;
}

dp_status_t cpu_stream_open(dp_device_t *device, dp_lane_t lane, dp_stream_t **stream_out)
{
    const dp_host_t *host = device->host;
    dp_stream_t *s;
    dp_status_t status;

    if ((uint32_t)lane >= DP_LANE_COUNT)
        return DP_FAIL(host, DP_ERR_INVALID, "there is no lane %d", (int)lane);
    s = host->allocate(host, sizeof(*s), LINE_BYTES);
    if (s == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "no memory for stream %s", names[lane]);
    memset(s, 0, sizeof(*s));
    s->device = device;
    s->host = host;
    s->lane = lane;
    s->length = device->queue_length;
    s->quarter = s->length >= 4 ? s->length / 4 : 1;
    s->room_until = s->length;
    s->ring = host->allocate(host, s->length * sizeof(entry_t), LINE_BYTES);
    if (s->ring == NULL) {
        status =
            DP_FAIL(host, DP_ERR_NOMEM, "no memory for a queue of %u entries on stream %s", s->length, names[lane]);
        goto free_stream;
    }
    status = start_thread(s);
    if (status < 0)
        goto free_ring;
    pthread_mutex_lock(&device->lock);
    s->next = device->streams;
    device->streams = s;
    pthread_mutex_unlock(&device->lock);
    *stream_out = s;
    return DP_OK;

free_ring:
    host->release(host, s->ring);
free_stream:
    host->release(host, s);
    return status;
}

static void unlink_stream(dp_stream_t *s)
{
    dp_device_t *device = s->device;
    dp_stream_t **at = &device->streams;

    pthread_mutex_lock(&device->lock);
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    s->next = device->closed;
    device->closed = s;
    if (device->streams == NULL) /* a failure was one of theirs */
        __atomic_store_n(&device->failed, false, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&device->lock);
}

void cpu_stream_close(dp_stream_t *s)
{
    const dp_host_t *host;
    entry_t *e;

    if (s == NULL)
        return;
    host = s->host;
    if (s->running && claim_entry(s, &e) == DP_OK) {
        e->kind = ENTRY_EXIT;
        publish_entry(s);
        (void)cpu_device_wait(s->device, &s->exited, 1, -1, "the end of a stream");
    }
    if (join_thread(s, LEAVE_NS)) {
        host->release(host, s->ring);
        s->ring = NULL;
    } else {
        host->log(host, DP_LOG_WARN, "device_cpu", "a function on a stream does not return: its thread is left behind");
    }
    unlink_stream(s);
}
