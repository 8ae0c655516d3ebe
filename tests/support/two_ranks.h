/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * two_ranks.h: rank 0 and other ranks of a job as plain data, without threads, listeners and
 * clocks: what one side has to send is carried to the other by hand, so that a test can look at it
 * or spoil it. */
#ifndef DP_TESTS_TWO_RANKS_H
#define DP_TESTS_TWO_RANKS_H

#include "base/memory.h"
#include "group/process.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TWO_RANKS_SECRET "a secret of more than 16 bytes"

static inline void two_require(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "two_ranks.h: %s\n", what);
        abort();
    }
}

static inline dp__process_t *two_open(int32_t rank, int32_t size)
{
    static const dp__group_link_t no_link;
    dp__process_t *p = dp__calloc(1, sizeof(*p));

    two_require(p != NULL, "no memory");
    pthread_mutex_init(&p->mutex, NULL);
    dp__kv_init(&p->hub.kv);
    dp__group_init(&p->group, rank, size, INT64_MAX, &p->cause, &no_link);
    p->wake_fd = p->hub.listener = p->hub.status.listener = -1;
    p->connections.room = 2 * (size_t)size + 2;
    p->peers.rows = dp__calloc((size_t)size, sizeof(p->peers.rows[0]));
    p->join.settings = dp__calloc(1, 32);
    two_require(dp__arrays(DP__ARRAY(p->connections.all, p->connections.room), DP__ARRAY(p->contacts, size),
                           DP__ARRAY(p->hub.gather.here, size), DP__ARRAY(p->hub.said, size),
                           DP__ARRAY(p->hub.paces, size)) &&
                    p->peers.rows != NULL && p->join.settings != NULL,
                "no memory");
    snprintf(p->join.settings, 32, "job=\n");
    p->peers.count = rank == 0 ? size : 0;
    dp__peers_forget(p);
    p->peers.self = (dp__peer_t){rank, 100 + rank, dp__machine_add(p, "host", rank == 0 ? "here" : "there"),
                                 0}; /* so nobody looks for pids */
    p->hub.gather.number = 1;
    p->hub.introduced = 1;
    p->join.deadline_ns = INT64_MAX;
    p->join.secret.bytes = strlen(TWO_RANKS_SECRET);
    memcpy(p->join.secret.data, TWO_RANKS_SECRET, p->join.secret.bytes);
    return p;
}

static inline void two_close(dp__process_t *p)
{
    dp__process_free(p);
}

/* A connection between both, at the moment at which rank 0 has taken it in and the other has said
 * hello. */
static inline void two_connect(dp__process_t *hub, dp__process_t *spoke, dp__connection_t **at_hub_out,
                               dp__connection_t **at_spoke_out)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(at);
    const int door = socket(AF_INET, SOCK_STREAM, 0), caller = socket(AF_INET, SOCK_STREAM, 0);
    int taken;

    two_require(bind(door, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(door, 1) == 0 &&
                    getsockname(door, (struct sockaddr *)&at, &bytes) == 0 &&
                    connect(caller, (struct sockaddr *)&at, sizeof(at)) == 0 && fcntl(caller, F_SETFL, O_NONBLOCK) == 0,
                "no connection");
    taken = accept4(door, NULL, NULL, SOCK_NONBLOCK);
    close(door);
    /* closing leaves nothing behind, however often a test does it */
    (void)setsockopt(caller, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    *at_hub_out = taken < 0 ? NULL : dp__connection_new(hub, taken);
    *at_spoke_out = dp__connection_new(spoke, caller);
    two_require(*at_hub_out != NULL && *at_spoke_out != NULL, "no connection");
    (*at_hub_out)->phase = DP__PHASE_HELLO;
    (*at_hub_out)->deadline_ns = (*at_spoke_out)->deadline_ns = INT64_MAX;
    dp__spoke_connected(spoke, *at_spoke_out);
}

/* Takes what has come, as the control thread does. */
static inline void two_receive(dp__process_t *p, dp__connection_t *c)
{
    while (c->phase != DP__PHASE_GONE && !c->closing) {
        dp__frame_t frame;
        const dp_status_t status = dp__wire_receive(&c->wire, &frame);

        if (status == DP_PENDING)
            return;
        if (status == DP_OK) {
            (dp__is_hub(p) ? dp__hub_frame : dp__spoke_frame)(p, c, &frame);
            continue;
        }
        (dp__is_hub(p) ? dp__hub_lost : dp__spoke_lost)(p, c, status);
        c->phase = DP__PHASE_GONE;
    }
}

#endif
