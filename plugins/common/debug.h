/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * debug.h: DUALPIPE_DEBUG="key=value,key=value", settings for developers. Keys of a plugin are
 * PREFIX.KEY, and the plugin refuses those of its prefix that it does not know; CONTRIBUTING.md
 * lists them all. */
#ifndef PLUGINS_COMMON_DEBUG_H
#define PLUGINS_COMMON_DEBUG_H

#include <dualpipe/plugin.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Copies the value of `key`, the last one of several, cut at `bytes`. NULL when the key is missing
 * or its value empty. */
static inline const char *debug_value(const char *key, char *value, size_t bytes)
{
    const char *at = secure_getenv("DUALPIPE_DEBUG");
    const size_t n = strlen(key);

    value[0] = '\0';
    while (at != NULL && *at != '\0') {
        const size_t length = strcspn(at, ",");

        if (length > n && at[n] == '=' && strncmp(at, key, n) == 0) {
            size_t taken = length - n - 1 < bytes ? length - n - 1 : bytes - 1;

            memcpy(value, at + n + 1, taken);
            value[taken] = '\0';
        }
        at += length + (at[length] == ',');
    }
    return value[0] != '\0' ? value : NULL;
}

/* `key`, n characters, is one of the words of "a, b, c". */
static inline bool debug_is_known(const char *known, const char *key, size_t n)
{
    while (*known != '\0') {
        const size_t length = strcspn(known, ", ");

        if (length == n && strncmp(known, key, n) == 0)
            return true;
        known += length + strspn(known + length, ", ");
    }
    return false;
}

/* An entry PREFIX.KEY whose KEY is none of `known` ("a, b, c") is refused. */
static inline dp_status_t debug_check(const dp_host_t *host, const char *prefix, const char *known)
{
    const char *at = secure_getenv("DUALPIPE_DEBUG");
    const size_t n = strlen(prefix);

    while (at != NULL && *at != '\0') {
        const size_t length = strcspn(at, ",");
        const char *key = at + n + 1;

        if (length > n && at[n] == '.' && strncmp(at, prefix, n) == 0) {
            const size_t key_length = strcspn(key, "=,");

            if (key[key_length] != '=' || !debug_is_known(known, key, key_length))
                return DP_FAIL(host, DP_ERR_INVALID,
                               "DUALPIPE_DEBUG: \"%.*s\" is not %s.KEY=VALUE with one of the keys %s",
                               length < 80 ? (int)length : 80, at, prefix, known);
        }
        at += length + (at[length] == ',');
    }
    return DP_OK;
}

#endif
