/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * environment.h: what threads of ours want of the environment. They do not look into it themselves:
 * a program that sets a variable at that moment would make them read memory that is gone. */
#ifndef DP_BASE_ENVIRONMENT_H
#define DP_BASE_ENVIRONMENT_H

#include <stdbool.h>

enum { DP__ENVIRONMENT_WHY = 128 };

/* Keeps what it says now. Every opening of a group does it, in the thread that calls; before the
 * first, the others look for themselves. false: a value makes no sense, and `why` says which. */
bool dp__environment_read(char why[DP__ENVIRONMENT_WHY]);
/* DUALPIPE_TIMEOUT_SCALE: a positive number; 1 when unset or senseless. */
double dp__timeout_scale(void);
/* DUALPIPE_LOG as a DP_LOG level; DP_LOG_WARN when unset or senseless. */
int dp__log_level(void);

#endif
