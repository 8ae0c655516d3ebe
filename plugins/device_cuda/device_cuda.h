/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * device_cuda.h: the objects of a CUDA device. Its primary context is current in the thread that
 * opened it, and no other: green contexts only lend their streams. */
#ifndef DEVICE_CUDA_H
#define DEVICE_CUDA_H

#include <dualpipe/device.h>

#include "cuda/driver.h"
#include "cuda/launch.h"
#include "cuda/module.h"
#include "cuda/side.h"

#include <pthread.h>
#include <stdbool.h>

#define MESSAGE_BYTES    1024
#define QUEUE_LENGTH_MAX (1u << 20)
#define STAMPS           (1u << 16) /* stamps on their way; a power of two */
#define MILESTONES       64
#define MILESTONE_EVERY  64
/* a kernel that hears of the end of the job has returned by then */
#define LEAVE_NS 10000000000

typedef struct failure {
    dp_status_t status;
    char message[MESSAGE_BYTES];
} failure_t;

typedef struct watch {
    struct watch *next;
    dp_watch_fn check;
    void *arg;
} watch_t;

/* A stamp under way: the kernel writes to device->times[i]; then *to gets the host's time. */
typedef struct device_stamps {
    volatile uint64_t *times; /* [STAMPS] mapped host memory */
    CUdeviceptr device_times;
    int64_t **to;         /* [STAMPS] NULL: delivered */
    uint32_t first, next; /* of those not delivered, as a ring */
    CUdeviceptr device_call, device_answers;
    volatile uint64_t *call, *answers; /* for setting the clocks */
    uint32_t delivered;
    int64_t offset_ns;     /* the host's clock minus the device's */
    int64_t calibrated_ns; /* when */
} device_stamps_t;

struct dp_stream {
    dp_device_t *device;
    dp_stream_t *next;
    dp_lane_t lane;
    CUstream cu;
    uint32_t captured; /* number of the capture that it has joined */
    /* Events recorded now and then, which tell a busy stream from a stuck one. */
    CUevent milestones[MILESTONES];
    uint32_t enqueued, reached, recorded;
};

struct dp_event {
    dp_device_t *device;
    dp_event_t *next;
    CUevent cu;
    /* number of the capture that the latest record is in; 0: none, or never recorded */
    uint32_t capture;
    bool recorded;
};

enum { GRAPH_ROOMS = 8 }; /* graphs a device can hold */

struct dp_graph {
    dp_device_t *device;
    dp_graph_t *next;
    CUgraph graph;
    CUgraphExec exec;
    volatile uint64_t *times; /* [room] mapped host memory; written anew by every launch */
    int64_t **to;             /* [nstamps] where the host wants them */
    uint32_t nstamps, room;
    bool launched;
};

struct dp_device {
    const dp_host_t *host;
    const cuda_driver_t *cu;
    CUdevice number;
    CUcontext context;
    bool retained;
    bool counted; /* among this process's ranks on the device */
    int sm_count;

    CUmodule module;
    CUfunction add_f32, add_f64, stamp, echo;
    CUstream service; /* for what is not a lane's: zeroing new memory, setting clocks */
    void *touched;    /* memory of the first copies */
    CUevent order;    /* for edges that live no longer than a call */
    CUevent fork;     /* where a capture began */
    int64_t hang_ns;  /* the job's limit */
    bool left_behind; /* a kernel did not return: memory that it may use is kept */
    device_stamps_t stamps;

    CUgreenCtx green[2]; /* [0] compute, [1] communication; NULL: not confined */
    uint32_t sms[DP_LANE_COUNT];
    int priority[2];

    dp_stream_t *streams;
    dp_event_t *events;
    dp_graph_t *graphs;
    uint64_t *graph_memory;             /* of all rooms */
    uint64_t *graph_rooms[GRAPH_ROOMS]; /* for the stamps of a graph each; NULL: taken */
    dp_stream_t *capture_origin;        /* NULL: nothing is captured */
    uint32_t captures;                  /* how many have begun: the number of the current one */
    dp_graph_t *capturing;

    pthread_mutex_t lock; /* the list of streams, the failure */
    bool failed;
    failure_t first;
    pthread_mutex_t watch_lock; /* held while checks run */
    watch_t *watches;
};

/* Keeps the failure that the host has just recorded on this thread; returns its status. */
dp_status_t cuda_device_keep_failure(dp_device_t *device, dp_status_t status);
/* The first failure that is known; asks the plugins that watch. */
dp_status_t cuda_device_ask_watches(dp_device_t *device);
dp_status_t cuda_device_make_current(dp_device_t *device);

/* stream.c */
dp_status_t cuda_stream_open(dp_device_t *device, dp_lane_t lane, dp_stream_t **stream_out);
void cuda_stream_close(dp_stream_t *s);
/* Before anything is put on s: while a capture is on, s joins it. */
dp_status_t cuda_stream_enter(dp_stream_t *s);
/* After: a milestone now and then. */
void cuda_stream_entered(dp_stream_t *s);
dp_status_t cuda_stream_synchronize(dp_stream_t *s, int64_t timeout_ns);
/* True when s has nothing left to do, or the device is broken; never waits. */
bool cuda_stream_idle(dp_stream_t *s, dp_status_t *status_out);
dp_status_t cuda_event_open(dp_device_t *device, dp_event_t **event_out);
void cuda_event_close(dp_event_t *event);
dp_status_t cuda_event_record(dp_event_t *event, dp_stream_t *s);
dp_status_t cuda_event_wait(dp_stream_t *s, dp_event_t *event);
const char *cuda_lane_name(dp_lane_t lane);

/* stamp.c */
dp_status_t cuda_stamps_open(dp_device_t *device);
void cuda_stamps_close(dp_device_t *device);
dp_status_t cuda_stamp_put(dp_stream_t *s, int64_t *slot);
/* Writes the times that have come to their slots. */
void cuda_stamps_deliver(dp_device_t *device);
/* How many were delivered in all: a sign of life. */
uint32_t cuda_stamps_delivered(const dp_device_t *device);
/* Sets the clocks by each other again when that was long ago; nothing may be captured. */
dp_status_t cuda_stamps_calibrate_late(dp_device_t *device);

/* partition.c: fills green, sms and priority from the settings. */
dp_status_t cuda_partition_open(dp_device_t *device, const dp_device_config_t *config);
void cuda_partition_close(dp_device_t *device);

/* graph.c */
dp_status_t cuda_graphs_open(dp_device_t *device);
void cuda_graphs_close(dp_device_t *device);
dp_status_t cuda_graph_begin(dp_stream_t *origin);
dp_status_t cuda_graph_end(dp_stream_t *origin, dp_graph_t **graph_out);
dp_status_t cuda_graph_launch(dp_graph_t *graph, dp_stream_t *s);
void cuda_graph_close(dp_graph_t *graph);
dp_status_t cuda_graph_stamp(dp_graph_t *graph, int64_t *slot, CUdeviceptr *at_out);
void cuda_graph_deliver(dp_graph_t *graph);

#endif
