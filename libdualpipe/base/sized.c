/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * sized.c: what is wrong with a struct that says its size. */
#include "base/sized.h"
#include "base/do.h"

dp_status_t dp__sized_check(const char *what, const void *s, const char *type, size_t least)
{
    uint32_t bytes;

    if (s == NULL)
        return dp_fail(DP_ERR_INVALID, "%s is NULL", what);
    memcpy(&bytes, s, sizeof(bytes));
    if (bytes < least || bytes > DP_SIZED_MOST)
        return dp_fail(DP_ERR_INVALID, "%s: struct_size is %u, at least %zu is needed: set it to sizeof(%s)", what,
                       bytes, least, type);
    return DP_OK;
}

dp_status_t dp__sized_take(const char *what, const char *type, size_t least, void *to, size_t to_bytes,
                           const void *from)
{
    uint32_t set;

    DO(dp__sized_check(what, from, type, least));
    set = dp_sized_take(to, (uint32_t)to_bytes, from);
    if (set == 0)
        return DP_OK;
    return dp_fail(DP_ERR_UNSUPPORTED,
                   "%s: byte %u of %s is set, but this library (" DP_VERSION ") knows %zu bytes: use a newer library, "
                   "or leave newer members zero",
                   what, set, type, to_bytes);
}
