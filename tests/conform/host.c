/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * host.c: the host of a conformance job: services over memory that all ranks share, whether threads or forked processes. */
#include "conform.h"

#include "base/memory.h"
#include "base/wait.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ENTRIES    1024
#define KEY_BYTES  128
#define DATA_BYTES 8192
#define LIMIT_S    20

typedef struct note {
    char key[KEY_BYTES];
    uint32_t bytes;
    unsigned char data[DATA_BYTES];
} note_t;

struct conform_job {
    int32_t ranks;
    dp__abort_t abort;
    uint32_t lock;
    dp_status_t cause;
    char cause_text[512];
    dp_signal_t notes_count;
    note_t notes[ENTRIES];
    dp_signal_t arrived; /* meetings: how many ranks came so far, over all meetings */
    uint32_t verdicts[2];
    char texts[2][1024];
};

typedef struct host {
    dp_host_t table;
    conform_job_t *job;
    int32_t rank;
    uint32_t meetings;
    int64_t blocks;
} host_t;

static void lock(conform_job_t *job)
{
    while (__atomic_exchange_n(&job->lock, 1, __ATOMIC_ACQUIRE) != 0)
        conform_nap_ms(1);
}

static void unlock(conform_job_t *job)
{
    __atomic_store_n(&job->lock, 0, __ATOMIC_RELEASE);
}

conform_job_t *conform_job_create(int32_t ranks)
{
    conform_job_t *job = mmap(NULL, sizeof(*job), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (job == MAP_FAILED)
        return NULL;
    job->ranks = ranks;
    return job;
}

void conform_job_abort(conform_job_t *job, dp_status_t status, const char *message)
{
    lock(job);
    if (job->abort.word == 0) {
        job->cause = status;
        snprintf(job->cause_text, sizeof(job->cause_text), "%s", message);
        __atomic_store_n(&job->abort.word, 1, __ATOMIC_RELEASE);
    }
    unlock(job);
}

void conform_job_verdict(conform_job_t *job, int kind, const char *text)
{
    lock(job);
    if (job->verdicts[kind]++ == 0)
        snprintf(job->texts[kind], sizeof(job->texts[kind]), "%s", text);
    unlock(job);
}

const char *conform_job_text(const conform_job_t *job, int kind)
{
    return __atomic_load_n(&job->verdicts[kind], __ATOMIC_ACQUIRE) != 0 ? job->texts[kind] : NULL;
}

/* ---- services ---- */

static host_t *own(const dp_host_t *h)
{
    return h->impl;
}

static void host_log(const dp_host_t *h, int level, const char *origin, const char *message)
{
    (void)h;
    dp_log(level, origin, "%s", message);
}

static dp_status_t host_fail(const dp_host_t *h, dp_status_t status, const char *file, int line,
                             const char *fmt, ...)
{
    va_list args;

    (void)h;
    (void)file;
    (void)line;
    va_start(args, fmt);
    (void)dp_failv(status, fmt, args);
    va_end(args);
    return status;
}

static void *host_allocate(const dp_host_t *h, size_t bytes, size_t alignment)
{
    void *memory = dp__allocate(bytes, alignment);

    if (memory != NULL)
        __atomic_fetch_add(&own(h)->blocks, 1, __ATOMIC_RELAXED);
    return memory;
}

static void host_release(const dp_host_t *h, void *memory)
{
    if (memory != NULL)
        __atomic_fetch_sub(&own(h)->blocks, 1, __ATOMIC_RELAXED);
    dp__free(memory);
}

static int64_t host_now_ns(const dp_host_t *h)
{
    (void)h;
    return dp__now_ns();
}

static dp_status_t cause(conform_job_t *job, const char *what)
{
    return dp_fail(job->cause, "%s: ended because %s", what, job->cause_text);
}

static dp_status_t host_wait(const dp_host_t *h, dp_signal_t *signal, uint32_t target, int64_t timeout_ns,
                             const char *what)
{
    conform_job_t *job = own(h)->job;
    int64_t limit = timeout_ns >= 0 ? timeout_ns : dp__scaled_ns(LIMIT_S);
    dp_status_t status = dp__signal_wait(signal, target, dp__now_ns() + limit, &job->abort);

    if (status == DP_ERR_ABORTED)
        return cause(job, what);
    if (status == DP_ERR_TIMEOUT)
        return dp_fail(status, "rank %d: %s: no progress for %.3f s", own(h)->rank, what,
                       (double)limit * 1e-9);
    return status;
}

static void host_post(const dp_host_t *h, dp_signal_t *signal, uint32_t value)
{
    (void)h;
    dp__signal_post(signal, value);
}

static dp_status_t host_aborted(const dp_host_t *h)
{
    conform_job_t *job = own(h)->job;

    return __atomic_load_n(&job->abort.word, __ATOMIC_ACQUIRE) != 0 ? cause(job, "asked") : DP_OK;
}

static const char *host_last_error(const dp_host_t *h)
{
    (void)h;
    return dp_last_error();
}

static const note_t *find(const conform_job_t *job, const char *key, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(job->notes[i].key, key) == 0)
            return &job->notes[i];
    return NULL;
}

static dp_status_t boot_put(const dp_host_t *h, const char *key, const void *data, size_t bytes)
{
    conform_job_t *job = own(h)->job;
    uint32_t count;

    if (strlen(key) >= KEY_BYTES || bytes > DATA_BYTES)
        return dp_fail(DP_ERR_INVALID, "%s: key or data too long", key);
    lock(job);
    count = job->notes_count.value;
    if (count == ENTRIES || find(job, key, count) != NULL) {
        unlock(job);
        return dp_fail(DP_ERR_INVALID, "%s: published twice, or too much is", key);
    }
    strcpy(job->notes[count].key, key);
    memcpy(job->notes[count].data, data, bytes);
    job->notes[count].bytes = (uint32_t)bytes;
    dp__signal_post(&job->notes_count, count + 1);
    unlock(job);
    return DP_OK;
}

static dp_status_t boot_get(const dp_host_t *h, const char *key, void *data, size_t bytes)
{
    conform_job_t *job = own(h)->job;

    for (;;) {
        uint32_t count = dp__signal_value(&job->notes_count);
        const note_t *note = find(job, key, count);
        dp_status_t status;

        if (note != NULL && note->bytes != bytes)
            return dp_fail(DP_ERR_PROTOCOL, "%s has %u bytes, %zu were expected", key, note->bytes, bytes);
        if (note != NULL) {
            memcpy(data, note->data, bytes);
            return DP_OK;
        }
        status = host_wait(h, &job->notes_count, count + 1, -1, key);
        if (status < 0)
            return status;
    }
}

static const void *host_service(const dp_host_t *h, const char *id)
{
    static const dp_host_boot_t boot = {sizeof(boot), boot_put, boot_get};

    (void)h;
    return strcmp(id, DP_HOST_BOOT) == 0 ? &boot : NULL;
}

const dp_host_t *conform_host_create(conform_job_t *job, int32_t rank)
{
    static const dp_host_t table = {
        .struct_size = sizeof(table),
        .abi_major = DP_ABI_MAJOR,
        .abi_minor = DP_ABI_MINOR,
        .log = host_log,
        .fail = host_fail,
        .allocate = host_allocate,
        .release = host_release,
        .now_ns = host_now_ns,
        .wait = host_wait,
        .post = host_post,
        .aborted = host_aborted,
        .get_service = host_service,
        .last_error = host_last_error,
    };
    host_t *host = calloc(1, sizeof(*host));

    if (host == NULL)
        return NULL;
    host->table = table;
    host->table.impl = host;
    host->job = job;
    host->rank = rank;
    return &host->table;
}

void conform_host_free(const dp_host_t *host)
{
    free(own(host));
}

int64_t conform_host_blocks(const dp_host_t *host)
{
    return __atomic_load_n(&own(host)->blocks, __ATOMIC_RELAXED);
}

bool conform_job_meet(conform_job_t *job, const dp_host_t *host)
{
    uint32_t target = ++own(host)->meetings * (uint32_t)job->ranks;

    lock(job);
    dp__signal_post(&job->arrived, job->arrived.value + 1);
    unlock(job);
    return host_wait(host, &job->arrived, target, -1, "a meeting of all ranks") == DP_OK;
}
