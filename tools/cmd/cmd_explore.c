/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cmd_explore.c: dualpipe explore: the page on which schedules are explored, in a browser. */
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "commands.h"

static const option_row_t explore_options[] = {{.kind = OPTION_END}};
static const option_row_t *const explore_tables[] = {explore_options, NULL};

const command_t command_explore = {
    .name = "explore",
    .usage =
        "usage: dualpipe explore [STATE]\n"
        "Opens the explorer in a browser: a page with the library inside, which draws, compares, proves and searches schedules and needs no network. It prints the page's address; where standard output is no terminal, that is all it does.\n"
        "\n",
    .tables = explore_tables,
    .notes = "\n"
             "STATE: what is shown first, as the links of the page have it behind #.\n"
             "\n"
             "examples:\n"
             "  dualpipe explore\n"
             "  dualpipe explore 'method=zbv&ranks=8&microbatches=40&versus=dualpipev'\n"
             "\n"
             "exit status: 0 done, 1 the page is not installed or no browser was started, 2 wrong usage\n"};

extern char **environ;

/* Beside the command, as in a build folder, or where `make install` puts it. */
static bool find_page(char *path, size_t bytes)
{
    static const char name[] = "explore.html";
    ssize_t length = readlink("/proc/self/exe", path, bytes - 1);

    if (length > 0 && (size_t)length < bytes - 1) {
        char *slash;

        path[length] = 0;
        slash = strrchr(path, '/');
        if (slash != NULL && (size_t)(slash + 1 - path) + sizeof(name) <= bytes) {
            memcpy(slash + 1, name, sizeof(name));
            if (access(path, R_OK) == 0)
                return true;
        }
    }
    return snprintf(path, bytes, "%s/%s", DP_DOC_DIR, name) < (int)bytes && access(path, R_OK) == 0;
}

/* "file:///a%20b/explore.html#STATE"; false: too long. */
static bool make_address(const char *path, const char *state, char *address, size_t bytes)
{
    size_t used = (size_t)snprintf(address, bytes, "file://");

    for (const unsigned char *at = (const unsigned char *)path; *at != 0 && used + 4 < bytes; at++)
        used += (size_t)snprintf(address + used, bytes - used,
                                 isalnum(*at) || strchr("/-._~", *at) != NULL ? "%c" : "%%%02X", *at);
    state += *state == '#';
    return snprintf(address + used, bytes - used, "%s%s", *state != 0 ? "#" : "", state) < (int)(bytes - used);
}

int cmd_explore(int argc, char **argv)
{
    char path[4096], address[65536], program[] = "xdg-open", *words[] = {program, address, NULL};
    int none = 0, code, error;
    pid_t child;

    if (!options_read(&command_explore, NULL, argc, argv, &none, &code))
        return code;
    if (optind + 1 < argc)
        return command_usage(&command_explore, "%s: one operand too many", argv[optind + 1]);
    if (!find_page(path, sizeof(path)))
        return command_failed(&command_explore,
                              dp_fail(DP_ERR_IO,
                                      "there is no explore.html beside the command or in %s; `make explore` builds it "
                                      "(Debian: clang lld wasi-libc libclang-rt-dev-wasm32)",
                                      DP_DOC_DIR));
    if (!make_address(path, optind < argc ? argv[optind] : "", address, sizeof(address)))
        return command_usage(&command_explore, "a state of %zu bytes is too long", strlen(argv[optind]));
    puts(address);
    if (!isatty(STDOUT_FILENO))
        return CMD_OK;
    fflush(stdout);
    error = posix_spawnp(&child, program, NULL, NULL, words, environ);
    if (error == 0)
        return CMD_OK;
    return command_failed(&command_explore,
                          dp_fail(DP_ERR_IO, "xdg-open: %s; open that address in a browser", strerror(error)));
}
