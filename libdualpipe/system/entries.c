/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * entries.c: reads and checks lists of key=value. Not in environment.c, which comes along with
 * dp_fail: see plugin/elf_check.c. */
#include "system/entries.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

const char *dp__environment_entry(const char *variable, const char *key, size_t *length_out)
{
    const char *at = secure_getenv(variable), *found = NULL;
    const size_t n = strlen(key);

    *length_out = 0;
    while (at != NULL && *at != '\0') {
        const size_t length = strcspn(at, ",");

        if (length > n && at[n] == '=' && strncmp(at, key, n) == 0) {
            *length_out = length - n - 1;
            found = *length_out > 0 ? at + n + 1 : NULL;
        }
        at += length + (at[length] == ',');
    }
    return found;
}

/* `key`, n characters, is one of the words of "a, b, c". */
static bool is_listed(const char *known, const char *key, size_t n)
{
    while (*known != '\0') {
        const size_t length = strcspn(known, ", ");

        if (length == n && strncmp(known, key, n) == 0)
            return true;
        known += length + strspn(known + length, ", ");
    }
    return false;
}

dp_status_t dp__environment_keys(const char *variable, const char *known, int own)
{
    const char *at = secure_getenv(variable);

    while (at != NULL && *at != '\0') {
        const size_t length = strcspn(at, ","), n = strcspn(at, "=,.");
        const bool foreign = own && at[n] == '.';

        if (length > 0 && !foreign && (n == length || at[n] != '=' || !is_listed(known, at, n)))
            return dp_fail(DP_ERR_INVALID, "%s: \"%.*s\" is not key=value with one of the keys %s", variable,
                           length < 80 ? (int)length : 80, at, known);
        at += length + (at[length] == ',');
    }
    return DP_OK;
}

dp_status_t dp__debug_check(void)
{
    return dp__environment_keys("DUALPIPE_DEBUG", "hosts", true);
}
