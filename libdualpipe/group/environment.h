/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * environment.h: numbers out of the environment. */
#ifndef DP_GROUP_ENVIRONMENT_H
#define DP_GROUP_ENVIRONMENT_H

#include <dualpipe/status.h>

/* A decimal number from low to high, and nothing else. DP_ERR_INVALID, also when the variable is not there. */
dp_status_t dp__environment_number(const char *name, int32_t low, int32_t high, int32_t *number_out);
/* What the launcher calls this job, the same for all its ranks; "" when it does not say. */
const char *dp__environment_job(void);

#endif
