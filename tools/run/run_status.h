/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * run_status.h: asks jobs whose rank 0 lives on this host what their ranks are at. */
#ifndef DP_TOOLS_RUN_STATUS_H
#define DP_TOOLS_RUN_STATUS_H

#include <stdio.h>
#include <sys/types.h>

/* Prints what each job of ours tells: of the process `of` or one that it has started; 0: of all. Returns how many have
 * answered. */
int run_status(pid_t of, FILE *to);

#endif
