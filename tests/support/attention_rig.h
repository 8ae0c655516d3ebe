/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * attention_rig.h: the least an attention plugin needs to run: a host, and a device whose launches
 * run at once. */
#ifndef ATTENTION_RIG_H
#define ATTENTION_RIG_H

#include "tests/support/block_config.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct rig {
    dp_host_t host;
    dp_host_sm_t share;
    dp_device_vt_t device_vt;
    const dp_attention_vt_t *vt;
    char message[1024];     /* of the latest failure */
    dp_status_t abort_with; /* what aborted() says */
    int allocations;        /* not yet released */
    int fail_allocation;    /* the n-th allocation from now fails; 0: none */
    int launches;
} rig_t;

static inline void rig_log(const dp_host_t *h, int level, const char *origin, const char *message)
{
    (void)h;
    fprintf(stderr, "[%d] %s: %s\n", level, origin, message);
}

static inline dp_status_t rig_fail(const dp_host_t *h, dp_status_t status, const char *file, int line, const char *fmt,
                                   ...)
{
    rig_t *rig = h->impl;
    va_list args;

    (void)file;
    (void)line;
    va_start(args, fmt);
    vsnprintf(rig->message, sizeof(rig->message), fmt, args);
    va_end(args);
    return status;
}

static inline void *rig_allocate(const dp_host_t *h, size_t bytes, size_t alignment)
{
    rig_t *rig = h->impl;
    void *memory = NULL;

    if (rig->fail_allocation > 0 && --rig->fail_allocation == 0)
        return NULL;
    if (posix_memalign(&memory, alignment, bytes) != 0)
        return NULL;
    rig->allocations++;
    return memory;
}

static inline void rig_release(const dp_host_t *h, void *memory)
{
    rig_t *rig = h->impl;

    if (memory != NULL)
        rig->allocations--;
    free(memory);
}

static inline int64_t rig_now_ns(const dp_host_t *h)
{
    struct timespec now;

    (void)h;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Nothing here runs beside the caller, so a signal that is not there yet never comes. */
static inline dp_status_t rig_wait(const dp_host_t *h, dp_signal_t *signal, uint32_t target, int64_t timeout_ns,
                                   const char *what)
{
    (void)timeout_ns;
    if ((int32_t)(signal->value - target) >= 0)
        return DP_OK;
    return rig_fail(h, DP_ERR_TIMEOUT, "", 0, "%s", what);
}

static inline void rig_post(const dp_host_t *h, dp_signal_t *signal, uint32_t value)
{
    (void)h;
    signal->value = value;
}

static inline dp_status_t rig_aborted(const dp_host_t *h)
{
    return ((rig_t *)h->impl)->abort_with;
}

static inline const void *rig_get_service(const dp_host_t *h, const char *id)
{
    const rig_t *rig = h->impl;

    return strcmp(id, DP_HOST_SM) == 0 && rig->share.compute_sms > 0 ? &rig->share : NULL;
}

static inline const char *rig_last_error(const dp_host_t *h)
{
    return ((rig_t *)h->impl)->message;
}

/* A stream of the rig is the rig itself. The argument is copied, as streams do, so that nobody can
 * rely on the caller's. */
static inline dp_status_t rig_launch(dp_stream_t *s, dp_launch_fn fn, const void *arg, size_t bytes)
{
    rig_t *rig = (rig_t *)s;
    _Alignas(16) char copy[DP_LAUNCH_ARG_MAX];

    if (bytes > sizeof(copy))
        return rig_fail(&rig->host, DP_ERR_INVALID, "", 0, "launch: %zu bytes of argument", bytes);
    memcpy(copy, arg, bytes);
    rig->launches++;
    return fn(copy);
}

static inline dp_stream_t *rig_stream(rig_t *rig)
{
    return (dp_stream_t *)rig;
}

static inline dp_status_t rig_open(rig_t *rig, const char *plugin_name)
{
    const dp_plugin_t *plugin;
    const void *table;
    dp_status_t status;

    *rig = (rig_t){
        .host = {.struct_size = sizeof(dp_host_t),
                 .abi_major = DP_ABI_MAJOR,
                 .abi_minor = DP_ABI_MINOR,
                 .impl = rig,
                 .log = rig_log,
                 .fail = rig_fail,
                 .allocate = rig_allocate,
                 .release = rig_release,
                 .now_ns = rig_now_ns,
                 .wait = rig_wait,
                 .post = rig_post,
                 .aborted = rig_aborted,
                 .get_service = rig_get_service,
                 .last_error = rig_last_error},
        .share = {.struct_size = sizeof(dp_host_sm_t)},
        .device_vt = {.struct_size = sizeof(dp_device_vt_t),
                      .kind = "cpu",
                      .caps = DP_DEVICE_CAP_HOST_MEMORY | DP_DEVICE_CAP_LAUNCH,
                      .launch = rig_launch},
    };
    status = dp_plugin_load(plugin_name, &plugin);
    if (status >= 0)
        status = dp_plugin_interface(plugin, DP_IFACE_ATTENTION, sizeof(dp_attention_vt_t), &table);
    if (status >= 0)
        rig->vt = table;
    return status;
}

/* A configuration on the rig's device; what is not given here is the default. */
static inline attention_config_t rig_config(rig_t *rig, dp_dtype_t dtype, uint32_t batch, uint32_t sequence,
                                            uint32_t hidden, uint32_t heads, uint32_t kv_heads, uint32_t head_dim)
{
    return (attention_config_t){
        .shape = {.struct_size = sizeof(dp_block_shape_t),
                  .dtype = dtype,
                  .batch = batch,
                  .sequence = sequence,
                  .hidden = hidden},
        .attention =
            {
                .struct_size = sizeof(dp_attention_config_t),
                .heads = heads,
                .kv_heads = kv_heads,
                .head_dim = head_dim,
                .device_vt = &rig->device_vt,
                .device = (dp_device_t *)rig,
            },
    };
}

#endif
