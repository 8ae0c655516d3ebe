/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * main.c: the `dualpipe` command: picks the subcommand. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "commands.h"

/* In the order in which --help lists them. */
static const struct command {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"help", "show this list", cmd_help},
    {"version", "show the version", cmd_version},
    {"schedule", "print or draw what every rank computes, in which order", cmd_schedule},
    {"verify", "prove that a schedule file completes and cannot deadlock", cmd_verify},
    {"simulate", "step time, idle time and memory under given costs", cmd_simulate},
    {"compare", "all schedules that fit, the shortest step first", cmd_compare},
    {"partition", "which layers go onto which stage", cmd_partition},
    {"search", "look for a shorter step than any built-in schedule has", cmd_search},
    {"demo", "run schedules with segments that sleep: measured beside simulated", cmd_demo},
    {"eplb", "replicate experts and place them by load", cmd_eplb},
    {"plugin", "list the plugins found, or check one against its contract", cmd_plugin},
    {"trace", "overlap, costs and a page to look at, of a trace of a real run", cmd_trace},
    {"bench-links", "latency and bandwidth within and between hosts, for simulate", cmd_bench_links},
    {"run", "start the ranks of a job, on this host or on several", cmd_run},
};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void usage(FILE *to)
{
    fprintf(to, "usage: dualpipe COMMAND [OPTIONS]\n"
                "       dualpipe COMMAND --help\n\n"
                "commands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  %-11s  %s\n", commands[i].name, commands[i].summary);
}

int cmd_help(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    usage(stdout);
    return CMD_OK;
}

int cmd_version(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    puts("dualpipe " PACKAGE_VERSION);
    return CMD_OK;
}

/* --help, -h and --version are spelled as options by habit. */
static const char *without_dashes(const char *word)
{
    if (strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0)
        return "help";
    return strcmp(word, "--version") == 0 ? "version" : word;
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

int main(int argc, char **argv)
{
    const struct command *command;
    int status;

    if (argc < 2) {
        usage(stderr);
        return CMD_USAGE;
    }
    command = find_command(without_dashes(argv[1]));
    if (command == NULL) {
        fprintf(stderr, "dualpipe: there is no command \"%s\"; dualpipe --help lists them\n", argv[1]);
        return CMD_USAGE;
    }
    status = command->run(argc - 1, argv + 1);
    /* Output that did not reach the disk or the pipe is a failure, not a success. */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("dualpipe: standard output");
        return CMD_FAILED;
    }
    return status;
}
