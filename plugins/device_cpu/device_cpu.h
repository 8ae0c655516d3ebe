/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * device_cpu.h: the CPU device: a stream is a worker thread fed through a ring of entries. */
#ifndef DEVICE_CPU_H
#define DEVICE_CPU_H

#include <dualpipe/device.h>

#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdbool.h>

#define LINE_BYTES       64
#define QUEUE_LENGTH     4096
#define QUEUE_LENGTH_MAX (1u << 20)
#define MESSAGE_BYTES    1024

typedef enum entry_kind {
    ENTRY_RUN,  /* fn(arg); skipped once the stream has failed */
    ENTRY_MARK, /* post value to signal; done by a failed stream as well */
    ENTRY_EXIT
} entry_kind_t;

typedef struct entry {
    alignas(LINE_BYTES) entry_kind_t kind;
    uint32_t value;
    dp_signal_t *signal;
    dp_launch_fn fn;
    alignas(16) unsigned char arg[DP_LAUNCH_ARG_MAX];
} entry_t;

typedef struct failure {
    dp_status_t status;
    char message[MESSAGE_BYTES];
} failure_t;

struct dp_stream {
    dp_device_t *device;
    const dp_host_t *host;
    dp_stream_t *next;
    entry_t *ring;
    /* the ring's entries; how many of them are announced as free at a time */
    uint32_t length, quarter;
    dp_lane_t lane;
    pthread_t thread;
    bool running; /* the thread exists and has not been joined */

    /* the caller's side */
    alignas(LINE_BYTES) uint64_t tail; /* entries put in so far */
    uint64_t room_until;               /* tail may grow to here without another look at `drained` */
    uint32_t marks;

    /* the worker's side */
    alignas(LINE_BYTES) uint64_t head; /* entries done so far; others read it as a sign of life */
    uint32_t announced;                /* the last value posted to `drained` */
    bool failed;                       /* set after the two below, read by anyone */
    uint64_t failed_at;                /* number of the entry that failed */
    failure_t failure;                 /* under device->lock */

    alignas(LINE_BYTES) dp_signal_t filled;  /* tail, for the worker */
    alignas(LINE_BYTES) dp_signal_t drained; /* head, now and then, for the caller */
    alignas(LINE_BYTES) dp_signal_t marked;  /* see cpu_event_record */
    alignas(LINE_BYTES) dp_signal_t exited;
};

/* A point in a stream: `signal` reaches `target` there. */
struct dp_event {
    alignas(LINE_BYTES) dp_signal_t done; /* posted with 1, 2, ... by the records of `writer` */
    uint32_t count;                       /* records given to `done` */
    dp_stream_t *writer;
    dp_device_t *device;
    dp_event_t *next;    /* in the device's list of all events */
    dp_event_t *free;    /* in the device's list of closed ones */
    dp_stream_t *stream; /* of the latest record; NULL: none yet */
    uint64_t position;   /* its entry's number */
    dp_signal_t *signal;
    uint32_t target;
};

struct dp_device {
    const dp_host_t *host;
    uint32_t queue_length;
    bool confined;      /* streams are pinned to the cores below */
    cpu_set_t cores[2]; /* [0] for the compute lane, [1] for the communication lanes */
    uint32_t sms[DP_LANE_COUNT];
    pthread_mutex_t lock; /* the list of streams and all failures */
    /* closed ones stay as long as the device: events may name them */
    dp_stream_t *streams, *closed;
    dp_event_t *events, *free_events;
    bool failed;
    failure_t first;
};

/* cores.c: fills confined, cores and sms from the settings. */
dp_status_t cpu_cores_choose(dp_device_t *device, const dp_device_config_t *config);

/* stream.c */
dp_status_t cpu_stream_open(dp_device_t *device, dp_lane_t lane, dp_stream_t **stream_out);
void cpu_stream_close(dp_stream_t *s);
dp_status_t cpu_stream_put(dp_stream_t *s, dp_launch_fn fn, const void *arg, size_t bytes);
dp_status_t cpu_stream_put_mark(dp_stream_t *s, dp_signal_t *signal, uint32_t value);
dp_status_t cpu_stream_synchronize(dp_stream_t *s, int64_t timeout_ns);
/* A wait for something that work on this device brings about. timeout_ns < 0: fails when for the
 * job's limit no stream of the device finished anything, so that the wait that really hangs is the
 * one that reports. */
dp_status_t cpu_device_wait(dp_device_t *device, dp_signal_t *signal, uint32_t target, int64_t timeout_ns,
                            const char *what);
const char *cpu_stream_name(const dp_stream_t *s);

/* event.c */
dp_status_t cpu_event_open(dp_device_t *device, dp_event_t **event_out);
void cpu_event_close(dp_event_t *event);
dp_status_t cpu_event_record(dp_event_t *event, dp_stream_t *s);
dp_status_t cpu_event_wait(dp_stream_t *s, dp_event_t *event);

#endif
