/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * profiler.h: interface "dp.profiler/1": what the device really ran and when, tied to operations of
 * the program, and ranges by which external tools name them.
 *
 * A host brackets the calls that enqueue an operation's work with begin and end, on the thread that
 * makes them, and later collects what ran. Time stamps on streams (timeline.h) tell when an
 * operation's turn came and ended; activities tell how long its kernels worked in between. */
#ifndef DUALPIPE_PROFILER_H
#define DUALPIPE_PROFILER_H

#include <dualpipe/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DP_PROFILER_OPERATION_MAX (((uint64_t)1 << 48) - 1)

/* one per rank; ranks of one process share what is below */
typedef struct dp_profiler dp_profiler_t;

typedef enum dp_activity_kind { DP_ACTIVITY_KERNEL = 0, DP_ACTIVITY_COPY = 1, DP_ACTIVITY_FILL = 2 } dp_activity_kind_t;

/** Something that the device did. Frozen: never grows; `reserved` is zero. */
typedef struct dp_activity {
    int64_t start_ns, end_ns; /* the host's now_ns clock */
    /* what begin was given; work of a graph belongs to the operation that launched it */
    uint64_t operation;
    uint64_t bytes; /* of copies and fills */
    uint32_t kind;  /* dp_activity_kind_t */
    /* the tool's number of the stream: the same number, the same stream */
    uint32_t stream;
    char name[96]; /* of the kernel, cut; "copy", "fill" */
    uint64_t reserved[3];
} dp_activity_t;

/** Settings for open. Zero is the default everywhere. */
typedef struct dp_profiler_config {
    uint32_t struct_size;
    /* so many are kept until they are collected, later ones are lost; 0: 65536. The first open
     * decides */
    uint32_t activities;
} dp_profiler_config_t;
enum { DP_PROFILER_CONFIG_MIN = DP_SIZE_TO(dp_profiler_config_t, activities) };

typedef struct dp_profiler_vt {
    uint32_t struct_size;
    /** Starts recording: what is enqueued from now on is seen. DP_ERR_UNSUPPORTED names what is
     * missing. */
    dp_status_t (*open)(const dp_host_t *host, const dp_profiler_config_t *config, dp_profiler_t **profiler_out);
    /** NULL is allowed. */
    void (*close)(dp_profiler_t *profiler);
    /** What this thread enqueues from now on belongs to `operation` (1 to
     *  DP_PROFILER_OPERATION_MAX); a range called `name` begins. May be nested: the innermost
     *  counts. Allocates nothing. [any] */
    void (*begin)(dp_profiler_t *profiler, uint64_t operation, const char *name);
    void (*end)(dp_profiler_t *profiler);
    /** Gives out up to `room` activities of our operations that have finished, oldest first, and
     *  forgets them. Call it again while *count_out == room. *lost_out (NULL: not wanted): how many
     *  found no room so far. [blocks] */
    dp_status_t (*collect)(dp_profiler_t *profiler, dp_activity_t *out, size_t room, size_t *count_out,
                           uint64_t *lost_out);
} dp_profiler_vt_t;
enum { DP_PROFILER_VT_MIN = DP_SIZE_TO(dp_profiler_vt_t, collect) };

#ifdef __cplusplus
}
#endif
#endif
