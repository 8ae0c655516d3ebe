/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * commands.h: the subcommands of `dualpipe`. A new one is a file cmd_<name>.c and one line in the list below. */
#ifndef DP_TOOLS_COMMANDS_H
#define DP_TOOLS_COMMANDS_H

/* Exit codes of every subcommand. */
enum { CMD_OK = 0, CMD_FAILED = 1, CMD_USAGE = 2 };

/* argv[0] is the subcommand's own name; returns an exit code. */
typedef int (*command_fn)(int argc, char **argv);

typedef struct command {
    const char *name, *summary;
    command_fn run;
} command_t;

int cmd_help(int argc, char **argv);
int cmd_version(int argc, char **argv);

/* In the order in which --help lists them. */
static const command_t commands[] = {
    {"help", "show this list", cmd_help},
    {"version", "show the version", cmd_version},
};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

#endif
