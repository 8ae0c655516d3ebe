/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * commands.h: the subcommands of `dualpipe`. A new one is a file cmd_<name>.c, a line
 * here and one in the table of main.c. */
#ifndef DP_TOOLS_COMMANDS_H
#define DP_TOOLS_COMMANDS_H

#include "tools/io/options.h"

/* argv[0] is the subcommand's own name; `--help` is understood by every one; returns an exit
 * code. */
int cmd_help(int argc, char **argv);
int cmd_plugin(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_version(int argc, char **argv);
int cmd_schedule(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_simulate(int argc, char **argv);
int cmd_compare(int argc, char **argv);
int cmd_partition(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_search(int argc, char **argv);
int cmd_trace(int argc, char **argv);
int cmd_bench_links(int argc, char **argv);
int cmd_demo(int argc, char **argv);
int cmd_explore(int argc, char **argv);
int cmd_eplb(int argc, char **argv);
int cmd_status(int argc, char **argv);

/* The plugins there are whose names begin so, a line each, for completion. */
void plugin_names(const char *prefix, FILE *to);

/* What each understands. command_trace: trace_args.h */
extern const command_t command_schedule, command_verify, command_simulate, command_compare, command_partition,
    command_plan, command_search, command_demo, command_eplb, command_explore, command_plugin, command_bench_links,
    command_run, command_status;

#endif
