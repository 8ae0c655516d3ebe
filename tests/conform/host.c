/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * host.c: the job of a conformance case: ranks of a real group, as threads or processes, and the verdict they share. */
#include "conform.h"

#include "base/wait.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define HANG_SECONDS 20

struct conform_job {
    int32_t ranks;
    uint32_t verdicts[2];
    char texts[2][1024];
    int listener; /* for ranks as processes; each has a copy */
    int port;
    dp_group_t *groups[CONFORM_RANKS_MAX]; /* for ranks as threads; each process sees only what is its own */
};

/* A group's services, with the memory that was given out counted. */
typedef struct host {
    dp_host_t table;
    const dp_host_t *inner;
    int64_t blocks;
} host_t;

conform_job_t *conform_job_create(int32_t ranks)
{
    conform_job_t *job = mmap(NULL, sizeof(*job), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (job == MAP_FAILED)
        return NULL;
    job->ranks = ranks;
    job->listener = -1;
    return job;
}

void conform_job_free(conform_job_t *job)
{
    munmap(job, sizeof(*job));
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

/* ---- joining ---- */

bool conform_job_threads(conform_job_t *job)
{
    dp_group_options_t options = {.struct_size = sizeof(options), .hang_seconds = HANG_SECONDS};

    return dp_group_local(job->ranks, &options, job->groups) == DP_OK;
}

/* Rank 0 inherits a socket that listens already: no two cases meet at a port. */
bool conform_job_listen(conform_job_t *job)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);

    job->listener = socket(AF_INET, SOCK_STREAM, 0);
    if (job->listener < 0 || bind(job->listener, (struct sockaddr *)&address, bytes) != 0 ||
        listen(job->listener, CONFORM_RANKS_MAX) != 0 ||
        getsockname(job->listener, (struct sockaddr *)&address, &bytes) != 0)
        return false;
    job->port = ntohs(address.sin_port);
    return true;
}

void conform_job_started(conform_job_t *job)
{
    close(job->listener);
}

bool conform_job_join(conform_job_t *job, int32_t rank, dp_group_t **group_out)
{
    dp_group_options_t options = {.struct_size = sizeof(options),
                                  .rank = rank,
                                  .size = job->ranks,
                                  .port = job->port,
                                  .hang_seconds = HANG_SECONDS};
    char number[16];

    if (rank == 0) {
        snprintf(number, sizeof(number), "%d", job->listener);
        setenv("DUALPIPE_LISTEN_FD", number, 1);
    } else {
        close(job->listener);
    }
    return dp_group_join(&options, group_out) == DP_OK;
}

dp_group_t *conform_job_group(const conform_job_t *job, int32_t rank)
{
    return job->groups[rank];
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
