/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * runtime.c: starts MPI once in a process, agrees with all processes of the MPI job on a
 * communicator, ends it at exit. */
#include "runtime.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define FINALIZE_MS 10000

typedef enum phase {
    PHASE_NONE,
    /* MPI_Init_thread runs, on a separate thread: it may block for as long as it likes */
    PHASE_STARTING,
    PHASE_STARTED,
    PHASE_COPYING,  /* the communicator of all processes */
    PHASE_AGREEING, /* on the nonce */
    PHASE_READY,
    PHASE_REFUSED
} phase_t;

static struct {
    pthread_mutex_t lock; /* held around every call of MPI as well, but for those that may block */
    phase_t phase;
    bool ours;   /* MPI was started here and has to be ended here */
    bool failed; /* something may be in MPI's hands for good: ending it could wait for ever */
    bool ended;
    int instances;
    int next_tag;
    MPI_Request request;
    runtime_t all;
    char why[400]; /* it was refused */
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- calls ---- */

void mpi_runtime_enter(entry_t *entry)
{
    sigset_t pipe;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &entry->before);
    pthread_mutex_lock(&process.lock);
}

/* Takes a SIGPIPE that came while this thread did not listen. */
static void swallow_sigpipe(void)
{
    sigset_t pipe;
    struct signalfd_siginfo info;
    int fd;

    sigpending(&pipe);
    if (!sigismember(&pipe, SIGPIPE))
        return;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    fd = signalfd(-1, &pipe, SFD_NONBLOCK | SFD_CLOEXEC);
    if (fd >= 0 && read(fd, &info, sizeof(info)) < 0)
        errno = 0; /* somebody else has it */
    if (fd >= 0)
        close(fd);
}

void mpi_runtime_exit(const entry_t *entry)
{
    pthread_mutex_unlock(&process.lock);
    if (sigismember(&entry->before, SIGPIPE))
        return;
    swallow_sigpipe();
    pthread_sigmask(SIG_SETMASK, &entry->before, NULL);
}

static bool start_thread(void *(*run)(void *))
{
    sigset_t all, before;
    pthread_t thread;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0)
        pthread_detach(thread);
    return error == 0;
}

/* ---- the beginning ---- */

static dp_status_t refuse_mpi(const char *why)
{
    snprintf(process.why, sizeof(process.why), "%s", why);
    process.phase = PHASE_REFUSED;
    return DP_PENDING; /* the next look says why */
}

static void finish_mpi(void);

/* Open MPI installs handlers that print where a process crashed: those of before are put back. */
static bool init_mpi(int *level_out)
{
    static const int signals[] = {SIGABRT, SIGBUS, SIGFPE, SIGSEGV};
    enum { COUNT = sizeof(signals) / sizeof(signals[0]) };
    struct sigaction before[COUNT];
    bool well;

    for (int i = 0; i < COUNT; i++)
        (void)sigaction(signals[i], NULL, &before[i]);
    well = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, level_out) == MPI_SUCCESS;
    for (int i = 0; i < COUNT; i++)
        (void)sigaction(signals[i], &before[i], NULL);
    return well;
}

/* finish_mpi() has to run before what MPI itself does at exit, so it is registered later: MPICH
 * tells its launcher there that the process has ended well, provided that MPI_Finalize was called
 * before (from 4.2 on). */
static void *start_mpi(void *none)
{
    int level = MPI_THREAD_SINGLE;
    bool well = init_mpi(&level);

    pthread_mutex_lock(&process.lock);
    if (!well) {
        (void)refuse_mpi("MPI_Init_thread failed");
    } else {
        process.ours = true;
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
        if (atexit(finish_mpi) != 0)
            (void)refuse_mpi("no memory for what is to be done at exit");
        else if (level < MPI_THREAD_SERIALIZED) /* nobody but us calls it, one at a time */
            (void)refuse_mpi("this MPI may be called from one thread only, streams are several: use one that offers "
                             "MPI_THREAD_MULTIPLE");
        else
            process.phase = PHASE_STARTED;
    }
    pthread_mutex_unlock(&process.lock);
    return none;
}

static void *end_mpi(void *none)
{
    MPI_Finalize();
    __atomic_store_n(&process.ended, true, __ATOMIC_RELEASE);
    return none;
}

/* MPI_Finalize of MPICH closes its connections, which over UCX's tcp takes an answer of the other
 * side; then it waits for a word of the launcher, and answers nobody any more. Who answers before
 * it has asked itself, in a call of MPI that is under way when the other side is at its end
 * already, is never answered, and both hang. So all leave MPI alone first: they meet, and for
 * longer than it takes the last one to know that all are here nobody calls MPI. Then everybody asks
 * before it answers. */
#ifdef OPEN_MPI
static bool part(int *ms)
{
    (void)ms;
    return true;
}
#else
#define QUIET_MS 500

static bool meet_all(int *ms)
{
    MPI_Request request = MPI_REQUEST_NULL;
    bool well = true;
    int done = 0;

    for (bool begun = false; well && !done && *ms < FINALIZE_MS; *ms += 2) {
        entry_t entry;

        mpi_runtime_enter(&entry);
        if (!begun)
            well = MPI_Ibarrier(process.all.comm, &request) == MPI_SUCCESS;
        begun = true;
        well = well && MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS;
        mpi_runtime_exit(&entry);
        if (well && !done)
            poll(NULL, 0, 2);
    }
    return done;
}

/* The second barrier takes as long as a message between the ranks does. */
static bool part(int *ms)
{
    int began;

    if (process.phase != PHASE_READY)
        return true;
    if (!meet_all(ms))
        return false;
    began = *ms;
    if (!meet_all(ms))
        return false;
    poll(NULL, 0, QUIET_MS + 2 * (*ms - began));
    return true;
}
#endif

/* Launchers take a process that ends without MPI_Finalize for one that has failed. */
static void finish_mpi(void)
{
    int over = 1, ms = 0;
    bool well;

    pthread_mutex_lock(&process.lock);
    well = process.ours && !process.failed && process.instances == 0;
    if (well)
        MPI_Finalized(&over);
    pthread_mutex_unlock(&process.lock);
    if (over || !part(&ms) || !start_thread(end_mpi))
        return;
    for (; ms < FINALIZE_MS && !__atomic_load_n(&process.ended, __ATOMIC_ACQUIRE); ms += 2)
        poll(NULL, 0, 2);
}

/* The symbols we are bound to are those of the MPI that the headers were of: a trainer may have
 * brought another one. */
static bool is_our_kind(char *found, size_t bytes)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length;
    bool open_mpi;

    MPI_Get_library_version(version, &length);
    snprintf(found, bytes, "%.*s", (int)strcspn(version, "\n,"), version);
    open_mpi = strncmp(version, "Open MPI", 8) == 0;
#ifdef OPEN_MPI
    return open_mpi;
#else
    return !open_mpi;
#endif
}

/* MPI's own modules look for its symbols among those that all may see. */
static void show_symbols(void)
{
    Dl_info info;

    if (dladdr((void *)(uintptr_t)MPI_Init_thread, &info) != 0)
        (void)dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

static dp_status_t begin_mpi(void)
{
    char text[300], found[80];
    int started = 0, over = 0, level = 0;

    if (!is_our_kind(found, sizeof(found))) {
        snprintf(text, sizeof(text),
                 "this plugin was built for another MPI than the %s that the process has: build both with the same one",
                 found);
        return refuse_mpi(text);
    }
    MPI_Finalized(&over);
    MPI_Initialized(&started);
    if (over)
        return refuse_mpi(
            "MPI_Finalize was called before, and MPI can be started once in a process: close pipelines first");
    if (started) {
        MPI_Query_thread(&level);
        if (level < MPI_THREAD_MULTIPLE)
            return refuse_mpi(
                "the trainer has started MPI without MPI_THREAD_MULTIPLE, but streams call it from threads of "
                "their own: start it by MPI_Init_thread(.., MPI_THREAD_MULTIPLE, ..), or leave that to the "
                "plugin");
        process.phase = PHASE_STARTED;
        return DP_PENDING;
    }
    show_symbols();
    process.phase = PHASE_STARTING;
    if (!start_thread(start_mpi))
        return refuse_mpi("no thread to start MPI on");
    return DP_PENDING;
}

static dp_status_t copy_communicator(void)
{
    int size = 0;

    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size < 2)
        return refuse_mpi(
            "MPI knows of no other process than this one: start the ranks as processes, by its mpirun or by srun");
    if (MPI_Comm_idup(MPI_COMM_WORLD, &process.all.comm, &process.request) != MPI_SUCCESS)
        return refuse_mpi("MPI_Comm_idup failed");
    process.phase = PHASE_COPYING;
    return DP_PENDING;
}

static dp_status_t agree(void)
{
    runtime_t *all = &process.all;
    int *most = NULL, found = 0;

    MPI_Comm_set_errhandler(all->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(all->comm, &all->rank);
    MPI_Comm_size(all->comm, &all->size);
    MPI_Comm_get_attr(all->comm, MPI_TAG_UB, &most, &found);
    all->tag_most = found ? *most : 32767;
    if (all->rank == 0 && getrandom(all->nonce, sizeof(all->nonce), 0) != (ssize_t)sizeof(all->nonce))
        return refuse_mpi("no random numbers");
    if (MPI_Ibcast(all->nonce, (int)sizeof(all->nonce), MPI_BYTE, 0, all->comm, &process.request) != MPI_SUCCESS)
        return refuse_mpi("MPI_Ibcast failed");
    process.phase = PHASE_AGREEING;
    return DP_PENDING;
}

static dp_status_t advance(const dp_host_t *host)
{
    int done = 0;

    switch (process.phase) {
    case PHASE_NONE:
        return begin_mpi();
    case PHASE_STARTING:
        return DP_PENDING;
    case PHASE_STARTED:
        return copy_communicator();
    case PHASE_COPYING:
    case PHASE_AGREEING:
        if (MPI_Test(&process.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            return refuse_mpi("the processes of the MPI job could not agree");
        if (!done)
            return DP_PENDING;
        if (process.phase == PHASE_COPYING)
            return agree();
        process.phase = PHASE_READY;
        return DP_OK;
    case PHASE_READY:
        return DP_OK;
    case PHASE_REFUSED:
        break;
    }
    return DP_FAIL(host, DP_ERR_UNSUPPORTED, "comm_mpi: %s", process.why);
}

static dp_status_t look_for_mpi(void *arg)
{
    entry_t entry;
    dp_status_t status;

    mpi_runtime_enter(&entry);
    status = advance(arg);
    mpi_runtime_exit(&entry);
    return status;
}

dp_status_t mpi_runtime_join(const dp_host_t *host, const char *group, const runtime_t **runtime_out)
{
    char what[200];
    dp_status_t status;
    entry_t entry;

    snprintf(what, sizeof(what),
             "group %s: MPI does not start, which takes every process of the MPI job: each has to open a group", group);
    status = host->poll(host, look_for_mpi, (void *)host, -1, what);
    mpi_runtime_enter(&entry);
    process.instances += status == DP_OK;
    process.failed |= status < 0 && process.phase != PHASE_REFUSED;
    mpi_runtime_exit(&entry);
    if (status == DP_OK)
        *runtime_out = &process.all;
    return status;
}

void mpi_runtime_leave(bool healthy)
{
    entry_t entry;

    mpi_runtime_enter(&entry);
    process.instances--;
    process.failed |= !healthy;
    mpi_runtime_exit(&entry);
}

dp_status_t mpi_runtime_tags(const dp_host_t *host, int count, int *first_out)
{
    entry_t entry;
    bool enough;

    mpi_runtime_enter(&entry);
    enough = count - 1 <= process.all.tag_most - process.next_tag;
    if (enough) {
        *first_out = process.next_tag;
        process.next_tag += count;
    }
    mpi_runtime_exit(&entry);
    return enough ? DP_OK
                  : DP_FAIL(host, DP_ERR_UNSUPPORTED,
                            "comm_mpi: this MPI has %d tags, and all were used by what this process has opened so far",
                            process.all.tag_most);
}
