/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * process.h: a rank that is a separate process. Rank 0 is the hub: every other rank, a spoke, holds
 * one stream connection to it. A control thread owns the sockets; it and the rank's own threads
 * share the state below under one mutex.
 *
 *   process.c            the link functions, leaving
 *   enter.c              joining, and joining again after a death
 *   control.c            the control thread
 *   hub.c                what rank 0 does with connections and frames
 *   spoke.c              what the others do
 *   connection.c         connections, frames, parts of collect, how death and abort are noted
 *   process_recorders.c  flight recorders that other processes map
 *   beat.c               signs of life between hosts
 *   hang_report.c        why no rank makes progress
 *   told_spans.c         the last spans of ranks of other hosts, for the trace of a hang report
 *   status.c             what `dualpipe status` hears
 *   clocks.c             what a rank of another host knows of rank 0's clock
 *   news.c               what is known of ranks
 *   peers.c              how they hear who the others are
 *   machine.c            which processes can be seen from here */
#ifndef DP_GROUP_PROCESS_H
#define DP_GROUP_PROCESS_H

#include "group/address.h"
#include "group/ends.h"
#include "group/hub.h"
#include "group/last_spans.h"
#include "group/peers.h"
#include "group/secret.h"
#include "group/settings.h"

#define DP__PROTOCOL_VERSION 6

/* Whom this rank talks to: rank 0 to all, the others to rank 0. */
typedef struct dp__contact {
    dp__connection_t *connection; /* hub */
    dp__news_t *news;             /* NULL: nothing was told */
} dp__contact_t;

/* A PUT or GET of one of the rank's threads, on that thread's stack. */
typedef struct dp__request {
    struct dp__request *next;
    uint32_t id;
    dp_signal_t done;
    void *data;
    size_t bytes;
    dp_status_t status;
    char message[256];
} dp__request_t;

/* Finding each other: what was asked for, and how far it has come. */
typedef struct dp__joining {
    dp__address_t address;
    dp__secret_t secret;
    char *settings;
    uint8_t digest[DP__SHA256_BYTES];
    int64_t limit_ns, deadline_ns;
    dp_signal_t done;
    /* spoke: why the last attempt failed; hub: who was refused and why */
    char trouble[256];
    char lost[DP__CAUSE_BYTES]; /* why we join again; "": for the first time */
    dp__ends_t ends;            /* of the launcher's job, where that is the one that we join */
} dp__joining_t;

/* The end of the job that this rank asks for, with its cause. */
typedef struct dp__proposal {
    bool made, sent;
    dp_status_t status;
    uint32_t control;
    int64_t deadline_ns;
    char text[DP__CAUSE_BYTES];
} dp__proposal_t;

/* The control collective this rank is in. */
typedef struct dp__collective {
    uint32_t number;  /* from 1 */
    dp_signal_t over; /* the last one that is over */
    void *all_out;
    size_t bytes, received;
} dp__collective_t;

/* A collect: what the root may ask this rank for, and what the root is asking for. */
typedef struct dp__collecting {
    const void *offered;
    size_t offered_bytes;
    uint32_t offered_in; /* the control collective that told the lengths */
    void *pulled;
    uint32_t pulled_in;
    int32_t pulled_from;
    size_t pulled_bytes;
    dp_signal_t pulled_chunks;
} dp__collecting_t;

/* One rank. The files own what bears their name; the mutex is for all that stands behind it. */
struct dp__process {
    dp_group_t group;
    dp__cause_t cause;
    pthread_t thread;
    pthread_mutex_t mutex;
    int wake_fd;          /* eventfd */
    uint32_t interrupted; /* atomic */
    bool running;         /* there is a control thread */
    bool stop, over;      /* leave now; LEAVE was met by all */
    int64_t stop_deadline_ns;
    struct { /* peers.c */
        /* hub: [size]; spoke: a row for each run of ranks that are alike, from its first one */
        dp__peer_t self, *rows;
        int32_t count;
    } peers;
    dp__contact_t *contacts;   /* hub: [size]; spoke: [1], of rank 0 */
    dp__recorder_t *recorders; /* those of all ranks that can be read from here, newest first */
    dp__last_spans_t last;     /* hang_report.c fills it, control.c writes it */
    struct {                   /* machine.c: those that ranks run on */
        dp__machine_t *all;
        int32_t count;
        uint32_t room;
    } machines;

    dp__joining_t join;       /* process.c, hub.c, spoke.c */
    dp__proposal_t proposal;  /* connection.c makes it, control.c sends it */
    dp__collective_t control; /* process.c */
    dp__collecting_t collect; /* process.c, connection.c */
    struct {                  /* process.c: PUT and GET of this rank's threads */
        uint32_t last;
        dp__request_t *open;
    } requests;
    struct { /* connection.c: all of the hub's, the one of a spoke */
        dp__connection_t **all;
        size_t count, room;
        struct pollfd *polls; /* [2 * room + 3]: the control thread's */
    } connections;
    struct { /* spoke.c */
        int64_t retry_ns;
        int64_t answered_ns; /* joining again: when rank 0's host last answered at all */
        int32_t retries;
    } spoke;
    struct {             /* beat.c */
        int64_t next_ns; /* INT64_MAX: nobody is told anything */
        int64_t looked_ns;
        int64_t job_sign_ns; /* spoke: the latest sign of life of any rank, as rank 0 tells */
    } beat;
    struct {                         /* clocks.c: of a spoke on another host than rank 0's */
        dp__clock_sample_t *samples; /* [DP__CLOCK_SAMPLES] a ring */
        uint32_t count;              /* ever taken */
        dp_signal_t answers;
    } clock;
    dp__hub_t hub; /* hub.c */
};

static inline dp__process_t *dp__process_of(const dp_group_t *group)
{
    return (dp__process_t *)group; /* its first member */
}

static inline bool dp__is_hub(const dp__process_t *p)
{
    return p->group.rank == 0;
}

/* NULL where this rank does not talk to that one. */
static inline dp__contact_t *dp__contact(const dp__process_t *p, int32_t rank)
{
    return dp__is_hub(p) || rank == 0 ? &p->contacts[rank] : NULL;
}

/* ---- control.c ---- */
dp_status_t dp__control_start(dp__process_t *p);
/* Ends the control thread, once it has said what is to be said. */
void dp__control_stop(dp__process_t *p);

/* ---- enter.c ---- */
dp_status_t dp__process_enter(const dp_group_options_t *options, const dp__group_link_t *link, dp_group_t **group_out);
dp_status_t dp__process_reform(dp_group_t *group);
void dp__process_free(dp__process_t *p);

/* Why the launcher has shut its socket: "dualpipe run starts no more of them: rank 3 exited with
 * status 1". */
void dp__door_text(dp__process_t *p, char *text, size_t bytes);

/* ---- process_recorders.c ---- */
dp_status_t dp__process_recorder(dp_group_t *group, uint32_t capacity, dp_span_t **records_out);
void dp__process_close_recorder(dp_group_t *group, const dp_span_t *records);
void dp__process_name_spans(dp_group_t *group, uint16_t name, const char *text);
/* All but those of rank `but`. */
void dp__process_forget_recorders(dp__process_t *p, int32_t but);

#endif
