/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * status.c: status names, this thread's last message, and log lines. */
#include <dualpipe/status.h>

#include "base/environment.h"

#include <stdio.h>
#include <string.h>

static _Thread_local char last_message[1024];

static struct {
    dp_log_fn fn;
    void *user;
    int level;
} log_target = {NULL, NULL, -1};

const char *dp_version(void)
{
    return DP_VERSION;
}

const char *dp_status_name(dp_status_t status)
{
#define NAME(status) [-(status)] = #status
    static const char *const names[] = {
        NAME(DP_OK),           NAME(DP_ERR_INVALID),  NAME(DP_ERR_NOMEM),       NAME(DP_ERR_PLUGIN),
        NAME(DP_ERR_PEER),     NAME(DP_ERR_TIMEOUT),  NAME(DP_ERR_PROTOCOL),    NAME(DP_ERR_NUMERIC),
        NAME(DP_ERR_IO),       NAME(DP_ERR_MISMATCH), NAME(DP_ERR_RENDEZVOUS),  NAME(DP_ERR_REJECTED),
        NAME(DP_ERR_SECURITY), NAME(DP_ERR_ABORTED),  NAME(DP_ERR_UNSUPPORTED), NAME(DP_ERR_INTERRUPTED),
        NAME(DP_ERR_DEVICE),   NAME(DP_ERR_OVERFLOW), NAME(DP_ERR_LOST),        NAME(DP_ERR_CORRUPT),
    };
    const int count = sizeof(names) / sizeof(names[0]);

    if (status == DP_PENDING)
        return "DP_PENDING";
    return status <= 0 && status > -count ? names[-status] : "DP_ERR_?";
}

const char *dp_last_error(void)
{
    return last_message;
}

dp_status_t dp_failv(dp_status_t status, const char *fmt, va_list args)
{
    char text[sizeof(last_message)]; /* arguments may point into last_message */

    vsnprintf(text, sizeof(text), fmt, args);
    memcpy(last_message, text, sizeof(text));
    return status;
}

dp_status_t dp_fail(dp_status_t status, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    (void)dp_failv(status, fmt, args);
    va_end(args);
    return status;
}

void dp_log_set(dp_log_fn fn, void *user, int max_level)
{
    log_target.fn = fn;
    log_target.user = user;
    log_target.level = fn != NULL ? max_level : -1;
}

void dp_log(int level, const char *origin, const char *fmt, ...)
{
    int limit = log_target.level >= 0 ? log_target.level : dp__log_level();
    char text[1024];
    va_list args;

    if (level > limit)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (log_target.fn != NULL)
        log_target.fn(log_target.user, level, origin, text);
    else
        fprintf(stderr, "dualpipe: %s: %s\n", origin, text);
}
