/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * environment.h: numbers out of the environment. */
#ifndef DP_GROUP_ENVIRONMENT_H
#define DP_GROUP_ENVIRONMENT_H

#include <dualpipe/status.h>

#include <stdbool.h>

/* A decimal number from low to high, and nothing else. DP_ERR_INVALID, also when the variable is
 * not there. */
dp_status_t dp__environment_number(const char *name, int32_t low, int32_t high, int32_t *number_out);
/* DUALPIPE_LAUNCH, what `dualpipe run` tells its ranks: run (the job's name), secret, ends, listen
 * and memory (descriptors), respawn, again. Keys that we do not know are of a newer launcher, and
 * ignored. DP_ERR_INVALID: the key is missing, or its value no such number. */
dp_status_t dp__launch_number(const char *key, int32_t low, int32_t high, int32_t *number_out);
bool dp__launch_has(const char *key);
/* What the launcher calls this job, the same for all its ranks; "" when it does not say. */
enum { DP__JOB_BYTES = 256 };
void dp__environment_job(char name[DP__JOB_BYTES]);

#endif
