/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * hub.h: what rank 0 alone has: the key-value store, control collectives, hang reports. */
#ifndef DP_GROUP_HUB_H
#define DP_GROUP_HUB_H

#include "group/connection.h"
#include "group/hang_report.h"
#include "group/pace.h"
#include "group/peers.h"

/* A GET that waits at the hub. */
typedef struct dp__waiting_get {
    struct dp__waiting_get *next;
    int32_t rank;
    uint32_t id;
    char key[DP__KV_KEY_BYTES];
} dp__waiting_get_t;

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
        uint32_t number;
        dp__control_t control; /* as whoever came first said */
        int32_t arrived;
        bool *here; /* [size] */
        unsigned char *data;
        size_t room;
    } gather;
    dp__hang_report_t hang_report;
    dp__step_calls_t *said; /* [size] of steps */
    dp__pace_t *paces;      /* [size] */
    int32_t straggler;      /* 0: none, else 1 more than its rank */
    /* joining again: [size] who lived when it began, pid 0: not; and open connections of then, 0:
     * none, else 1 + the descriptor */
    dp__peer_t *before;
    int *guards;
    /* status.c: the socket of `dualpipe status`, and who waits for an answer */
    struct {
        int listener, count, askers[DP__ASKERS];
    } status;
} dp__hub_t;

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
/* Rank `rank` begins a step. false: no rank of this job would say that. */
bool dp__hub_hear_step(dp__process_t *p, int32_t rank, const dp__step_call_t *call);
void dp__hub_answer_gets(dp__process_t *p);
void dp__hub_forget_gets(dp__process_t *p);
/* Before all are forgotten: who lives, to tell the late from the dead when ranks join again. */
void dp__hub_remember(dp__process_t *p);
void dp__hub_drop_guards(dp__process_t *p);
/* Nobody comes any more: the launcher has shut its socket. */
void dp__hub_door_shut(dp__process_t *p);

#endif
