/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * main.c: the `dualpipe` command: picks the subcommand. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "commands.h"

static void usage(FILE *to)
{
    fprintf(to, "usage: dualpipe COMMAND [OPTIONS]\n"
                "       dualpipe COMMAND --help\n\n"
                "commands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].summary);
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

static const char *strip_dashes(const char *name)
{
    return strncmp(name, "--", 2) == 0 ? name + 2 : name;
}

int main(int argc, char **argv)
{
    int status = CMD_USAGE;
    const command_t *command = NULL;

    if (argc < 2) {
        usage(stderr);
        return CMD_USAGE;
    }
    /* --help and --version are spelled both ways by habit. */
    for (size_t i = 0; i < N_COMMANDS && command == NULL; i++)
        if (strcmp(commands[i].name, argv[1]) == 0 ||
            (i < 2 && strcmp(commands[i].name, strip_dashes(argv[1])) == 0))
            command = &commands[i];
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
