/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_status.c: asks jobs whose rank 0 lives on this host what their ranks are at: they listen on
 * sockets without files, "@dualpipe-<uid>-<pid>". */
#include "run_status.h"

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { PATIENCE_MS = 5000, GENERATIONS = 16 };

static pid_t parent_of(pid_t pid)
{
    char path[64], text[512];
    int parent = 0;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fgets(text, sizeof(text), file) != NULL && strrchr(text, ')') != NULL)
        (void)sscanf(strrchr(text, ')'), ") %*c %d", &parent);
    fclose(file);
    return parent;
}

static bool descends_from(pid_t pid, pid_t of)
{
    for (int i = 0; i < GENERATIONS && pid > 1 && pid != of; i++)
        pid = parent_of(pid);
    return pid == of;
}

/* Copies what comes until the end of it. */
static bool copy_answer(int fd, FILE *to)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    char part[4096];
    ssize_t n = 0;
    bool any = false;

    while (poll(&wait, 1, PATIENCE_MS) > 0 && (n = read(fd, part, sizeof(part))) > 0) {
        fwrite(part, 1, (size_t)n, to);
        any = true;
    }
    return any;
}

/* Anybody may take any name. */
static bool is_of(int fd, unsigned uid)
{
    struct ucred who;
    socklen_t bytes = sizeof(who);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 && who.uid == uid;
}

static bool ask_rank(const char *name, unsigned uid, FILE *to)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const size_t bytes = strlen(name);
    int fd = bytes + 1 < sizeof(address.sun_path) ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    bool answered;

    if (fd < 0)
        return false;
    memcpy(address.sun_path + 1, name, bytes);
    answered = connect(fd, (struct sockaddr *)&address,
                       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes)) == 0 &&
               is_of(fd, uid) && copy_answer(fd, to);
    close(fd);
    return answered;
}

int run_status(pid_t of, FILE *to)
{
    FILE *sockets = fopen("/proc/net/unix", "re");
    char line[512], flags[16], name[128];
    unsigned uid;
    int pid, answered = 0;

    if (sockets == NULL)
        return 0;
    while (fgets(line, sizeof(line), sockets) != NULL)
        if (sscanf(line, "%*s %*s %*s %15s %*s %*s %*s @%127s", flags, name) == 2 && strcmp(flags, "00010000") == 0 &&
            sscanf(name, "dualpipe-%u-%d", &uid, &pid) == 2 && (uid == geteuid() || geteuid() == 0) &&
            (of == 0 || descends_from(pid, of)))
            answered += ask_rank(name, uid, to);
    fclose(sockets);
    return answered;
}
