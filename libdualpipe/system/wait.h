/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * wait.h: the one way in which the library waits, and the clock it waits on. */
#ifndef DP_SYSTEM_WAIT_H
#define DP_SYSTEM_WAIT_H

#include <dualpipe/plugin.h>

#include "base/clock.h"

/* A job's abort state as a waiter sees it: `word` becomes non-zero when the job is over. */
typedef struct dp__abort {
    uint32_t word;
} dp__abort_t;

/* DP_OK when (int32_t)(value - target) >= 0; DP_ERR_TIMEOUT at deadline_ns (absolute; INT64_MAX:
 * none); DP_ERR_ABORTED when abort (NULL: none) is set. Records no message: the caller knows what
 * it waited for. Sees an abort within 50 ms even when nobody wakes it. The signal may be shared
 * between processes. */
dp_status_t dp__signal_wait(dp_signal_t *signal, uint32_t target, int64_t deadline_ns, const dp__abort_t *abort);
/* Sleeps; less when a signal of the system comes. For loops that look at their deadline and the
 * abort themselves. */
void dp__nap(int64_t ns);
/* Sets the value (release) and wakes waiters. */
void dp__signal_post(dp_signal_t *signal, uint32_t value);
uint32_t dp__signal_value(const dp_signal_t *signal);

/* timeouts are multiplied by dp__timeout_scale() */
int64_t dp__scaled_ns(double seconds);

#endif
