/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * host.c: the services that plugins of a rank get. */
#include "base/do.h"
#include "group/group.h"
#include "system/bare_host.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CAUSE_PATIENCE_NS INT64_C(1000000000)

static dp_group_t *group_of(const dp_host_t *h)
{
    return h->impl;
}

static void host_log(const dp_host_t *h, int level, const char *origin, const char *message)
{
    dp_log(level, origin, "rank %d: %s", group_of(h)->rank, message);
}

static dp_status_t host_fail(const dp_host_t *h, dp_status_t status, const char *file, int line, const char *fmt, ...)
{
    const char *slash = strrchr(file, '/');
    va_list args;

    va_start(args, fmt);
    (void)dp_failv(status, fmt, args);
    va_end(args);
    dp_log(DP_LOG_DEBUG, slash != NULL ? slash + 1 : file, "line %d: rank %d: %s: %s", line, group_of(h)->rank,
           dp_status_name(status), dp_last_error());
    return status;
}

/* Whoever waits in slices takes DP_ERR_TIMEOUT for "not yet": a job that ended with it must not
 * look the same. */
static dp_status_t end_of_slice(const dp_group_t *group, dp_status_t status)
{
    if (status != DP_ERR_TIMEOUT || !dp__cause_is_set(group->cause))
        return status;
    (void)dp__cause_check(group->cause);
    return dp_fail(DP_ERR_ABORTED, "%s", dp_last_error());
}

static dp_status_t host_wait(const dp_host_t *h, dp_signal_t *signal, uint32_t target, int64_t timeout_ns,
                             const char *what)
{
    const dp_group_t *group = group_of(h);

    if (timeout_ns < 0)
        return dp__group_wait(group, signal, target, group->hang_ns, what);
    return end_of_slice(group, dp__cause_wait(group->cause, signal, target, timeout_ns, what));
}

static dp_status_t host_poll(const dp_host_t *h, dp_poll_fn progress, void *arg, int64_t timeout_ns, const char *what)
{
    dp_status_t status = dp__group_poll(group_of(h), progress, arg, timeout_ns, what);

    return timeout_ns < 0 ? status : end_of_slice(group_of(h), status);
}

static dp_status_t host_aborted(const dp_host_t *h)
{
    return dp__cause_check(group_of(h)->cause);
}

static dp_status_t boot_put(const dp_host_t *h, const char *key, const void *data, size_t bytes)
{
    DO(dp__kv_check(key, bytes));
    return group_of(h)->link->put(group_of(h), key, data, bytes);
}

static dp_status_t boot_get(const dp_host_t *h, const char *key, void *data, size_t bytes)
{
    DO(dp__kv_check(key, bytes));
    return group_of(h)->link->get(group_of(h), key, data, bytes);
}

static const void *host_get_service(const dp_host_t *h, const char *id)
{
    static const dp_host_boot_t boot = {sizeof(boot), boot_put, boot_get};

    if (strcmp(id, DP_HOST_BOOT) == 0)
        return &boot;
    if (strcmp(id, DP_HOST_SM) == 0)
        return &group_of(h)->sm;
    if (strcmp(id, DP_HOST_LIMITS) == 0)
        return &group_of(h)->limits;
    if (strcmp(id, DP_HOST_PLACES) == 0)
        return dp__group_places(group_of(h));
    return NULL;
}

/* The control plane hears of a death as soon as a transport does, and knows more of it. */
static dp_status_t host_abort_job(const dp_host_t *h, dp_status_t status, const char *why)
{
    dp_group_t *group = group_of(h);
    dp_signal_t never = {0, 0};

    if (dp__cause_wait(group->cause, &never, 1, CAUSE_PATIENCE_NS, why) == DP_ERR_TIMEOUT &&
        !dp__cause_is_set(group->cause))
        dp_group_abort(group, status < 0 ? status : DP_ERR_INVALID, why);
    return dp__cause_check(group->cause);
}

void dp__group_init(dp_group_t *group, int32_t rank, int32_t size, int64_t hang_ns, dp__cause_t *cause,
                    const dp__group_link_t *link)
{
    group->host = dp__bare_host;
    group->host.impl = group;
    group->host.log = host_log;
    group->host.fail = host_fail;
    group->host.abort_job = host_abort_job;
    group->host.wait = host_wait;
    group->host.poll = host_poll;
    group->host.aborted = host_aborted;
    group->host.get_service = host_get_service;
    group->sm = (dp_host_sm_t){.struct_size = sizeof(dp_host_sm_t)};
    group->limits = (dp_host_limits_t){.struct_size = sizeof(dp_host_limits_t), .hang_ns = hang_ns};
    group->pid = getpid();
    group->rank = rank;
    group->size = size;
    group->hang_ns = hang_ns;
    group->cause = cause;
    group->link = link;
}
