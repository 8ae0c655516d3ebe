/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cuda_host.h: the least host that a CUDA plugin's code needs: messages kept, allocations counted
 * and made to fail. */
#ifndef CUDA_HOST_H
#define CUDA_HOST_H

#include <dualpipe/plugin.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct cuda_host {
    dp_host_t host;
    dp_host_sm_t share;
    char message[2048];  /* of the latest failure */
    int allocations;     /* not yet released */
    int fail_allocation; /* the n-th allocation from now fails; 0: none */
} cuda_host_t;

static inline void cuda_host_log(const dp_host_t *h, int level, const char *origin, const char *message)
{
    (void)h;
    fprintf(stderr, "[%d] %s: %s\n", level, origin, message);
}

static inline dp_status_t cuda_host_fail(const dp_host_t *h, dp_status_t status, const char *file, int line,
                                         const char *fmt, ...)
{
    cuda_host_t *c = h->impl;
    va_list args;

    (void)file;
    (void)line;
    va_start(args, fmt);
    vsnprintf(c->message, sizeof(c->message), fmt, args);
    va_end(args);
    return status;
}

static inline void *cuda_host_allocate(const dp_host_t *h, size_t bytes, size_t alignment)
{
    cuda_host_t *c = h->impl;
    void *memory = NULL;

    if (c->fail_allocation > 0 && --c->fail_allocation == 0)
        return NULL;
    if (posix_memalign(&memory, alignment, bytes) != 0)
        return NULL;
    c->allocations++;
    return memory;
}

static inline void cuda_host_release(const dp_host_t *h, void *memory)
{
    cuda_host_t *c = h->impl;

    if (memory != NULL)
        c->allocations--;
    free(memory);
}

static inline int64_t cuda_host_now(const dp_host_t *h)
{
    struct timespec now;

    (void)h;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Polls: tests have no time to lose, but nobody to wake them either. */
static inline dp_status_t cuda_host_wait(const dp_host_t *h, dp_signal_t *signal, uint32_t target, int64_t timeout_ns,
                                         const char *what)
{
    const int64_t end = cuda_host_now(h) + (timeout_ns < 0 ? INT64_C(20000000000) : timeout_ns);
    const struct timespec nap = {0, 100000};

    while ((int32_t)(__atomic_load_n(&signal->value, __ATOMIC_ACQUIRE) - target) < 0) {
        if (cuda_host_now(h) > end)
            return cuda_host_fail(h, DP_ERR_TIMEOUT, "", 0, "%s", what);
        nanosleep(&nap, NULL);
    }
    return DP_OK;
}

static inline void cuda_host_post(const dp_host_t *h, dp_signal_t *signal, uint32_t value)
{
    (void)h;
    __atomic_store_n(&signal->value, value, __ATOMIC_RELEASE);
}

static inline dp_status_t cuda_host_aborted(const dp_host_t *h)
{
    (void)h;
    return DP_OK;
}

static inline const void *cuda_host_service(const dp_host_t *h, const char *id)
{
    const cuda_host_t *c = h->impl;

    return strcmp(id, DP_HOST_SM) == 0 && c->share.compute_sms > 0 ? &c->share : NULL;
}

static inline const char *cuda_host_last_error(const dp_host_t *h)
{
    return ((const cuda_host_t *)h->impl)->message;
}

static inline void cuda_host_open(cuda_host_t *c)
{
    *c = (cuda_host_t){
        .host = {.struct_size = sizeof(dp_host_t),
                 .abi_major = DP_ABI_MAJOR,
                 .abi_minor = DP_ABI_MINOR,
                 .impl = c,
                 .log = cuda_host_log,
                 .fail = cuda_host_fail,
                 .allocate = cuda_host_allocate,
                 .release = cuda_host_release,
                 .now_ns = cuda_host_now,
                 .wait = cuda_host_wait,
                 .post = cuda_host_post,
                 .aborted = cuda_host_aborted,
                 .get_service = cuda_host_service,
                 .last_error = cuda_host_last_error},
        .share = {.struct_size = sizeof(dp_host_sm_t)},
    };
}

#endif
