/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * main.c: the `dualpipe` command: picks the subcommand. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "tools/trace/trace_args.h"

/* In the order in which --help lists them. */
static const struct entry {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
    const command_t *options; /* NULL: there are none */
} commands[] = {
    {"help", "show this list", cmd_help, NULL},
    {"version", "show the version", cmd_version, NULL},
    {"schedule", "print or draw what every rank computes, in which order", cmd_schedule, &command_schedule},
    {"verify", "prove that a schedule file completes and cannot deadlock", cmd_verify, &command_verify},
    {"simulate", "step time, idle time and memory under given costs", cmd_simulate, &command_simulate},
    {"compare", "all schedules that fit, the shortest step first", cmd_compare, &command_compare},
    {"partition", "which layers go onto which stage", cmd_partition, &command_partition},
    {"plan", "which layout for a model on so many GPUs", cmd_plan, &command_plan},
    {"search", "look for a shorter step than any built-in schedule has", cmd_search, &command_search},
    {"demo", "run schedules with segments that sleep: measured beside simulated", cmd_demo, &command_demo},
    {"explore", "explore schedules in a browser", cmd_explore, &command_explore},
    {"eplb", "replicate experts and place them by load", cmd_eplb, &command_eplb},
    {"plugin", "list the plugins found, or check one against its contract", cmd_plugin, &command_plugin},
    {"trace", "overlap, costs and a page to look at, of a trace of a real run", cmd_trace, &command_trace},
    {"bench-links", "latency and bandwidth within and between hosts, for simulate", cmd_bench_links,
     &command_bench_links},
    {"run", "start the ranks of a job, on this host or on several", cmd_run, &command_run},
    {"status", "what each rank of a running job is doing", cmd_status, &command_status},
};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void usage(FILE *to)
{
    fprintf(to, "usage: dualpipe COMMAND [OPTIONS]\n"
                "       dualpipe help COMMAND\n\n"
                "commands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  %-11s  %s\n", commands[i].name, commands[i].summary);
}

static const struct entry *find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static int unknown_command(const char *name)
{
    const char *nearest = NULL;
    int slips = DID_YOU_MEAN + 1;

    for (size_t i = 0; i < N_COMMANDS; i++)
        if (options_slips(name, commands[i].name) < slips) {
            slips = options_slips(name, commands[i].name);
            nearest = commands[i].name;
        }
    fprintf(stderr, "dualpipe: there is no command \"%s\"", name);
    if (nearest != NULL)
        fprintf(stderr, "; did you mean %s?", nearest);
    fprintf(stderr, "; dualpipe --help lists them\n");
    return CMD_USAGE;
}

int cmd_version(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    puts("dualpipe " PACKAGE_VERSION);
    return CMD_OK;
}

/* help COMMAND: as COMMAND --help. */
int cmd_help(int argc, char **argv)
{
    const bool named = argc > 1 && argv[1][0] != '-';
    const struct entry *command = named ? find_command(argv[1]) : NULL;
    char help[] = "--help";
    char *words[] = {named ? argv[1] : NULL, help, NULL};

    if (named && command == NULL)
        return unknown_command(argv[1]);
    if (command != NULL && command->options != NULL)
        return command->run(2, words);
    usage(stdout);
    return CMD_OK;
}

/* --help, -h and --version are spelled as options by habit. */
static const char *without_dashes(const char *word)
{
    if (strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0)
        return "help";
    return strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0 ? "version" : word;
}

/* For completion, and not in the list: dualpipe complete [COMMAND [--OPTION|ACTION]], what may
 * stand there. */
static int cmd_complete(int argc, char **argv)
{
    const struct entry *command = argc > 1 ? find_command(argv[1]) : NULL;

    for (size_t i = 0; argc < 2 && i < N_COMMANDS; i++)
        puts(commands[i].name);
    if (command != NULL && command->options != NULL)
        options_words(command->options, argc > 2 ? argv[2] : NULL, stdout);
    return CMD_OK;
}

int main(int argc, char **argv)
{
    const struct entry *command;
    int status;

    if (argc < 2) {
        usage(stderr);
        return CMD_USAGE;
    }
    if (strcmp(argv[1], "complete") == 0)
        return cmd_complete(argc - 1, argv + 1);
    command = find_command(without_dashes(argv[1]));
    if (command == NULL)
        return unknown_command(argv[1]);
    status = command->run(argc - 1, argv + 1);
    /* Output that did not reach the disk or the pipe is a failure, not a success. */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("dualpipe: standard output");
        return CMD_FAILED;
    }
    return status;
}
