/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * job.c: what the processes of a trial share, and the host that ranks give to the plugin on trial. */
#include "conform.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

struct conform_job {
    conform_settings_t settings;
    uint32_t verdicts[2], flags[8];
    char texts[2][1024];
};

/* A group's services, with the memory that was given out counted. */
typedef struct host {
    dp_host_t table;
    const dp_host_t *inner;
    int64_t blocks, given;
} host_t;

/* ---- the job ---- */

static conform_job_t *map(int fd)
{
    void *memory =
        mmap(NULL, sizeof(conform_job_t), PROT_READ | PROT_WRITE, MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);

    return memory != MAP_FAILED ? memory : NULL;
}

conform_job_t *conform_job_create(const conform_settings_t *settings, char *file, size_t bytes)
{
    const char *folder = getenv("TMPDIR");
    conform_job_t *job;
    int fd = -1;

    if (file != NULL) {
        snprintf(file, bytes, "%s/dualpipe-conform-XXXXXX", folder != NULL && folder[0] == '/' ? folder : "/tmp");
        fd = mkstemp(file);
        if (fd < 0)
            return NULL;
        if (ftruncate(fd, (off_t)sizeof(*job)) != 0) {
            close(fd);
            unlink(file);
            return NULL;
        }
    }
    job = map(fd);
    if (fd >= 0)
        close(fd);
    if (job != NULL)
        job->settings = *settings;
    return job;
}

conform_job_t *conform_job_open(const char *file)
{
    int fd = open(file, O_RDWR | O_CLOEXEC);
    conform_job_t *job = fd >= 0 ? map(fd) : NULL;

    if (fd >= 0)
        close(fd);
    return job;
}

void conform_job_free(conform_job_t *job)
{
    munmap(job, sizeof(*job));
}

conform_settings_t *conform_job_settings(conform_job_t *job)
{
    return &job->settings;
}

void conform_job_verdict(conform_job_t *job, int kind, const char *text)
{
    uint32_t first = __atomic_fetch_add(&job->verdicts[kind], 1, __ATOMIC_ACQ_REL);

    if (first == 0)
        snprintf(job->texts[kind], sizeof(job->texts[kind]), "%s", text);
}

const char *conform_job_text(const conform_job_t *job, int kind)
{
    return __atomic_load_n(&job->verdicts[kind], __ATOMIC_ACQUIRE) != 0 ? job->texts[kind] : NULL;
}

void conform_raise(conform_t *t, int flag)
{
    __atomic_store_n(&t->job->flags[flag], 1, __ATOMIC_RELEASE);
}

bool conform_raised(const conform_t *t, int flag)
{
    return __atomic_load_n(&t->job->flags[flag], __ATOMIC_ACQUIRE) != 0;
}

int conform_job_listen(conform_job_t *job)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM, 0);

    if (listener < 0)
        return -1;
    if (bind(listener, (struct sockaddr *)&address, bytes) != 0 || listen(listener, CONFORM_RANKS_MAX) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &bytes) != 0) {
        close(listener);
        return -1;
    }
    job->settings.port = ntohs(address.sin_port);
    return listener;
}

/* ---- counted memory ---- */

static host_t *counting(const dp_host_t *h)
{
    return (host_t *)h; /* the table comes first */
}

static void *host_allocate(const dp_host_t *h, size_t bytes, size_t alignment)
{
    host_t *host = counting(h);
    void *memory = host->inner->allocate(host->inner, bytes, alignment);

    __atomic_fetch_add(&host->given, 1, __ATOMIC_RELAXED);
    if (memory != NULL)
        __atomic_fetch_add(&host->blocks, 1, __ATOMIC_RELAXED);
    return memory;
}

static void host_release(const dp_host_t *h, void *memory)
{
    host_t *host = counting(h);

    if (memory != NULL)
        __atomic_fetch_sub(&host->blocks, 1, __ATOMIC_RELAXED);
    host->inner->release(host->inner, memory);
}

const dp_host_t *conform_host_create(const dp_host_t *inner)
{
    host_t *host = calloc(1, sizeof(*host));

    if (host == NULL)
        return NULL;
    host->table = *inner;
    host->table.allocate = host_allocate;
    host->table.release = host_release;
    host->inner = inner;
    return &host->table;
}

void conform_host_free(const dp_host_t *host)
{
    free(counting(host));
}

int64_t conform_host_blocks(const dp_host_t *host)
{
    return __atomic_load_n(&counting(host)->blocks, __ATOMIC_RELAXED);
}

int64_t conform_host_given(const dp_host_t *host)
{
    return __atomic_load_n(&counting(host)->given, __ATOMIC_RELAXED);
}
