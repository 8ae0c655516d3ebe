/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_reap.c: ends every descendant. Orphans come to a child subreaper one generation at a time, so
 * this goes round until there are no children left. */
#include "run_job.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The parent of a process, 0 when it is gone: the second field after the name, which may hold
 * anything. */
static pid_t parent_of(const char *pid)
{
    char path[64], text[512];
    const char *after;
    FILE *file;
    size_t n;
    int parent = 0;

    snprintf(path, sizeof(path), "/proc/%.20s/stat", pid);
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    n = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[n] = '\0';
    after = strrchr(text, ')');
    if (after == NULL || sscanf(after + 1, " %*c %d", &parent) != 1)
        return 0;
    return parent;
}

static void kill_children(void)
{
    DIR *proc = opendir("/proc");
    pid_t self = getpid();

    if (proc == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(proc)) != NULL;)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && parent_of(entry->d_name) == self)
            /* our own child: its number cannot have passed on */
            (void)kill((pid_t)atoi(entry->d_name), SIGKILL);
    closedir(proc);
}

void run_kill_descendants(void)
{
    int64_t end = run_now_ns() + 2000000000;

    while (run_now_ns() < end) {
        const struct timespec nap = {0, 2000000};
        pid_t pid;

        do
            pid = waitpid(-1, NULL, WNOHANG);
        while (pid > 0);
        if (pid < 0 && errno == ECHILD)
            return;
        kill_children();
        nanosleep(&nap, NULL);
    }
}
