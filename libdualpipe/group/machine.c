/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * machine.c: which processes can be seen from here, and seeing them end. */
#include "group/process.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static size_t read_text(const char *path, char *text, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;

    if (fd < 0)
        return 0;
    n = read(fd, text, bytes);
    close(fd);
    return n > 0 ? (size_t)n : 0;
}

void dp__machine_name(char name[DP__MACHINE_BYTES])
{
    char boot[37] = "", space[24] = "";
    ssize_t n = readlink("/proc/self/ns/pid", space, sizeof(space) - 1);

    name[0] = '\0';
    if (read_text("/proc/sys/kernel/random/boot_id", boot, 36) == 36 && n > 0 && n < (ssize_t)sizeof(space) - 1)
        snprintf(name, DP__MACHINE_BYTES, "%s %s", boot, space);
}

void dp__watch_process(const dp__process_t *p, dp__connection_t *c, int32_t rank)
{
    const dp__peer_t *peer = &p->peers[rank], *self = &p->peers[p->group.rank];

    if (c->pid_fd < 0 && self->machine[0] != '\0' && strcmp(peer->machine, self->machine) == 0)
        c->pid_fd = (int)syscall(SYS_pidfd_open, peer->pid, 0); /* -1, too, where that is not possible */
}
