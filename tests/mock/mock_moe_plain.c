/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_moe_plain.c: moe_cpu without replicas and dp.ep.draft/1, which it refuses. MOCK_REAL: the
 * file of moe_cpu. */
#include <dualpipe/moe.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static dp_moe_vt_t table;
static dp_status_t (*inner_open)(const dp_host_t *host, const dp_moe_config_t *config, dp_moe_t **moe_out);

static dp_status_t open_plain(const dp_host_t *host, const dp_moe_config_t *config, dp_moe_t **moe_out)
{
    if (config->struct_size >= DP_MOE_CONFIG_MIN && (config->replicas > 0 || config->ep_vt != NULL))
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "mock_moe_plain: it has neither replicas nor ep_vt: leave them 0");
    return inner_open(host, config, moe_out);
}

static void fill(void)
{
    const char *file = getenv("MOCK_REAL");
    void *library = file != NULL ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : NULL;
    const dp_plugin_t *plugin = library != NULL ? dlsym(library, "dp_plugin_entry") : NULL;

    if (plugin == NULL)
        return;
    memcpy(&table, plugin->get_interface(DP_IFACE_MOE), sizeof(table));
    inner_open = table.open;
    table.open = open_plain;
}

static const void *get_interface(const char *id)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, fill);
    return table.struct_size != 0 && strcmp(id, DP_IFACE_MOE) == 0 ? &table : NULL;
}

DP_PLUGIN_DEFINE(mock_moe_plain) = {
    DP_PLUGIN_HEAD,
    .name = "mock_moe_plain",
    .version = "0.1",
    .summary = "moe_cpu without replicas and dp.ep.draft/1",
    .get_interface = get_interface,
};
