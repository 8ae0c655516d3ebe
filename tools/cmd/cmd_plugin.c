/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cmd_plugin.c: dualpipe plugin: which plugins there are, and whether one keeps the contract of its
 * interface. */
#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dualpipe/advanced.h>
#include <dualpipe/dualpipe.h>

#include "commands.h"
#include "conform/conform.h"

static void list_devices(FILE *to)
{
    plugin_names("device_", to);
}

static void list_comms(FILE *to)
{
    plugin_names("comm_", to);
}

static void list_checked(const char *action, FILE *to)
{
    if (strcmp(action, "check") == 0)
        plugin_names("", to);
}

/* Read by dp_conform_main(). */
static const option_row_t plugin_options[] = {
    {.name = "list", .kind = OPTION_FLAG, .help = "the cases, each with what it demands, and no trial"},
    {.name = "device",
     .value = "NAME|PATH",
     .kind = OPTION_FLAG,
     .list = list_devices,
     .help = "what streams run on, for plugins that are no device (device_cpu)"},
    {.name = "comm",
     .value = "NAME|PATH",
     .kind = OPTION_FLAG,
     .list = list_comms,
     .help = "the transport of dispatch and combine, for plugins of dp.ep.draft/1 (comm_shm)"},
    {.name = "mode",
     .value = "MODE",
     .kind = OPTION_FLAG,
     .words = "threads processes",
     .help = "threads or processes: one of the two only"},
    {.name = "settings",
     .value = "TEXT",
     .kind = OPTION_FLAG,
     .help =
         "what an attention plugin is opened with. If it says that settings may select another formula, cases that compare with the contract's are left out"},
    {.name = "launch",
     .value = "COMMAND",
     .kind = OPTION_FLAG,
     .help =
         "starts the ranks that are processes: \"mpirun -n %d\", where %d is how many; for plugins that live with their own launcher. Cases in which a rank is killed are left out"},
    {.kind = OPTION_END}};
static const option_row_t *const plugin_tables[] = {plugin_options, NULL};

const command_t command_plugin = {
    .name = "plugin",
    .usage =
        "usage: dualpipe plugin list\n"
        "       dualpipe plugin check NAME|PATH [OPTIONS] [CASE...]\n"
        "       dualpipe plugin check [NAME|PATH] --list\n"
        "\n"
        "list: every plugin in the folders of DUALPIPE_PLUGIN_PATH and in the install's folder: name, version, the ABI it was built with, the interfaces it offers and what it says of itself; or why it cannot be used. A name that an earlier folder has already is marked: dp_plugin_load() takes the first. Each is looked at in its own process.\n"
        "check: runs the contract suite of each interface that the plugin offers, or of it these cases only, and prints a line per case. Ranks are tried as threads and as processes. For writers of plugins; their own program can do the same (conform.h).\n"
        "\n",
    .tables = plugin_tables,
    .actions = "list check",
    .list = list_checked,
    .notes = "\n"
             "examples:\n"
             "  dualpipe plugin list\n"
             "      what this machine has\n"
             "  dualpipe plugin check comm_shm\n"
             "      the whole suite on one plugin\n"
             "  dualpipe plugin check ./dp_comm_mine.so --mode threads\n"
             "      a plugin that is being written, by its path\n"
             "  dualpipe plugin check ./dp_comm_mpi.so --mode processes --launch \"mpirun -n %d\"\n"
             "      a plugin whose ranks mpirun has to start\n"
             "\n"
             "exit status: 0 fine, 1 a plugin cannot be used or a case failed, 2 wrong usage\n"};

/* ---- the plugins there are ---- */

typedef void (*path_fn)(void *into, const char *path);

static int is_plugin(const struct dirent *entry)
{
    const size_t length = strlen(entry->d_name);

    return strncmp(entry->d_name, "dp_", 3) == 0 && length > 6 && strcmp(entry->d_name + length - 3, ".so") == 0;
}

static void each_of_folder(const char *folder, size_t length, path_fn visit, void *into)
{
    struct dirent **entries;
    char path[PATH_MAX];
    int n;

    snprintf(path, sizeof(path), "%.*s", (int)length, folder);
    n = scandir(path, &entries, is_plugin, alphasort);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "%.*s/%s", (int)length, folder, entries[i]->d_name);
        visit(into, path);
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
}

/* In the order in which dp_plugin_load() looks. */
static void each_plugin(path_fn visit, void *into)
{
    const char *search = getenv("DUALPIPE_PLUGIN_PATH");

    while (search != NULL && *search != '\0') {
        const size_t length = strcspn(search, ":");
        if (length > 0 && search[0] == '/')
            each_of_folder(search, length, visit, into);
        search += length + (search[length] == ':');
    }
    each_of_folder(DP_PLUGIN_DIR, strlen(DP_PLUGIN_DIR), visit, into);
}

typedef struct names {
    const char *prefix;
    FILE *to;
} names_t;

static void put_name(void *into, const char *path)
{
    const names_t *names = into;
    const char *name = strrchr(path, '/') + strlen("/dp_");

    if (strncmp(name, names->prefix, strlen(names->prefix)) == 0)
        fprintf(names->to, "%.*s\n", (int)(strlen(name) - strlen(".so")), name);
}

void plugin_names(const char *prefix, FILE *to)
{
    each_plugin(put_name, &(names_t){prefix, to});
}

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

static void show_plugin(void *into, const char *path)
{
    seen_t *seen = into;
    char offers[CONFORM_INTERFACES * 24] = "", abi[32];
    conform_probe_t probe;

    conform_probe(path, &probe);
    if (probe.status < 0) {
        printf("%s\n    cannot be used: %s\n", path, probe.error);
        seen->failed = true;
        return;
    }
    for (int i = 0; i < CONFORM_INTERFACES; i++)
        if (probe.interface[i].offered) {
            strcat(offers, *offers != '\0' ? " " : "");
            strcat(offers, conform_interfaces[i]);
        }
    snprintf(abi, sizeof(abi), "ABI %d.%d", probe.abi_major, probe.abi_minor);
    printf("%-16s %-8s %s  %-14s  %s%s\n", probe.name, probe.version, abi, *offers != '\0' ? offers : "(its own)",
           probe.summary, known(seen, probe.name) ? " (hidden by the one above)" : "");
    printf("    %s\n", path);
    for (int i = 0; i < CONFORM_INTERFACES; i++)
        if (probe.interface[i].error[0] != '\0') {
            printf("    %s cannot be used: %s\n", conform_interfaces[i], probe.interface[i].error);
            seen->failed = true;
        }
    remember(seen, probe.name);
}

static int list(void)
{
    seen_t seen = {0};

    each_plugin(show_plugin, &seen);
    if (seen.count == 0 && !seen.failed)
        printf("no plugin in DUALPIPE_PLUGIN_PATH or %s\n", DP_PLUGIN_DIR);
    free(seen.names);
    return seen.failed ? CMD_FAILED : CMD_OK;
}

/* ---- check ---- */

/* argv[0] is "check"; the plugin is the first word that is no option. */
static int check_plugin(int argc, char **argv)
{
    static char title[] = "dualpipe plugin check";
    const char *plugin = argc > 1 && argv[1][0] != '-' ? argv[1] : NULL;

    if (plugin != NULL) {
        argc--;
        argv++;
    }
    argv[0] = title;
    return dp_conform_main(NULL, plugin, argc, argv);
}

int cmd_plugin(int argc, char **argv)
{
    if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        options_help(&command_plugin, stdout);
        return CMD_OK;
    }
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0) {
            options_help(&command_plugin, stdout);
            return CMD_OK;
        }
    if (argc == 2 && strcmp(argv[1], "list") == 0)
        return list();
    if (argc >= 2 && strcmp(argv[1], "check") == 0)
        return check_plugin(argc - 1, argv + 1);
    return command_usage(&command_plugin, "say list, or check NAME");
}
