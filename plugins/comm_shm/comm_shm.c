/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm_shm.c: ranks of one host over shared memory: the table of dp.comm/1, joining, connecting,
 * waiting and the end. */
#include "comm_shm.h"
#include "plugins/common/do.h"

#include <stdio.h>
#include <string.h>

/* ---- waiting ---- */

dp_status_t shm_wait(dp_comm_t *comm, dp_signal_t *signal, uint32_t target, const char *what)
{
    if ((int32_t)(__atomic_load_n(&signal->value, __ATOMIC_ACQUIRE) - target) >= 0)
        return DP_OK;
    return comm->host->wait(comm->host, signal, target, -1, what);
}

/* ---- connecting ---- */

dp_status_t shm_find(dp_comm_t *comm, view_t *views, int32_t rank, const area_t *expected, const char *what,
                     unsigned char **at_out)
{
    const area_search_t search = {comm->host, comm->name, comm->world[comm->rank], comm->world[rank], what};
    view_t *view = &views[rank];
    const area_t *found = NULL;
    dp_status_t status = view->loaded ? DP_OK : shm_segment_import(comm, rank, view);

    if (status == DP_OK)
        status = comm_area_find(&search, view->areas, view->count, expected, &found);
    if (status == DP_OK)
        *at_out = view->segment.base + found->offset;
    return status;
}

static dp_status_t hold_segment(dp_comm_t *comm, holding_t **list, segment_t *segment)
{
    holding_t *holding;

    if (segment->base == NULL)
        return DP_OK;
    holding = comm->host->allocate(comm->host, sizeof(*holding), 16);
    if (holding == NULL) {
        shm_segment_drop(segment);
        return DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no memory for a record of a mapping", comm->name);
    }
    holding->segment = *segment;
    holding->next = *list;
    *list = holding;
    segment->base = NULL;
    return DP_OK;
}

static void drop_segments(dp_comm_t *comm, holding_t **list)
{
    while (*list != NULL) {
        holding_t *holding = *list;

        *list = holding->next;
        shm_segment_drop(&holding->segment);
        comm->host->release(comm->host, holding);
    }
}

/* What open and start do between making their areas and using those of the peers. */
typedef struct joining {
    dp_comm_t *comm;
    area_t *areas; /* of ours; views[rank].areas once they lie in memory */
    uint32_t count;
    view_t *views; /* [nranks] */
} joining_t;

static dp_status_t joining_begin(joining_t *j, dp_comm_t *comm, uint32_t count)
{
    const dp_host_t *host = comm->host;

    memset(j, 0, sizeof(*j));
    j->comm = comm;
    j->areas = host->allocate(host, (count + 1) * sizeof(area_t), 16);
    j->views = host->allocate(host, (size_t)comm->nranks * sizeof(view_t), 16);
    if (j->views != NULL)
        memset(j->views, 0, (size_t)comm->nranks * sizeof(view_t));
    if (j->areas == NULL || j->views == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory to connect %u areas", comm->name, count);
    return DP_OK;
}

/* Holds on to all mappings, whatever happened: peers may still be comparing what they want with
 * what we have. When all is well the ranks meet, and our descriptor has served. */
static dp_status_t joining_end(joining_t *j, dp_status_t status)
{
    dp_comm_t *comm = j->comm;

    for (int32_t i = 0; j->views != NULL && i < comm->nranks; i++) {
        dp_status_t held = hold_segment(comm, i == comm->rank ? &comm->own : &comm->imported, &j->views[i].segment);

        status = status == DP_OK ? held : status;
        if (i != comm->rank)
            comm_release(comm, j->views[i].areas);
    }
    if (status == DP_OK)
        status = shm_meet(comm);
    if (status == DP_OK && j->count > 0)
        shm_segment_close_fd(&comm->own->segment);
    comm_release(comm, j->areas);
    comm_release(comm, j->views);
    comm->round++;
    comm->broken = status < 0;
    return status;
}

/* Makes our segment and tells the others of it. */
static dp_status_t joining_show(joining_t *j)
{
    dp_comm_t *comm = j->comm;
    view_t *own = &j->views[comm->rank];
    size_t bytes = j->count > 0 ? shm_segment_layout(j->areas, j->count) : 0;

    if (j->count > 0 && bytes == 0)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "group %s: what was opened is too large for any machine",
                       comm->name);
    if (j->count > 0) {
        DO(shm_segment_create(comm, j->areas, j->count, bytes, &own->segment));
    }
    own->areas = j->areas;
    own->count = j->count;
    own->loaded = true;
    comm->memory_bytes += bytes;
    return comm->nranks > 1 ? shm_segment_publish(comm, &own->segment) : DP_OK;
}

static dp_status_t connect_bases(joining_t *j)
{
    dp_comm_t *comm = j->comm;
    area_t expected = shm_base_area(comm);
    unsigned char *at;
    dp_status_t status;

    j->areas[j->count++] = expected;
    status = joining_show(j);
    for (int32_t rank = 0; rank < comm->nranks && status == DP_OK; rank++) {
        status = shm_find(comm, j->views, rank, &expected, "the staging of all_reduce", &at);
        if (status == DP_OK)
            shm_base_connect(comm, rank, at);
    }
    return status;
}

static dp_status_t connect_all(joining_t *j)
{
    dp_comm_t *comm = j->comm;
    dp_status_t status;

    for (dp_channel_end_t *end = comm->ends; end != NULL; end = end->next)
        if (!end->connected)
            j->areas[j->count++] = shm_channel_area(end, true);
    for (dp_exchange_t *x = comm->exchanges; x != NULL; x = x->next)
        if (!x->connected)
            j->areas[j->count++] = shm_exchange_area(x);
    status = joining_show(j);
    for (dp_channel_end_t *end = comm->ends; end != NULL && status == DP_OK; end = end->next)
        if (!end->connected)
            status = shm_channel_connect(end, j->views);
    for (dp_exchange_t *x = comm->exchanges; x != NULL && status == DP_OK; x = x->next)
        if (!x->connected)
            status = shm_exchange_connect(x, j->views);
    return status;
}

static dp_status_t join_group(dp_comm_t *comm)
{
    joining_t j;
    dp_status_t status = joining_begin(&j, comm, 1);

    return joining_end(&j, status == DP_OK ? connect_bases(&j) : status);
}

static dp_status_t shm_start(dp_comm_t *comm)
{
    joining_t j;
    dp_status_t status = joining_begin(&j, comm, comm_count_opened(comm));

    return joining_end(&j, status == DP_OK ? connect_all(&j) : status);
}

/* ---- life ---- */

static dp_status_t shm_check_config(const dp_host_t *host, const dp_comm_config_t *config)
{
    dp_status_t status = comm_check_open(host, "comm_shm", config, NAME_BYTES, RANKS_MAX);

    return status < 0 ? status : comm_check_host_device(host, "comm_shm", config->device_vt);
}

static void free_end(dp_channel_end_t *end)
{
    comm_release(end->comm, end);
}

static void shm_free_comm(dp_comm_t *comm)
{
    const dp_host_t *host = comm->host;

    comm_free_opened(comm, free_end, shm_exchange_free);
    drop_segments(comm, &comm->imported);
    drop_segments(comm, &comm->own);
    comm_release(comm, comm->bases);
    host->release(host, comm);
}

static dp_status_t shm_open_group(const dp_host_t *host, const dp_comm_config_t *config, dp_comm_t **comm_out)
{
    dp_comm_t *comm;
    dp_status_t status = DP_OK;
    size_t bytes;

    DO(shm_check_config(host, config));
    comm = comm_make(host, config);
    if (comm == NULL)
        return DP_ERR_NOMEM;
    bytes = (size_t)comm->nranks * sizeof(*comm->bases);
    comm->device = config->device_vt;
    comm->memory_bytes += bytes;
    comm->bases = host->allocate(host, bytes, 16);
    shm_base_size(comm, config->reduce_bytes);
    if (comm->bases == NULL)
        status = DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory for %d ranks", config->name, config->nranks);
    else if (config->nranks > 1)
        status = join_group(comm);
    if (status < 0) {
        shm_free_comm(comm);
        return status;
    }
    *comm_out = comm;
    return DP_OK;
}

static void shm_close(dp_comm_t *comm)
{
    if (comm == NULL)
        return;
    if (!comm->broken && comm->host->aborted(comm->host) == DP_OK)
        (void)shm_meet(comm);
    shm_free_comm(comm);
}

static const dp_comm_vt_t table = {
    .struct_size = sizeof(dp_comm_vt_t),
    .caps = DP_COMM_CAP_ONE_SIDED | DP_COMM_CAP_HOST_INLINE,
    .open = shm_open_group,
    .close = shm_close,
    .channel_open = shm_channel_open,
    .exchange_open = shm_exchange_open,
    .start = shm_start,
    .send = shm_channel_send,
    .recv = shm_channel_recv,
    .release = shm_channel_release,
    .exchange = shm_exchange_run,
    .exchange_release = shm_exchange_release,
    .all_reduce = shm_all_reduce,
    .memory_bytes = comm_memory_bytes,
    .reduce_scatter = shm_reduce_scatter,
    .all_gather = shm_all_gather,
    .serves = comm_serves_host,
    .exchange_post = shm_exchange_post,
    .exchange_wait = shm_exchange_wait,
};

static const void *shm_get_interface(const char *id)
{
    return strcmp(id, DP_IFACE_COMM) == 0 ? &table : NULL;
}

DP_PLUGIN_DEFINE(comm_shm) = {
    DP_PLUGIN_HEAD,
    .name = "comm_shm",
    .version = DP_VERSION,
    .summary = "ranks of one host, as processes or threads, over shared memory",
    .get_interface = shm_get_interface,
    .preference = 500,
};
