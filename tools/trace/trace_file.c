/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_file.c: traces of files; zlib, where there is one, takes plain files too. */
#include "config.h"

#include "trace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef HAVE_ZLIB
#include <zlib.h>
#endif

typedef struct file {
    uint64_t bytes; /* given out */
#ifdef HAVE_ZLIB
    gzFile gz;
#else
    int fd;
#endif
} file_t;

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

static dp_status_t open_file(const char *path, file_t **file_out)
{
    file_t *file = calloc(1, sizeof(*file));
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

static void close_file(file_t *file)
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
/* A dp_read_fn. */
static dp_status_t read_file(void *user, void *buffer, size_t room, size_t *bytes_out)
{
    file_t *file = user;
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
static dp_status_t read_file(void *user, void *buffer, size_t room, size_t *bytes_out)
{
    file_t *file = user;
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

static dp_status_t name_file(dp_status_t status, const char *path)
{
    char message[256];

    if (status == DP_OK)
        return DP_OK;
    snprintf(message, sizeof(message), "%s", dp_last_error());
    return dp_fail(status, "%s: %s", strcmp(path, "-") == 0 ? "standard input" : path, message);
}

dp_status_t trace_load(const char *path, const dp_trace_options_t *options, dp_trace_t **trace_out)
{
    file_t *file;
    dp_status_t status = open_file(path, &file);

    *trace_out = NULL;
    if (status == DP_OK)
        status = dp_trace_read(read_file, file, options, trace_out);
    close_file(file);
    return name_file(status, path);
}

dp_status_t trace_read_file(const char *path, bool keep, dp__trace_event_fn on_event, void *user,
                            dp__trace_head_t *head_out)
{
    file_t *file;
    dp_status_t status = open_file(path, &file);

    *head_out = (dp__trace_head_t){.rank = -1};
    if (status == DP_OK)
        status = dp__trace_read(read_file, file, keep, on_event, user, head_out);
    close_file(file);
    return name_file(status, path);
}
