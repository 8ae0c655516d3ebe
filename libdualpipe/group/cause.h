/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cause.h: why a job ended: one record, written once, by whoever comes first. */
#ifndef DP_GROUP_CAUSE_H
#define DP_GROUP_CAUSE_H

#include "system/wait.h"

#include <stdbool.h>

#define DP__CAUSE_BYTES 960

typedef struct dp__cause {
    dp__abort_t abort;     /* what waiters look at */
    uint32_t claimed;      /* 1: somebody is writing the record, or has */
    uint32_t interrupted;  /* rank + 1 of the first dp__cause_interrupt */
    dp_signal_t published; /* 1: status and message are there */
    bool final;            /* nobody can take the place of what is lost: a host */
    dp_status_t status;
    char message[DP__CAUSE_BYTES];
} dp__cause_t;

/* true for the first caller alone. */
bool dp__cause_set(dp__cause_t *cause, dp_status_t status, const char *fmt, ...) DP_PRINTF(3, 4);
/* The same for what cannot be replaced. */
bool dp__cause_set_final(dp__cause_t *cause, dp_status_t status, const char *fmt, ...) DP_PRINTF(3, 4);
/* The same from a signal handler: the next reader writes the record. */
void dp__cause_interrupt(dp__cause_t *cause, int32_t rank);
/* The job goes on without it. Nobody may be waiting under the cause. */
void dp__cause_reset(dp__cause_t *cause);
/* true once there is a cause. Records no message. */
bool dp__cause_is_set(const dp__cause_t *cause);
/* DP_OK, or the cause's status with its message recorded for dp_last_error(). */
dp_status_t dp__cause_check(dp__cause_t *cause);

/* dp__signal_wait under a cause: DP_ERR_TIMEOUT records "WHAT: nothing for N s", an abort the first
 * cause. */
dp_status_t dp__cause_wait(dp__cause_t *cause, dp_signal_t *signal, uint32_t target, int64_t timeout_ns,
                           const char *what);

#endif
