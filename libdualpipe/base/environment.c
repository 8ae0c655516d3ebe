/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * environment.c: keeps what threads of ours want of the environment. */
#include "base/environment.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static int kept; /* the other two hold something */
static double kept_scale;
static int kept_level;

static double find_scale(void)
{
    const char *text = getenv("DUALPIPE_TIMEOUT_SCALE");
    double scale = text != NULL ? strtod(text, NULL) : 1;

    return scale > 0 && scale < 1e6 ? scale : 1;
}

static int find_level(void)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    const char *wanted = getenv("DUALPIPE_LOG");

    for (int i = 0; wanted != NULL && i < 4; i++)
        if (strcmp(wanted, names[i]) == 0)
            return i;
    return DP_LOG_WARN;
}

void dp__environment_read(void)
{
    double scale = find_scale();

    __atomic_store(&kept_scale, &scale, __ATOMIC_RELAXED);
    __atomic_store_n(&kept_level, find_level(), __ATOMIC_RELAXED);
    __atomic_store_n(&kept, 1, __ATOMIC_RELEASE);
}

double dp__timeout_scale(void)
{
    double scale;

    if (!__atomic_load_n(&kept, __ATOMIC_ACQUIRE))
        return find_scale();
    __atomic_load(&kept_scale, &scale, __ATOMIC_RELAXED);
    return scale;
}

int dp__log_level(void)
{
    return __atomic_load_n(&kept, __ATOMIC_ACQUIRE) ? __atomic_load_n(&kept_level, __ATOMIC_RELAXED) : find_level();
}

/* ---- lists ---- */

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
