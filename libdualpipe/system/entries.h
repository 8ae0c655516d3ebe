/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * entries.h: variables of the environment that hold a list, "key=value,key=value". */
#ifndef DP_SYSTEM_ENTRIES_H
#define DP_SYSTEM_ENTRIES_H

#include <dualpipe/status.h>

/* The value of `key` in the list; the last one counts. NULL when the key is missing or its value
 * empty. The value ends after *length_out characters, not with a '\0'. */
const char *dp__environment_entry(const char *variable, const char *key, size_t *length_out);
/* DP_ERR_INVALID names an entry whose key is none of `known` ("a, b, c"). With `own` set, keys with
 * a dot in them are left to the plugins. */
dp_status_t dp__environment_keys(const char *variable, const char *known, int own);
/* DUALPIPE_DEBUG: keys of the core that do not exist are refused. */
dp_status_t dp__debug_check(void);

#endif
