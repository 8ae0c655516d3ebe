/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * peers.h: who the ranks are, on which machine each one runs, and what is known of it. */
#ifndef DP_GROUP_PEERS_H
#define DP_GROUP_PEERS_H

#include "group/connection.h"

#define DP__MACHINE_BYTES 64

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

/* "rank 2 (pid 1234 on HOST)" */
void dp__peer_name(const dp__process_t *p, int32_t rank, char *text, size_t bytes);
/* Rank `rank` is gone though it did not leave: that is the cause. error: what the connection said;
 * 0: end of file. */
void dp__peer_died(dp__process_t *p, int32_t rank, int error);

/* ---- news.c; with the mutex ---- */
#define DP__NOBODY_YET UINT64_MAX /* in place of a time */

/* A beat of rank `rank`. false: no rank of this job would say that. */
bool dp__news_hear(dp__process_t *p, int32_t rank, const dp__frame_t *frame);
/* The latest moment, on our clock, at which an operation of any rank is known to have begun or
 * ended; 0: none is. */
int64_t dp__news_latest(const dp__process_t *p);
/* "step 3: ...": what rank `rank` is or was doing, as far as is known; "". */
void dp__news_describe(const dp__process_t *p, int32_t rank, char *text, size_t bytes);
/* " in step 3: ..." or " after step 3: ...": what rank `rank` is or was doing, by its flight
 * recorder or its own words; "". */
void dp__news_doing(const dp__process_t *p, int32_t rank, char *text, size_t bytes);

/* ---- peers.c ---- */
/* Knows this rank alone. */
dp_status_t dp__peers_open(dp__process_t *p);
/* What rank 0 tells the others when all have come: how many bytes; *bytes_out is for dp__free, NULL
 * when there is no memory. */
size_t dp__peers_write(const dp__process_t *p, unsigned char **bytes_out);
/* DP_ERR_PROTOCOL: no rank 0 would say that. */
dp_status_t dp__peers_read(dp__process_t *p, const unsigned char *at, const unsigned char *end);

/* ---- machine.c ---- */
/* Any rank of the job. The process of another one is known to rank 0 alone, and rank 0's to all;
 * dp__stands_still finds those of this host by their flight recorders. */
dp__peer_t dp__peer(const dp__process_t *p, int32_t rank);
/* All but ourselves. */
void dp__peers_forget(dp__process_t *p);
/* This boot of this machine, and this name space of process numbers; "" when the system does not
 * say. */
void dp__machine_name(char name[DP__MACHINE_BYTES]);
/* The number of that machine in the table, where it is put if need be; -1: no memory. */
int32_t dp__machine_add(dp__process_t *p, const char *host, const char *name);
/* true when this process can see that of the rank. */
bool dp__is_near(const dp__process_t *p, int32_t rank);
bool dp__same_machine(const dp__process_t *p, int32_t a, int32_t b);
/* How they are told apart; NULL: they are one. */
const char *dp__machines_apart(const dp__process_t *p, int32_t a, int32_t b);
const char *dp__host_of(const dp__process_t *p, int32_t rank);
/* '\0': it runs or sleeps; else the letter of its state, of a process of this host: 'T' it is
 * stopped. */
char dp__stands_still(const dp__process_t *p, int32_t rank);
/* Whether a debugger holds that process of this host. */
bool dp__process_traced(int32_t pid);
/* The process of a rank; 0: not known here. */
int32_t dp__process_number(const dp__process_t *p, int32_t rank);
/* The letter of a process of this host; '\0': there is none. */
char dp__process_state(int32_t pid);
/* Whether that process, of a table of before, is one of this host. */
bool dp__same_place(const dp__process_t *p, const dp__peer_t *peer);
/* From now on the end of that rank's process is seen even when its connection stays open (a child
 * may hold it). */
void dp__watch_process(const dp__process_t *p, dp__connection_t *c, int32_t rank);

#endif
