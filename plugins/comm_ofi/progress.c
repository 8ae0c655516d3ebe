/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * progress.c: who looks at the completions, and sleeps until there are some.
 *
 * One does at a time. A thread that waits does it for all who wait (it *drives*): what it waits for
 * reaches it without another thread in between. It looks for some microseconds, then sleeps on the
 * provider's descriptor. Others that wait meanwhile sleep on their signals. While nobody drives, a
 * thread of the instance sleeps on the descriptor, so that data arrive while all compute; it keeps
 * away from threads that drive, for a while after they have left as well. */
#include "comm_ofi.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define LONG_NS (200 * 1000000ll)
/* the longest sleep of a waiting thread without a look at the job's state */
#define SLICE_NS (50 * 1000000ll)
/* How long a wait looks before it sleeps: some round trips, as a sleep doubles one. Only while
 * nobody else wants the core, which a yield tells that takes as long as some other thread's
 * work. */
#define SPIN_NS     150000
#define YIELD_NS    25000
#define CROWDED_MAX 256
#define SPIN_LOOKS  4 /* between two yields, which take as long as a look */
/* How long the thread keeps away, from and to, before it looks whether anybody has driven since. */
#define AWAY_MIN_NS 100000
#define AWAY_MAX_NS 500000
#define NAP_MIN_NS  20000
#define NAP_MAX_NS  1000000
#define LOOKS       8 /* in a row, before the first nap */

static bool has_reached(const dp_signal_t *signal, uint32_t target)
{
    return (int32_t)(__atomic_load_n(&signal->value, __ATOMIC_ACQUIRE) - target) >= 0;
}

static bool flag(const bool *b)
{
    return __atomic_load_n(b, __ATOMIC_SEQ_CST);
}

static void set_flag(bool *b, bool value)
{
    __atomic_store_n(b, value, __ATOMIC_SEQ_CST);
}

static void wake_fd(int fd)
{
    const uint64_t one = 1;

    while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

void ofi_progress_nudge(dp_comm_t *comm)
{
    if (flag(&comm->wire.asleep))
        wake_fd(comm->wire.nudge_fd);
}

void ofi_progress_wake(dp_comm_t *comm)
{
    wake_fd(comm->wire.wake_fd);
}

/* Sleeps on two descriptors; `other` may be -1. */
static void sleep_on(int own, int other, int64_t ns)
{
    struct pollfd fds[2] = {{own, POLLIN, 0}, {other, POLLIN, 0}};
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    uint64_t wakes;

    if (ppoll(fds, other >= 0 ? 2 : 1, &t, NULL) > 0 && fds[0].revents != 0)
        while (read(own, &wakes, sizeof(wakes)) < 0 && errno == EINTR)
            ;
}

/* A descriptor that cannot be slept on now, or none: less and less often. */
static void nap(int own, int looks)
{
    int64_t ns = looks > LOOKS ? (int64_t)NAP_MIN_NS << (looks - LOOKS < 6 ? looks - LOOKS : 6) : 0;

    if (ns > 0)
        sleep_on(own, -1, ns < NAP_MAX_NS ? ns : NAP_MAX_NS);
}

/* Whether it is safe to sleep until the descriptor says that there is something. Under the lock. */
static bool may_sleep(wire_t *w)
{
    struct fid *fids[1] = {&w->cq->fid};

    return w->cq_fd >= 0 && w->owing == NULL && fi_trywait(w->fabric, fids, 1) == FI_SUCCESS;
}

/* ---- a thread that waits ---- */

typedef struct wait {
    dp_comm_t *comm;
    const dp_signal_t *signal;
    uint32_t target;
} wait_t;

static _Thread_local int crowded, crowded_next = 1;

/* Looks until it is there or nothing more is. Under the lock. */
static bool look_for(const wait_t *t)
{
    while (!has_reached(t->signal, t->target) && ofi_progress_look(t->comm))
        ;
    return has_reached(t->signal, t->target);
}

static bool spin(const wait_t *t)
{
    const dp_host_t *host = t->comm->host;
    wire_t *w = &t->comm->wire;
    int64_t start = host->now_ns(host), before = start, after;

    if (crowded > 0) {
        crowded--;
        return false;
    }
    do {
        if (pthread_mutex_trylock(&w->lock) == 0) {
            for (int i = 0; i < SPIN_LOOKS && !look_for(t); i++)
                ;
            ofi_wire_pay(t->comm, before - WIRE_OWE_NS);
            pthread_mutex_unlock(&w->lock);
        }
        if (has_reached(t->signal, t->target)) {
            crowded_next = 1;
            return true;
        }
        before = host->now_ns(host); /* looks may take longer than a yield that lets nobody run */
        sched_yield();
        after = host->now_ns(host);
        if (after - before > YIELD_NS) {
            crowded = crowded_next;
            crowded_next = crowded_next < CROWDED_MAX ? 2 * crowded_next : CROWDED_MAX;
            break;
        }
        before = after;
    } while (after - start < SPIN_NS);
    return has_reached(t->signal, t->target);
}

/* DP_PENDING when nothing has come for a slice, or the provider is not called any more. */
static dp_status_t sleep_until(void *arg)
{
    const wait_t *t = arg;
    const dp_host_t *host = t->comm->host;
    wire_t *w = &t->comm->wire;
    int64_t end = host->now_ns(host) + SLICE_NS;
    int looks = 0;

    do {
        bool there, quiet;
        int fd;

        pthread_mutex_lock(&w->lock);
        ofi_wire_pay(t->comm, INT64_MAX);
        there = look_for(t);
        quiet = !there && (w->dead || may_sleep(w));
        fd = w->dead ? -1 : w->cq_fd;
        set_flag(&w->asleep, quiet);
        pthread_mutex_unlock(&w->lock);
        if (there)
            return DP_OK;
        if (quiet) {
            sleep_on(w->nudge_fd, fd, SLICE_NS);
            set_flag(&w->asleep, false);
            looks = 0;
        } else {
            nap(w->nudge_fd, ++looks);
        }
    } while (host->now_ns(host) < end);
    return has_reached(t->signal, t->target) ? DP_OK : DP_PENDING;
}

static bool others_wait(const wire_t *w)
{
    return __atomic_load_n(&w->waiting, __ATOMIC_SEQ_CST) > 0;
}

static void stop_driving(wire_t *w)
{
    bool parked;

    set_flag(&w->driven, false);
    parked = __atomic_exchange_n(&w->parked, false, __ATOMIC_SEQ_CST);
    if (parked || (flag(&w->away) && others_wait(w)))
        wake_fd(w->wake_fd);
}

static dp_status_t drive(const wait_t *t, const char *what)
{
    const dp_host_t *host = t->comm->host;
    wire_t *w = &t->comm->wire;
    dp_status_t status = DP_PENDING;

    __atomic_add_fetch(&w->drives, 1, __ATOMIC_SEQ_CST);
    if (spin(t))
        status = DP_OK;
    else if (w->cq_fd >= 0)
        status = host->poll(host, sleep_until, (void *)(uintptr_t)t, -1, what);
    return status;
}

dp_status_t ofi_progress_wait(dp_comm_t *comm, dp_signal_t *signal, uint32_t target, const char *what)
{
    wire_t *w = &comm->wire;
    wait_t t = {comm, signal, target};
    dp_status_t status = DP_PENDING;

    /* counted before it is known who drives: who stops wakes the thread for those that are left */
    __atomic_add_fetch(&w->waiting, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_exchange_n(&w->driven, true, __ATOMIC_SEQ_CST)) {
        __atomic_sub_fetch(&w->waiting, 1, __ATOMIC_SEQ_CST);
        status = drive(&t, what);
        if (status == DP_PENDING)
            __atomic_add_fetch(&w->waiting, 1, __ATOMIC_SEQ_CST);
        stop_driving(w);
        if (status != DP_PENDING)
            return status;
    }
    status = comm->host->wait(comm->host, signal, target, -1, what);
    __atomic_sub_fetch(&w->waiting, 1, __ATOMIC_SEQ_CST);
    return status;
}

/* ---- the thread ---- */

/* Whether it may sleep then, on that descriptor. */
static bool look_once(dp_comm_t *comm, int *fd_out)
{
    wire_t *w = &comm->wire;
    bool quiet;

    pthread_mutex_lock(&w->lock);
    ofi_wire_pay(comm, INT64_MAX);
    while (ofi_progress_look(comm))
        ;
    quiet = w->dead || may_sleep(w);
    *fd_out = w->dead ? -1 : w->cq_fd;
    ofi_progress_nudge(comm);
    pthread_mutex_unlock(&w->lock);
    return quiet;
}

/* Until nobody has driven for a while, or those that wait have nobody who does. */
static void keep_away(wire_t *w)
{
    int64_t ns = AWAY_MIN_NS;
    bool driven, lately;

    set_flag(&w->away, true);
    do {
        uint32_t seen = __atomic_load_n(&w->drives, __ATOMIC_SEQ_CST);

        set_flag(&w->parked, flag(&w->asleep));
        lately = flag(&w->driven);
        sleep_on(w->wake_fd, -1, lately && flag(&w->parked) ? LONG_NS : ns);
        set_flag(&w->parked, false);
        ns = ns < AWAY_MAX_NS / 2 ? 2 * ns : AWAY_MAX_NS;
        driven = flag(&w->driven);
        lately = lately || __atomic_load_n(&w->drives, __ATOMIC_SEQ_CST) != seen;
    } while (!flag(&w->stop) && (driven || (lately && !others_wait(w))));
    set_flag(&w->away, false);
}

static void *run_progress(void *arg)
{
    dp_comm_t *comm = arg;
    wire_t *w = &comm->wire;
    uint32_t seen = 0;
    int looks = 0, fd;

    while (!flag(&w->stop)) {
        if (flag(&w->driven) || __atomic_load_n(&w->drives, __ATOMIC_SEQ_CST) != seen)
            keep_away(w);
        seen = __atomic_load_n(&w->drives, __ATOMIC_SEQ_CST);
        if (look_once(comm, &fd)) {
            sleep_on(w->wake_fd, fd, LONG_NS);
            looks = 0;
        } else {
            nap(w->wake_fd, ++looks);
        }
    }
    return NULL;
}

dp_status_t ofi_progress_start(dp_comm_t *comm)
{
    const dp_host_t *host = comm->host;
    wire_t *w = &comm->wire;
    sigset_t all, before;
    int error;

    w->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    w->nudge_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->wake_fd < 0 || w->nudge_fd < 0)
        return DP_FAIL(host, DP_ERR_NOMEM, "rank %d, group %s: no descriptor to wake a thread by: %s",
                       comm->world[comm->rank], comm->name, strerror(errno));
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&w->thread, NULL, run_progress, comm);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return DP_FAIL(host, DP_ERR_NOMEM, "rank %d, group %s: no thread for the progress of libfabric: %s",
                       comm->world[comm->rank], comm->name, strerror(error));
    pthread_setname_np(w->thread, "dp-ofi");
    w->running = true;
    return DP_OK;
}

void ofi_progress_stop(dp_comm_t *comm)
{
    wire_t *w = &comm->wire;

    if (w->running) {
        __atomic_store_n(&w->stop, true, __ATOMIC_RELEASE);
        wake_fd(w->wake_fd);
        pthread_join(w->thread, NULL);
    }
    if (w->wake_fd >= 0)
        close(w->wake_fd);
    if (w->nudge_fd >= 0)
        close(w->nudge_fd);
    w->running = false;
    w->wake_fd = w->nudge_fd = -1;
}
