/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * name.c: a plugin's name in full. */
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dp_status_t dp__full_name(const char *kind, const char *name, const char *variable, const char *fallback,
                          char text[DP__NAME_BYTES])
{
    size_t n = strlen(kind);
    int length, plain;

    if (name == NULL)
        name = secure_getenv(variable);
    if (name == NULL || name[0] == '\0')
        name = fallback;
    plain = strchr(name, '/') == NULL && (strncmp(name, kind, n) != 0 || name[n] != '_');
    length = snprintf(text, DP__NAME_BYTES, "%s%s%s", plain ? kind : "", plain ? "_" : "", name);
    if (length < 0 || length >= DP__NAME_BYTES)
        return dp_fail(DP_ERR_INVALID, "the name of the %s plugin has %zu characters; at most %d are possible", kind,
                       strlen(name), DP__NAME_BYTES - 1);
    return DP_OK;
}
