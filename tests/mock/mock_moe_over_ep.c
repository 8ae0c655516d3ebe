/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_moe_over_ep.c: moe_cpu whose rows a plugin of dp.ep.draft/1 carries whoever opens it.
 * MOCK_REAL: the file of moe_cpu, MOCK_EP: that of the plugin. */
#include <dualpipe/draft/ep.h>
#include <dualpipe/moe.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static const void *interface_of(const char *variable, const char *id)
{
    const char *file = getenv(variable);
    void *library = file != NULL ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : NULL;
    const dp_plugin_t *plugin = library != NULL ? dlsym(library, "dp_plugin_entry") : NULL;

    return plugin != NULL ? plugin->get_interface(id) : NULL;
}

static dp_status_t open(const dp_host_t *host, const dp_moe_config_t *config, dp_moe_t **moe_out)
{
    const dp_moe_vt_t *real = interface_of("MOCK_REAL", DP_IFACE_MOE);
    dp_moe_config_t carried;

    if (DP_TAKE(host, "mock_moe_over_ep", dp_moe_config_t, DP_MOE_CONFIG_MIN, &carried, config) < 0)
        return real->open(host, config, moe_out);
    carried.ep_vt = interface_of("MOCK_EP", DP_IFACE_EP);
    return real->open(host, &carried, moe_out);
}

static const void *get_interface(const char *id)
{
    static dp_moe_vt_t table;
    const void *real = interface_of("MOCK_REAL", DP_IFACE_MOE);

    if (strcmp(id, DP_IFACE_MOE) != 0 || real == NULL || interface_of("MOCK_EP", DP_IFACE_EP) == NULL)
        return NULL;
    memcpy(&table, real, sizeof(table));
    table.open = open;
    return &table;
}

DP_PLUGIN_DEFINE(mock_moe_over_ep) = {
    DP_PLUGIN_HEAD,
    .name = "mock_moe_over_ep",
    .version = "0.1",
    .summary = "moe_cpu over a plugin of dp.ep.draft/1",
    .get_interface = get_interface,
};
