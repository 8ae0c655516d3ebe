/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cmd_status.c: `dualpipe status`: what each rank of a running job is doing. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "commands.h"
#include "tools/run/run_status.h"

static const option_row_t status_options[] = {{.kind = OPTION_END}};
static const option_row_t *const status_tables[] = {status_options, NULL};

const command_t command_status = {
    .name = "status",
    .usage =
        "usage: dualpipe status [PID]\n"
        "Asks live jobs what their ranks are at, and lets them go on: steps taken, the latest step's time and how much of it each rank computed, resident memory, the operation that it is in, for whom it waits, who computes longest, and who takes longer than its peers for the same work, step after step.\n"
        "\n",
    .tables = status_tables,
    .notes =
        "\n"
        "PID: of `dualpipe run`, or of rank 0. Without it all jobs of this user are asked whose rank 0 lives on this host, also those over several hosts. Ranks that are threads of one process cannot be asked. SIGQUIT (Ctrl-\\) to `dualpipe run` prints the same on its standard error.\n"
        "\n"
        "examples:\n"
        "  dualpipe status\n"
        "\n"
        "exit status: 0 a job has answered, 1 none has, 2 wrong usage\n"};

int cmd_status(int argc, char **argv)
{
    char *end = NULL;
    long pid = 0;
    int none = 0, code;

    if (!options_read(&command_status, NULL, argc, argv, &none, &code))
        return code;
    if (optind < argc)
        pid = strtol(argv[optind], &end, 10);
    if (optind + 1 < argc || (end != NULL && (*end != '\0' || pid < 1 || pid > 1 << 30)))
        return command_usage(&command_status, "%s: the number of one process was expected", argv[argc - 1]);
    if (run_status((pid_t)pid, stdout) > 0)
        return CMD_OK;
    fprintf(stderr, "dualpipe status: no job of this user has its rank 0 %s\n",
            pid > 0 ? "in or below that process" : "on this host");
    return CMD_FAILED;
}
