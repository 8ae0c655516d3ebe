/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_conform_mixed.c: two comm plugins joined, against the contract of dp.comm/1: NEAR FAR
 * [--mode MODE] [--device DEVICE] [CASE...]. Who is on which host is in DUALPIPE_DEBUG=hosts. */
#include "mixed/mixed.h"

#include <dualpipe/conform.h>

#include <stdio.h>
#include <string.h>

static const dp_comm_vt_t *table_of(const char *name)
{
    const dp_plugin_t *plugin;
    const void *table;

    if (dp_plugin_load(name, &plugin) == DP_OK &&
        dp_plugin_interface(plugin, DP_IFACE_COMM, DP_COMM_VT_MIN, &table) == DP_OK)
        return table;
    fprintf(stderr, "%s\n", dp_last_error());
    return NULL;
}

int main(int argc, char **argv)
{
    dp_conform_options_t options = {.struct_size = sizeof(options), .plugin = "two joined"};
    dp_conform_result_t result = {.struct_size = sizeof(result)};
    const dp_comm_vt_t *near = argc > 2 ? table_of(argv[1]) : NULL, *far = argc > 2 ? table_of(argv[2]) : NULL, *table;
    int at = 3;

    if (near == NULL || far == NULL || dp__mixed_table(near, far, &table) != DP_OK) {
        fprintf(stderr, "usage: %s NEAR FAR [--mode threads|processes] [--device DEVICE] [CASE...]: %s\n", argv[0],
                dp_last_error());
        return 2;
    }
    if (argc > at + 1 && strcmp(argv[at], "--mode") == 0) {
        options.modes = strcmp(argv[at + 1], "threads") == 0 ? DP_CONFORM_THREADS : DP_CONFORM_PROCESSES;
        at += 2;
    }
    if (argc > at + 1 && strcmp(argv[at], "--device") == 0) {
        options.device = argv[at + 1];
        at += 2;
    }
    /* as free does with NULL: nothing. UBSan sees an address that is taken inside it */
    table->close(NULL);
    options.table = table;
    options.cases = at < argc ? (const char *const *)&argv[at] : NULL;
    if (dp_conform_run(DP_IFACE_COMM, &options, &result) != DP_OK) {
        fprintf(stderr, "%s\n", dp_last_error());
        return 1;
    }
    printf("%d passed, %d failed, %d skipped\n", result.passed, result.failed, result.skipped);
    return result.failed > 0 || result.passed == 0;
}
