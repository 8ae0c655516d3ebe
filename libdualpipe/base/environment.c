/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * environment.c: keeps what threads of ours want of the environment. */
#include "base/environment.h"

#include <dualpipe/status.h>

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
