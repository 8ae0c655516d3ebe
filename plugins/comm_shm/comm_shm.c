/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm_shm.c: the table of dp.comm/1 for ranks of one host, over shared memory; opening, connecting, ending. */
#include "comm_shm.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PIECE_BYTES ((size_t)256 * 1024)

dp_status_t shm_wait(dp_comm_t *comm, dp_signal_t *signal, uint32_t target, const char *what)
{
    dp_status_t status = comm->host->wait(comm->host, signal, target, -1, what);

    if (status >= 0 && __atomic_load_n(&comm->aborted, __ATOMIC_ACQUIRE) != 0)
        return DP_FAIL(comm->host, DP_ERR_ABORTED, "rank %d: group %s was aborted while waiting for %s",
                       comm->world[comm->rank], comm->name, what);
    return status;
}

dp_status_t shm_find(dp_comm_t *comm, view_t *views, int32_t rank, const area_t *expected, const char *what,
                     unsigned char **at_out)
{
    view_t *view = &views[rank];
    dp_status_t status = view->loaded ? DP_OK : segment_import(comm, rank, view);

    if (status < 0)
        return status;
    for (uint32_t i = 0; i < view->count; i++) {
        const area_t *a = &view->areas[i];

        if (a->kind != expected->kind || a->id != expected->id || a->peer != expected->peer)
            continue;
        if (a->slots != expected->slots || a->unit != expected->unit || a->capacity != expected->capacity ||
            a->bytes != expected->bytes)
            return DP_FAIL(comm->host, DP_ERR_MISMATCH,
                           "group %s: %s: rank %d has %u slots of %llu bytes (capacity %llu), rank %d has %u of %llu (%llu)",
                           comm->name, what, comm->world[comm->rank], expected->slots, (unsigned long long)expected->unit,
                           (unsigned long long)expected->capacity, comm->world[rank], a->slots,
                           (unsigned long long)a->unit, (unsigned long long)a->capacity);
        *at_out = view->segment.base + a->offset;
        return DP_OK;
    }
    return DP_FAIL(comm->host, DP_ERR_MISMATCH, "group %s: %s: rank %d opened it, rank %d did not", comm->name, what,
                   comm->world[comm->rank], comm->world[rank]);
}

/* ---- rounds: what was opened since the last one is laid out, announced and connected ---- */

typedef struct round {
    area_t *areas;
    uint32_t count;
    segment_t own;
    int fd;
    view_t *views;
} round_t;

static dp_status_t keep(dp_comm_t *comm, holding_t **list, const segment_t *segment)
{
    holding_t *h = comm->host->allocate(comm->host, sizeof(*h), 16);

    if (h == NULL)
        return DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no memory to keep a segment", comm->name);
    *h = (holding_t){*list, *segment};
    *list = h;
    return DP_OK;
}

static void drop_all(dp_comm_t *comm, holding_t **list)
{
    while (*list != NULL) {
        holding_t *h = *list;

        *list = h->next;
        segment_drop(&h->segment);
        comm->host->release(comm->host, h);
    }
}

static uint32_t count_new(const dp_comm_t *comm)
{
    uint32_t n = comm->round == 0 ? 1 : 0;

    for (const dp_channel_end_t *e = comm->ends; e != NULL; e = e->next)
        n += !e->connected;
    for (const dp_exchange_t *x = comm->exchanges; x != NULL; x = x->next)
        n += !x->connected;
    return n;
}

static void list_areas(const dp_comm_t *comm, area_t *areas)
{
    uint32_t n = 0;

    if (comm->round == 0)
        areas[n++] = base_area(comm);
    for (const dp_channel_end_t *e = comm->ends; e != NULL; e = e->next)
        if (!e->connected)
            areas[n++] = channel_area(e);
    for (const dp_exchange_t *x = comm->exchanges; x != NULL; x = x->next)
        if (!x->connected)
            areas[n++] = exchange_area(x);
}

static dp_status_t announce(dp_comm_t *comm, round_t *r)
{
    const dp_host_t *host = comm->host;
    dp_status_t status = DP_OK;

    r->count = count_new(comm);
    r->views = host->allocate(host, (size_t)comm->nranks * sizeof(*r->views), 16);
    r->areas = host->allocate(host, (r->count + 1) * sizeof(*r->areas), 16);
    if (r->views == NULL || r->areas == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory to connect %d ranks", comm->name, comm->nranks);
    memset(r->views, 0, (size_t)comm->nranks * sizeof(*r->views));
    memset(r->areas, 0, (r->count + 1) * sizeof(*r->areas));
    list_areas(comm, r->areas);
    if (r->count > 0 && segment_layout(r->areas, r->count) == 0)
        return DP_FAIL(host, DP_ERR_INVALID, "group %s: %u areas are more than memory can hold", comm->name, r->count);
    if (r->count > 0)
        status = segment_create(comm, r->areas, r->count, &r->own, &r->fd);
    if (status < 0)
        return status;
    if (r->own.base != NULL) {
        status = keep(comm, &comm->own, &r->own);
        if (status < 0) {
            segment_drop(&r->own);
            return status;
        }
        comm->memory_bytes += r->own.bytes;
    }
    return segment_publish(comm, &r->own, r->fd);
}

static dp_status_t connect_bases(dp_comm_t *comm, round_t *r)
{
    area_t expected = base_area(comm);
    dp_status_t status = DP_OK;

    base_connect(comm, comm->rank, r->own.base + r->areas[0].offset);
    for (int32_t q = 0; q < comm->nranks && status >= 0; q++) {
        unsigned char *at;

        if (q == comm->rank)
            continue;
        status = shm_find(comm, r->views, q, &expected, "the group itself", &at);
        if (status >= 0)
            base_connect(comm, q, at);
    }
    return status;
}

static dp_status_t connect_all(dp_comm_t *comm, round_t *r)
{
    uint32_t n = 0;
    dp_status_t status = DP_OK;

    if (comm->round == 0) {
        status = connect_bases(comm, r);
        n = 1;
    }
    for (dp_channel_end_t *e = comm->ends; e != NULL && status >= 0; e = e->next)
        if (!e->connected)
            status = channel_connect(e, r->views, r->own.base + r->areas[n++].offset);
    for (dp_exchange_t *x = comm->exchanges; x != NULL && status >= 0; x = x->next)
        if (!x->connected)
            status = exchange_connect(x, r->views, r->own.base + r->areas[n++].offset);
    return status;
}

/* Keeps what was imported, whatever happened: a failed start is followed by close. */
static dp_status_t end_round(dp_comm_t *comm, round_t *r, dp_status_t status)
{
    const dp_host_t *host = comm->host;

    for (int32_t q = 0; r->views != NULL && q < comm->nranks; q++) {
        view_t *view = &r->views[q];

        if (view->areas != NULL)
            host->release(host, view->areas);
        if (view->segment.base == NULL)
            continue;
        if (status >= 0)
            status = keep(comm, &comm->imported, &view->segment);
        if (status < 0)
            segment_drop(&view->segment);
    }
    if (status >= 0)
        status = shm_meet(comm); /* everybody has opened our memory: its descriptor can go */
    if (r->fd >= 0)
        close(r->fd);
    if (r->views != NULL)
        host->release(host, r->views);
    if (r->areas != NULL)
        host->release(host, r->areas);
    return status;
}

static dp_status_t connect_round(dp_comm_t *comm)
{
    round_t r = {.fd = -1};
    dp_status_t status = announce(comm, &r);

    if (status >= 0)
        status = connect_all(comm, &r);
    status = end_round(comm, &r, status);
    comm->round++;
    return status;
}

/* ---- the table ---- */

static void shm_close(dp_comm_t *comm);

static dp_status_t check_config(const dp_host_t *host, const dp_comm_config_t *c)
{
    if (c->struct_size < sizeof(*c) || c->name == NULL || strlen(c->name) >= NAME_BYTES)
        return DP_FAIL(host, DP_ERR_INVALID, "comm_shm: struct_size, or a name of less than %d characters, is missing", NAME_BYTES);
    if (c->nranks < 1 || c->nranks > 1 << MEET_ROUNDS || c->rank < 0 || c->rank >= c->nranks || c->world_ranks == NULL)
        return DP_FAIL(host, DP_ERR_INVALID, "comm_shm: group %s: rank %d of %d is not possible", c->name, c->rank, c->nranks);
    if (!DP_HAS(c->device_vt, dp_device_vt_t, launch))
        return DP_FAIL(host, DP_ERR_UNSUPPORTED, "comm_shm: group %s: the device has no launch(): shared memory goes with "
                       "device_cpu", c->name);
    return DP_OK;
}

static dp_status_t shm_open_comm(const dp_host_t *host, const dp_comm_config_t *config, dp_comm_t **comm_out)
{
    size_t n = (size_t)config->nranks;
    dp_status_t status = check_config(host, config);
    dp_comm_t *comm;

    if (status < 0)
        return status;
    comm = host->allocate(host, sizeof(*comm), LINE_BYTES);
    if (comm == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "comm_shm: no memory for group %s", config->name);
    memset(comm, 0, sizeof(*comm));
    comm->host = host;
    comm->boot = host->get_service(host, DP_HOST_BOOT);
    comm->device = config->device_vt;
    snprintf(comm->name, sizeof(comm->name), "%s", config->name);
    comm->rank = config->rank;
    comm->nranks = config->nranks;
    comm->piece_bytes = round_line(config->reduce_bytes > 0 ? config->reduce_bytes : PIECE_BYTES);
    comm->world = host->allocate(host, n * sizeof(*comm->world), 16);
    comm->bases = host->allocate(host, n * sizeof(*comm->bases), 16);
    if (comm->world == NULL || comm->bases == NULL)
        status = DP_FAIL(host, DP_ERR_NOMEM, "comm_shm: no memory for group %s of %d ranks", config->name, config->nranks);
    else if (comm->boot == NULL)
        status = DP_FAIL(host, DP_ERR_UNSUPPORTED, "comm_shm: this host has no service " DP_HOST_BOOT);
    if (status >= 0) {
        memcpy(comm->world, config->world_ranks, n * sizeof(*comm->world));
        memset(comm->bases, 0, n * sizeof(*comm->bases));
        status = connect_round(comm);
    }
    if (status < 0) {
        __atomic_store_n(&comm->aborted, 1, __ATOMIC_RELEASE); /* nobody is there to meet */
        shm_close(comm);
        return status;
    }
    *comm_out = comm;
    return DP_OK;
}

/* Importers unmap before the exporter frees: all meet first, unless the job is over. */
static void shm_close(dp_comm_t *comm)
{
    const dp_host_t *host;

    if (comm == NULL)
        return;
    host = comm->host;
    if (__atomic_load_n(&comm->aborted, __ATOMIC_ACQUIRE) == 0 && host->aborted(host) >= 0)
        (void)shm_meet(comm);
    drop_all(comm, &comm->imported);
    drop_all(comm, &comm->own);
    while (comm->ends != NULL) {
        dp_channel_end_t *end = comm->ends;

        comm->ends = end->next;
        host->release(host, end);
    }
    while (comm->exchanges != NULL) {
        dp_exchange_t *x = comm->exchanges;

        comm->exchanges = x->next;
        exchange_free(x);
    }
    if (comm->world != NULL)
        host->release(host, comm->world);
    if (comm->bases != NULL)
        host->release(host, comm->bases);
    host->release(host, comm);
}

/* Lets every wait on a counter pass; shm_wait then sees why. */
static void let_pass(const dp_host_t *host, dp_signal_t *signal)
{
    host->post(host, signal, __atomic_load_n(&signal->value, __ATOMIC_ACQUIRE) + (UINT32_C(1) << 30));
}

static void shm_abort(dp_comm_t *comm)
{
    const dp_host_t *host = comm->host;
    const base_t *own = &comm->bases[comm->rank];

    if (__atomic_exchange_n(&comm->aborted, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    for (int32_t k = 0; k < 2 * MEET_ROUNDS + 2 * comm->nranks; k++)
        let_pass(host, &own->meet[k].signal);
    for (dp_channel_end_t *e = comm->ends; e != NULL; e = e->next)
        if (e->connected)
            let_pass(host, e->config.sender ? e->credit : e->published);
    for (dp_exchange_t *x = comm->exchanges; x != NULL; x = x->next)
        for (int32_t r = 0; x->connected && r < 2 * comm->nranks; r++)
            let_pass(host, &((line_t *)(void *)x->areas[comm->rank])[r].signal);
}

static dp_status_t shm_start(dp_comm_t *comm)
{
    return connect_round(comm);
}

static size_t shm_memory_bytes(dp_comm_t *comm)
{
    return comm->memory_bytes;
}

static const dp_comm_vt_t shm_comm = {
    .struct_size = sizeof(shm_comm),
    .caps = DP_COMM_CAP_ONE_SIDED | DP_COMM_CAP_HOST_INLINE,
    .open = shm_open_comm,
    .close = shm_close,
    .abort = shm_abort,
    .channel_open = channel_open,
    .exchange_open = exchange_open,
    .start = shm_start,
    .send = channel_send,
    .recv = channel_recv,
    .release = channel_release,
    .exchange = exchange_run,
    .exchange_release = exchange_release,
    .all_reduce = shm_all_reduce,
    .barrier = shm_barrier,
    .memory_bytes = shm_memory_bytes,
};

static const void *shm_get_interface(const char *id)
{
    return strcmp(id, DP_IFACE_COMM) == 0 ? &shm_comm : NULL;
}

DP_PLUGIN_DEFINE(comm_shm) = {DP_PLUGIN_HEAD, "comm_shm", "0.1", "ranks of one host over shared memory", NULL, NULL,
                              shm_get_interface};
