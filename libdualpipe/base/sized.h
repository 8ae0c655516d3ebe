/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * sized.h: takes over structs by which somebody asks (status.h), and refuses results without a
 * size. */
#ifndef DP_BASE_SIZED_H
#define DP_BASE_SIZED_H

#include <dualpipe/status.h>

/* what: how messages call the struct, "dp_pipeline_open: options". least: its DP_<NAME>_MIN. */
#define dp__take(what, type, least, to, from) dp__sized_take(what, #type, least, to, sizeof(type), from)

dp_status_t dp__sized_take(const char *what, const char *type, size_t least, void *to, size_t to_bytes,
                           const void *from);

/* A result, of which nothing is read but how long it is. */
dp_status_t dp__sized_check(const char *what, const void *s, const char *type, size_t least);

#endif
