/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_status.h: asks jobs whose rank 0 lives on this host what their ranks are at. */
#ifndef DP_TOOLS_RUN_STATUS_H
#define DP_TOOLS_RUN_STATUS_H

#include <stdio.h>
#include <sys/types.h>

#define RUN_STATUS_NONE "rank 0 does not answer: it has not joined yet, or it is stopped"

/* Prints what each job of ours tells: of the process `of` or one that it has started; 0: of all.
 * Returns how many have answered. One that is stopped takes five seconds. */
int run_status(pid_t of, FILE *to);

#endif
