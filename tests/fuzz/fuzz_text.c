/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * fuzz_text.c: the small texts that commands take. The first byte says which: 'c' a file of costs,
 * 't' a topology, 'o' a command line, one argument a line. */
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <getopt.h>

#include "fuzz.h"
#include "tools/io/cost_keys.h"
#include "tools/io/options.h"
#include "tools/io/topology.h"

enum { RANKS = 8, ARGUMENTS = 16 };

/* The bytes as a file. */
static int open_text(const uint8_t *data, size_t bytes, char path[32])
{
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);

    FUZZ_REQUIRE(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    snprintf(path, 32, "/proc/self/fd/%d", fd);
    return fd;
}

static void check_costs(const char *path)
{
    dp_costs_t costs = {.struct_size = sizeof(costs)};
    dp_pair_figures_t pair = {.struct_size = sizeof(pair)};
    cost_keys_t keys = {.stage_scale = NULL};
    char text[512];

    if (cost_keys_read(path, &keys) == DP_OK) {
        for (int i = 0; i < COST_KEYS; i++)
            FUZZ_REQUIRE(!keys.given[i] || (isfinite(keys.value[i]) && keys.value[i] >= 0));
        for (int32_t i = 0; i < keys.nscales; i++)
            FUZZ_REQUIRE(isfinite(keys.stage_scale[i]) && keys.stage_scale[i] >= 0);
        if (cost_keys_resolve(&keys, &costs, &pair) == DP_OK)
            costs_text(&costs, text, sizeof(text));
    }
    cost_keys_clear(&keys);
}

static void check_topology(const char *path)
{
    topology_t topology = {.hosts = NULL};
    dp_topology_t placed = {.struct_size = sizeof(placed)};
    int32_t host_of[RANKS], hosts;

    if (topology_read(path, &topology) == DP_OK && topology_hosts(&topology, RANKS, &hosts) == DP_OK) {
        FUZZ_REQUIRE(hosts >= 1 && hosts <= RANKS);
        for (int placing = TOPOLOGY_AS_GIVEN; placing <= TOPOLOGY_MIRRORS; placing++)
            if (topology_place(&topology, (topology_placing_t)placing, RANKS, host_of, &placed) == DP_OK)
                for (int r = 0; r < RANKS; r++)
                    FUZZ_REQUIRE(host_of[r] >= 0 && (placing == TOPOLOGY_AS_GIVEN || host_of[r] < hosts));
    }
    topology_clear(&topology);
}

typedef struct settings {
    bool flag;
    const char *text;
    int32_t small, choice, method;
    int64_t large;
    double real;
} settings_t;

static void check_options(const uint8_t *data, size_t bytes)
{
    static const option_row_t rows[] = {
        {"flag", NULL, "a flag", OPTION_FLAG, offsetof(settings_t, flag), 0, 0, NULL, NULL, NULL, 'f', NULL, NULL},
        {"text", "T", "a text", OPTION_TEXT, offsetof(settings_t, text), 0, 0, NULL, "one", NULL, 0, NULL, NULL},
        {"small", "N", "a number", OPTION_INT32, offsetof(settings_t, small), -3, 100, NULL, NULL, NULL, 'n', NULL,
         NULL},
        {"large", "N", "a number", OPTION_INT64, offsetof(settings_t, large), 0, 1e15, NULL, NULL, NULL, 0, NULL, NULL},
        {"real", "X", "a number", OPTION_REAL, offsetof(settings_t, real), 0, 1e9, NULL, NULL, NULL, 0, NULL, NULL},
        {"choice", "C", "a word", OPTION_CHOICE, offsetof(settings_t, choice), 0, 0, "red green", "two", NULL, 0, NULL,
         NULL},
        {"method", "M", "a method", OPTION_CHOICE, offsetof(settings_t, method), 0, 0, METHOD_WORDS, NULL, NULL, 0,
         NULL, NULL},
        {.kind = OPTION_END}};
    static const option_row_t *const tables[] = {rows, NULL};
    const command_t command = {
        .name = "fuzz", .usage = "[OPTIONS]", .notes = "", .tables = tables, .actions = "one two"};
    settings_t settings = {.text = ""};
    char *text = malloc(bytes + 1), *argv[ARGUMENTS + 2] = {(char *)"fuzz"};
    int argc = 1, status = 0;

    FUZZ_REQUIRE(text != NULL);
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    for (char *at = text; at != NULL && argc <= ARGUMENTS;)
        argv[argc++] = strsep(&at, "\n");
    optind = 0;
    if (options_read(&command, bytes % 2 == 0 ? "one" : NULL, argc, argv, &settings, &status)) {
        FUZZ_REQUIRE(settings.small >= -3 && settings.small <= 100 && settings.large >= 0 &&
                     settings.large <= 1000000000000000);
        FUZZ_REQUIRE(settings.real >= 0 && settings.real <= 1e9 && settings.choice >= 0 && settings.choice < 2);
        FUZZ_REQUIRE(optind >= 1 && optind <= argc);
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static FILE *nowhere;
    FILE *const before[] = {stdout, stderr};
    char path[32];
    int fd;

    if (bytes == 0)
        return 0;
    if (data[0] == 'o') { /* what commands say to the user */
        nowhere = nowhere != NULL ? nowhere : fopen("/dev/null", "w");
        FUZZ_REQUIRE(nowhere != NULL);
        stdout = stderr = nowhere;
        check_options(data + 1, bytes - 1);
        stdout = before[0], stderr = before[1];
        return 0;
    }
    fd = open_text(data + 1, bytes - 1, path);
    if (data[0] == 't')
        check_topology(path);
    else
        check_costs(path);
    close(fd);
    return 0;
}
