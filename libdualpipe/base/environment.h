/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * environment.h: what threads of ours want of the environment. They do not look into it themselves:
 * a program that sets a variable at that moment would make them read memory that is gone. */
#ifndef DP_BASE_ENVIRONMENT_H
#define DP_BASE_ENVIRONMENT_H

#include <dualpipe/status.h>

/* Keeps what it says now. Every opening of a group does it, in the thread that calls; before the
 * first, the others look for themselves. */
void dp__environment_read(void);
/* DUALPIPE_TIMEOUT_SCALE: a positive number; 1 when unset or senseless. */
double dp__timeout_scale(void);
/* DUALPIPE_LOG as a DP_LOG level; DP_LOG_WARN when unset or senseless. */
int dp__log_level(void);

/* ---- variables that hold a list, "key=value,key=value" ---- */

/* The value of `key` in the list; the last one counts. NULL when the key is missing or its value
 * empty. The value ends after *length_out characters, not with a '\0'. */
const char *dp__environment_entry(const char *variable, const char *key, size_t *length_out);
/* DP_ERR_INVALID names an entry whose key is none of `known` ("a, b, c"). With `own` set, keys with
 * a dot in them are left to the plugins. */
dp_status_t dp__environment_keys(const char *variable, const char *known, int own);
/* DUALPIPE_DEBUG: keys of the core that do not exist are refused. */
dp_status_t dp__debug_check(void);

#endif
