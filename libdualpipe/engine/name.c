/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * name.c: a plugin's name in full. */
#include "base/do.h"
#include "engine/engine.h"
#include "system/entries.h"

#include <stdio.h>
#include <string.h>

dp_status_t dp__plugin_named(const char *kind, const char *name, char text[DP__NAME_BYTES])
{
    size_t n = name != NULL ? strlen(name) : 0;

    text[0] = '\0';
    DO(dp__environment_keys("DUALPIPE_PLUGINS", "device, comm, attention, moe, ep", false));
    if (name == NULL)
        name = dp__environment_entry("DUALPIPE_PLUGINS", kind, &n);
    if (name == NULL)
        return DP_OK;
    if (n >= DP__NAME_BYTES)
        return dp_fail(DP_ERR_INVALID, "the name of the %s plugin has %zu characters; at most %d are possible", kind, n,
                       DP__NAME_BYTES - 1);
    memmove(text, name, n);
    text[n] = '\0';
    return DP_OK;
}

dp_status_t dp__full_name(const char *kind, const char *given, const char *fallback, char text[DP__NAME_BYTES])
{
    char name[DP__NAME_BYTES];
    size_t n = strlen(kind);
    int length, plain;

    DO(dp__plugin_named(kind, given, name));
    if (name[0] == '\0')
        snprintf(name, sizeof(name), "%s", fallback);
    plain = strchr(name, '/') == NULL && (strncmp(name, kind, n) != 0 || name[n] != '_');
    length = snprintf(text, DP__NAME_BYTES, "%s%s%s", plain ? kind : "", plain ? "_" : "", name);
    if (length < 0 || length >= DP__NAME_BYTES)
        return dp_fail(DP_ERR_INVALID, "the name of the %s plugin has %zu characters; at most %d are possible", kind,
                       strlen(name), DP__NAME_BYTES - 1);
    return DP_OK;
}
