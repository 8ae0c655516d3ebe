/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * connection.c: what hub and spokes stand on: connections and frames, and how the end of a job is
 * noted. */
#include "base/memory.h"
#include "group/process.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- connections ---- */

void dp__process_wake(dp__process_t *p)
{
    int saved = errno;
    uint64_t one = 1;
    ssize_t n = write(p->wake_fd, &one, sizeof(one)); /* full means that it is awake anyway */

    (void)n;
    errno = saved;
}

dp__connection_t *dp__hub_connection(const dp__process_t *p)
{
    return p->connections.count > 0 ? p->connections.all[0] : NULL;
}

dp__connection_t *dp__connection_new(dp__process_t *p, int fd)
{
    dp__connection_t *c = p->connections.count < p->connections.room ? dp__calloc(1, sizeof(*c)) : NULL;

    if (c == NULL)
        return NULL;
    dp__wire_init(&c->wire, fd);
    c->pid_fd = -1;
    c->rank = -1;
    c->deadline_ns = INT64_MAX;
    c->heard_ns = dp__now_ns();
    p->connections.all[p->connections.count++] = c;
    return c;
}

void dp__connection_drop(dp__process_t *p, dp__connection_t *c)
{
    for (size_t i = 0; i < p->connections.count; i++)
        if (p->connections.all[i] == c) {
            memmove(&p->connections.all[i], &p->connections.all[i + 1],
                    (p->connections.count - i - 1) * sizeof(p->connections.all[0]));
            p->connections.count--;
            break;
        }
    if (c->rank >= 0 && p->contacts[c->rank].connection == c)
        p->contacts[c->rank].connection = NULL;
    if (c->pid_fd >= 0)
        close(c->pid_fd);
    dp__wire_fini(&c->wire);
    dp__free(c);
}

void dp__watch_host(int fd)
{
    int on = 1, idle = 5, interval = 5, count = 3, limit_ms = 20000;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof(limit_ms));
    /* what was lost is sent again soon: twice as late each time would look like silence */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &on, sizeof(on));
}

void dp__send2(dp__process_t *p, const dp__frame_t *frame, const void *first, size_t first_bytes, const void *second,
               size_t second_bytes)
{
    dp__connection_t *c = dp__is_hub(p) ? p->contacts[frame->to].connection : dp__hub_connection(p);
    dp__frame_t own = *frame;

    if (c == NULL || c->phase == DP__PHASE_GONE || c->closing)
        return; /* whoever is gone is dealt with elsewhere */
    if (!dp__is_hub(p) && c->wire.sealed)
        own.from = p->group.rank;
    if (!dp__wire_send2(&c->wire, &own, first, first_bytes, second, second_bytes))
        dp__cause_set(&p->cause, DP_ERR_NOMEM, "rank %d: no memory for a message to rank %d", p->group.rank, frame->to);
}

void dp__send(dp__process_t *p, const dp__frame_t *frame)
{
    dp__send2(p, frame, frame->payload, frame->bytes, NULL, 0);
}

/* ---- who died ---- */

void dp__peer_name(const dp__process_t *p, int32_t rank, char *text, size_t bytes)
{
    const dp__peer_t peer = dp__peer(p, rank);

    if (peer.pid != 0)
        snprintf(text, bytes, "rank %d (pid %d on %s)", rank, peer.pid, dp__host_of(p, rank));
    else
        snprintf(text, bytes, "rank %d", rank);
}

void dp__peer_died(dp__process_t *p, int32_t rank, int error)
{
    bool joining = dp__signal_value(&p->join.done) == 0,
         unreachable = error != 0 && error != ECONNRESET && error != EPIPE;
    char name[128], doing[320];

    dp__peer_name(p, rank, name, sizeof(name));
    dp__news_doing(p, rank, doing, sizeof(doing));
    if (unreachable) /* whether it lives nobody knows */
        dp__cause_set_final(&p->cause, DP_ERR_PEER, "%s is out of reach: %s%s%s", name, strerror(error),
                            doing[0] != '\0' ? "; it was last heard of" : "", doing);
    else
        dp__cause_set(&p->cause, DP_ERR_PEER, "%s died%s", name,
                      doing[0] == '\0' && joining ? " while the ranks were joining" : doing);
    dp__news_describe(p, rank, doing, sizeof(doing));
    if (!unreachable)
        dp__ends_tell(&p->join.ends, "died", rank, dp__peer(p, rank).pid, doing);
}

void dp__door_text(dp__process_t *p, char *text, size_t bytes)
{
    char why[512];
    const bool told = dp__ends_next(&p->join.ends, why, sizeof(why));

    snprintf(text, bytes, "dualpipe run starts no more of them%s%s", told ? ": " : "", told ? why : "");
}

void dp__propose(dp__process_t *p, dp_status_t status, const char *text, uint32_t control)
{
    if (p->proposal.made)
        return;
    p->proposal.made = true;
    p->proposal.status = status;
    p->proposal.control = control;
    p->proposal.deadline_ns = dp__now_ns() + dp__scaled_ns(DP__GOODBYE_SECONDS);
    snprintf(p->proposal.text, sizeof(p->proposal.text), "%s", text);
    dp__process_wake(p);
}

/* ---- collect ---- */

void dp__answer_want(dp__process_t *p, const dp__frame_t *frame)
{
    dp__frame_t data = {.type = DP__FRAME_DATA, .to = frame->from, .id = frame->id, .extra = frame->extra};
    size_t offset = (size_t)frame->extra * DP__CHUNK_BYTES;

    if (frame->id != p->collect.offered_in || p->collect.offered_bytes <= offset)
        return;
    data.payload = (const unsigned char *)p->collect.offered + offset;
    data.bytes = (uint32_t)(p->collect.offered_bytes - offset < DP__CHUNK_BYTES ? p->collect.offered_bytes - offset
                                                                                : DP__CHUNK_BYTES);
    dp__send(p, &data);
}

void dp__take_data(dp__process_t *p, const dp__frame_t *frame)
{
    uint32_t chunk = dp__signal_value(&p->collect.pulled_chunks);
    size_t offset = (size_t)chunk * DP__CHUNK_BYTES;

    if (p->collect.pulled == NULL || frame->from != p->collect.pulled_from || frame->id != p->collect.pulled_in ||
        frame->extra != chunk || offset >= p->collect.pulled_bytes)
        return;
    if (frame->bytes !=
        (p->collect.pulled_bytes - offset < DP__CHUNK_BYTES ? p->collect.pulled_bytes - offset : DP__CHUNK_BYTES))
        return;
    memcpy((char *)p->collect.pulled + offset, frame->payload, frame->bytes);
    dp__signal_post(&p->collect.pulled_chunks, chunk + 1);
}
