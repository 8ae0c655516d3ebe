/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * range.h: the larger or smaller of two numbers. */
#ifndef DP_BASE_RANGE_H
#define DP_BASE_RANGE_H

#include <stddef.h>
#include <stdint.h>

static inline int32_t dp__max_int32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}
static inline int64_t dp__min_int64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline size_t dp__max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

#endif
