/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * sums.h: what is added, and how: the same instructions in all transports, so the same bits. */
#ifndef PLUGINS_COMM_SUMS_H
#define PLUGINS_COMM_SUMS_H

#include <dualpipe/comm.h>

#include <stddef.h>
#include <stdint.h>

#define SUM_CACHE_BYTES 4096 /* added rank by rank while it is in the cache */

static inline dp_status_t comm_check_sum(const dp_host_t *host, const char *group, dp_dtype_t dtype)
{
    if (dtype != DP_F32 && dtype != DP_F64 && dtype != DP_I64)
        return DP_FAIL(host, DP_ERR_UNSUPPORTED,
                       "all_reduce in group %s: dtype %d is not summed, only f32, f64 and i64", group, (int)dtype);
    return DP_OK;
}

static inline void comm_add_values(void *to, const void *from, size_t bytes, dp_dtype_t dtype)
{
    if (dtype == DP_F32) {
        float *a = to;
        const float *b = from;

        for (size_t i = 0; i < bytes / sizeof(*a); i++)
            a[i] += b[i];
    } else if (dtype == DP_F64) {
        double *a = to;
        const double *b = from;

        for (size_t i = 0; i < bytes / sizeof(*a); i++)
            a[i] += b[i];
    } else {
        uint64_t *a = to; /* wraps, as two's complement does */
        const uint64_t *b = from;

        for (size_t i = 0; i < bytes / sizeof(*a); i++)
            a[i] += b[i];
    }
}

#endif
