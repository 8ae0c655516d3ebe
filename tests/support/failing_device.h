/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * failing_device.h: calls of which one fails, and a device of such calls whose work is done at
 * once. */
#ifndef DP_TESTS_FAILING_DEVICE_H
#define DP_TESTS_FAILING_DEVICE_H

#include "tests/support/suite.h"

#include <dualpipe/device.h>
#include <dualpipe/status.h>

#include <stdlib.h>
#include <string.h>

/* Calls that go well before one fails (-1: none fails); calls so far. */
static int due = -1, ncalls;

static inline dp_status_t called(void)
{
    ncalls++;
    return due >= 0 && due-- == 0 ? dp_fail(DP_ERR_PEER, "call %d fails", ncalls) : DP_OK;
}

/* Runs `what` until none of its calls fails any more; behind: calls that may still follow the one
 * that fails. Returns how many it makes. */
static inline int fail_each(dp_status_t (*what)(void *arg), void *arg, int behind)
{
    for (int k = 0;; k++) {
        dp_status_t status;

        due = k;
        ncalls = 0;
        status = what(arg);
        if (due >= 0) {
            due = -1;
            ck_assert_int_eq(status, DP_OK);
            return ncalls;
        }
        ck_assert_int_eq(status, DP_ERR_PEER);
        ck_assert_ptr_nonnull(strstr(dp_last_error(), "fails"));
        ck_assert_int_le(ncalls, k + 1 + behind);
    }
}

/* ---- the device ---- */

struct dp_device {
    int memories, streams;
};
struct dp_stream {
    dp_device_t *device;
};
static dp_device_t device;
static dp_stream_t stream = {&device};

static dp_status_t device_allocate(dp_device_t *d, size_t bytes, void **memory_out)
{
    dp_status_t status = called();

    if (status < 0)
        return status;
    *memory_out = calloc(1, bytes);
    if (*memory_out == NULL)
        return DP_ERR_NOMEM;
    d->memories++;
    return DP_OK;
}
static void device_release(dp_device_t *d, void *memory)
{
    d->memories--;
    free(memory);
}
static dp_status_t device_copy(dp_stream_t *s, void *to, const void *from, size_t bytes)
{
    dp_status_t status = called();

    (void)s;
    if (status >= 0)
        memcpy(to, from, bytes);
    return status;
}
static dp_status_t device_zero(dp_stream_t *s, void *memory, size_t bytes)
{
    dp_status_t status = called();

    (void)s;
    if (status >= 0)
        memset(memory, 0, bytes);
    return status;
}
static dp_status_t device_add(dp_stream_t *s, void *to, const void *from, size_t count, dp_dtype_t dtype)
{
    dp_status_t status = called();

    (void)s;
    ck_assert_int_eq(dtype, DP_F64);
    for (size_t i = 0; i < count && status >= 0; i++)
        ((double *)to)[i] += ((const double *)from)[i];
    return status;
}
static dp_status_t device_launch(dp_stream_t *s, dp_launch_fn fn, const void *arg, size_t bytes)
{
    char copy[DP_LAUNCH_ARG_MAX] __attribute__((aligned(16)));
    dp_status_t status = called();

    (void)s;
    memcpy(copy, arg, bytes);
    return status < 0 ? status : fn(copy);
}
static dp_status_t device_stream_open(dp_device_t *d, dp_lane_t lane, dp_stream_t **stream_out)
{
    dp_status_t status = called();

    (void)lane;
    if (status < 0)
        return status;
    *stream_out = &stream;
    d->streams++;
    return DP_OK;
}
static void device_stream_close(dp_stream_t *s)
{
    s->device->streams--;
}
static dp_status_t device_synchronize(dp_stream_t *s, int64_t timeout_ns)
{
    (void)s, (void)timeout_ns;
    return called();
}

static dp_device_vt_t device_vt = {
    .struct_size = sizeof(device_vt),
    .allocate = device_allocate,
    .release = device_release,
    .copy = device_copy,
    .zero = device_zero,
    .add = device_add,
    .launch = device_launch,
    .stream_open = device_stream_open,
    .stream_close = device_stream_close,
    .synchronize = device_synchronize,
};

#endif
