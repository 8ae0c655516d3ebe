/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * device_work.c: see device_work.h. */
#include "device_work.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool conform_work_launches(const dp_device_vt_t *vt)
{
    return (vt->caps & DP_DEVICE_CAP_LAUNCH) && (vt->caps & DP_DEVICE_CAP_HOST_MEMORY) && vt->launch != NULL;
}

dp_status_t conform_work_write(const dp_device_vt_t *vt, dp_stream_t *s, void *to, const void *from, size_t bytes)
{
    dp_status_t status;

    if (vt->caps & DP_DEVICE_CAP_HOST_MEMORY) {
        memcpy(to, from, bytes);
        return DP_OK;
    }
    status = vt->copy(s, to, from, bytes);
    return status == DP_OK ? vt->synchronize(s, -1) : status;
}

dp_status_t conform_work_read(const dp_device_vt_t *vt, dp_stream_t *s, void *to, const void *from, size_t bytes)
{
    return conform_work_write(vt, s, to, from, bytes);
}

/* ---- steps ---- */

typedef struct add {
    uint64_t *sum, expected;
} add_t;

static dp_status_t run_step(void *arg)
{
    const add_t *a = arg;

    *a->sum = *a->sum == a->expected ? a->expected + 1 : UINT64_MAX;
    return DP_OK;
}

dp_status_t conform_tally_open(tally_t *tally, const dp_device_vt_t *vt, dp_device_t *device, uint64_t steps)
{
    const double one = 1;
    void *memory = NULL;
    dp_stream_t *s = NULL;
    dp_status_t status;

    memset(tally, 0, sizeof(*tally));
    tally->vt = vt;
    tally->device = device;
    tally->launches = conform_work_launches(vt);
    tally->room = steps;
    if (tally->launches)
        return DP_OK;
    status = vt->allocate(device, (steps + 2) * sizeof(double), &memory);
    if (status != DP_OK)
        return status;
    tally->value = memory;
    tally->one = tally->value + 1;
    tally->log = tally->value + 2;
    status = vt->stream_open(device, DP_LANE_COMPUTE, &s);
    if (status == DP_OK)
        status = conform_work_write(vt, s, tally->one, &one, sizeof(one));
    vt->stream_close(s);
    return status;
}

dp_status_t conform_tally_step(tally_t *tally, dp_stream_t *s)
{
    uint64_t number = tally->put++;
    dp_status_t status;

    if (tally->launches) {
        add_t a = {&tally->sum, number};

        return tally->vt->launch(s, run_step, &a, sizeof(a));
    }
    if (number >= tally->room)
        return DP_ERR_OVERFLOW;
    status = tally->vt->add(s, tally->value, tally->one, 1, DP_F64);
    return status == DP_OK ? tally->vt->copy(s, &tally->log[number], tally->value, sizeof(double)) : status;
}

uint64_t conform_tally_count(tally_t *tally, dp_stream_t *s)
{
    uint64_t count = 0;
    double *log;

    if (tally->launches)
        return tally->sum;
    log = calloc(tally->room + 1, sizeof(*log));
    if (log == NULL || conform_work_read(tally->vt, s, log, tally->log, tally->room * sizeof(*log)) != DP_OK)
        count = UINT64_MAX;
    for (uint64_t i = 0; i < tally->room && count != UINT64_MAX; i++)
        if (log[i] != 0)
            count = i == count && log[i] == (double)(i + 1) ? i + 1 : UINT64_MAX;
    free(log);
    return count;
}

void conform_tally_close(tally_t *tally)
{
    if (tally->value != NULL)
        tally->vt->release(tally->device, tally->value);
}

/* ---- gates ---- */

typedef struct hold {
    const dp_host_t *host;
    dp_signal_t *signal;
} hold_t;

static dp_status_t run_hold(void *arg)
{
    const hold_t *h = arg;

    return h->host->wait(h->host, h->signal, 1, -1, "the gate of the test");
}

/* cuStreamWaitValue32(stream, address, value, CU_STREAM_WAIT_VALUE_GEQ) */
typedef int (*wait_value_fn)(void *stream, unsigned long long at, uint32_t value, unsigned flags);

const char *conform_driver_named(void)
{
    static const char key[] = "lib.cuda=";
    const char *at = getenv("DUALPIPE_DEBUG"), *found = NULL;

    for (; at != NULL && (at = strstr(at, key)) != NULL; at += sizeof(key) - 1)
        found = at + sizeof(key) - 1;
    return found;
}

/* The driver that the plugins take. */
static void *open_driver(void)
{
    const char *found = conform_driver_named();
    char file[1024];

    snprintf(file, sizeof(file), "%.*s", found != NULL ? (int)strcspn(found, ",") : 0, found != NULL ? found : "");
    return dlopen(file[0] != '\0' ? file : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
}

static wait_value_fn find_wait_value(void)
{
    void *driver = open_driver();
    wait_value_fn fn = NULL;

    if (driver != NULL)
        *(void **)&fn = dlsym(driver, "cuStreamWaitValue32_v2");
    return fn;
}

dp_status_t conform_gate_make(gate_t *gate, const dp_device_vt_t *vt, dp_device_t *device, const dp_host_t *host)
{
    void *memory = NULL;
    dp_status_t status;

    memset(gate, 0, sizeof(*gate));
    gate->vt = vt;
    gate->device = device;
    gate->host = host;
    gate->launches = conform_work_launches(vt);
    if (gate->launches)
        return DP_OK;
    if (find_wait_value() == NULL)
        return DP_ERR_UNSUPPORTED;
    status = vt->host_allocate(device, sizeof(*gate->word), &memory);
    gate->word = memory;
    return status;
}

dp_status_t conform_gate_hold(gate_t *gate, dp_stream_t *s)
{
    hold_t hold = {gate->host, &gate->signal};

    if (gate->launches)
        return gate->vt->launch(s, run_hold, &hold, sizeof(hold));
    return find_wait_value()(gate->vt->stream_native(s), (unsigned long long)(uintptr_t)gate->word, 1, 0) == 0
               ? DP_OK
               : DP_ERR_DEVICE;
}

void conform_gate_open(gate_t *gate)
{
    if (gate->launches)
        gate->host->post(gate->host, &gate->signal, 1);
    else
        __atomic_store_n(gate->word, 1, __ATOMIC_RELEASE);
}

void conform_gate_free(gate_t *gate)
{
    if (gate->word != NULL)
        gate->vt->host_release(gate->device, gate->word);
}
