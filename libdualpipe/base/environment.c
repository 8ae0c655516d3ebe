/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * environment.c: keeps what threads of ours want of the environment. */
#include "base/environment.h"

#include <dualpipe/status.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int kept; /* the other two hold something */
static double kept_scale;
static int kept_level;

/* false: senseless, and 1. */
static bool find_scale(double *scale_out)
{
    const char *text = getenv("DUALPIPE_TIMEOUT_SCALE");
    char *end;
    double scale;

    *scale_out = 1;
    if (text == NULL || text[0] == '\0')
        return true;
    scale = strtod(text, &end);
    if (end == text || *end != '\0' || !(scale > 0 && scale < 1e6))
        return false;
    *scale_out = scale;
    return true;
}

/* false: senseless, and DP_LOG_WARN. */
static bool find_level(int *level_out)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    const char *wanted = getenv("DUALPIPE_LOG");

    *level_out = DP_LOG_WARN;
    for (int i = 0; wanted != NULL && i < 4; i++)
        if (strcmp(wanted, names[i]) == 0) {
            *level_out = i;
            return true;
        }
    return wanted == NULL || wanted[0] == '\0';
}

bool dp__environment_read(char why[DP__ENVIRONMENT_WHY])
{
    double scale;
    int level;
    const bool scales = find_scale(&scale), logs = find_level(&level);

    if (!scales)
        snprintf(why, DP__ENVIRONMENT_WHY, "DUALPIPE_TIMEOUT_SCALE=%.40s: a number above 0 and below 1e6 was expected",
                 getenv("DUALPIPE_TIMEOUT_SCALE"));
    else if (!logs)
        snprintf(why, DP__ENVIRONMENT_WHY, "DUALPIPE_LOG=%.40s: error, warn, info or debug was expected",
                 getenv("DUALPIPE_LOG"));
    __atomic_store(&kept_scale, &scale, __ATOMIC_RELAXED);
    __atomic_store_n(&kept_level, level, __ATOMIC_RELAXED);
    __atomic_store_n(&kept, 1, __ATOMIC_RELEASE);
    return scales && logs;
}

double dp__timeout_scale(void)
{
    double scale;

    if (__atomic_load_n(&kept, __ATOMIC_ACQUIRE))
        __atomic_load(&kept_scale, &scale, __ATOMIC_RELAXED);
    else
        (void)find_scale(&scale); /* a group refuses it */
    return scale;
}

int dp__log_level(void)
{
    int level;

    if (__atomic_load_n(&kept, __ATOMIC_ACQUIRE))
        return __atomic_load_n(&kept_level, __ATOMIC_RELAXED);
    (void)find_level(&level);
    return level;
}
