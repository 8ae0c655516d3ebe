/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * debug.h: tests read and change entries of DUALPIPE_DEBUG. */
#ifndef DP_TEST_DEBUG_H
#define DP_TEST_DEBUG_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The last value of `key`, which the calling thread has until it asks for another four; NULL when
 * there is none. */
static inline const char *debug_entry(const char *key)
{
    static _Thread_local char values[4][1024];
    static _Thread_local unsigned turn;
    char *value = values[turn++ % 4];
    const char *at = getenv("DUALPIPE_DEBUG");
    const size_t n = strlen(key);

    value[0] = '\0';
    for (; at != NULL && *at != '\0'; at += strspn(at, ",")) {
        const size_t length = strcspn(at, ",");

        if (length > n && at[n] == '=' && strncmp(at, key, n) == 0)
            snprintf(value, sizeof(values[0]), "%.*s", (int)(length - n - 1), at + n + 1);
        at += length;
    }
    return value[0] != '\0' ? value : NULL;
}

/* From now on; NULL: as if it were not there. */
static inline void debug_set(const char *key, const char *value)
{
    const char *before = getenv("DUALPIPE_DEBUG");
    const size_t n = strlen(key), m = before != NULL ? strlen(before) : 0;
    char *list = malloc(m + n + (value != NULL ? strlen(value) : 0) + 3), *to = list;

    while (before != NULL && *before != '\0') { /* all others */
        const size_t length = strcspn(before, ",");

        if (length > 0 && (length <= n || before[n] != '=' || strncmp(before, key, n) != 0))
            to += sprintf(to, "%.*s,", (int)length, before);
        before += length + (before[length] == ',');
    }
    sprintf(to, "%s=%s", key, value != NULL ? value : "");
    setenv("DUALPIPE_DEBUG", list, 1);
    free(list);
}

#endif
