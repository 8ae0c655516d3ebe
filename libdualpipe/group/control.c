/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * control.c: the control thread: the only one that touches sockets. */
#include "group/process.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FRAMES_AT_ONCE 64 /* of one connection, before the others get their turn */
#define LONGEST_NAP_MS 1000
/* connections; a look at all of them for each frame would cost more than the frames */
#define MANY      128
#define GATHER_NS 1000000 /* so long frames of many ranks come together */

/* ---- what happens without a frame ---- */

static void heed_interrupt(dp__process_t *p)
{
    char name[128], text[192];

    if (__atomic_load_n(&p->interrupted, __ATOMIC_ACQUIRE) == 0 || p->proposal.made)
        return;
    dp__peer_name(p, p->group.rank, name, sizeof(name));
    snprintf(text, sizeof(text), "interrupted: %s was asked to stop", name);
    dp__propose(p, DP_ERR_INTERRUPTED, text, 0);
}

static void push_proposal(dp__process_t *p, int64_t now)
{
    dp__connection_t *hub;

    if (!p->proposal.made || dp__cause_is_set(&p->cause))
        return;
    if (dp__is_hub(p)) {
        dp__hub_abort(p, 0, p->proposal.status, p->proposal.text, p->proposal.control);
        return;
    }
    hub = dp__hub_connection(p);
    if (!p->proposal.sent && hub != NULL && hub->wire.sealed) {
        dp__send(p, &(dp__frame_t){.type = DP__FRAME_ABORT,
                                   .id = p->proposal.control,
                                   .value = p->proposal.status,
                                   .bytes = (uint32_t)strlen(p->proposal.text),
                                   .payload = (const unsigned char *)p->proposal.text});
        p->proposal.sent = true;
    }
    if (now >= p->proposal.deadline_ns && hub != NULL && p->proposal.sent && p->proposal.status == DP_ERR_TIMEOUT)
        dp__hang_report_without_hub(p, p->proposal.status, p->proposal.text);
    else if (now >= p->proposal.deadline_ns || hub == NULL || !hub->wire.sealed)
        /* rank 0 does not answer: then it is ours */
        dp__cause_set(&p->cause, p->proposal.status, "%s", p->proposal.text);
}

/* Whoever ends before it has said who it is is known to the launcher alone. Those who join again
 * hear by a door that is shut that nobody comes. */
static void heed_ends(dp__process_t *p)
{
    char end[512];

    if (dp__signal_value(&p->join.done) != 0 || dp__cause_is_set(&p->cause) || p->stop || p->join.lost[0] != '\0' ||
        !dp__ends_next(&p->join.ends, end, sizeof(end)))
        return;
    dp__cause_set(&p->cause, DP_ERR_PEER, "%s before all ranks had joined", end);
}

static void tick(dp__process_t *p, int64_t now)
{
    heed_interrupt(p);
    heed_ends(p);
    push_proposal(p, now);
    if (dp__hang_report_over(p, now)) {
        dp__status_answer(p);
        dp__hang_report_conclude(p);
    }
    if (dp__is_hub(p))
        dp__hub_tick(p, now);
    else
        dp__spoke_tick(p, now);
    dp__beat_tick(p, now);
    if (dp__is_hub(p) && dp__cause_is_set(&p->cause))
        dp__hub_spread(p);
}

static bool finished(const dp__process_t *p, int64_t now)
{
    if (!p->stop)
        return false;
    if (now >= p->stop_deadline_ns)
        return true;
    if (dp__is_hub(p))
        return dp__hub_done(p);
    return p->connections.count == 0 || !dp__wire_pending(&p->connections.all[0]->wire);
}

/* ---- connections ---- */

static void lost(dp__process_t *p, dp__connection_t *c, dp_status_t status)
{
    if (c->phase == DP__PHASE_GONE)
        return;
    heed_ends(p); /* who goes may have heard of an end that we have not: that is the cause */
    if (dp__is_hub(p))
        dp__hub_lost(p, c, status);
    else
        dp__spoke_lost(p, c, status);
    c->phase = DP__PHASE_GONE;
}

static void receive_frames(dp__process_t *p, dp__connection_t *c)
{
    for (int i = 0; i < FRAMES_AT_ONCE && c->phase != DP__PHASE_GONE && !c->closing; i++) {
        dp__frame_t frame;
        dp_status_t status = dp__wire_receive(&c->wire, &frame);

        if (status == DP_PENDING)
            return;
        if (status != DP_OK) {
            lost(p, c, status);
            return;
        }
        if (dp__is_hub(p))
            dp__hub_frame(p, c, &frame);
        else
            dp__spoke_frame(p, c, &frame);
    }
}

static void receive(dp__process_t *p, dp__connection_t *c)
{
    receive_frames(p, c);
    if (c->wire.bytes_in != c->heard_bytes) {
        c->heard_bytes = c->wire.bytes_in;
        c->heard_ns = dp__now_ns();
    }
}

static void serve(dp__process_t *p, dp__connection_t *c, short events)
{
    if (c->phase == DP__PHASE_CONNECTING) {
        if (events != 0)
            dp__spoke_connected(p, c);
        return;
    }
    if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) {
        if (c->closing)
            c->phase = DP__PHASE_GONE; /* it has heard enough, or does not listen */
        else
            receive(p, c);
    }
}

/* The process on the other side has ended, though its connection may be held open by a child of
 * its. */
static void see_end(dp__process_t *p, dp__connection_t *c)
{
    close(c->pid_fd);
    c->pid_fd = -1;
    receive(p, c); /* its last words, if any */
    lost(p, c, DP_ERR_PEER);
}

static void flush(dp__process_t *p, dp__connection_t *c)
{
    if (c->phase == DP__PHASE_CONNECTING || c->phase == DP__PHASE_GONE)
        return;
    if (dp__wire_pending(&c->wire) && !dp__wire_flush(&c->wire)) {
        receive(p, c); /* its last words, if any */
        lost(p, c, DP_ERR_PEER);
    } else if (c->closing && !dp__wire_pending(&c->wire))
        c->phase = DP__PHASE_GONE;
}

static short wanted_events(const dp__connection_t *c)
{
    if (c->phase == DP__PHASE_CONNECTING)
        return POLLOUT;
    return (short)(POLLIN | (dp__wire_pending(&c->wire) ? POLLOUT : 0));
}

/* ---- the loop ---- */

static int nap_ms(const dp__process_t *p, int64_t now)
{
    int64_t until = now + (int64_t)LONGEST_NAP_MS * 1000000;
    const bool joining = dp__signal_value(&p->join.done) == 0;
    int64_t candidates[] = {joining ? p->join.deadline_ns : INT64_MAX,
                            joining && p->join.ends.fd >= 0 ? now + DP__ENDS_NAP_NS : INT64_MAX,
                            p->proposal.made ? p->proposal.deadline_ns : INT64_MAX,
                            p->stop ? p->stop_deadline_ns : INT64_MAX,
                            p->spoke.retry_ns != 0 ? p->spoke.retry_ns : INT64_MAX,
                            p->beat.next_ns,
                            p->hub.hang_report.answers != NULL ? p->hub.hang_report.deadline_ns : INT64_MAX,
                            p->hub.accept_again_ns != 0 ? p->hub.accept_again_ns : INT64_MAX};

    for (size_t i = 0; i < sizeof(candidates) / sizeof(candidates[0]); i++)
        if (candidates[i] > now && candidates[i] < until)
            until = candidates[i];
    for (size_t i = 0; i < p->connections.count; i++)
        if (p->connections.all[i]->deadline_ns < until)
            until = p->connections.all[i]->deadline_ns;
    return until <= now ? 0 : (int)((until - now + 999999) / 1000000);
}

static nfds_t fill_polls(dp__process_t *p, int64_t now)
{
    struct pollfd *polls = p->connections.polls;
    bool accepting = p->hub.listener >= 0 && dp__signal_value(&p->join.done) == 0 && now >= p->hub.accept_again_ns;

    polls[0] = (struct pollfd){.fd = p->wake_fd, .events = POLLIN};
    polls[2] = (struct pollfd){.fd = p->hub.status.listener, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = accepting ? p->hub.listener : -1, .events = POLLIN};
    for (size_t i = 0; i < p->connections.count; i++) {
        const dp__connection_t *c = p->connections.all[i];

        polls[3 + 2 * i] = (struct pollfd){.fd = c->wire.fd, .events = wanted_events(c)};
        polls[4 + 2 * i] = (struct pollfd){.fd = c->pid_fd, .events = POLLIN};
    }
    return (nfds_t)(3 + 2 * p->connections.count);
}

static void handle(dp__process_t *p, nfds_t n)
{
    const struct pollfd *polls = p->connections.polls;
    uint64_t wakes;

    if (polls[0].revents != 0 && read(p->wake_fd, &wakes, sizeof(wakes)) < 0)
        wakes = 0;                      /* somebody's wake was counted before */
    for (nfds_t i = 3; i < n; i += 2) { /* nothing is dropped or added meanwhile: places stay */
        dp__connection_t *c = p->connections.all[(i - 3) / 2];

        if (polls[i].revents != 0)
            serve(p, c, polls[i].revents);
        if (polls[i + 1].revents != 0)
            see_end(p, c);
    }
    if (polls[1].revents != 0)
        dp__hub_accept(p);
    if (polls[2].revents != 0)
        dp__status_accept(p);
}

static void settle(dp__process_t *p)
{
    for (size_t i = 0; i < p->connections.count; i++)
        flush(p, p->connections.all[i]);
    for (size_t i = p->connections.count; i-- > 0;)
        if (p->connections.all[i]->phase == DP__PHASE_GONE)
            dp__connection_drop(p, p->connections.all[i]);
}

/* Everybody has been told why the job ends: now there is time for a disk. */
static void write_last_spans(dp__process_t *p)
{
    pthread_mutex_unlock(&p->mutex);
    dp__last_spans_write(&p->last);
    pthread_mutex_lock(&p->mutex);
}

static void *control_main(void *process)
{
    dp__process_t *p = process;

    (void)pthread_setname_np(pthread_self(), "dp-control");
    pthread_mutex_lock(&p->mutex);
    for (;;) {
        int64_t now = dp__now_ns();
        nfds_t n;
        int nap;

        tick(p, now);
        settle(p);
        if (p->last.file != NULL)
            write_last_spans(p);
        if (finished(p, now))
            break;
        nap = nap_ms(p, now);
        n = fill_polls(p, now);
        pthread_mutex_unlock(&p->mutex);
        if (poll(p->connections.polls, n, nap) < 0)
            /* EINTR cannot be, all signals are blocked; ENOMEM: again */
            memset(p->connections.polls, 0, n * sizeof(struct pollfd));
        pthread_mutex_lock(&p->mutex);
        handle(p, n);
        if (p->connections.count >= MANY && !p->stop) {
            settle(p); /* answers do not wait */
            pthread_mutex_unlock(&p->mutex);
            dp__nap(GATHER_NS);
            pthread_mutex_lock(&p->mutex);
        }
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

/* The control thread takes no signals: they are for the program's own threads. */
dp_status_t dp__control_start(dp__process_t *p)
{
    sigset_t all, before;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&p->thread, NULL, control_main, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return dp_fail(DP_ERR_NOMEM, "rank %d: no control thread: %s", p->group.rank, strerror(error));
    p->running = true;
    return DP_OK;
}

void dp__control_stop(dp__process_t *p)
{
    pthread_mutex_lock(&p->mutex);
    p->stop = true;
    p->stop_deadline_ns = dp__now_ns() + dp__scaled_ns(DP__GOODBYE_SECONDS);
    pthread_mutex_unlock(&p->mutex);
    dp__process_wake(p);
    if (p->running)
        pthread_join(p->thread, NULL); /* it has just been given a deadline */
    p->running = false;
}
