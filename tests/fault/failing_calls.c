/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * failing_calls.c: a library for LD_PRELOAD: the n-th call of a function of libc fails in a process
 * of a job.
 *
 *   DP_FAIL_TALLY=FILE    4 KiB, shared by all: DP_FAIL_CALLS counters (uint64_t) and one for the
 *                         calls that failed; the last is for the calls, and looks at the clock, of
 *                         DP_FAIL_CALL=any
 *   DP_FAIL_WHO=RANK      only in the process with this RANK in its environment; "launcher": in
 *                         those without one; "ranks": in those with one
 *   DP_FAIL_CALL=NAME     of the function; any: whatever it is. Without it calls are counted only
 *   DP_FAIL_AT=N          its first call to fail, from 1
 *   DP_FAIL_ON=1          and all that follow
 *   DP_FAIL_ERRNO=N       instead of the one in failing_calls.h
 *   DP_FAIL_SLEEP_MS=N    it succeeds, but only after so long
 *   DP_FAIL_SIGNAL=N      it does not fail: the process sends itself this signal. Not a rank that
 *                         was started again
 *   DP_FAIL_PATH=TEXT     for pwrite, fsync, open, mkdir and rename: only where the file's path
 *                         contains it
 *   DP_FAIL_FROM=TEXT     calls count that libraries make whose path contains it
 *
 * Otherwise those count that our code makes (the program, its plugins, libdualpipe) or libc on its
 * behalf; how other libraries bear a failing malloc is not our subject. */
#include "failing_calls.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

enum {
#define CALL(name, error) CALL_##name,
    DP_FAIL_EACH(CALL)
#undef CALL
};

static struct {
    _Atomic uint64_t *tally; /* NULL: this process is let alone */
    int call, error;
    uint64_t at;
    bool on, any;
    int signal;
    long sleep_ms;
    const char *path, *from;
} plan;

/* Whether calls of the code at CALLER count. */
static bool counts(void *caller)
{
    struct dl_find_object found;
    const char *name;

    if (_dl_find_object(caller, &found) != 0)
        return false;
    name = found.dlfo_link_map->l_name;
    if (plan.from != NULL)
        return strstr(name, plan.from) != NULL;
    return name[0] == '\0' || strstr(name, "/dp_") != NULL || strstr(name, "libdualpipe") != NULL ||
           strstr(name, "/libc.so") != NULL;
}

static bool fails_at(int call, void *caller)
{
    uint64_t nth;

    if (plan.tally == NULL || !counts(caller))
        return false;
    nth = atomic_fetch_add(&plan.tally[plan.any ? DP_FAIL_ANY : call], 1) + 1;
    if ((call != plan.call && !plan.any) || nth < plan.at || (nth > plan.at && !plan.on))
        return false;
    atomic_fetch_add(&plan.tally[DP_FAIL_CALLS], 1);
    if (plan.sleep_ms > 0) {
        nanosleep(&(struct timespec){plan.sleep_ms / 1000, plan.sleep_ms % 1000 * 1000000}, NULL);
        return false;
    }
    if (plan.signal != 0) {
        kill(getpid(), plan.signal);
        return false;
    }
    errno = plan.error;
    return true;
}

static bool fails_for(int call, const char *path, void *caller)
{
    return (plan.path == NULL || strstr(path, plan.path) != NULL) && fails_at(call, caller);
}

static bool fails_on(int call, int fd, void *caller)
{
    char link[32], path[4096];
    ssize_t n;

    if (plan.tally == NULL || plan.path == NULL)
        return fails_at(call, caller);
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof(path) - 1);
    path[n < 0 ? 0 : n] = '\0';
    return fails_for(call, path, caller);
}

static bool is_meant(const char *who)
{
    const char *rank = getenv("RANK"), *launch = getenv("DUALPIPE_LAUNCH");

    if (plan.signal != 0 && launch != NULL && strstr(launch, ",again=") != NULL)
        return false;
    if (who == NULL || strcmp(who, "ranks") == 0)
        return who == NULL || rank != NULL;
    return strcmp(who, rank != NULL ? rank : "launcher") == 0;
}

__attribute__((constructor)) static void begin(void)
{
    static const struct {
        const char *name;
        int error;
    } calls[] = {
#define CALL(name, error) {#name, error},
        DP_FAIL_EACH(CALL)
#undef CALL
    };
    const char *file = getenv("DP_FAIL_TALLY"), *text = getenv("DP_FAIL_SIGNAL");
    void *map;
    int fd;

    plan.signal = text != NULL ? atoi(text) : 0;
    if (file == NULL || !is_meant(getenv("DP_FAIL_WHO")))
        return;
    text = getenv("DP_FAIL_CALL");
    plan.any = text != NULL && strcmp(text, "any") == 0;
    plan.call = -1;
    for (int i = 0; i < DP_FAIL_CALLS && text != NULL; i++)
        if (strcmp(text, calls[i].name) == 0)
            plan.call = i, plan.error = calls[i].error;
    text = getenv("DP_FAIL_AT");
    plan.at = text != NULL ? strtoull(text, NULL, 10) : 1;
    plan.on = getenv("DP_FAIL_ON") != NULL;
    text = getenv("DP_FAIL_ERRNO");
    plan.error = text != NULL ? atoi(text) : plan.error;
    text = getenv("DP_FAIL_SLEEP_MS");
    plan.sleep_ms = text != NULL ? atol(text) : 0;
    plan.path = getenv("DP_FAIL_PATH");
    plan.from = getenv("DP_FAIL_FROM");
    fd = open(file, O_RDWR | O_CLOEXEC);
    map = fd < 0 ? MAP_FAILED : mmap(NULL, DP_FAIL_TALLY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        perror(file);
        _exit(99);
    }
    close(fd);
    plan.tally = map;
}

/* The next definition of a function, found at its first call. */
#define NEXT(name)                                                                                                     \
    static __typeof__(name) *next;                                                                                     \
    if (next == NULL)                                                                                                  \
    next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define CALLER      __builtin_return_address(0)
#define FAILS(call) fails_at(CALL_##call, CALLER)

/* A function without more to it than that it may fail with RESULT. */
#define PLAIN(type, name, result, parameters, arguments)                                                               \
    type name parameters                                                                                               \
    {                                                                                                                  \
        NEXT(name);                                                                                                    \
        return FAILS(name) ? result : next arguments;                                                                  \
    }
#define OF_FILE(type, name, result, parameters, arguments)                                                             \
    type name parameters                                                                                               \
    {                                                                                                                  \
        NEXT(name);                                                                                                    \
        return fails_on(CALL_##name, fd, CALLER) ? result : next arguments;                                            \
    }
#define OF_PATH(type, name, result, parameters, arguments)                                                             \
    type name parameters                                                                                               \
    {                                                                                                                  \
        NEXT(name);                                                                                                    \
        return fails_for(CALL_##name, path, CALLER) ? result : next arguments;                                         \
    }

/* ---- memory ---- */
void *malloc(size_t bytes)
{
    return FAILS(malloc) ? NULL : __libc_malloc(bytes);
}
void *calloc(size_t n, size_t bytes)
{
    return FAILS(calloc) ? NULL : __libc_calloc(n, bytes);
}
void *realloc(void *block, size_t bytes)
{
    return FAILS(realloc) ? NULL : __libc_realloc(block, bytes);
}
void *aligned_alloc(size_t alignment, size_t bytes)
{
    return FAILS(aligned_alloc) ? NULL : __libc_memalign(alignment, bytes);
}
int posix_memalign(void **block_out, size_t alignment, size_t bytes)
{
    if (FAILS(posix_memalign))
        return errno;
    *block_out = __libc_memalign(alignment, bytes);
    return *block_out != NULL ? 0 : ENOMEM;
}
PLAIN(void *, mmap, MAP_FAILED, (void *at, size_t bytes, int protection, int flags, int fd, off_t offset),
      (at, bytes, protection, flags, fd, offset))
PLAIN(int, memfd_create, -1, (const char *name, unsigned flags), (name, flags))
PLAIN(int, posix_fallocate, errno, (int fd, off_t at, off_t bytes), (fd, at, bytes))
PLAIN(int, ftruncate, -1, (int fd, off_t bytes), (fd, bytes))

/* ---- files ---- */
int open(const char *path, int flags, ...)
{
    va_list list;
    mode_t mode;
    NEXT(open);

    va_start(list, flags);
    mode = va_arg(list, mode_t);
    va_end(list);
    return fails_for(CALL_open, path, CALLER) ? -1 : next(path, flags, mode);
}
OF_PATH(FILE *, fopen, NULL, (const char *path, const char *mode), (path, mode))
OF_PATH(int, mkdir, -1, (const char *path, mode_t mode), (path, mode))
OF_PATH(int, rename, -1, (const char *path, const char *to), (path, to))
OF_PATH(int, renameat2, -1, (int dir, const char *path, int to_dir, const char *to, unsigned flags),
        (dir, path, to_dir, to, flags))
OF_PATH(int, unlink, -1, (const char *path), (path))
OF_PATH(int, unlinkat, -1, (int dir, const char *path, int flags), (dir, path, flags))
OF_PATH(int, rmdir, -1, (const char *path), (path))
OF_PATH(DIR *, opendir, NULL, (const char *path), (path))
OF_FILE(ssize_t, read, -1, (int fd, void *data, size_t bytes), (fd, data, bytes))
OF_FILE(ssize_t, write, -1, (int fd, const void *data, size_t bytes), (fd, data, bytes))
OF_FILE(ssize_t, pread, -1, (int fd, void *data, size_t bytes, off_t at), (fd, data, bytes, at))
OF_FILE(ssize_t, pwrite, -1, (int fd, const void *data, size_t bytes, off_t at), (fd, data, bytes, at))
OF_FILE(int, fsync, -1, (int fd), (fd))
OF_FILE(int, fstat, -1, (int fd, struct stat *about), (fd, about))
PLAIN(size_t, fwrite, 0, (const void *data, size_t size, size_t n, FILE *file), (data, size, n, file))
PLAIN(size_t, fread, 0, (void *data, size_t size, size_t n, FILE *file), (data, size, n, file))
int fclose(FILE *file) /* which closes whatever it returns */
{
    const bool failed = FAILS(fclose);
    const int error = errno;
    int status;
    NEXT(fclose);

    status = next(file);
    errno = failed ? error : errno;
    return failed ? EOF : status;
}
int close(int fd)
{
    const bool failed = fails_on(CALL_close, fd, CALLER);
    const int error = errno;
    int status;
    NEXT(close);

    status = next(fd);
    errno = failed ? error : errno;
    return failed ? -1 : status;
}

/* ---- processes, threads, descriptors ---- */
PLAIN(int, pthread_create, errno,
      (pthread_t * thread, const pthread_attr_t *attributes, void *(*start)(void *), void *context),
      (thread, attributes, start, context))
PLAIN(pid_t, fork, -1, (void), ())
PLAIN(int, execvp, -1, (const char *file, char *const argv[]), (file, argv))
PLAIN(int, pipe2, -1, (int ends[2], int flags), (ends, flags))
PLAIN(int, eventfd, -1, (unsigned count, int flags), (count, flags))
PLAIN(int, signalfd, -1, (int fd, const sigset_t *mask, int flags), (fd, mask, flags))
PLAIN(int, dup2, -1, (int fd, int to), (fd, to))
PLAIN(int, poll, -1, (struct pollfd * fds, nfds_t n, int timeout), (fds, n, timeout))
PLAIN(ssize_t, getrandom, -1, (void *data, size_t bytes, unsigned flags), (data, bytes, flags))
int fcntl(int fd, int command, ...)
{
    va_list list;
    void *argument;
    NEXT(fcntl);

    va_start(list, command);
    argument = va_arg(list, void *);
    va_end(list);
    return FAILS(fcntl) ? -1 : next(fd, command, argument);
}
long syscall(long number, ...)
{
    va_list list;
    long a[6];
    NEXT(syscall);

    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    return FAILS(syscall) ? -1 : next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
void *dlopen(const char *file, int flags)
{
    NEXT(dlopen);
    /* so that dlerror() has something to say */
    return next(FAILS(dlopen) ? "/nowhere/failing_calls" : file, flags);
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    NEXT(clock_gettime);
    if (plan.any)
        (void)fails_at(-1, CALLER);
    return next(clock, time);
}

/* ---- network ---- */
PLAIN(int, socket, -1, (int domain, int type, int protocol), (domain, type, protocol))
PLAIN(int, bind, -1, (int fd, const struct sockaddr *address, socklen_t bytes), (fd, address, bytes))
PLAIN(int, listen, -1, (int fd, int backlog), (fd, backlog))
PLAIN(int, connect, -1, (int fd, const struct sockaddr *address, socklen_t bytes), (fd, address, bytes))
PLAIN(int, accept4, -1, (int fd, struct sockaddr *address, socklen_t *bytes, int flags), (fd, address, bytes, flags))
PLAIN(int, setsockopt, -1, (int fd, int level, int name, const void *value, socklen_t bytes),
      (fd, level, name, value, bytes))
PLAIN(int, getsockname, -1, (int fd, struct sockaddr *address, socklen_t *bytes), (fd, address, bytes))
PLAIN(ssize_t, send, -1, (int fd, const void *data, size_t bytes, int flags), (fd, data, bytes, flags))
PLAIN(ssize_t, sendmsg, -1, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
PLAIN(ssize_t, recv, -1, (int fd, void *data, size_t bytes, int flags), (fd, data, bytes, flags))
PLAIN(ssize_t, recvmsg, -1, (int fd, struct msghdr *message, int flags), (fd, message, flags))
PLAIN(int, getaddrinfo, EAI_MEMORY,
      (const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found_out),
      (node, service, hints, found_out))
