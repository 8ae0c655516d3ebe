/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_read.h: the events of a Chrome trace, one after the other, whatever the size of the file.
 *
 * Both forms are read: an object with "traceEvents", and a plain array of events. Keys that are not listed here are
 * passed over. Format: Trace Event Format,
 * https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU */
#ifndef DP_TOOLS_TRACE_READ_H
#define DP_TOOLS_TRACE_READ_H

#include "trace_json.h"

#define TRACE_NAME_BYTES 2048 /* of an event's name; longer ones are cut */
#define TRACE_ID_BYTES   64   /* of a process or thread, and of short values */

/* args of a span of ours. */
enum { TRACE_STEP, TRACE_MICROBATCH, TRACE_CHUNK, TRACE_STAGE, TRACE_SEGMENT, TRACE_PAIR, TRACE_BUSY, TRACE_DETAILS };

/* Where a value stands in the kept bytes of its event; bytes 0: it is not there. */
typedef struct trace_place {
    size_t at, bytes;
} trace_place_t;

typedef struct trace_event {
    uint64_t offset; /* of its first byte in the file */
    char phase;      /* 'X', 'M', ...; 0: none */
    bool pid_is_text, id_is_text, has_start, has_length;
    int64_t start_ns, length_ns;
    int64_t stream, correlation;    /* args of a kernel; -1: not there */
    uint64_t blocks;                /* product of args.grid; 0: not there */
    int32_t details[TRACE_DETAILS]; /* -1: not there */
    trace_place_t pid_place, id_place, start_place;
    const char *kept; /* the event as written; NULL unless asked for */
    size_t kept_bytes;
    char name[TRACE_NAME_BYTES], category[TRACE_ID_BYTES];             /* "": not there */
    char pid[TRACE_ID_BYTES], tid[TRACE_ID_BYTES], id[TRACE_ID_BYTES]; /* numbers as written */
    char label[TRACE_ID_BYTES];                                        /* args.name, of metadata */
} trace_event_t;

/* What stands around the events. */
typedef struct trace_head {
    int64_t rank, world, sms; /* distributedInfo, numSms of the first device; -1: not there */
    int64_t base_ns;          /* baseTimeNanoseconds: what times count from; 0: not there */
    uint64_t events, bytes;
    bool unclosed; /* the array of events ended with the file */
} trace_head_t;

/* A failure ends the reading and is returned. */
typedef dp_status_t (*trace_event_fn)(void *user, const trace_event_t *event);

/* Reads all of it. Messages begin with the path. DP_ERR_REJECTED: not a trace. keep: the text of every event is
   wanted. */
dp_status_t trace_read_file(const char *path, bool keep, trace_event_fn on_event, void *user, trace_head_t *head_out);
/* The same from anywhere; messages begin with the byte. */
dp_status_t trace_read(json_read_fn read, void *source, bool keep, trace_event_fn on_event, void *user,
                       trace_head_t *head_out);

#endif
