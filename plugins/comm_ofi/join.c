/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * join.c: regions, what ranks tell each other about them, and what is made of it. */
#include "join.h"
#include "channel.h"
#include "plugins/common/do.h"

#include <stdio.h>
#include <string.h>

#define AREAS_PART 512 /* directory entries in one value of the boot service */
#define PAGE_BYTES 4096

/* What open and start do between making their areas and using those of the peers. */
typedef struct joining {
    dp_comm_t *comm;
    area_t *areas; /* of ours */
    uint32_t count, bells;
    region_t *region;
    view_t *views; /* [nranks] */
} joining_t;

/* ---- memory ---- */

static size_t page_up(size_t bytes)
{
    return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

/* First what peers write, then what is ours alone. Returns all bytes, 0 when they are beyond
 * reason. */
static size_t lay_out_areas(joining_t *j)
{
    size_t at = 0;

    if (!comm_areas_place(j->areas, j->count, &at))
        return 0;
    for (uint32_t i = 0; i < j->count; i++) {
        j->areas[i].bell = j->bells;
        if (__builtin_add_overflow(j->bells, j->areas[i].bells, &j->bells) || j->bells >= 1u << BELL_BITS)
            return 0;
    }
    for (uint32_t i = 0; i < j->count; i++) {
        j->areas[i].private_offset = at;
        if (__builtin_add_overflow(at, comm_round_line(j->areas[i].private_bytes), &at) || at > SIZE_MAX / 8)
            return 0;
    }
    return page_up(at > 0 ? at : 1);
}

static dp_status_t make_region(joining_t *j, region_t *region)
{
    dp_comm_t *comm = j->comm;
    const dp_host_t *host = comm->host;
    size_t bytes = lay_out_areas(j), bells = ((size_t)j->bells + 1) * sizeof(bell_t);
    void *pinned = NULL;

    if (bytes == 0)
        return DP_FAIL(host, DP_ERR_INVALID, "group %s: what was opened is too large for any machine", comm->name);
    if (comm->gpu == NULL)
        region->base = host->allocate(host, bytes, PAGE_BYTES);
    else if (comm->device->host_allocate(comm->instance, bytes, &pinned) == DP_OK)
        region->base = pinned; /* what the device copies from and to without a copy in between */
    region->bells = host->allocate(host, bells, CACHE_LINE);
    if (region->base == NULL || region->bells == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "rank %d, group %s: no %zu bytes of memory", comm->world[comm->rank],
                       comm->name, bytes + bells);
    memset(region->base, 0, bytes);
    memset(region->bells, 0, bells);
    region->bytes = bytes;
    region->bell_count = j->bells;
    return DP_OK;
}

void ofi_join_free_region(dp_comm_t *comm, region_t *region)
{
    if (region->mr != NULL)
        (void)fi_close(&region->mr->fid);
    if (comm->gpu == NULL)
        comm_release(comm, region->base);
    else if (region->base != NULL)
        comm->device->host_release(comm->instance, region->base);
    comm_release(comm, region->bells);
    memset(region, 0, sizeof(*region));
}

/* Room for one more region; bells may be rung meanwhile. */
static dp_status_t add_region(joining_t *j)
{
    dp_comm_t *comm = j->comm;
    size_t old = comm->region_count * sizeof(region_t);
    region_t *regions, *before = comm->regions;
    region_t region = {0};
    dp_status_t status;

    if (comm->region_count == ROUNDS_MAX)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "group %s: start was called %u times, which is all it can be",
                       comm->name, ROUNDS_MAX - 1);
    regions = comm->host->allocate(comm->host, old + sizeof(region_t), 16);
    if (regions == NULL)
        return DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no memory for a list of regions", comm->name);
    status = make_region(j, &region);
    pthread_mutex_lock(&comm->wire.lock);
    if (status == DP_OK && comm->nranks > 1)
        status = ofi_fabric_register(comm, &region);
    if (before != NULL)
        memcpy(regions, before, old);
    regions[comm->region_count] = region;
    comm->regions = regions;
    j->region = &regions[comm->region_count++];
    pthread_mutex_unlock(&comm->wire.lock);
    comm_release(comm, before);
    comm->memory_bytes += region.bytes + region.bell_count * sizeof(bell_t);
    return status;
}

/* ---- telling ---- */

static void key_of(const joining_t *j, int32_t rank, uint32_t part, char key[128])
{
    snprintf(key, 128, "ofi/%s/%u/%d/%u", j->comm->name, j->comm->region_count - 1, rank, part);
}

static dp_status_t publish_region(joining_t *j)
{
    dp_comm_t *comm = j->comm;
    record_t record;
    char key[128];
    dp_status_t status;

    memset(&record, 0, sizeof(record));
    DO(ofi_fabric_describe(comm, &record));
    record.address = j->region->address;
    record.key = j->region->key;
    record.bytes = j->region->bytes;
    record.areas = j->count;
    record.bells = j->bells;
    key_of(j, comm->rank, 0, key);
    status = comm->boot->put(comm->host, key, &record, sizeof(record));
    for (uint32_t i = 0; i < j->count && status == DP_OK; i += AREAS_PART) {
        uint32_t most = j->count - i < AREAS_PART ? j->count - i : AREAS_PART;

        key_of(j, comm->rank, 1 + i / AREAS_PART, key);
        status = comm->boot->put(comm->host, key, j->areas + i, most * sizeof(area_t));
    }
    return status;
}

static dp_status_t read_areas(joining_t *j, int32_t rank, view_t *view)
{
    dp_comm_t *comm = j->comm;
    const dp_host_t *host = comm->host;
    const record_t *r = &view->record;
    dp_status_t status = DP_OK;
    char key[128];

    if (r->areas > AREAS_MAX || r->bells > 1u << BELL_BITS || r->bytes > SIZE_MAX / 4)
        return DP_FAIL(host, DP_ERR_PROTOCOL, "rank %d announces %u areas in %llu bytes", comm->world[rank], r->areas,
                       (unsigned long long)r->bytes);
    view->areas = host->allocate(host, (r->areas + 1) * sizeof(area_t), 16);
    if (view->areas == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "no memory for a directory of %u areas", r->areas);
    for (uint32_t i = 0; i < r->areas && status == DP_OK; i += AREAS_PART) {
        uint32_t most = r->areas - i < AREAS_PART ? r->areas - i : AREAS_PART;

        key_of(j, rank, 1 + i / AREAS_PART, key);
        status = comm->boot->get(host, key, view->areas + i, most * sizeof(area_t));
    }
    for (uint32_t i = 0; i < r->areas && status == DP_OK; i++) {
        const area_t *a = &view->areas[i];

        if (a->offset > r->bytes || a->bytes > r->bytes - a->offset || a->bell > r->bells ||
            a->bells > r->bells - a->bell)
            status = DP_FAIL(host, DP_ERR_PROTOCOL, "rank %d: area %u of rank %d lies outside its memory",
                             comm->world[comm->rank], i, comm->world[rank]);
    }
    return status;
}

static dp_status_t load_view(joining_t *j, int32_t rank)
{
    dp_comm_t *comm = j->comm;
    view_t *view = &j->views[rank];
    char key[128];
    dp_status_t status;

    if (view->loaded)
        return DP_OK;
    key_of(j, rank, 0, key);
    status = comm->boot->get(comm->host, key, &view->record, sizeof(view->record));
    if (status == DP_OK && comm->region_count == 1)
        status = ofi_fabric_add(comm, rank, &view->record);
    if (status == DP_OK)
        status = read_areas(j, rank, view);
    view->loaded = status == DP_OK;
    return status;
}

/* ---- finding ---- */

dp_status_t ofi_join_find(dp_comm_t *comm, view_t *views, int32_t rank, const area_t *expected, const char *what,
                          place_t *place_out)
{
    const area_search_t search = {comm->host, comm->name, comm->world[comm->rank], comm->world[rank], what};
    const view_t *view = &views[rank];
    const area_t *found = NULL;

    DO(comm_area_find(&search, view->areas, view->record.areas, expected, &found));
    *place_out = (place_t){.rank = rank,
                           .bell = bell_name(comm->region_count - 1, found->bell),
                           .address = view->record.address + found->offset,
                           .key = view->record.key,
                           .data_address = found->data_address,
                           .data_key = found->data_key};
    return DP_OK;
}

/* ---- open and start ---- */

static dp_status_t begin_joining(joining_t *j, dp_comm_t *comm, uint32_t count)
{
    const dp_host_t *host = comm->host;
    size_t views = (size_t)comm->nranks * sizeof(view_t);

    memset(j, 0, sizeof(*j));
    j->comm = comm;
    j->areas = host->allocate(host, (count + 1) * sizeof(area_t), 16);
    j->views = host->allocate(host, views, 16);
    if (j->areas == NULL || j->views == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory to connect %u areas", comm->name, count);
    memset(j->areas, 0, (count + 1) * sizeof(area_t));
    memset(j->views, 0, views);
    return DP_OK;
}

/* Makes our region, tells the others of it and hears of theirs. Of our own rank the view is there
 * as well. */
static dp_status_t show_region(joining_t *j)
{
    dp_comm_t *comm = j->comm;
    dp_status_t status = add_region(j);

    if (status == DP_OK && comm->nranks > 1)
        status = publish_region(j);
    return status;
}

static dp_status_t end_joining(joining_t *j, dp_status_t status)
{
    dp_comm_t *comm = j->comm;

    for (int32_t i = 0; j->views != NULL && i < comm->nranks; i++)
        comm_release(comm, j->views[i].areas);
    if (status == DP_OK && comm->nranks > 1)
        status = ofi_base_meet(comm);
    comm_release(comm, j->areas);
    comm_release(comm, j->views);
    comm->broken = status < 0;
    return status;
}

static dp_status_t connect_bases(joining_t *j)
{
    dp_comm_t *comm = j->comm;
    dp_status_t status = DP_OK;

    j->areas[j->count++] = ofi_base_area(comm);
    DO(show_region(j));
    comm->base = j->areas[0];
    comm->ground = *j->region;
    ofi_base_prepare(comm, j->region);
    for (int32_t rank = 0; rank < comm->nranks && status == DP_OK; rank++) {
        if (rank == comm->rank)
            continue;
        status = load_view(j, rank);
        if (status == DP_OK)
            status = ofi_join_find(comm, j->views, rank, &comm->base, "the staging of all_reduce", &comm->bases[rank]);
    }
    if (status == DP_OK)
        status = ofi_progress_start(comm);
    return status == DP_OK ? ofi_base_greet(comm) : status;
}

static dp_status_t connect_all(joining_t *j)
{
    dp_comm_t *comm = j->comm;
    dp_status_t status = DP_OK;
    uint32_t i = 0;

    for (dp_channel_end_t *e = comm->ends; e != NULL && status == DP_OK; e = e->next)
        if (!e->connected) {
            status = ofi_channel_show(e);
            j->areas[j->count++] = ofi_channel_area(e, true);
        }
    for (dp_exchange_t *x = comm->exchanges; x != NULL && status == DP_OK; x = x->next)
        if (!x->connected) {
            status = ofi_exchange_show(x);
            j->areas[j->count++] = ofi_exchange_area(x);
        }
    if (status == DP_OK)
        status = show_region(j);
    for (dp_channel_end_t *e = comm->ends; e != NULL && status == DP_OK; e = e->next)
        if (!e->connected) {
            status = load_view(j, e->config.peer);
            if (status == DP_OK)
                status = ofi_channel_connect(e, &j->areas[i++], j->region, j->views);
        }
    for (dp_exchange_t *x = comm->exchanges; x != NULL && status == DP_OK; x = x->next)
        if (!x->connected) {
            for (int32_t rank = 0; rank < comm->nranks && status == DP_OK; rank++)
                status = rank != comm->rank ? load_view(j, rank) : DP_OK;
            if (status == DP_OK)
                status = ofi_exchange_connect(x, &j->areas[i++], j->region, j->views);
        }
    return status;
}

dp_status_t ofi_join_group(dp_comm_t *comm)
{
    joining_t j;
    dp_status_t status = begin_joining(&j, comm, 1);

    return end_joining(&j, status == DP_OK ? connect_bases(&j) : status);
}

dp_status_t ofi_join_start(dp_comm_t *comm)
{
    joining_t j;
    uint32_t count = 0;
    dp_status_t status;

    for (dp_channel_end_t *e = comm->ends; e != NULL; e = e->next)
        count += !e->connected;
    for (dp_exchange_t *x = comm->exchanges; x != NULL; x = x->next)
        count += !x->connected;
    status = begin_joining(&j, comm, count);
    return end_joining(&j, status == DP_OK ? connect_all(&j) : status);
}
