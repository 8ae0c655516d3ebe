/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * ends.c: reads which ranks the launcher has seen end. */
#include "group/ends.h"

#include "group/environment.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void dp__ends_open(dp__ends_t *ends)
{
    int32_t fd;

    *ends = (dp__ends_t){.fd = -1};
    /* The number may be stale, and the descriptor of something else by now: ours can be sealed, and names the job. */
    if (secure_getenv("DUALPIPE_RUN") == NULL || secure_getenv("DUALPIPE_ENDS_FD") == NULL ||
        dp__environment_number("DUALPIPE_ENDS_FD", 3, 1 << 20, &fd) != DP_OK || fcntl(fd, F_GET_SEALS) < 0)
        return;
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) == 0)
        ends->fd = fd;
}

bool dp__ends_next(dp__ends_t *ends, char *text, size_t bytes)
{
    const char *job = dp__environment_job();
    const size_t name = strlen(job);
    char line[1024], *end;
    ssize_t n = ends->fd >= 0 ? pread(ends->fd, line, sizeof(line) - 1, ends->read) : 0;

    if (n <= 0 || (end = memchr(line, '\n', (size_t)n)) == NULL)
        return false;
    *end = '\0';
    if (strncmp(line, job, name) != 0 || line[name] != ' ')
        return false;
    ends->read += end + 1 - line;
    snprintf(text, bytes, "%s", line + name + 1);
    return true;
}
