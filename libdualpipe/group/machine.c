/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * machine.c: which rank is which process, and where; which of them can be seen from here, and
 * seeing them end. */
#include "base/memory.h"
#include "group/process.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BOOT_BYTES 36 /* of a boot id as text */

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
    char boot[BOOT_BYTES + 1] = "", space[24] = "";
    ssize_t n = readlink("/proc/self/ns/pid", space, sizeof(space) - 1);

    name[0] = '\0';
    if (read_text("/proc/sys/kernel/random/boot_id", boot, BOOT_BYTES) == BOOT_BYTES && n > 0 &&
        n < (ssize_t)sizeof(space) - 1)
        snprintf(name, DP__MACHINE_BYTES, "%s %s", boot, space);
}

int32_t dp__machine_add(dp__process_t *p, const char *host, const char *name)
{
    dp__machine_t *larger;

    /* ranks come by hosts: the last one is most likely */
    for (int32_t i = p->machines.count; i-- > 0;)
        if (name[0] != '\0' && strcmp(p->machines.all[i].name, name) == 0 && strcmp(p->machines.all[i].host, host) == 0)
            return i;
    larger = dp__grow(p->machines.all, sizeof(*larger), (uint32_t)p->machines.count, &p->machines.room);
    if (larger == NULL)
        return -1;
    p->machines.all = larger;
    snprintf(p->machines.all[p->machines.count].host, DP__HOST_BYTES, "%s", host);
    snprintf(p->machines.all[p->machines.count].name, DP__MACHINE_BYTES, "%s", name);
    return p->machines.count++;
}

void dp__peers_forget(dp__process_t *p)
{
    p->peers.self.held = 0;
    if (!dp__is_hub(p))
        p->peers.count = 0;
    for (int32_t r = 0; r < p->peers.count; r++)
        p->peers.rows[r] = (dp__peer_t){r, 0, -1, 0};
}

dp__peer_t dp__peer(const dp__process_t *p, int32_t rank)
{
    int32_t low = 0, high = p->peers.count;
    dp__peer_t peer;

    if (rank == p->peers.self.rank)
        return p->peers.self;
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;

        if (p->peers.rows[middle].rank <= rank)
            low = middle;
        else
            high = middle;
    }
    if (high == 0)
        return (dp__peer_t){rank, 0, -1, 0};
    peer = p->peers.rows[low];
    if (peer.rank != rank)
        peer.pid = 0; /* it is the first one's */
    peer.rank = rank;
    return peer;
}

static const char *machine_of(const dp__process_t *p, int32_t rank)
{
    const int32_t machine = dp__peer(p, rank).machine;

    return machine >= 0 ? p->machines.all[machine].name : "";
}

const char *dp__host_of(const dp__process_t *p, int32_t rank)
{
    const int32_t machine = dp__peer(p, rank).machine;

    return machine >= 0 ? p->machines.all[machine].host : "?";
}

bool dp__is_near(const dp__process_t *p, int32_t rank)
{
    const char *here = machine_of(p, p->group.rank);

    return here[0] != '\0' && strcmp(machine_of(p, rank), here) == 0;
}

bool dp__same_machine(const dp__process_t *p, int32_t a, int32_t b)
{
    const char *name = machine_of(p, a);

    return a == b || (name[0] != '\0' && strcmp(machine_of(p, b), name) == 0);
}

const char *dp__machines_apart(const dp__process_t *p, int32_t a, int32_t b)
{
    const char *one = machine_of(p, a), *other = machine_of(p, b);

    if (dp__same_machine(p, a, b))
        return NULL;
    if (one[0] == '\0' || other[0] == '\0')
        return "one of them has no /proc to tell its host by";
    return strncmp(one, other, BOOT_BYTES) == 0 ? "one kernel, but separate PID namespaces, as containers have"
                                                : "kernels that were booted apart";
}

int32_t dp__process_number(const dp__process_t *p, int32_t rank)
{
    int32_t pid = dp__peer(p, rank).pid;

    for (const dp__recorder_t *recorder = p->recorders; pid == 0 && recorder != NULL; recorder = recorder->next)
        if (recorder->rank == rank)
            pid = recorder->pid;
    return pid;
}

bool dp__process_traced(int32_t pid)
{
    char path[64], text[2048], *at;
    int tracer = 0;
    size_t n;

    snprintf(path, sizeof(path), "/proc/%d/status", pid);
    n = pid > 0 ? read_text(path, text, sizeof(text) - 1) : 0;
    text[n] = '\0';
    at = strstr(text, "\nTracerPid:");
    return at != NULL && sscanf(at, "\nTracerPid: %d", &tracer) == 1 && tracer != 0;
}

char dp__process_state(int32_t pid)
{
    char path[64], text[256], *after;
    size_t n;

    if (pid <= 0)
        return '\0';
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    n = read_text(path, text, sizeof(text) - 1);
    text[n] = '\0';
    after = strrchr(text, ')');
    return after != NULL && after[1] == ' ' ? after[2] : '\0';
}

bool dp__same_place(const dp__process_t *p, const dp__peer_t *peer)
{
    const char *here = machine_of(p, p->group.rank);

    return peer->machine >= 0 && here[0] != '\0' && strcmp(p->machines.all[peer->machine].name, here) == 0;
}

char dp__stands_still(const dp__process_t *p, int32_t rank)
{
    const char state = dp__process_state(dp__is_near(p, rank) ? dp__process_number(p, rank) : 0);

    return strchr("RS", state) == NULL ? state : '\0'; /* which also ends those letters */
}

void dp__watch_process(const dp__process_t *p, dp__connection_t *c, int32_t rank)
{
    if (c->pid_fd < 0 && dp__is_near(p, rank))
        /* -1, too, where that is not possible */
        c->pid_fd = (int)syscall(SYS_pidfd_open, dp__peer(p, rank).pid, 0);
}
