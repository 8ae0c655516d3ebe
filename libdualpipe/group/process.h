/* SPDX-FileCopyrightText: The libdualpipe authors SPDX-License-Identifier: MIT process.h: a rank
 * that is a process of its own. Rank 0 is the hub: every other rank, a spoke, holds one stream
 * connection to it. A control thread owns the sockets; it and the rank's own threads share the
 * state below under one mutex.
 *
 *   process.c     the link functions, leaving
 *   enter.c       joining, and joining again after a death
 *   control.c     the control thread
 *   hub.c         what rank 0 does with connections and frames
 *   spoke.c       what the others do
 *   connection.c  what both stand on: connections, frames, pieces of collect, how death and abort
 *                 are noted
 *   process_recorders.c       flight recorders that other processes map
 *   beat.c        signs of life between hosts
 *   hang_report.c     why nobody gets on
 *   told_spans.c   the last spans of ranks of other hosts, for the trace file of a hang report
 *   status.c      what `dualpipe status` hears
 *   clocks.c      what a rank of another host knows of rank 0's clock
 *   news.c        what is known of ranks
 *   peers.c       how they hear who the others are
 *   machine.c     which processes can be seen from here */
#ifndef DP_GROUP_PROCESS_H
#define DP_GROUP_PROCESS_H

#include "group/address.h"
#include "group/ends.h"
#include "group/last_spans.h"
#include "group/recorder.h"
#include "group/secret.h"
#include "group/settings.h"

#define DP__PROTOCOL_VERSION  5
#define DP__MACHINE_BYTES     64
#define DP__HANDSHAKE_SECONDS 5.0
#define DP__GOODBYE_SECONDS   1.0 /* for the last frames of a job that has ended badly */
#define DP__DOOR_SHUT         "dualpipe run starts no more of them"
#define DP__ASKERS            8   /* that wait for a status at once */
#define DP__SILENCE_SECONDS   6.5 /* a host that nothing comes from for so long is gone */

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

typedef struct dp__machine {
    char host[DP__HOST_BYTES];
    char name[DP__MACHINE_BYTES]; /* equal where one process can see the other; "": not known */
} dp__machine_t;

/* What a rank of another host has told of itself: its flight recorder cannot be read from here. */
typedef struct dp__news {
    uint64_t sign;   /* changes when an operation begins or ends */
    int64_t sign_ns; /* when we heard of the latest change, on our clock; 0: never */
    int64_t told_ns;
    bool open; /* doing: it is in it; else it was the last it did */
    char doing[192];
} dp__news_t;

typedef struct dp__peer {
    int32_t rank;
    int32_t pid;     /* 0: not introduced yet, or not known here: see dp__peer */
    int32_t machine; /* of machines.all; -1: not known */
    uint32_t held;   /* see reform.h */
} dp__peer_t;

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

/* A GET that waits at the hub. */
typedef struct dp__waiting_get {
    struct dp__waiting_get *next;
    int32_t rank;
    uint32_t id;
    char key[DP__KV_KEY_BYTES];
} dp__waiting_get_t;

/* Finding each other: what was asked for, and how far it has come. */
typedef struct dp__joining {
    dp__address_t address;
    dp__secret_t secret;
    char *settings;
    uint8_t digest[DP__SHA256_BYTES];
    int64_t limit_ns, deadline_ns;
    dp_signal_t done;
    char trouble[256];          /* spoke: why the last attempt failed; hub: who was refused and why */
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

/* What a rank has said of itself in a hang report. */
typedef struct dp__answer {
    bool came, told_spans;
    dp__doing_t doing;
    dp__progress_t progress;
    char states[256]; /* ranks of its host that stand still, each with the letter of its state: "3T 5t" */
} dp__answer_t;

/* Only rank 0's: strangers at the door, who has come, the key-value store, the control collective
 * that is filling. */
typedef struct dp__hub {
    int listener;
    int64_t accept_again_ns;
    int32_t introduced; /* itself among them */
    int32_t told;       /* have heard the cause */
    uint32_t strangers;
    int64_t next_log_ns;
    dp__kv_t kv;
    dp__waiting_get_t *waiting_gets;
    struct {
        uint32_t number, kind, root;
        size_t bytes;
        int32_t arrived, first;
        bool *here; /* [size] */
        unsigned char *data;
        size_t room;
    } gather;
    struct {                   /* hang_report.c */
        dp__answer_t *answers; /* [size]; NULL: there is none */
        int32_t reporter;      /* -1: nobody, it is only asked */
        int32_t missing;       /* answers, ... */
        int32_t silent;        /* ... and ranks that have not told of their last spans */
        dp_status_t status;
        int64_t asked_ns, deadline_ns;
        char text[DP__CAUSE_BYTES];
    } hang_report;
    struct { /* status.c: the socket of `dualpipe status`, and who waits for an answer */
        int listener, count, askers[DP__ASKERS];
    } status;
} dp__hub_t;

/* One rank. The files own what bears their name; the mutex is for all that stands behind it. */
typedef struct dp__process {
    dp_group_t group;
    dp__cause_t cause;
    pthread_t thread;
    pthread_mutex_t mutex;
    int wake_fd;          /* eventfd */
    uint32_t interrupted; /* atomic */
    bool running;         /* there is a control thread */
    bool stop, over;      /* leave now; LEAVE was met by all */
    int64_t stop_deadline_ns;
    struct {                    /* peers.c */
        dp__peer_t self, *rows; /* hub: [size]; spoke: a row for each run of ranks that are alike, from its first one */
        int32_t count;
    } peers;
    dp__contact_t *contacts;   /* hub: [size]; spoke: [1], of rank 0 */
    dp__recorder_t *recorders; /* those of all ranks that can be read from here, newest first */
    dp__last_spans_t last;     /* hang_report.c fills it, control.c writes it */
    struct {                   /* machine.c: those that ranks run on */
        dp__machine_t *all;
        int32_t count, room;
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
        void *polls; /* struct pollfd [2 * room + 3]: the control thread's */
    } connections;
    struct { /* spoke.c */
        int64_t retry_ns;
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
} dp__process_t;

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

/* ---- hub.c; with the mutex ---- */
void dp__hub_accept(dp__process_t *p);
void dp__hub_frame(dp__process_t *p, dp__connection_t *c, const dp__frame_t *frame);
void dp__hub_lost(dp__process_t *p, dp__connection_t *c, dp_status_t status);
/* What time brings: late strangers, the join deadline. */
void dp__hub_tick(dp__process_t *p, int64_t now_ns);
/* Sends the cause to who has not got it. */
void dp__hub_spread(dp__process_t *p);
/* true when nobody waits for anything from us. */
bool dp__hub_done(const dp__process_t *p);
/* Rank `rank` comes to a control collective. */
void dp__hub_contribute(dp__process_t *p, int32_t rank, uint32_t control, uint32_t kind, uint32_t root,
                        const void *data, size_t bytes);
/* Rank `rank` wants the job to end. */
void dp__hub_abort(dp__process_t *p, int32_t rank, dp_status_t status, const char *text, uint32_t control);
void dp__hub_answer_gets(dp__process_t *p);
void dp__hub_forget_gets(dp__process_t *p);
/* Nobody comes any more: the launcher has shut its socket. */
void dp__hub_door_shut(dp__process_t *p);

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
/* For rank frame->to; ends the job when there is no memory. */
void dp__send(dp__process_t *p, const dp__frame_t *frame);
void dp__send2(dp__process_t *p, const dp__frame_t *frame, const void *first, size_t first_bytes, const void *second,
               size_t second_bytes);
void dp__answer_want(dp__process_t *p, const dp__frame_t *frame);
void dp__take_data(dp__process_t *p, const dp__frame_t *frame);
/* "rank 2 (pid 1234 on HOST)" */
void dp__peer_name(const dp__process_t *p, int32_t rank, char *text, size_t bytes);
/* Rank `rank` is gone though it did not leave: that is the cause. error: what the connection said; 0: end of file. */
void dp__peer_died(dp__process_t *p, int32_t rank, int error);
/* This rank wants the job to end. */
void dp__propose(dp__process_t *p, dp_status_t status, const char *text, uint32_t control);

/* ---- beat.c; with the mutex ---- */
/* Tells ranks of other hosts that we live and what we do, and ends the job when a host has been silent for too long. */
void dp__beat_tick(dp__process_t *p, int64_t now_ns);

/* ---- hang_report.c; with the mutex ---- */
/* Somebody has waited too long, which is to end the job. false: then with that text. */
bool dp__hang_report_open(dp__process_t *p, int32_t reporter, dp_status_t status, const char *text);
bool dp__hang_report_hear(dp__process_t *p, int32_t rank, const dp__frame_t *frame);
/* All have answered, or those that will; dp__hang_report_conclude follows. */
bool dp__hang_report_over(dp__process_t *p, int64_t now_ns);
void dp__hang_report_conclude(dp__process_t *p);
void dp__hang_report_end(dp__process_t *p);
/* A rank has gone while it was on: it gave up, and did not die. false: there is none. */
bool dp__hang_report_left(dp__process_t *p);
/* Rank 0 itself does not answer one that has waited too long. */
void dp__hang_report_without_hub(dp__process_t *p, dp_status_t status, const char *text);
/* A rank other than 0 was asked; spans: for its last spans, too. */
void dp__hang_report_tell(dp__process_t *p, bool spans);
/* All are asked, and nothing ends: dp__status_answer follows. false: not now. */
bool dp__hang_report_ask(dp__process_t *p);
/* "is in step 3: ..., waits for rank 2", of a rank that has answered or not. */
void dp__hang_report_describe(dp__process_t *p, int32_t rank, char *text, size_t bytes);

/* ---- told_spans.c; with the mutex ---- */
/* Our last spans, and those of ranks of this host that cannot answer: how many bytes; *bytes_out is for dp__free, NULL
 * when there is nothing to tell or no memory for it. */
size_t dp__told_spans_write(dp__process_t *p, unsigned char **bytes_out);
/* Into p->last. false: no rank of this job would say that. */
bool dp__told_spans_read(dp__process_t *p, int32_t rank, const unsigned char *at, const unsigned char *end);

/* ---- status.c; with the mutex; rank 0's ---- */
void dp__status_open(dp__process_t *p);
void dp__status_close(dp__process_t *p);
void dp__status_accept(dp__process_t *p);
/* By what was said in a hang report that is over. */
void dp__status_answer(dp__process_t *p);

/* ---- clocks.c ---- */
/* With the mutex: asks rank 0 for its time; its answer; and what rank 0 says to that question. false: no rank of this
 * job would say that. */
void dp__clock_ask(dp__process_t *p);
bool dp__clock_hear(dp__process_t *p, const dp__frame_t *frame);
bool dp__clock_answer(dp__process_t *p, int32_t rank, const dp__frame_t *frame);
dp_status_t dp__process_clock(dp_group_t *group, int64_t since_ns, dp__clock_sample_t *samples_out, size_t *count_out);

/* ---- news.c; with the mutex ---- */
#define DP__NOBODY_YET UINT64_MAX /* in place of a time */
/* A beat of rank `rank`. false: no rank of this job would say that. */
bool dp__news_hear(dp__process_t *p, int32_t rank, const dp__frame_t *frame);
/* The latest moment, on our clock, at which an operation of any rank is known to have begun or ended; 0: none is. */
int64_t dp__news_latest(const dp__process_t *p);
/* " in step 3: ..." or " after step 3: ...": what rank `rank` is or was doing, by its flight
 * recorder or its own words; "". */
void dp__news_doing(const dp__process_t *p, int32_t rank, char *text, size_t bytes);

/* ---- peers.c ---- */
/* Knows this rank alone. */
dp_status_t dp__peers_open(dp__process_t *p);
/* What rank 0 tells the others when all have come: how many bytes; *bytes_out is for dp__free, NULL when there is no
 * memory. */
size_t dp__peers_write(const dp__process_t *p, unsigned char **bytes_out);
/* DP_ERR_PROTOCOL: no rank 0 would say that. */
dp_status_t dp__peers_read(dp__process_t *p, const unsigned char *at, const unsigned char *end);

/* ---- machine.c ---- */
/* Any rank of the job. The process of another one is known to rank 0 alone, and rank 0's to all;
 * dp__stands_still finds those of this host by their flight recorders. */
dp__peer_t dp__peer(const dp__process_t *p, int32_t rank);
/* All but ourselves. */
void dp__peers_forget(dp__process_t *p);
/* This boot of this machine, and this name space of process numbers; "" when the system does not say. */
void dp__machine_name(char name[DP__MACHINE_BYTES]);
/* The number of that machine in the table, where it is put if need be; -1: no memory. */
int32_t dp__machine_add(dp__process_t *p, const char *host, const char *name);
/* true when this process can see that of the rank. */
bool dp__is_near(const dp__process_t *p, int32_t rank);
bool dp__same_machine(const dp__process_t *p, int32_t a, int32_t b);
/* How they are told apart; NULL: they are one. */
const char *dp__machines_apart(const dp__process_t *p, int32_t a, int32_t b);
const char *dp__host_of(const dp__process_t *p, int32_t rank);
/* '\0': it runs or sleeps; else the letter of its state, of a process of this host: 'T' it is stopped. */
char dp__stands_still(const dp__process_t *p, int32_t rank);
/* From now on the end of that rank's process is seen even when its connection stays open (a child may hold it). */
void dp__watch_process(const dp__process_t *p, dp__connection_t *c, int32_t rank);

/* ---- process_recorders.c ---- */
dp_status_t dp__process_recorder(dp_group_t *group, uint32_t capacity, dp_span_t **records_out);
void dp__process_close_recorder(dp_group_t *group, const dp_span_t *records);
void dp__process_name_spans(dp_group_t *group, uint16_t name, const char *text);
void dp__process_free_recorders(dp__process_t *p);
/* Those of other ranks. */
void dp__process_forget_recorders(dp__process_t *p);

#endif
