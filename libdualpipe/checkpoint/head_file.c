/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * head_file.c: opening a file of a checkpoint, and reading its head. */
#include "config.h"

#include "base/do.h"
#include "base/memory.h"
#include "checkpoint/files.h"
#include "checkpoint/read.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

dp_status_t dp__blame_file(dp_status_t status, const char *path)
{
    return dp_fail(status, "%s: %s", path, dp_last_error());
}

dp_status_t dp__file_open(const char *path, int *fd_out, uint64_t *bytes_out)
{
    struct stat about;

    *fd_out = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd_out < 0)
        return dp__io_fail(path);
    if (fstat(*fd_out, &about) == 0 && S_ISREG(about.st_mode)) {
        *bytes_out = (uint64_t)about.st_size;
        return DP_OK;
    }
    close(*fd_out);
    *fd_out = -1;
    return dp_fail(DP_ERR_INVALID, "%s: not a regular file", path);
}

static dp_status_t read_head(int fd, const char *path, uint64_t bytes, dp__header_t *header)
{
    unsigned char head[DP__LENGTH_BYTES];
    uint64_t length = 0;
    char *text;
    dp_status_t status;

    if (bytes < sizeof(head))
        return dp_fail(DP_ERR_INVALID, "%s: too short for a safetensors file", path);
    status = dp__file_read(fd, path, head, sizeof(head), 0);
    for (int i = 0; i < DP__LENGTH_BYTES; i++)
        length |= (uint64_t)head[i] << 8 * i;
    if (status < 0)
        return status;
    if (length > DP__HEAD_MOST || length > bytes - sizeof(head))
        return dp_fail(DP_ERR_INVALID, "%s: a head of %" PRIu64 " bytes cannot be in a file of %" PRIu64, path, length,
                       bytes);
    text = dp__allocate(length + 1, 16);
    if (text == NULL)
        return dp_fail(DP_ERR_NOMEM, "%s: no memory for a head of %" PRIu64 " bytes", path, length);
    status = dp__file_read(fd, path, text, length, sizeof(head));
    if (status < 0) {
        dp__free(text);
        return status;
    }
    status = dp__header_parse(text, (uint32_t)length, bytes, header);
    return status < 0 ? dp__blame_file(status, path) : status;
}

dp_status_t dp__head_read(const char *path, dp__header_t *header)
{
    uint64_t bytes;
    dp_status_t status;
    int fd;

    *header = (dp__header_t){0};
    DO(dp__file_open(path, &fd, &bytes));
    status = read_head(fd, path, bytes, header);
    close(fd);
    return status;
}
