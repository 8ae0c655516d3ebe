/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * dp__trace_read.h: the events of a Chrome trace, one after the other, whatever the size of the
 * file.
 *
 * Both forms are read: an object with "traceEvents", and a plain array of events. Keys that are not
 * listed here are passed over. Format: Trace Event Format,
 * https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU */
#ifndef DP_TRACE_READ_H
#define DP_TRACE_READ_H

#include "trace/json.h"

#define DP__TRACE_NAME_BYTES 2048 /* of an event's name; longer ones are cut */
#define DP__TRACE_ID_BYTES   64   /* of a process or thread, and of short values */

/* args of a span of ours. */
enum {
    DP__TRACE_STEP,
    DP__TRACE_MICROBATCH,
    DP__TRACE_CHUNK,
    DP__TRACE_STAGE,
    DP__TRACE_SEGMENT,
    DP__TRACE_PAIR,
    DP__TRACE_BUSY,
    DP__TRACE_DETAILS
};

/* Where a value stands in the kept bytes of its event; bytes 0: it is not there. */
typedef struct dp__trace_place {
    size_t at, bytes;
} dp__trace_place_t;

typedef struct dp__trace_event {
    uint64_t offset; /* of its first byte in the file */
    char phase;      /* 'X', 'M', ...; 0: none */
    bool pid_is_text, id_is_text, has_start, has_length;
    const char *broken; /* why its times cannot be; NULL: they can */
    int64_t start_ns, length_ns;
    int64_t stream, correlation;        /* args of a kernel; -1: not there */
    uint64_t blocks;                    /* product of args.grid; 0: not there */
    int32_t details[DP__TRACE_DETAILS]; /* -1: not there */
    dp__trace_place_t pid_place, id_place, start_place;
    const char *kept; /* the event as written; NULL unless asked for */
    size_t kept_bytes;
    char name[DP__TRACE_NAME_BYTES], category[DP__TRACE_ID_BYTES]; /* "": not there */
    /* numbers as written */
    char pid[DP__TRACE_ID_BYTES], tid[DP__TRACE_ID_BYTES], id[DP__TRACE_ID_BYTES];
    /* args.name, of metadata; args."Task Type", of a record of an NPU */
    char label[DP__TRACE_ID_BYTES], task[DP__TRACE_ID_BYTES];
} dp__trace_event_t;

/* What stands around the events. */
typedef struct dp__trace_head {
    int64_t rank, world, sms; /* distributedInfo, numSms of the first device; -1: not there */
    int64_t base_ns;          /* baseTimeNanoseconds: what times count from; 0: not there */
    uint64_t events, bytes;
    bool unclosed; /* the array of events ended with the file */
    /* events whose times cannot be, and what is wrong with the first; kept: of a device, or
     * annotations. dp__trace_note_broken() counts them */
    uint64_t broken, broken_kept, broken_at;
    const char *broken_why;
} dp__trace_head_t;

/* A failure ends the reading and is returned. */
typedef dp_status_t (*dp__trace_event_fn)(void *user, const dp__trace_event_t *event);

/* An event that its reader left out. The first one that would have been kept is the one named. */
void dp__trace_note_broken(dp__trace_head_t *head, const dp__trace_event_t *event, bool kept);

/* Reads all; messages begin with the byte. DP_ERR_REJECTED: no trace. keep: keep event texts. */
dp_status_t dp__trace_read(dp_read_fn read, void *source, bool keep, dp__trace_event_fn on_event, void *user,
                           dp__trace_head_t *head_out);

#endif
