/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * exit.h: exit codes of every subcommand. */
#ifndef DP_TOOLS_EXIT_H
#define DP_TOOLS_EXIT_H

enum { CMD_OK = 0, CMD_FAILED = 1, CMD_USAGE = 2, CMD_REJECTED = 20 };

#endif
