/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * bare_host.c: the host that a plugin's init sees, before there is any job: messages, memory and
 * the clock. */
#include "system/bare_host.h"
#include "base/memory.h"
#include "system/wait.h"

static void bare_log(const dp_host_t *h, int level, const char *origin, const char *message)
{
    (void)h;
    dp_log(level, origin, "%s", message);
}

static dp_status_t bare_fail(const dp_host_t *h, dp_status_t status, const char *file, int line, const char *fmt, ...)
{
    va_list args;

    (void)h, (void)file, (void)line;
    va_start(args, fmt);
    (void)dp_failv(status, fmt, args);
    va_end(args);
    return status;
}

static void *bare_allocate(const dp_host_t *h, size_t bytes, size_t alignment)
{
    (void)h;
    return dp__allocate(bytes, alignment);
}

static void bare_release(const dp_host_t *h, void *memory)
{
    (void)h;
    dp__free(memory);
}

static int64_t bare_now_ns(const dp_host_t *h)
{
    (void)h;
    return dp__now_ns();
}

static dp_status_t bare_wait(const dp_host_t *h, dp_signal_t *signal, uint32_t target, int64_t timeout_ns,
                             const char *what)
{
    (void)h, (void)signal, (void)target, (void)timeout_ns;
    return dp_fail(DP_ERR_UNSUPPORTED, "init must not wait (for %s): there is no job yet", what);
}

static dp_status_t bare_poll(const dp_host_t *h, dp_poll_fn progress, void *arg, int64_t timeout_ns, const char *what)
{
    (void)h, (void)progress, (void)arg, (void)timeout_ns;
    return dp_fail(DP_ERR_UNSUPPORTED, "init must not poll (for %s): there is no job yet", what);
}

static void bare_post(const dp_host_t *h, dp_signal_t *signal, uint32_t value)
{
    (void)h;
    dp__signal_post(signal, value);
}

static dp_status_t bare_aborted(const dp_host_t *h)
{
    (void)h;
    return DP_OK;
}

static const void *bare_get_service(const dp_host_t *h, const char *id)
{
    (void)h, (void)id;
    return NULL;
}

static const char *bare_last_error(const dp_host_t *h)
{
    (void)h;
    return dp_last_error();
}

static dp_status_t bare_abort_job(const dp_host_t *h, dp_status_t status, const char *why)
{
    (void)h;
    return dp_fail(status, "%s", why);
}

const dp_host_t dp__bare_host = {
    .struct_size = sizeof(dp_host_t),
    .abi_major = DP_ABI_MAJOR,
    .abi_minor = DP_ABI_MINOR,
    .log = bare_log,
    .fail = bare_fail,
    .allocate = bare_allocate,
    .release = bare_release,
    .now_ns = bare_now_ns,
    .wait = bare_wait,
    .poll = bare_poll,
    .post = bare_post,
    .aborted = bare_aborted,
    .get_service = bare_get_service,
    .last_error = bare_last_error,
    .abort_job = bare_abort_job,
};
