/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * probe.c: looks at a plugin in its own process: one that ends the process takes nobody with it. */
#include "conform.h"

#include <dualpipe/attention.h>
#include <dualpipe/draft/ep.h>
#include <dualpipe/moe.h>
#include <dualpipe/profiler.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROBE_SECONDS 10

const char *const conform_interfaces[CONFORM_INTERFACES] = {DP_IFACE_DEVICE, DP_IFACE_COMM, DP_IFACE_ATTENTION,
                                                            DP_IFACE_MOE,    DP_IFACE_EP,   DP_IFACE_PROFILER};

static void look_inside(const char *name, conform_probe_t *probe)
{
    const dp_plugin_t *plugin;
    const void *table;
    dp_status_t status = dp_plugin_load(name, &plugin);

    if (status < 0) {
        snprintf(probe->error, sizeof(probe->error), "%s", dp_last_error());
        return;
    }
    snprintf(probe->name, sizeof(probe->name), "%s", plugin->name);
    snprintf(probe->version, sizeof(probe->version), "%s", plugin->version != NULL ? plugin->version : "?");
    snprintf(probe->summary, sizeof(probe->summary), "%s", plugin->summary != NULL ? plugin->summary : "");
    probe->abi_major = plugin->abi_major;
    probe->abi_minor = plugin->abi_minor;
    for (int i = 0; i < CONFORM_INTERFACES; i++) {
        const conform_suite_t *suite = conform_suite_of(conform_interfaces[i]);

        probe->interface[i].offered = plugin->get_interface(conform_interfaces[i]) != NULL;
        if (probe->interface[i].offered &&
            dp_plugin_interface(plugin, conform_interfaces[i], suite != NULL ? suite->table_bytes : sizeof(uint32_t),
                                &table) < 0)
            snprintf(probe->interface[i].error, sizeof(probe->interface[i].error), "%s", dp_last_error());
    }
    probe->status = DP_OK;
}

/* Ends it after a while. */
static bool await_end(pid_t pid, int *status_out)
{
    for (int64_t left = conform_scaled_ns(PROBE_SECONDS); left > 0; left -= 10000000) {
        if (waitpid(pid, status_out, WNOHANG) != 0)
            return true;
        conform_nap_ms(10);
    }
    kill(pid, SIGKILL);
    waitpid(pid, status_out, 0);
    return false;
}

void conform_probe(const char *plugin, conform_probe_t *probe_out)
{
    conform_probe_t *probe = mmap(NULL, sizeof(*probe), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int status = 0;
    pid_t pid = -1;

    memset(probe_out, 0, sizeof(*probe_out));
    probe_out->status = DP_ERR_NOMEM;
    snprintf(probe_out->error, sizeof(probe_out->error), "no process to look at %s in", plugin);
    if (probe != MAP_FAILED) {
        fflush(NULL);
        pid = fork();
    }
    if (pid == 0) {
        dup2(2, 1); /* what it prints is no part of a report */
        probe->status = DP_ERR_PLUGIN;
        look_inside(plugin, probe);
        _exit(0);
    }
    if (pid > 0 && await_end(pid, &status)) {
        *probe_out = *probe;
        if (probe_out->status < 0 && probe_out->error[0] == '\0')
            snprintf(probe_out->error, sizeof(probe_out->error), "loading %s ends the process: %s", plugin,
                     WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "it calls exit");
    } else if (pid > 0) {
        probe_out->status = DP_ERR_PLUGIN;
        snprintf(probe_out->error, sizeof(probe_out->error), "loading %s does not return", plugin);
    }
    if (probe != MAP_FAILED)
        munmap(probe, sizeof(*probe));
}
