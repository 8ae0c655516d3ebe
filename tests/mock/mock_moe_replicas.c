/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_moe_replicas.c: moe_cpu with a fault in what it makes of replicas, of groups, of rows that
 * it posts or of who does dispatch and combine, see fault.h. MOCK_REAL: the file of moe_cpu. */
#include <dualpipe/moe.h>

#include "tests/mock/fault.h"

#include <dlfcn.h>
#include <pthread.h>

static const dp_moe_vt_t *real(void)
{
    const char *file = getenv("MOCK_REAL");
    void *library = file != NULL ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : NULL;
    const dp_plugin_t *plugin = library != NULL ? dlsym(library, "dp_plugin_entry") : NULL;

    return plugin != NULL ? plugin->get_interface(DP_IFACE_MOE) : NULL;
}

static dp_status_t route(dp_moe_t *moe, const dp_moe_io_t *io, dp_stream_t *s)
{
    static const int32_t in_turn[] = {0, 1, 2, 3, 0, 1, 2, 3};
    dp_moe_io_t outer;
    dp_io_t inner;

    if (io->struct_size < DP_MOE_IO_MIN || io->io->struct_size < DP_IO_MIN ||
        dp_sized_take(&outer, sizeof(outer), io) != 0 || dp_sized_take(&inner, sizeof(inner), io->io) != 0)
        return real()->route(moe, io, s);
    outer.io = &inner;
    if (fault("replica_of_another_microbatch"))
        inner.microbatch++;
    if (fault("placement_is_ignored") && outer.placement != NULL)
        outer.placement = in_turn;
    return real()->route(moe, &outer, s);
}

static const dp_comm_vt_t *comm; /* of all ranks that are threads here */

static dp_status_t post(dp_exchange_t *exchange, uint32_t number, const void *send, const int32_t *offsets,
                        const int32_t *counts, const void **rows_out, const int32_t **counts_out, dp_stream_t *s)
{
    dp_status_t status = comm->exchange_post(exchange, number, send, offsets, counts, rows_out, counts_out, s);

    if (fault("posted_rows_are_overwritten")) /* the kit's comm has done all that the stream does */
        memset((void *)(uintptr_t)send, 0, 16);
    return status;
}

static dp_status_t await(dp_exchange_t *exchange, uint32_t number, dp_stream_t *s)
{
    return fault("rows_are_not_awaited") ? DP_OK : comm->exchange_wait(exchange, number, s);
}

/* The same transport with what the faults above make of its posts. */
static const dp_comm_vt_t *posting_comm(const dp_comm_vt_t *vt)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static dp_comm_vt_t posting;

    pthread_mutex_lock(&lock);
    if (comm == NULL) {
        comm = vt;
        posting = *vt;
        posting.exchange_post = post;
        posting.exchange_wait = await;
    }
    pthread_mutex_unlock(&lock);
    return &posting;
}

static dp_status_t open(const dp_host_t *host, const dp_moe_config_t *config, dp_moe_t **moe_out)
{
    dp_moe_config_t changed;

    if (config->struct_size < DP_MOE_CONFIG_MIN || dp_sized_take(&changed, sizeof(changed), config) != 0 ||
        (changed.route_groups <= 1 && changed.ep_vt == NULL && changed.posted == 0))
        return real()->open(host, config, moe_out);
    if (changed.posted != 0)
        changed.comm_vt = posting_comm(changed.comm_vt);
    if (fault("groups_are_ignored"))
        changed.route_groups = 0;
    if (fault("one_group_more"))
        changed.route_limit += changed.route_limit < changed.route_groups;
    if (fault("a_plugin_doubles_the_weights") && changed.ep_vt != NULL)
        changed.scale = 2 * (changed.scale > 0 ? changed.scale : 1);
    return real()->open(host, &changed, moe_out);
}

static const void *get_interface(const char *id)
{
    static dp_moe_vt_t table;

    if (strcmp(id, DP_IFACE_MOE) != 0 || real() == NULL)
        return NULL;
    memcpy(&table, real(), sizeof(table));
    table.open = open;
    table.route = route;
    return &table;
}

DP_PLUGIN_DEFINE(mock_moe_replicas) = {
    .struct_size = sizeof(dp_plugin_t),
    .abi_major = DP_ABI_MAJOR,
    .abi_minor = DP_ABI_MINOR,
    .name = "mock_moe_replicas",
    .version = "0.1",
    .summary = "moe_cpu with a fault in its replicas, groups or rows",
    .get_interface = get_interface,
};
