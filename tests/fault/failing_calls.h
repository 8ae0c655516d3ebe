/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * failing_calls.h: the functions of libc that failing_calls.c can make fail, and what errno is
 * then. */
#ifndef TESTS_FAILING_CALLS_H
#define TESTS_FAILING_CALLS_H

#include <stdint.h>

#define DP_FAIL_EACH(CALL)                                                                                             \
    CALL(malloc, ENOMEM)                                                                                               \
    CALL(calloc, ENOMEM)                                                                                               \
    CALL(realloc, ENOMEM)                                                                                              \
    CALL(aligned_alloc, ENOMEM)                                                                                        \
    CALL(posix_memalign, ENOMEM)                                                                                       \
    CALL(mmap, ENOMEM)                                                                                                 \
    CALL(memfd_create, EMFILE)                                                                                         \
    CALL(posix_fallocate, ENOSPC)                                                                                      \
    CALL(ftruncate, EIO)                                                                                               \
    CALL(open, EMFILE)                                                                                                 \
    CALL(fopen, EMFILE)                                                                                                \
    CALL(mkdir, ENOSPC)                                                                                                \
    CALL(rename, ENOSPC)                                                                                               \
    CALL(renameat2, EINVAL)                                                                                            \
    CALL(unlink, EIO)                                                                                                  \
    CALL(unlinkat, EIO)                                                                                                \
    CALL(rmdir, EIO)                                                                                                   \
    CALL(opendir, EMFILE)                                                                                              \
    CALL(read, EIO)                                                                                                    \
    CALL(write, ENOSPC)                                                                                                \
    CALL(pread, EIO)                                                                                                   \
    CALL(pwrite, ENOSPC)                                                                                               \
    CALL(fsync, EIO)                                                                                                   \
    CALL(fstat, EIO)                                                                                                   \
    CALL(fwrite, ENOSPC)                                                                                               \
    CALL(fread, EIO)                                                                                                   \
    CALL(fclose, ENOSPC)                                                                                               \
    CALL(close, EIO)                                                                                                   \
    CALL(pthread_create, EAGAIN)                                                                                       \
    CALL(fork, EAGAIN)                                                                                                 \
    CALL(execvp, EACCES)                                                                                               \
    CALL(pipe2, EMFILE)                                                                                                \
    CALL(eventfd, EMFILE)                                                                                              \
    CALL(signalfd, EMFILE)                                                                                             \
    CALL(dup2, EMFILE)                                                                                                 \
    CALL(poll, ENOMEM)                                                                                                 \
    CALL(getrandom, EIO)                                                                                               \
    CALL(fcntl, EINVAL)                                                                                                \
    CALL(syscall, ENOSYS)                                                                                              \
    CALL(dlopen, ENOMEM)                                                                                               \
    CALL(socket, EMFILE)                                                                                               \
    CALL(bind, EADDRINUSE)                                                                                             \
    CALL(listen, EADDRINUSE)                                                                                           \
    CALL(connect, ECONNREFUSED)                                                                                        \
    CALL(accept4, EMFILE)                                                                                              \
    CALL(setsockopt, ENOBUFS)                                                                                          \
    CALL(getsockname, ENOBUFS)                                                                                         \
    CALL(send, ECONNRESET)                                                                                             \
    CALL(sendmsg, ECONNRESET)                                                                                          \
    CALL(recv, ECONNRESET)                                                                                             \
    CALL(recvmsg, ECONNRESET)                                                                                          \
    CALL(getaddrinfo, ENOMEM)

enum {
#define CALL(name, error) +1
    DP_FAIL_CALLS = 0 DP_FAIL_EACH(CALL),
#undef CALL
    DP_FAIL_ANY = 511, /* the last counter */
    DP_FAIL_TALLY_BYTES = 4096
};

#endif
