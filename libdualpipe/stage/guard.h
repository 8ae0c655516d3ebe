/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * guard.h: whether memory is guarded, and how much lies behind each block of it. */
#ifndef DP_STAGE_GUARD_H
#define DP_STAGE_GUARD_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { DP__GUARD_BYTES = 4096 };

static inline bool dp__guard_wanted(void)
{
    const char *value = secure_getenv("DUALPIPE_GUARD");

    return value != NULL && value[0] != '\0' && strcmp(value, "0") != 0;
}

#endif
