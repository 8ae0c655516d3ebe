/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * device.h: interface "dp.device/1": memory, streams, events and partitions of one device (a GPU,
 * or CPU cores).
 *
 * Streams run their work in order; work on different streams is ordered by events alone. Nothing
 * here but the functions tagged [blocks] waits for the device. Calls on one instance come from one
 * thread, unless tagged [any]. */
#ifndef DUALPIPE_DEVICE_H
#define DUALPIPE_DEVICE_H

#include <dualpipe/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dp_event dp_event_t; /* a point in a stream; re-recordable */
typedef struct dp_graph dp_graph_t; /* a captured step */

enum {
    /* device memory can be read and written by the host directly */
    DP_DEVICE_CAP_HOST_MEMORY = 1u << 0,
    /* launch() is there: kernels are host functions run by stream workers */
    DP_DEVICE_CAP_LAUNCH = 1u << 1,
    DP_DEVICE_CAP_GRAPH = 1u << 2, /* capture_begin/end, graph_launch */
    /* memory of this device, what allocate() gives included, can be mapped by other processes of
     * this host by the means of its kind (CUDA: handles of the driver) */
    DP_DEVICE_CAP_EXPORT = 1u << 3
};

/** Settings for open. Zero is the default everywhere. */
typedef struct dp_device_config {
    uint32_t struct_size;
    /* GPU: 0: device local_rank modulo their number; n: the n-th, counted from 1 */
    uint32_t device;
    /* units (SMs, cores) wanted for communication lanes; 0: no partition. A CPU device that
     * confines nothing refuses this and `cores` with DP_ERR_UNSUPPORTED */
    uint32_t comm_sms;
    /* entries one stream can hold before enqueueing waits; 0: 4096. A power of two */
    uint32_t queue_length;
    const char *cores; /* CPU: cores to run on ("0-3,8"); NULL: those the process may use */
    /* GPU: how many ranks divide this device's SMs among them; 0: 1. The same on each of them */
    uint32_t shares;
    /* GPU: which of these we are, from 0: our lanes keep to SMs that no other rank's lanes use */
    uint32_t share;
    /* our number among the ranks of this host, from 0, see `device`; the engine fills it in */
    uint32_t local_rank;
} dp_device_config_t;
enum { DP_DEVICE_CONFIG_MIN = DP_SIZE_TO(dp_device_config_t, local_rank) };

/** A function run by a CPU stream: `arg` is the stream's own copy. A negative status stops the
 *  stream (see query_error). */
typedef dp_status_t (*dp_launch_fn)(void *arg);
#define DP_LAUNCH_ARG_MAX 288 /* bytes of argument that launch() can carry */

/** Asks a plugin whether work it put on the device has failed: DP_OK, or the failure, its message
 *  recorded with the host's fail() on the asking thread. Cheap, waits for nothing, allocates
 *  nothing; the same answer from the first failure on. [any] */
typedef dp_status_t (*dp_watch_fn)(void *arg);

struct dp_device_vt {
    uint32_t struct_size;
    uint32_t caps;
    /** What native handles and device pointers are: "cpu", "cuda", "hip", ... A plugin that can
     *  only work with one kind refuses the others by name. */
    const char *kind;

    /** Opens a device for one rank. Fails with DP_ERR_UNSUPPORTED when there is none ("no CUDA
     * device"). */
    dp_status_t (*open)(const dp_host_t *host, const dp_device_config_t *config, dp_device_t **device_out);
    /** Releases everything; all streams must be idle or stopped. NULL is allowed. [blocks] */
    void (*close)(dp_device_t *device);

    /** Device memory, 256-byte aligned, zeroed. Never in a step. */
    dp_status_t (*allocate)(dp_device_t *device, size_t bytes, void **memory_out);
    void (*release)(dp_device_t *device, void *memory);
    /** Copies in either direction or within the device. [enqueue s] */
    dp_status_t (*copy)(dp_stream_t *s, void *to, const void *from, size_t bytes);
    /** Fills with zero bytes. [enqueue s] */
    dp_status_t (*zero)(dp_stream_t *s, void *memory, size_t bytes);
    /** to[i] += from[i] for count elements of dtype (DP_F32, DP_F64). [enqueue s] */
    dp_status_t (*add)(dp_stream_t *s, void *to, const void *from, size_t count, dp_dtype_t dtype);

    /** A stream for a lane, on that lane's partition. */
    dp_status_t (*stream_open)(dp_device_t *device, dp_lane_t lane, dp_stream_t **stream_out);
    void (*stream_close)(dp_stream_t *s);
    /** The native handle (cudaStream_t), or NULL where there is none. [any] */
    void *(*stream_native)(dp_stream_t *s);

    dp_status_t (*event_open)(dp_device_t *device, dp_event_t **event_out);
    void (*event_close)(dp_event_t *event);
    /** Marks the work enqueued on s so far. [enqueue s] [capture] */
    dp_status_t (*event_record)(dp_event_t *event, dp_stream_t *s);
    /** Later work on s starts after the event's latest record; at once when it was never recorded.
     *  When the recorded stream had failed before it got there, s fails with the same cause:
     *  nothing runs on data never made. [enqueue s] [capture] */
    dp_status_t (*stream_wait)(dp_stream_t *s, dp_event_t *event);

    /** Runs fn(copy of arg) in stream order. bytes <= DP_LAUNCH_ARG_MAX. NULL without
     *  DP_DEVICE_CAP_LAUNCH. [enqueue s] */
    dp_status_t (*launch)(dp_stream_t *s, dp_launch_fn fn, const void *arg, size_t bytes);

    /** Writes the time (the host's now_ns clock) at which the stream gets here to *slot. [enqueue
     * s] */
    dp_status_t (*stamp)(dp_stream_t *s, int64_t *slot);

    /** Waits until all work on s is done or the stream has failed; returns that failure. timeout_ns
     *  < 0: the job's limit, counted from the last time that any stream of the device finished
     *  something. When the job is aborted: until the stream uses nothing any more; then
     *  DP_ERR_TIMEOUT says that a kernel does not return, and nothing else (DP_ERR_ABORTED where
     *  the job has ended with DP_ERR_TIMEOUT). [blocks] */
    dp_status_t (*synchronize)(dp_stream_t *s, int64_t timeout_ns);

    /** The first failure of any stream, DP_OK if none. When all streams have been closed there is
     *  none, and new ones may be opened: a host that recovers from the end of a job keeps the
     *  device. [any] */
    dp_status_t (*query_error)(dp_device_t *device);

    /** The units each lane really got, after rounding: sms[DP_LANE_COUNT]; 0 where a lane is not
     *  confined. A device that was asked to confine its lanes and cannot (a driver without green
     *  contexts) gives the numbers that kernels are to keep their grids to, and says so in the
     * log. */
    dp_status_t (*partition)(dp_device_t *device, uint32_t sms[DP_LANE_COUNT]);

    /** Graphs; NULL without DP_DEVICE_CAP_GRAPH. From capture_begin to capture_end nothing runs:
     *  what is put on streams of this device becomes the graph; all of them are idle when it
     *  begins. Waits for records made before the capture are left out, and so are later waits for
     *  records made in it; instead a launch runs behind all earlier work of all streams, and before
     *  all later work. Stamps are written anew by each launch, to the same slots. synchronize is
     *  illegal during a capture. One capture at a time; graph_close only when no launch is on its
     *  way; NULL is allowed. */
    dp_status_t (*capture_begin)(dp_stream_t *origin);
    dp_status_t (*capture_end)(dp_stream_t *origin, dp_graph_t **graph_out);
    dp_status_t (*graph_launch)(dp_graph_t *graph, dp_stream_t *s);
    void (*graph_close)(dp_graph_t *graph);

    /** Devices whose kernels return no status (GPUs): plugins keep error records that their kernels
     *  fill (a wrong tag, an overflow), and have the device ask for them. From now on synchronize
     *  (while it waits, and once the stream is idle) and query_error also ask check(arg); a
     *  negative answer is a failure of the device. NULL with DP_DEVICE_CAP_LAUNCH, where what a
     *  function returns is the failure. */
    dp_status_t (*watch)(dp_device_t *device, dp_watch_fn check, void *arg);
    /** Ends a watch; check is not running any more when it returns. Not from within check. */
    void (*unwatch)(dp_device_t *device, dp_watch_fn check, void *arg);

    /** Memory at one address that the host and the device's kernels both read and write, 256-byte
     *  aligned, zeroed: losses, inputs, records. What a kernel writes there the host sees after
     *  synchronize. Never in a step. NULL members (and tables without them): allocate() already
     *  gives such memory (DP_DEVICE_CAP_HOST_MEMORY) or the device has none. */
    dp_status_t (*host_allocate)(dp_device_t *device, size_t bytes, void **memory_out);
    void (*host_release)(dp_device_t *device, void *memory);
};

enum { DP_DEVICE_VT_MIN = DP_SIZE_TO(dp_device_vt_t, host_release) };

#ifdef __cplusplus
}
#endif
#endif
