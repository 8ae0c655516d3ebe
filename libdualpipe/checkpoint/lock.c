/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * lock.c: who may save into a folder. */
#include "config.h"

#include "base/do.h"
#include "checkpoint/files.h"
#include "checkpoint/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_NAME ".lock"

enum { MOST_TRIES = 100 };

/* DP_PENDING: somebody else holds it. */
static dp_status_t set_lock(int fd, const char *path, int kind)
{
    int done;

    do
        done = flock(fd, kind | LOCK_NB);
    while (done != 0 && errno == EINTR);
    return done == 0 ? DP_OK : errno == EWOULDBLOCK ? DP_PENDING : dp__io_fail(path);
}

static dp_status_t refuse(int fd, const char *folder)
{
    char who[256];
    const ssize_t n = pread(fd, who, sizeof(who) - 1, 0);

    who[n > 0 ? n : 0] = '\0';
    who[strcspn(who, "\n")] = '\0';
    return dp_fail(DP_ERR_INVALID, "another job saves into %s: %s", folder, *who != '\0' ? who : "it has no name yet");
}

/* It is on the disk then, so that a folder that takes nothing is known before anything is saved. */
static dp_status_t write_who(int fd, const char *path, const char *folder, const char *who)
{
    const size_t bytes = strlen(who);

    errno = ENOSPC; /* which a short write does not say */
    if (ftruncate(fd, 0) == 0 && write(fd, who, bytes) == (ssize_t)bytes && fsync(fd) == 0)
        return DP_OK;
    return dp_fail(DP_ERR_IO, "%s: nothing can be written to %s: %s", path, folder, strerror(errno));
}

static dp_status_t take_free(int fd, const char *path, const char *folder, const char *who)
{
    dp_status_t status = set_lock(fd, path, LOCK_EX), written;

    if (status == DP_PENDING)
        return refuse(fd, folder);
    if (!dp__lock_is_there(folder, fd))
        return DP_PENDING;
    written = write_who(fd, path, folder, who);
    if (written < 0) {
        unlink(path);
        return written;
    }
    if (status >= 0)
        status = set_lock(fd, path, LOCK_SH);
    if (status < 0)
        dp_log(DP_LOG_WARN, "checkpoint", "no lock: %s: another job that saves there is not noticed", dp_last_error());
    return status == DP_PENDING ? refuse(fd, folder) : DP_OK;
}

/* DP_PENDING: who had the file before has removed it meanwhile. */
static dp_status_t try_take(const char *folder, const char *who, bool held, int *fd_out)
{
    char path[DP__PATH_BYTES];
    dp_status_t status = DP_OK;
    int fd;

    DO(dp__path(path, folder, LOCK_NAME));
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return dp_fail(DP_ERR_IO, "%s: nothing can be written to %s: %s", path, folder, strerror(errno));
    if (!held)
        status = take_free(fd, path, folder, who);
    else if (set_lock(fd, path, LOCK_SH) != DP_OK || write_who(fd, path, folder, who) < 0)
        dp_log(DP_LOG_DEBUG, "checkpoint", "%s: another rank's lock and name stand for this one's", path);
    if (status != DP_OK)
        close(fd);
    else
        *fd_out = fd;
    return status;
}

dp_status_t dp__lock_take(const char *folder, const char *who, bool held, int *fd_out)
{
    dp_status_t status = DP_PENDING;

    for (int tries = 0; status == DP_PENDING && tries < MOST_TRIES; tries++)
        status = try_take(folder, who, held, fd_out);
    return status == DP_PENDING ? dp_fail(DP_ERR_IO, "%s/" LOCK_NAME " goes whenever it is made", folder) : status;
}

dp_status_t dp__lock_share(const char *folder, int *fd_out)
{
    char path[DP__PATH_BYTES];
    dp_status_t status;
    int fd;

    DO(dp__path(path, folder, LOCK_NAME));
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return dp__io_fail(path);
    status = set_lock(fd, path, LOCK_SH);
    if (status != DP_OK)
        close(fd);
    else
        *fd_out = fd;
    return status;
}

bool dp__lock_is_there(const char *folder, int fd)
{
    char path[DP__PATH_BYTES];
    struct stat held, there;

    return fd >= 0 && dp__path(path, folder, LOCK_NAME) >= 0 && fstat(fd, &held) == 0 && stat(path, &there) == 0 &&
           held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

void dp__lock_release(const char *folder, int fd)
{
    char path[DP__PATH_BYTES];

    if (fd < 0)
        return;
    /* the last one: whoever has opened it already finds that it is gone */
    if (dp__path(path, folder, LOCK_NAME) >= 0 && set_lock(fd, path, LOCK_EX) == DP_OK && dp__lock_is_there(folder, fd))
        unlink(path);
    close(fd);
}
