/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * progress.c: reading completions, ringing bells, and the thread that sleeps until there is something to read. */
#include "comm_ofi.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define ENTRIES 16
/* A way that is lost is most often a rank that died: the job hears of that by itself, and knows more. */
#define GRACE_NS (3 * 1000000000ll)
#define LONG_NS  (200 * 1000000ll)
/* Bells and ops that have ended because all is over count further than any wait goes. */
#define POISON (1u << 30)
/* How long a wait looks by itself, and only while nobody else wants the core, which a yield tells that takes longer
 * than its own system call. */
#define SPIN_NS     40000
#define YIELD_NS    3000
#define CROWDED_MAX 256
/* The thread keeps away this long from completions that a waiting thread looks after. */
#define AWAY_NS    50000
#define NAP_MIN_NS 20000
#define NAP_MAX_NS 1000000
#define LOOKS      8 /* in a row, before the first nap */

/* ---- completions ---- */

static void count(dp_comm_t *comm, dp_signal_t *signal, uint32_t by)
{
    comm->host->post(comm->host, signal, signal->value + by);
}

void progress_poison(dp_comm_t *comm, dp_status_t status, const char *text)
{
    wire_t *w = &comm->wire;

    if (w->poisoned)
        return;
    w->fault_status = status;
    if (text != w->fault)
        snprintf(w->fault, sizeof(w->fault), "%s", text);
    w->dead = true;
    __atomic_store_n(&w->poisoned, true, __ATOMIC_RELEASE);
    for (uint32_t i = 0; i < comm->region_count; i++)
        for (uint32_t k = 0; k < comm->regions[i].bell_count; k++)
            count(comm, &comm->regions[i].bells[k].signal, POISON);
    for (op_t *op = w->ops; op != NULL; op = op->next)
        count(comm, &op->done, POISON);
}

static void ring(dp_comm_t *comm, uint64_t name)
{
    uint64_t round = name >> BELL_BITS, bell = name & ((1u << BELL_BITS) - 1);
    char text[TEXT_BYTES];

    if (round < comm->region_count && bell < comm->regions[round].bell_count) {
        count(comm, &comm->regions[round].bells[bell].signal, 1);
        return;
    }
    snprintf(text, sizeof(text), "a rank of group %s rings bell %llu, and there is none", comm->name,
             (unsigned long long)name);
    progress_poison(comm, DP_ERR_PROTOCOL, text);
}

static void let_go(dp_comm_t *comm, void *context)
{
    ticket_t *ticket = context;

    if (ticket != NULL)
        count(comm, &ticket->op->done, 1);
}

static void lose(dp_comm_t *comm)
{
    wire_t *w = &comm->wire;
    struct fi_cq_err_entry e = {0};
    const op_t *op;

    if (fi_cq_readerr(w->cq, &e, 0) < 0 || w->lost_ns != 0)
        return;
    op = e.op_context != NULL ? ((const ticket_t *)e.op_context)->op : NULL;
    w->lost_ns = comm->host->now_ns(comm->host);
    if (op != NULL)
        snprintf(w->fault, sizeof(w->fault), "the way to rank %d is lost: %s", comm->world[op->peer],
                 fi_strerror(e.err));
    else
        snprintf(w->fault, sizeof(w->fault), "a way of group %s is lost: %s", comm->name, fi_strerror(e.err));
}

void progress_look(dp_comm_t *comm)
{
    wire_t *w = &comm->wire;
    struct fi_cq_data_entry entries[ENTRIES];
    ssize_t n = 1;

    while (n > 0 && !w->dead) {
        n = fi_cq_read(w->cq, entries, ENTRIES);
        for (ssize_t i = 0; i < n; i++) {
            if ((entries[i].flags & (FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA)) != 0)
                ring(comm, entries[i].data);
            else
                let_go(comm, entries[i].op_context);
        }
        if (n == -FI_EAVAIL) {
            lose(comm);
            n = 1;
        } else if (n < 0 && n != -FI_EAGAIN && w->lost_ns == 0) {
            w->lost_ns = comm->host->now_ns(comm->host);
            snprintf(w->fault, sizeof(w->fault), "group %s: the completions of provider %s cannot be read: %s",
                     comm->name, w->provider, fi_strerror((int)-n));
        }
    }
}

/* ---- looking while a thread waits ---- */

static _Thread_local int crowded, crowded_next = 1;

static bool reached(const dp_signal_t *signal, uint32_t target)
{
    return (int32_t)(__atomic_load_n(&signal->value, __ATOMIC_ACQUIRE) - target) >= 0;
}

static void wake(wire_t *w)
{
    const uint64_t one = 1;

    while (write(w->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

static bool look_for(dp_comm_t *comm, const dp_signal_t *signal, uint32_t target)
{
    const dp_host_t *host = comm->host;
    wire_t *w = &comm->wire;
    int64_t start = host->now_ns(host), before, after;

    do {
        if (pthread_mutex_trylock(&w->lock) == 0) {
            progress_look(comm);
            pthread_mutex_unlock(&w->lock);
        }
        if (reached(signal, target)) {
            crowded_next = 1;
            return true;
        }
        before = host->now_ns(host);
        sched_yield();
        after = host->now_ns(host);
        if (after - before > YIELD_NS) {
            crowded = crowded_next;
            crowded_next = crowded_next < CROWDED_MAX ? 2 * crowded_next : CROWDED_MAX;
            break;
        }
    } while (after - start < SPIN_NS);
    return reached(signal, target);
}

bool progress_spin(dp_comm_t *comm, const dp_signal_t *signal, uint32_t target)
{
    wire_t *w = &comm->wire;
    bool there;

    if (crowded > 0) {
        crowded--;
        return false;
    }
    __atomic_add_fetch(&w->spinning, 1, __ATOMIC_SEQ_CST);
    there = look_for(comm, signal, target);
    /* from here on the thread has to look; when all is there it comes by itself soon enough */
    if (__atomic_sub_fetch(&w->spinning, 1, __ATOMIC_SEQ_CST) == 0 && !there &&
        __atomic_exchange_n(&w->away, false, __ATOMIC_SEQ_CST))
        wake(w);
    return there;
}

/* ---- the thread ---- */

/* Sleeps on a descriptor (-1: none) and on a wake; ns < 0: until one of them. */
static void sleep_on(wire_t *w, int fd, int64_t ns)
{
    struct pollfd fds[2] = {{w->wake_fd, POLLIN, 0}, {fd, POLLIN, 0}};
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    uint64_t wakes;

    if (ppoll(fds, fd >= 0 ? 2 : 1, ns < 0 ? NULL : &t, NULL) > 0 && fds[0].revents != 0)
        while (read(w->wake_fd, &wakes, sizeof(wakes)) < 0 && errno == EINTR)
            ;
}

/* Whether it is safe to sleep until the descriptor says that there is something: it is where nobody looks anyway. */
static bool look_once(dp_comm_t *comm)
{
    wire_t *w = &comm->wire;
    struct fid *fids[1] = {&w->cq->fid};
    bool quiet;

    pthread_mutex_lock(&w->lock);
    progress_look(comm);
    if (w->lost_ns != 0 && !w->poisoned && comm->host->now_ns(comm->host) - w->lost_ns > GRACE_NS)
        progress_poison(comm, DP_ERR_PEER, w->fault);
    quiet = w->dead || (w->cq_fd >= 0 && fi_trywait(w->fabric, fids, 1) == FI_SUCCESS);
    pthread_mutex_unlock(&w->lock);
    return quiet;
}

static void *work(void *arg)
{
    dp_comm_t *comm = arg;
    wire_t *w = &comm->wire;
    int looks = 0;

    while (!__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE)) {
        bool quiet = look_once(comm);

        if (quiet) {
            sleep_on(w, w->dead ? -1 : w->cq_fd, LONG_NS);
            looks = 0;
        } else if (++looks > LOOKS) { /* no descriptor, or one that cannot be slept on now: less and less often */
            int64_t nap = (int64_t)NAP_MIN_NS << (looks - LOOKS < 6 ? looks - LOOKS : 6);

            sleep_on(w, -1, nap < NAP_MAX_NS ? nap : NAP_MAX_NS);
        }
        __atomic_store_n(&w->away, true, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&w->spinning, __ATOMIC_SEQ_CST) > 0 && !__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE))
            sleep_on(w, -1, AWAY_NS);
        __atomic_store_n(&w->away, false, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

dp_status_t progress_start(dp_comm_t *comm)
{
    const dp_host_t *host = comm->host;
    wire_t *w = &comm->wire;
    sigset_t all, before;
    int error;

    w->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->wake_fd < 0)
        return DP_FAIL(host, DP_ERR_NOMEM, "rank %d, group %s: no descriptor to wake a thread by: %s",
                       comm->world[comm->rank], comm->name, strerror(errno));
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&w->thread, NULL, work, comm);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return DP_FAIL(host, DP_ERR_NOMEM, "rank %d, group %s: no thread for the progress of libfabric: %s",
                       comm->world[comm->rank], comm->name, strerror(error));
    pthread_setname_np(w->thread, "dp-ofi");
    w->running = true;
    return DP_OK;
}

void progress_stop(dp_comm_t *comm)
{
    wire_t *w = &comm->wire;

    if (w->running) {
        __atomic_store_n(&w->stop, true, __ATOMIC_RELEASE);
        wake(w);
        pthread_join(w->thread, NULL);
    }
    if (w->wake_fd >= 0)
        close(w->wake_fd);
    w->running = false;
    w->wake_fd = -1;
}
