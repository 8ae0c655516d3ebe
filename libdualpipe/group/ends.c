/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * ends.c: reads which ranks the launcher has seen end, and tells it what they were doing. */
#include "group/ends.h"

#include "group/environment.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A socket that keeps messages apart: what else has that number now is most likely none. */
static int find_tell(void)
{
    int32_t fd;
    int type = 0;
    socklen_t bytes = sizeof(type);

    if (!dp__launch_has("run") || !dp__launch_has("tell") || dp__launch_number("tell", 3, 1 << 20, &fd) != DP_OK ||
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0 || type != SOCK_SEQPACKET)
        return -1;
    return fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 ? fd : -1;
}

void dp__ends_open(dp__ends_t *ends)
{
    int32_t fd;

    *ends = (dp__ends_t){.fd = -1, .tell = find_tell()};
    /* The number may be stale, and the descriptor of something else by now: ours can be sealed, and
     * names the job. */
    if (!dp__launch_has("run") || !dp__launch_has("ends") || dp__launch_number("ends", 3, 1 << 20, &fd) != DP_OK ||
        fcntl(fd, F_GET_SEALS) < 0)
        return;
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) == 0)
        ends->fd = fd;
}

bool dp__ends_next(dp__ends_t *ends, char *text, size_t bytes)
{
    char line[1024], job[DP__JOB_BYTES], *end;
    size_t name;
    ssize_t n = ends->fd >= 0 ? pread(ends->fd, line, sizeof(line) - 1, ends->read) : 0;

    if (n <= 0 || (end = memchr(line, '\n', (size_t)n)) == NULL)
        return false;
    *end = '\0';
    dp__environment_job(job);
    name = strlen(job);
    if (strncmp(line, job, name) != 0 || line[name] != ' ')
        return false;
    ends->read += end + 1 - line;
    snprintf(text, bytes, "%s", line + name + 1);
    return true;
}

void dp__ends_tell(const dp__ends_t *ends, const char *word, int rank, int pid, const char *text)
{
    char line[512], job[DP__JOB_BYTES];
    int n;

    if (ends->tell < 0)
        return;
    dp__environment_job(job);
    n = snprintf(line, sizeof(line), "%s %s %d %d %.300s", job, word, rank, pid, text);
    /* a launcher that does not listen knows less, and is none the worse */
    (void)send(ends->tell, line, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
}
