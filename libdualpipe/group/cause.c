/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cause.c: the first-cause record and waiting under it. */
#include "group/cause.h"

#include <stdio.h>

static bool set_record(dp__cause_t *cause, dp_status_t status, bool final, const char *fmt, va_list args)
{
    uint32_t nobody = 0;

    if (!__atomic_compare_exchange_n(&cause->claimed, &nobody, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return false;
    cause->status = status < 0 ? status : DP_ERR_ABORTED;
    cause->final = final;
    vsnprintf(cause->message, sizeof(cause->message), fmt, args);
    /* in this order: who has waited for the record finds the job ended as well */
    __atomic_store_n(&cause->abort.word, 1, __ATOMIC_RELEASE);
    dp__signal_post(&cause->published, 1);
    return true;
}

bool dp__cause_set(dp__cause_t *cause, dp_status_t status, const char *fmt, ...)
{
    va_list args;
    bool first;

    va_start(args, fmt);
    first = set_record(cause, status, false, fmt, args);
    va_end(args);
    return first;
}

bool dp__cause_set_final(dp__cause_t *cause, dp_status_t status, const char *fmt, ...)
{
    va_list args;
    bool first;

    va_start(args, fmt);
    first = set_record(cause, status, true, fmt, args);
    va_end(args);
    return first;
}

void dp__cause_interrupt(dp__cause_t *cause, int32_t rank)
{
    uint32_t nobody = 0;

    __atomic_compare_exchange_n(&cause->interrupted, &nobody, (uint32_t)rank + 1, false, __ATOMIC_ACQ_REL,
                                __ATOMIC_ACQUIRE);
    __atomic_store_n(&cause->abort.word, 1, __ATOMIC_RELEASE);
}

void dp__cause_reset(dp__cause_t *cause)
{
    cause->status = DP_OK;
    cause->final = false;
    cause->message[0] = '\0';
    dp__signal_post(&cause->published, 0);
    __atomic_store_n(&cause->interrupted, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&cause->claimed, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&cause->abort.word, 0, __ATOMIC_RELEASE);
}

bool dp__cause_is_set(const dp__cause_t *cause)
{
    return __atomic_load_n(&cause->abort.word, __ATOMIC_ACQUIRE) != 0;
}

dp_status_t dp__cause_check(dp__cause_t *cause)
{
    uint32_t by;

    if (!dp__cause_is_set(cause))
        return DP_OK;
    by = __atomic_load_n(&cause->interrupted, __ATOMIC_ACQUIRE);
    if (by != 0 && __atomic_load_n(&cause->claimed, __ATOMIC_ACQUIRE) == 0)
        dp__cause_set(cause, DP_ERR_INTERRUPTED, "interrupted: rank %u was asked to stop", by - 1);
    if (dp__signal_wait(&cause->published, 1, INT64_MAX, NULL) != DP_OK)
        return DP_ERR_ABORTED;
    return dp_fail(cause->status, "%s", cause->message);
}

dp_status_t dp__cause_wait(dp__cause_t *cause, dp_signal_t *signal, uint32_t target, int64_t timeout_ns,
                           const char *what)
{
    int64_t now = dp__now_ns();
    int64_t deadline = timeout_ns < INT64_MAX - now ? now + timeout_ns : INT64_MAX;
    dp_status_t status = dp__signal_wait(signal, target, deadline, &cause->abort);

    if (status == DP_ERR_ABORTED)
        return dp__cause_check(cause);
    if (status == DP_ERR_TIMEOUT)
        return dp_fail(status, "%s: nothing for %.3g s", what != NULL ? what : "a wait", (double)timeout_ns * 1e-9);
    return status;
}
