/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * conform.h: contract suites: what a plugin of each interface has to keep, tried case by case. For
 * writers of plugins.
 *
 * A separate library, libdualpipe_conform.a (pkg-config dualpipe-conform), which uses these headers
 * alone, and the command `dualpipe plugin check`. A test program of a plugin is one call:
 *
 *     int main(int argc, char **argv)
 *     {
 *         return dp_conform_main(DP_IFACE_COMM, "./dp_comm_mine.so", argc, argv);
 *     }
 *
 * A case is run by every rank of a small job, with the ranks as threads of one process or as
 * processes. Each case has its own processes and a deadline: a crash or a hang is the failure of
 * that case, and a plugin is loaded nowhere else. Times are multiplied by
 * DUALPIPE_TIMEOUT_SCALE.
 *
 * Since 0.2: dp_conform_options_t.settings. */
#ifndef DUALPIPE_CONFORM_H
#define DUALPIPE_CONFORM_H

#include <dualpipe/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Is told of one case: what its suite is for ("dp.comm/1"), its name, and what it demands, in one
 * sentence. */
typedef void (*dp_conform_case_fn)(void *user, const char *interface_id, const char *name, const char *sentence);

/** Tells of all cases of the suite for an interface; NULL: of all suites. Returns how many.
 * [any] */
DP_API int32_t dp_conform_list(const char *interface_id, dp_conform_case_fn tell, void *user);

enum {
    DP_CONFORM_THREADS = 1u << 0,  /* ranks as threads of one process */
    DP_CONFORM_PROCESSES = 1u << 1 /* ranks as processes */
};

/** What to try. Zero is the default everywhere. */
typedef struct dp_conform_options {
    uint32_t struct_size;
    uint32_t modes; /* DP_CONFORM_THREADS, DP_CONFORM_PROCESSES; 0: both */
    /* name or path of the plugin on trial; NULL: the one of this library that the suite is tried
     * on */
    const char *plugin;
    /* NULL: what `plugin` offers; else this table instead, as dp_plugin_interface gives them: for a
     * plugin that is part of the program. It is not loaded then; reports call it `plugin` */
    const void *table;
    /* what streams run on when no device is on trial; NULL: "device_cpu" */
    const char *device;
    const char *comm;         /* the transport, when no comm is on trial; NULL: "comm_shm" */
    const char *const *cases; /* names, NULL behind the last; NULL: all */
    /** How ranks that are processes are started, for plugins with a custom launcher: "mpirun
     *  -n %d", where %d is the number of ranks. The shell runs it with this program's own command
     *  line and `--rank-of FILE` behind it, which dp_conform_main understands; ranks learn who they
     *  are as dp_group_environment does. All run on this host. Cases in which a rank is killed are
     *  left out: a launcher ends the whole job. NULL: they are forked */
    const char *launch;
    /* dp_attention_config_t.settings of all that is opened; NULL: none. Other suites ignore it */
    const char *settings;
} dp_conform_options_t;
enum { DP_CONFORM_OPTIONS_MIN = DP_SIZE_TO(dp_conform_options_t, launch) };

/** What came of it: cases, each counted once for every mode and number of ranks. */
typedef struct dp_conform_result {
    uint32_t struct_size;
    int32_t passed, failed, skipped;
} dp_conform_result_t;
enum { DP_CONFORM_RESULT_MIN = DP_SIZE_TO(dp_conform_result_t, skipped) };

/**
 * Runs the suite for an interface and prints a line for each case to standard output: passed,
 * failed with what was done, what the contract says and what came, or skipped with why. DP_OK when
 * the suite ran, whatever came of it. DP_ERR_INVALID: no such suite, or no such case (the message
 * has the nearest names); DP_ERR_PLUGIN: one of the plugins cannot be used, the message says which.
 * Forks: call it while the process has one thread. [main] [blocks]
 */
DP_API DP_CHECKED dp_status_t dp_conform_run(const char *interface_id, const dp_conform_options_t *options,
                                             dp_conform_result_t *result_out);

/**
 * A whole program around dp_conform_run: reads the options below from argv (argv[0] is its name in
 * messages), runs the suite for an interface, or for each interface that the plugin offers when
 * interface_id is NULL, and returns the exit status: 0 all passed, 1 a case failed or a plugin
 * cannot be used, 2 wrong usage.
 *
 *   --plugin NAME|PATH        the plugin on trial, instead of `plugin`
 *   --mode threads|processes  one of the two only
 *   --device NAME|PATH, --comm NAME|PATH, --launch COMMAND, --settings TEXT
 *                             see dp_conform_options_t
 *   --list                    the cases and their sentences, and no trial
 *   CASE...                   these cases only
 * [main] [blocks]
 */
DP_API int dp_conform_main(const char *interface_id, const char *plugin, int argc, char **argv);

#ifdef __cplusplus
}
#endif
#endif
