/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_failing_device.c: device_cpu, of which one call fails. */
#include "mock_failing_device.h"

#include <dlfcn.h>
#include <dualpipe/device.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const dp_device_vt_t *real;
static _Thread_local const dp_host_t *own_host; /* an instance is called from one thread */
static atomic_long count, due = -1;
static _Atomic(const char *) failed;
static _Atomic(uint64_t) numbers;
static _Atomic(int64_t) back_ns;
static atomic_long nstamps;

static dp_status_t fails(const char *call)
{
    if (atomic_fetch_add(&count, 1) != atomic_load(&due))
        return DP_OK;
    atomic_store(&failed, call);
    return DP_FAIL(own_host, DP_ERR_DEVICE, "a planted failure of %s", call);
}

#define FORWARD(call, ...)                                                                                             \
    do {                                                                                                               \
        dp_status_t status_ = fails(#call);                                                                            \
        return status_ < 0 ? status_ : real->call(__VA_ARGS__);                                                        \
    } while (0)

static dp_status_t failing_open(const dp_host_t *host, const dp_device_config_t *config, dp_device_t **device_out)
{
    own_host = host;
    atomic_fetch_or(&numbers, UINT64_C(1) << config->local_rank % 64);
    FORWARD(open, host, config, device_out);
}

static dp_status_t failing_allocate(dp_device_t *device, size_t bytes, void **memory_out)
{
    FORWARD(allocate, device, bytes, memory_out);
}

static dp_status_t failing_copy(dp_stream_t *s, void *to, const void *from, size_t bytes)
{
    FORWARD(copy, s, to, from, bytes);
}

static dp_status_t failing_zero(dp_stream_t *s, void *memory, size_t bytes)
{
    FORWARD(zero, s, memory, bytes);
}

static dp_status_t failing_add(dp_stream_t *s, void *to, const void *from, size_t n, dp_dtype_t dtype)
{
    FORWARD(add, s, to, from, n, dtype);
}

static dp_status_t failing_stream_open(dp_device_t *device, dp_lane_t lane, dp_stream_t **stream_out)
{
    FORWARD(stream_open, device, lane, stream_out);
}

static dp_status_t failing_event_open(dp_device_t *device, dp_event_t **event_out)
{
    FORWARD(event_open, device, event_out);
}

static dp_status_t failing_event_record(dp_event_t *event, dp_stream_t *s)
{
    FORWARD(event_record, event, s);
}

static dp_status_t failing_stream_wait(dp_stream_t *s, dp_event_t *event)
{
    FORWARD(stream_wait, s, event);
}

static dp_status_t failing_launch(dp_stream_t *s, dp_launch_fn fn, const void *arg, size_t bytes)
{
    FORWARD(launch, s, fn, arg, bytes);
}

typedef struct turn {
    int64_t *slot, ns;
} turn_t;

static dp_status_t turn_slot(void *arg)
{
    const turn_t *turn = arg;

    *turn->slot -= turn->ns;
    return DP_OK;
}

static dp_status_t failing_stamp(dp_stream_t *s, int64_t *slot)
{
    const turn_t turn = {slot, atomic_load(&back_ns)};
    dp_status_t status = fails("stamp");

    if (status >= 0)
        status = real->stamp(s, slot);
    if (status >= 0 && turn.ns > 0 && atomic_fetch_add(&nstamps, 1) % 2 == 1)
        status = real->launch(s, turn_slot, &turn, sizeof(turn));
    return status;
}

static dp_status_t failing_synchronize(dp_stream_t *s, int64_t timeout_ns)
{
    FORWARD(synchronize, s, timeout_ns);
}

static dp_device_vt_t table;

static void arm(long k)
{
    atomic_store(&count, 0);
    atomic_store(&failed, NULL);
    atomic_store(&due, k);
}

static long calls(void)
{
    return atomic_load(&count);
}

static const char *struck(void)
{
    return atomic_load(&failed);
}

static uint64_t local_ranks(void)
{
    return atomic_load(&numbers);
}

static void turn_back(int64_t ns)
{
    atomic_store(&nstamps, 0);
    atomic_store(&back_ns, ns);
}

static const mock_failing_device_t control = {sizeof(control), arm, calls, struck, local_ranks, turn_back};

static const void *get_interface(const char *id)
{
    if (strcmp(id, DP_IFACE_DEVICE) == 0)
        return &table;
    return strcmp(id, MOCK_FAILING_DEVICE) == 0 ? &control : NULL;
}

/* Finds the real one where tests have their plugins. */
static dp_status_t init(const dp_host_t *host)
{
    const char *folder = getenv("DUALPIPE_PLUGIN_PATH");
    const dp_plugin_t *plugin = NULL;
    char path[4096];
    void *module;

    snprintf(path, sizeof(path), "%s/dp_device_cpu.so", folder != NULL ? folder : ".");
    module = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (module != NULL)
        plugin = dlsym(module, "dp_plugin_entry");
    if (plugin == NULL)
        return DP_FAIL(host, DP_ERR_PLUGIN, "no device_cpu to wrap in %s", path);
    real = plugin->get_interface(DP_IFACE_DEVICE);
    table = *real;
    table.open = failing_open;
    table.allocate = failing_allocate;
    table.copy = failing_copy;
    table.zero = failing_zero;
    table.add = failing_add;
    table.stream_open = failing_stream_open;
    table.event_open = failing_event_open;
    table.event_record = failing_event_record;
    table.stream_wait = failing_stream_wait;
    table.launch = failing_launch;
    table.stamp = failing_stamp;
    table.synchronize = failing_synchronize;
    return DP_OK;
}

DP_PLUGIN_DEFINE(mock_failing_device) = {
    DP_PLUGIN_HEAD, .name = "mock_failing_device",  .version = "0.1", .summary = "device_cpu, with a failure",
    .init = init,   .get_interface = get_interface,
};
