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
    switch (status) {
    case DP_OK:
        return "DP_OK";
    case DP_PENDING:
        return "DP_PENDING";
    case DP_ERR_INVALID:
        return "DP_ERR_INVALID";
    case DP_ERR_NOMEM:
        return "DP_ERR_NOMEM";
    case DP_ERR_PLUGIN:
        return "DP_ERR_PLUGIN";
    case DP_ERR_PEER:
        return "DP_ERR_PEER";
    case DP_ERR_TIMEOUT:
        return "DP_ERR_TIMEOUT";
    case DP_ERR_PROTOCOL:
        return "DP_ERR_PROTOCOL";
    case DP_ERR_NUMERIC:
        return "DP_ERR_NUMERIC";
    case DP_ERR_IO:
        return "DP_ERR_IO";
    case DP_ERR_MISMATCH:
        return "DP_ERR_MISMATCH";
    case DP_ERR_RENDEZVOUS:
        return "DP_ERR_RENDEZVOUS";
    case DP_ERR_REJECTED:
        return "DP_ERR_REJECTED";
    case DP_ERR_UNSUPPORTED:
        return "DP_ERR_UNSUPPORTED";
    case DP_ERR_ABORTED:
        return "DP_ERR_ABORTED";
    case DP_ERR_SECURITY:
        return "DP_ERR_SECURITY";
    case DP_ERR_DEVICE:
        return "DP_ERR_DEVICE";
    case DP_ERR_OVERFLOW:
        return "DP_ERR_OVERFLOW";
    case DP_ERR_INTERRUPTED:
        return "DP_ERR_INTERRUPTED";
    case DP_ERR_LOST:
        return "DP_ERR_LOST";
    default:
        return "DP_ERR_?";
    }
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
