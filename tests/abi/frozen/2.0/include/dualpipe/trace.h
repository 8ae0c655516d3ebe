/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace.h: reads the Chrome trace of a run: what its segments and operations cost, and how much of
 * its communication ran behind computation.
 *
 *     dp_trace_read(read, file, NULL, &trace);             // read: the next bytes of the trace
 *     dp_trace_overlap_t overlap = {.struct_size = sizeof(overlap)};
 *     dp_trace_overlap(trace, 0, &overlap);                // the first device
 *     dp_trace_costs_write(trace, NULL, write, to);        // for `dualpipe simulate --costs`
 *     dp_trace_free(trace);
 *
 * It reads traces of PyTorch's profiler (kernels, copies, annotations), MTIA among its devices, of
 * torch_npu and msprof (Ascend), of XLA on GPUs, and those of dp_timeline_write_chrome() and
 * `dualpipe simulate --format trace`. Both forms of the format are
 * read: an object with "traceEvents", and a plain array of events, which may be cut off. The caller
 * unpacks a file packed with gzip. Some 100 bytes an event are kept, whatever the size of the file.
 * Format: Trace Event Format,
 * https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
 *
 * All functions here return DP_ERR_INVALID for wrong arguments and DP_ERR_NOMEM. Each names its
 * other errors. A trace does not change once it is read: several threads may use it.
 *
 * Since 0.2. */
#ifndef DUALPIPE_TRACE_H
#define DUALPIPE_TRACE_H

#include <dualpipe/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Fills a buffer with up to `room` bytes. 0 in *bytes_out: the end. A failure ends the reading and
 * is returned. */
typedef dp_status_t (*dp_read_fn)(void *user, void *buffer, size_t room, size_t *bytes_out);

typedef struct dp_trace dp_trace_t;

/** How a trace is read. The caller sets struct_size; zeros are the defaults. */
typedef struct dp_trace_options {
    uint32_t struct_size;
    /* 1: a trace of annotations alone, without a record of a device, will do: for costs */
    int32_t annotations;
    /* an extended regular expression: kernels of such a name are communication, besides those of
     * the libraries that are known (docs/traces.md) and copies between devices. NULL: no more */
    const char *communication;
    uint64_t most_bytes; /* of memory for what is kept; 0: 2 GiB */
    /* an extended regular expression: events of such a category are records of a device, and those
     * without one whose "PROCESS/THREAD" is such a name. NULL: no more than the known ones */
    const char *devices;
} dp_trace_options_t;
enum { DP_TRACE_OPTIONS_MIN = DP_SIZE_TO(dp_trace_options_t, most_bytes) };

/** Reads a trace to its end. options may be NULL. The caller frees *trace_out, which is NULL after
 * a failure. Events whose times cannot be are left out and counted: dp_trace_about().
 * DP_ERR_REJECTED: it is no trace, or no record of a device is in it; the message names the byte.
 * DP_ERR_OVERFLOW: more than most_bytes would have to be kept. A failure of `read` is returned.
 * [any] */
DP_API DP_CHECKED dp_status_t dp_trace_read(dp_read_fn read, void *user, const dp_trace_options_t *options,
                                            dp_trace_t **trace_out);
/** Frees a trace. NULL is allowed. [any] */
DP_API void dp_trace_free(dp_trace_t *trace);

/** What a trace holds. The caller sets struct_size. */
typedef struct dp_trace_about_t {
    uint32_t struct_size;
    int32_t devices; /* how many have records: rows of dp_trace_overlap() */
    uint64_t events; /* in the file */
    int64_t records; /* kernels, copies, memsets; spans of ours */
    int64_t sms;     /* of the first device; -1: not said */
    int32_t cut_off; /* 1: the array of events was not closed */
    /* events left out: they end before they begin, or have no number for a time */
    int64_t broken;
    int64_t broken_records; /* of them, records of devices and annotations: figures lack these */
} dp_trace_about_t;
enum { DP_TRACE_ABOUT_MIN = DP_SIZE_TO(dp_trace_about_t, cut_off) };
/** Fills *about_out. [any] */
DP_API DP_CHECKED dp_status_t dp_trace_about(const dp_trace_t *trace, dp_trace_about_t *about_out);

/** Figures of one device. Times are in ns, as unions: an instant at which two kernels run counts
 * once. The caller sets struct_size. */
typedef struct dp_trace_overlap_t {
    uint32_t struct_size;
    const char *name;      /* "rank 3", "device 0". Borrowed until dp_trace_free() */
    int64_t span;          /* first start to last end */
    int64_t computation;   /* some record ran that is no communication and no wait */
    int64_t communication; /* collectives, all-to-all, sends */
    int64_t hidden;        /* the part of it during which computation ran; the rest is exposed */
    int64_t idle;          /* neither */
    int64_t gaps;          /* stretches of exposed communication, how many */
    /* mean part of the SMs that a grid covers, by time, 0 to 1; -1: not known */
    double computation_sms, communication_sms;
    /* kernels that count as computation and are named like communication, the sum of their times,
     * and the name with the most of it. NULL: there are none. dp_trace_options_t.communication
     * makes them communication */
    int64_t likely, likely_time;
    const char *likely_name; /* borrowed until dp_trace_free() */
    /* records at time 0, long before all others, or longer than all the rest together reaches; one
     * of their names. All figures count them */
    int64_t strays;
    const char *stray_name; /* borrowed until dp_trace_free(); NULL: there are none */
} dp_trace_overlap_t;
enum { DP_TRACE_OVERLAP_MIN = DP_SIZE_TO(dp_trace_overlap_t, communication_sms) };
/** The figures of device `row`, from 0, in the order of ranks. DP_ERR_INVALID: there is no such
 * row. [any] */
DP_API DP_CHECKED dp_status_t dp_trace_overlap(const dp_trace_t *trace, int32_t row, dp_trace_overlap_t *overlap_out);

/** What dp_trace_costs_write() cannot know from the trace. The caller sets struct_size; zeros are
 * the defaults. */
typedef struct dp_trace_costs {
    uint32_t struct_size;
    int32_t layers;    /* of a chunk; 0: as many as one annotation around them holds */
    const char *title; /* what the text calls the trace; NULL: "a trace" */
    /* [annotation_count] "attention.F=REGEX": annotations of this name are that segment's pass, one
     * of attention, dispatch, mlp, combine and of F, I, W; the expression is an extended one. They
     * come before the names that are known without, such as attn(F), mlp(B), dispatch_fwd. At most
     * DP_TRACE_ANNOTATIONS */
    const char *const *annotations;
    int32_t annotation_count;
} dp_trace_costs_t;
enum { DP_TRACE_COSTS_MIN = DP_SIZE_TO(dp_trace_costs_t, annotation_count) };
#define DP_TRACE_ANNOTATIONS 16

/** Writes the costs that the trace shows, in milliseconds, as lines NAME=VALUE that `dualpipe
 * simulate --costs FILE` reads. A timeline of this library gives those of dp_costs_measure().
 * torch.distributed.pipelining gives the medians of its operations ("PP:0F3"), on the device where
 * they are there. Other traces give those of the kernels in annotated segments. An instant at which
 * kernels of several computing segments run is split evenly between them. costs may be NULL. A
 * failure of `write` is returned. DP_ERR_INVALID: an annotation that names no segment, or is no
 * expression. DP_ERR_REJECTED: no annotation is of a segment, or there is no forward. [any] */
DP_API DP_CHECKED dp_status_t dp_trace_costs_write(const dp_trace_t *trace, const dp_trace_costs_t *costs,
                                                   dp_write_fn write, void *user);

#ifdef __cplusplus
}
#endif
#endif
