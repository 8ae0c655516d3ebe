/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * read_at.c: reads a range of a file. */
#include "system/read_at.h"

#include <errno.h>
#include <unistd.h>

size_t dp__read_at(int fd, void *data, size_t bytes, uint64_t at)
{
    char *to = data;

    while (bytes > 0) {
        const ssize_t n = pread(fd, to, bytes, (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n == 0 ? 0 : errno;
            return bytes;
        }
        to += n, at += (uint64_t)n, bytes -= (size_t)n;
    }
    return 0;
}
