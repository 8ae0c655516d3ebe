/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * job.c: what the processes of a trial share, and the host that ranks give to the plugin on
 * trial. */
#include "conform.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

struct conform_job {
    conform_settings_t settings;
    int32_t port; /* where ranks that are processes meet; 0: rank 0 does not listen yet */
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

/* At an address of this host (MASTER_ADDR, as the group takes it) and a port that the kernel
 * chooses. */
static int listen_somewhere(int32_t *port_out)
{
    const char *name = getenv("MASTER_ADDR");
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found = NULL;
    struct sockaddr_in address;
    socklen_t bytes = sizeof(address);
    int listener = -1;

    if (getaddrinfo(name != NULL && name[0] != '\0' ? name : "127.0.0.1", "0", &hints, &found) == 0)
        listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener >= 0 &&
        (bind(listener, found->ai_addr, found->ai_addrlen) != 0 || listen(listener, CONFORM_RANKS_MAX) != 0 ||
         getsockname(listener, (struct sockaddr *)&address, &bytes) != 0)) {
        close(listener);
        listener = -1;
    }
    if (found != NULL)
        freeaddrinfo(found);
    if (listener >= 0)
        *port_out = ntohs(address.sin_port);
    return listener;
}

int32_t conform_job_port(conform_job_t *job, int32_t rank)
{
    int32_t port = 0;
    char launch[24];
    int listener;

    if (rank == 0) {
        listener = listen_somewhere(&port);
        snprintf(launch, sizeof(launch), "listen=%d", listener);
        setenv("DUALPIPE_LAUNCH", launch, 1);
        if (port == 0)
            conform_job_verdict(job, 0, "no socket for the ranks to meet at");
        __atomic_store_n(&job->port, port, __ATOMIC_RELEASE);
    }
    while ((port = __atomic_load_n(&job->port, __ATOMIC_ACQUIRE)) == 0 && conform_job_text(job, 0) == NULL)
        conform_nap_ms(1);
    return port;
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
