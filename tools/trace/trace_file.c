/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_file.c: the bytes of a trace; zlib, where there is one, takes plain files too. */
#include "config.h"

#include "trace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef HAVE_ZLIB
#include <zlib.h>
#endif

struct trace_file {
    uint64_t bytes; /* given out */
#ifdef HAVE_ZLIB
    gzFile gz;
#else
    int fd;
#endif
};

/* A folder opens, but cannot be read. */
static int open_for_reading(const char *path)
{
    int fd = strcmp(path, "-") == 0 ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;

    if (fd < 0)
        return -1;
    if (fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
        (void)close(fd);
        errno = EISDIR;
        return -1;
    }
    return fd;
}

dp_status_t trace_file_open(const char *path, trace_file_t **file_out)
{
    trace_file_t *file = calloc(1, sizeof(*file));
    int fd;

    *file_out = NULL;
    if (file == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory to read a trace");
    fd = open_for_reading(path);
    if (fd < 0) {
        free(file);
        return dp_fail(DP_ERR_IO, "%s", strerror(errno));
    }
#ifdef HAVE_ZLIB
    file->gz = gzdopen(fd, "rb");
    if (file->gz == NULL) {
        (void)close(fd);
        free(file);
        return dp_fail(DP_ERR_NOMEM, "no memory to read a trace");
    }
    (void)gzbuffer(file->gz, 128 << 10);
#else
    file->fd = fd;
#endif
    *file_out = file;
    return DP_OK;
}

void trace_file_close(trace_file_t *file)
{
    if (file == NULL)
        return;
#ifdef HAVE_ZLIB
    (void)gzclose_r(file->gz);
#else
    (void)close(file->fd);
#endif
    free(file);
}

#ifdef HAVE_ZLIB
dp_status_t trace_file_read(void *user, void *buffer, size_t room, size_t *bytes_out)
{
    trace_file_t *file = user;
    int code = Z_OK, n = gzread(file->gz, buffer, (unsigned)room);
    const char *message = n <= 0 ? gzerror(file->gz, &code) : "";

    *bytes_out = n > 0 ? (size_t)n : 0;
    file->bytes += *bytes_out;
    if (code == Z_ERRNO)
        return dp_fail(DP_ERR_IO, "%s", strerror(errno));
    if (code != Z_OK && code != Z_STREAM_END)
        return dp_fail(DP_ERR_REJECTED, "byte %" PRIu64 " of what is unpacked: the gzip file is %s (%s)", file->bytes,
                       code == Z_BUF_ERROR ? "cut off" : "damaged", message);
    return DP_OK;
}
#else
dp_status_t trace_file_read(void *user, void *buffer, size_t room, size_t *bytes_out)
{
    trace_file_t *file = user;
    const unsigned char *head = buffer;
    ssize_t n;

    do
        n = read(file->fd, buffer, room);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return dp_fail(DP_ERR_IO, "%s", strerror(errno));
    if (file->bytes == 0 && n >= 2 && head[0] == 0x1f && head[1] == 0x8b)
        return dp_fail(DP_ERR_UNSUPPORTED,
                       "a gzip file, and this was built without zlib (Debian: zlib1g-dev); gunzip it first");
    file->bytes += (uint64_t)n;
    *bytes_out = (size_t)n;
    return DP_OK;
}
#endif
