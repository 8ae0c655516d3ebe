/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * sized.h: refuses a sized struct that is not there or shorter than in version 1.0. */
#ifndef DP_BASE_SIZED_H
#define DP_BASE_SIZED_H

#include <dualpipe/status.h>

/* what: how the message calls the struct, "dp_pipeline_open: options". least: its DP_<NAME>_MIN. */
static inline dp_status_t dp__sized_check(const char *what, const void *s, const char *type, size_t least)
{
    uint32_t size;

    if (s == NULL)
        return dp_fail(DP_ERR_INVALID, "%s is NULL", what);
    memcpy(&size, s, sizeof(size));
    if (size >= least)
        return DP_OK;
    return dp_fail(DP_ERR_INVALID, "%s: struct_size is %u, at least %zu is needed: set it to sizeof(%s)", what, size,
                   least, type);
}

#endif
