/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * connection.h: connections between ranks that are processes: frames, beats, clocks, and what a
 * spoke does. */
#ifndef DP_GROUP_CONNECTION_H
#define DP_GROUP_CONNECTION_H

#include "group/group.h"
#include "group/secret.h"
#include "group/wire.h"

#define DP__HANDSHAKE_SECONDS 5.0

#define DP__GOODBYE_SECONDS 1.0 /* for the last frames of a job that has ended badly */

#define DP__SILENCE_SECONDS 6.5 /* a host that nothing comes from for so long is gone */

typedef enum dp__phase {
    DP__PHASE_CONNECTING = 0, /* spoke: no connection yet */
    DP__PHASE_HELLO = 1,      /* hub: nothing was heard; spoke: HELLO is out */
    DP__PHASE_PROOF = 2,      /* hub: CHALLENGE is out; spoke: PROOF is out */
    DP__PHASE_WELCOME = 3,    /* proved; hub waits for INTRODUCE, spoke for the others to come */
    DP__PHASE_JOINED = 4,     /* hub: introduced; spoke: READY has come */
    DP__PHASE_GONE = 5        /* to be dropped */
} dp__phase_t;

typedef struct dp__connection {
    dp__wire_t wire;
    int pid_fd; /* of the process on the other side when it can be watched: -1 otherwise */
    dp__phase_t phase;
    int32_t rank;        /* of the other side; -1: not known */
    int64_t deadline_ns; /* of the phase; INT64_MAX: none */
    bool closing;        /* drop it once everything is sent */
    bool cause_sent, cause_seen;
    bool gave_up;     /* it wants the job to end: when it goes it has not died */
    int64_t heard_ns; /* when bytes last came; beat.c */
    uint64_t heard_bytes;
    dp__transcript_t transcript;
    char from[64];
} dp__connection_t;

/* One of a handshake; over a slow line each answer takes its time. */
static inline void dp__enter_phase(dp__connection_t *c, dp__phase_t phase)
{
    c->phase = phase;
    c->deadline_ns = dp__now_ns() + dp__scaled_ns(DP__HANDSHAKE_SECONDS);
}

/* ---- spoke.c; with the mutex ---- */
void dp__spoke_tick(dp__process_t *p, int64_t now_ns);
/* The socket can be written to while connecting. */
void dp__spoke_connected(dp__process_t *p, dp__connection_t *c);
void dp__spoke_frame(dp__process_t *p, dp__connection_t *c, const dp__frame_t *frame);
void dp__spoke_lost(dp__process_t *p, dp__connection_t *c, dp_status_t status);

/* ---- connection.c; with the mutex ---- */
/* Has the control thread look around. Without the mutex; async-signal-safe. */
void dp__process_wake(dp__process_t *p);
/* A spoke's connection to rank 0; NULL while there is none. */
dp__connection_t *dp__hub_connection(const dp__process_t *p);
dp__connection_t *dp__connection_new(dp__process_t *p, int fd);
void dp__connection_drop(dp__process_t *p, dp__connection_t *c);
/* Small frames at once. The kernel finds out that a host is gone, too, but later than beat.c. */
void dp__watch_host(int fd);
/* For rank frame->to, with the number of the rank that sends it; rank 0 also passes frames on. Ends
 * the job when there is no memory. */
void dp__send(dp__process_t *p, const dp__frame_t *frame);
void dp__send2(dp__process_t *p, const dp__frame_t *frame, const void *first, size_t first_bytes, const void *second,
               size_t second_bytes);
void dp__answer_want(dp__process_t *p, const dp__frame_t *frame);
void dp__take_data(dp__process_t *p, const dp__frame_t *frame);
/* This rank wants the job to end. */
void dp__propose(dp__process_t *p, dp_status_t status, const char *text, uint32_t control);

/* ---- beat.c; with the mutex ---- */
/* Tells ranks of other hosts that we live and what we do, and ends the job when a host has been
 * silent for too long. */
void dp__beat_tick(dp__process_t *p, int64_t now_ns);

/* ---- clocks.c ---- */
/* With the mutex: asks rank 0 for its time; its answer; and what rank 0 says to that question.
 * false: no rank of this job would say that. */
void dp__clock_ask(dp__process_t *p);
bool dp__clock_hear(dp__process_t *p, const dp__frame_t *frame);
bool dp__clock_answer(dp__process_t *p, int32_t rank, const dp__frame_t *frame);
dp_status_t dp__process_clock(dp_group_t *group, int64_t since_ns, dp__clock_sample_t *samples_out, size_t *count_out);

#endif
