/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cmd_plugin.c: dualpipe plugin: which plugins there are, and whether one keeps the contract of its interface. */
#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dualpipe/dualpipe.h>

#include "commands.h"
#include "conform.h"

static const char help[] =
    "usage: dualpipe plugin list\n"
    "       dualpipe plugin check NAME|PATH [--device NAME|PATH] [--mode threads|processes] [CASE...]\n\n"
    "list   shows every plugin in the folders of DUALPIPE_PLUGIN_PATH and in the install's folder: name, version, the ABI\n"
    "       it was built with, the interfaces it offers and what it says of itself; or why it cannot be used. A name that\n"
    "       an earlier folder has already is marked: dp_plugin_load() takes the first.\n"
    "check  runs the contract suite of the plugin's interface (dp.device/1, dp.comm/1) and prints a line per case. Ranks\n"
    "       are tried as threads and as processes. For writers of plugins.\n\n"
    "  --device NAME|PATH        what the streams of a comm plugin run on (device_cpu)\n"
    "  --mode threads|processes  one of the two only\n"
    "  CASE...                   these cases only\n"
    "  --help                    show this\n\n"
    "examples:\n"
    "  dualpipe plugin list\n"
    "      what this machine has\n"
    "  dualpipe plugin check comm_shm\n"
    "      the whole suite on one plugin\n"
    "  dualpipe plugin check ./dp_comm_mine.so --mode threads\n"
    "      a plugin that is being written, by its path\n\n"
    "exit status: 0 fine, 1 a plugin cannot be used or a case failed, 2 wrong usage\n";

static const char *const interfaces[] = {DP_IFACE_DEVICE, DP_IFACE_COMM, DP_IFACE_ATTENTION, DP_IFACE_MOE};
enum { INTERFACES = sizeof(interfaces) / sizeof(interfaces[0]) };

/* ---- list ---- */

typedef struct seen {
    char (*names)[128];
    size_t count;
    bool failed;
} seen_t;

static bool known(const seen_t *seen, const char *name)
{
    for (size_t i = 0; i < seen->count; i++)
        if (strcmp(seen->names[i], name) == 0)
            return true;
    return false;
}

static void remember(seen_t *seen, const char *name)
{
    char(*grown)[128] = realloc(seen->names, (seen->count + 1) * sizeof(*seen->names));

    if (grown == NULL)
        return;
    seen->names = grown;
    snprintf(seen->names[seen->count++], sizeof(*seen->names), "%s", name);
}

static void show(seen_t *seen, const char *path)
{
    const dp_plugin_t *plugin;
    char offers[128] = "";
    const void *table;

    if (dp_plugin_load(path, &plugin) < 0) {
        printf("%s\n    cannot be used: %s\n", path, dp_last_error());
        seen->failed = true;
        return;
    }
    for (int i = 0; i < INTERFACES; i++)
        if (dp_plugin_interface(plugin, interfaces[i], sizeof(uint32_t), &table) == DP_OK) {
            strcat(offers, *offers != '\0' ? " " : "");
            strcat(offers, interfaces[i]);
        }
    printf("%-16s %-8s ABI %u.%u  %-14s  %s%s\n", plugin->name, plugin->version != NULL ? plugin->version : "?",
           plugin->abi_major, plugin->abi_minor, *offers != '\0' ? offers : "(its own)",
           plugin->summary != NULL ? plugin->summary : "", known(seen, plugin->name) ? " (hidden by the one above)" : "");
    printf("    %s\n", path);
    remember(seen, plugin->name);
}

static int is_plugin(const struct dirent *entry)
{
    const size_t length = strlen(entry->d_name);

    return strncmp(entry->d_name, "dp_", 3) == 0 && length > 6 && strcmp(entry->d_name + length - 3, ".so") == 0;
}

static void show_folder(seen_t *seen, const char *folder, size_t length)
{
    struct dirent **entries;
    char path[PATH_MAX];
    int n;

    snprintf(path, sizeof(path), "%.*s", (int)length, folder);
    n = scandir(path, &entries, is_plugin, alphasort);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "%.*s/%s", (int)length, folder, entries[i]->d_name);
        show(seen, path);
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
}

static int list(void)
{
    const char *search = getenv("DUALPIPE_PLUGIN_PATH");
    seen_t seen = {0};

    while (search != NULL && *search != '\0') {
        const size_t length = strcspn(search, ":");
        if (length > 0 && search[0] == '/')
            show_folder(&seen, search, length);
        search += length + (search[length] == ':');
    }
    show_folder(&seen, DP_PLUGIN_DIR, strlen(DP_PLUGIN_DIR));
    if (seen.count == 0 && !seen.failed)
        printf("no plugin in DUALPIPE_PLUGIN_PATH or %s\n", DP_PLUGIN_DIR);
    free(seen.names);
    return seen.failed ? CMD_FAILED : CMD_OK;
}

/* ---- check ---- */

static int check(int argc, char **argv)
{
    static const conform_suite_t *const suites[] = {&conform_device, &conform_comm};
    const dp_plugin_t *plugin;
    const void *table;
    char **forwarded;
    int code = CMD_USAGE;

    if (argc < 2 || argv[1][0] == '-') {
        fputs("dualpipe plugin check: which plugin? (dualpipe plugin --help)\n", stderr);
        return CMD_USAGE;
    }
    if (dp_plugin_load(argv[1], &plugin) < 0) {
        fprintf(stderr, "dualpipe plugin check: %s\n", dp_last_error());
        return CMD_FAILED;
    }
    forwarded = calloc((size_t)argc + 2, sizeof(*forwarded));
    if (forwarded == NULL)
        return CMD_FAILED;
    forwarded[0] = argv[0];
    forwarded[1] = "--plugin";
    memcpy(forwarded + 2, argv + 1, (size_t)(argc - 1) * sizeof(*forwarded));
    for (size_t i = 0; i < sizeof(suites) / sizeof(suites[0]); i++)
        if (dp_plugin_interface(plugin, suites[i]->interface, sizeof(uint32_t), &table) == DP_OK) {
            const int verdict = conform_main(suites[i], argc + 1, forwarded);
            code = code == CMD_USAGE || verdict != 0 ? verdict : code;
        }
    if (code == CMD_USAGE)
        fprintf(stderr, "dualpipe plugin check: %s offers neither %s nor %s; there is no suite for what it does\n", argv[1],
                DP_IFACE_DEVICE, DP_IFACE_COMM);
    free(forwarded);
    return code;
}

int cmd_plugin(int argc, char **argv)
{
    if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(help, stdout);
        return CMD_OK;
    }
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0) {
            fputs(help, stdout);
            return CMD_OK;
        }
    if (argc == 2 && strcmp(argv[1], "list") == 0)
        return list();
    if (argc >= 2 && strcmp(argv[1], "check") == 0)
        return check(argc - 1, argv + 1);
    fputs("dualpipe plugin: say list, or check NAME (dualpipe plugin --help)\n", stderr);
    return CMD_USAGE;
}
