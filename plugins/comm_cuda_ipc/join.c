/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * join.c: ranks find each other's blocks: announced through the boot service, mapped, looked up by
 * area, connected. */
#include "plugins/common/do.h"
#include "queue.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define AREAS_PER_KEY 512

/* What open and start do between making their areas and using those of the peers. */
typedef struct joining {
    dp_comm_t *comm;
    area_t *areas; /* of ours */
    uint32_t count;
    view_t *views; /* [nranks] */
    bool *loaded;  /* [nranks] */
    int *fds;      /* [nranks] */
    int own_fd;
} joining_t;

static dp_status_t joining_begin(joining_t *j, dp_comm_t *comm, uint32_t room)
{
    const dp_host_t *host = comm->host;
    size_t n = count_of(comm->nranks);

    memset(j, 0, sizeof(*j));
    j->comm = comm;
    j->own_fd = -1;
    j->areas = host->allocate(host, (room + 1) * sizeof(area_t), 16);
    j->views = host->allocate(host, n * sizeof(view_t), 16);
    j->loaded = host->allocate(host, n * sizeof(bool), 16);
    j->fds = host->allocate(host, n * sizeof(int), 16);
    if (j->views != NULL)
        memset(j->views, 0, n * sizeof(view_t));
    if (j->loaded != NULL)
        memset(j->loaded, 0, n * sizeof(bool));
    for (size_t p = 0; j->fds != NULL && p < n; p++)
        j->fds[p] = -1;
    if (j->areas == NULL || j->views == NULL || j->loaded == NULL || j->fds == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory to connect %u areas", comm->name, room);
    return DP_OK;
}

/* ---- holding on ---- */

static dp_status_t hold_block(dp_comm_t *comm, holding_t **list, block_t *block, size_t lines)
{
    const dp_host_t *host = comm->host;
    holding_t *holding = host->allocate(host, sizeof(*holding), 16);
    uint64_t *targets = lines > 0 ? host->allocate(host, lines * sizeof(*targets), 16) : NULL;

    if (holding == NULL || (lines > 0 && targets == NULL)) {
        comm_release(comm, holding);
        comm_release(comm, targets);
        ipc_block_drop(comm, block);
        return DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory for a record of a mapping", comm->name);
    }
    if (targets != NULL)
        memset(targets, 0, lines * sizeof(*targets));
    *holding = (holding_t){*list, *block, lines, targets};
    __atomic_store_n(list, holding, __ATOMIC_RELEASE); /* the watchdog reads it */
    return DP_OK;
}

static void drop_blocks(dp_comm_t *comm, holding_t **list)
{
    while (*list != NULL) {
        holding_t *holding = *list;

        *list = holding->next;
        ipc_block_drop(comm, &holding->block);
        comm_release(comm, holding->targets);
        comm->host->release(comm->host, holding);
    }
}

void ipc_join_let_go(dp_comm_t *comm)
{
    drop_blocks(comm, &comm->imported);
}

void ipc_join_let_go_own(dp_comm_t *comm)
{
    drop_blocks(comm, &comm->own);
}

/* ---- announcing ---- */

static void key_of(const dp_comm_t *comm, int32_t rank, const char *part, uint32_t number, char key[128])
{
    snprintf(key, 128, "ipc/%s/%u/%d/%s%u", comm->name, comm->round, rank, part, number);
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static dp_status_t announce(joining_t *j, const announcement_t *announcement)
{
    dp_comm_t *comm = j->comm;
    char key[128];
    dp_status_t status;

    key_of(comm, comm->rank, "block", 0, key);
    status = comm->boot->put(comm->host, key, announcement, sizeof(*announcement));
    for (uint32_t at = 0; at < j->count && status == DP_OK; at += AREAS_PER_KEY) {
        key_of(comm, comm->rank, "areas", at, key);
        status =
            comm->boot->put(comm->host, key, &j->areas[at], min_u32(AREAS_PER_KEY, j->count - at) * sizeof(area_t));
    }
    return status;
}

/* Makes our block and tells the others of it; all meet, and descriptors change hands. */
static dp_status_t joining_show(joining_t *j)
{
    dp_comm_t *comm = j->comm;
    view_t *own = &j->views[comm->rank];
    size_t lines = 0, bytes = j->count > 0 ? ipc_layout_place(j->areas, j->count, comm->granularity, &lines) : 0;
    dp_status_t status = DP_OK;

    if (j->count > 0 && bytes == 0)
        return DP_FAIL(comm->host, DP_ERR_INVALID, "group %s: what was opened is too large for any device", comm->name);
    if (j->count > 0) {
        status = ipc_block_create(comm, bytes, &own->block, &own->announcement, &j->own_fd);
        if (status == DP_OK)
            status = hold_block(comm, &comm->own, &own->block, lines);
    }
    if (status < 0)
        return status;
    own->announcement.areas = j->count;
    own->areas = j->areas;
    j->loaded[comm->rank] = true;
    comm->memory_bytes += bytes;
    if (comm->wire == NULL)
        return DP_OK;
    status = announce(j, &own->announcement);
    return status == DP_OK ? ipc_wire_meet(comm->wire, j->own_fd, j->fds) : status;
}

/* ---- looking up ---- */

static dp_status_t read_areas(joining_t *j, int32_t rank)
{
    dp_comm_t *comm = j->comm;
    view_t *view = &j->views[rank];
    uint32_t count = view->announcement.areas, bad;
    dp_status_t status = DP_OK;
    char key[128];

    if (count > AREAS_MAX)
        return DP_FAIL(comm->host, DP_ERR_PROTOCOL, "rank %d: rank %d announces %u areas", WORLD(comm),
                       comm->world[rank], count);
    view->areas = comm->host->allocate(comm->host, (count + 1) * sizeof(area_t), 16);
    if (view->areas == NULL)
        return DP_FAIL(comm->host, DP_ERR_NOMEM, "no memory for a directory of %u areas", count);
    for (uint32_t at = 0; at < count && status == DP_OK; at += AREAS_PER_KEY) {
        key_of(comm, rank, "areas", at, key);
        status =
            comm->boot->get(comm->host, key, &view->areas[at], min_u32(AREAS_PER_KEY, count - at) * sizeof(area_t));
    }
    if (status == DP_OK && !ipc_layout_check(view->areas, count, view->announcement.bytes, &bad))
        return DP_FAIL(comm->host, DP_ERR_PROTOCOL, "rank %d: area %u of rank %d lies outside its memory", WORLD(comm),
                       bad, comm->world[rank]);
    return status;
}

static dp_status_t load_view(joining_t *j, int32_t rank)
{
    dp_comm_t *comm = j->comm;
    view_t *view = &j->views[rank];
    char key[128];
    dp_status_t status;
    int fd;

    key_of(comm, rank, "block", 0, key);
    status = comm->boot->get(comm->host, key, &view->announcement, sizeof(view->announcement));
    if (status == DP_OK)
        status = read_areas(j, rank);
    if (status < 0)
        return status;
    j->loaded[rank] = true;
    if (view->announcement.bytes == 0)
        return DP_OK;
    fd = j->fds[rank];
    j->fds[rank] = -1;
    status = ipc_block_import(comm, rank, &view->announcement, fd, &view->block);
    return status == DP_OK ? hold_block(comm, &comm->imported, &view->block, 0) : status;
}

static dp_status_t differ(const dp_comm_t *comm, int32_t rank, const char *what, const area_t *expected,
                          const area_t *found)
{
    if (found == NULL)
        return DP_FAIL(comm->host, DP_ERR_MISMATCH,
                       "group %s: rank %d has opened %s with rank %d, which has not opened its side", comm->name,
                       WORLD(comm), what, comm->world[rank]);
    return DP_FAIL(comm->host, DP_ERR_MISMATCH,
                   "group %s, %s: rank %d has %u slots of %llu bytes and capacity %llu, rank %d %u of %llu and %llu",
                   comm->name, what, WORLD(comm), expected->slots, (unsigned long long)expected->unit,
                   (unsigned long long)expected->capacity, comm->world[rank], found->slots,
                   (unsigned long long)found->unit, (unsigned long long)found->capacity);
}

/* Where `rank` has the area that `expected` describes, in this round. */
static dp_status_t find_area(joining_t *j, int32_t rank, const area_t *expected, const char *what,
                             unsigned char **lines_out, unsigned char **payload_out)
{
    view_t *view = &j->views[rank];
    const area_t *found;

    DO(j->loaded[rank] ? DP_OK : load_view(j, rank));
    found = ipc_layout_find(view->areas, view->announcement.areas, expected);
    if (found == NULL || !ipc_layout_agrees(found, expected))
        return differ(j->comm, rank, what, expected, found);
    *lines_out = view->block.base + found->lines_at;
    *payload_out = view->block.base + found->payload_at;
    return DP_OK;
}

/* Where all ranks have it; kernels read the same list at the start of our payload. */
static dp_status_t find_all(joining_t *j, const area_t *expected, const char *what, unsigned char **lines,
                            unsigned char **payload)
{
    dp_comm_t *comm = j->comm;
    size_t n = count_of(comm->nranks);
    uint64_t *list = comm->host->allocate(comm->host, 2 * n * sizeof(*list), 16);
    dp_status_t status = DP_OK;

    if (list == NULL)
        return DP_FAIL(comm->host, DP_ERR_NOMEM, "group %s: no memory for %d addresses", comm->name, comm->nranks);
    for (int32_t p = 0; p < comm->nranks && status == DP_OK; p++) {
        status = find_area(j, p, expected, what, &lines[p], &payload[p]);
        if (status == DP_OK) {
            list[2 * p] = (uint64_t)(uintptr_t)lines[p];
            list[2 * p + 1] = (uint64_t)(uintptr_t)payload[p];
        }
    }
    if (status == DP_OK)
        status = ipc_queue_upload(comm, payload[comm->rank], list, 2 * n * sizeof(*list));
    comm->host->release(comm->host, list);
    return status;
}

/* ---- connecting ---- */

static dp_status_t connect_base(joining_t *j)
{
    dp_comm_t *comm = j->comm;
    area_t expected = ipc_base_area(count_of(comm->nranks), comm->part_bytes);
    dp_status_t status;

    j->areas[j->count++] = expected;
    status = joining_show(j);
    if (status == DP_OK)
        status = find_all(j, &expected, "the staging of all_reduce", comm->base_lines, comm->base_payload);
    if (status == DP_OK)
        comm->report.taken =
            ipc_plan_line(&comm->base, comm->rank, base_line_private(count_of(comm->nranks), BASE_TAKEN));
    return status;
}

static dp_status_t connect_channel(joining_t *j, dp_channel_end_t *end)
{
    area_t ours = ipc_channel_area(end, true), theirs = ipc_channel_area(end, false);
    unsigned char *own_lines, *own_payload, *far_lines, *far_payload;
    char what[LABEL_BYTES + 40];
    dp_status_t status;

    snprintf(what, sizeof(what), "channel %u \"%s\"", end->config.id, end->label);
    status = find_area(j, j->comm->rank, &ours, what, &own_lines, &own_payload);
    if (status == DP_OK)
        status = find_area(j, end->config.peer, &theirs, what, &far_lines, &far_payload);
    if (status == DP_OK)
        ipc_channel_connect(end, own_lines, own_payload, far_lines, far_payload);
    return status;
}

static dp_status_t connect_exchange(joining_t *j, dp_exchange_t *x)
{
    area_t expected = ipc_exchange_area(x);
    char what[LABEL_BYTES + 40];
    dp_status_t status;

    snprintf(what, sizeof(what), "exchange %u \"%s\"", x->config.id, x->label);
    status = find_all(j, &expected, what, x->lines, x->payload);
    x->connected = status == DP_OK;
    return status;
}

static dp_status_t connect_all(joining_t *j)
{
    dp_comm_t *comm = j->comm;
    dp_status_t status;

    for (dp_channel_end_t *end = comm->ends; end != NULL; end = end->next)
        if (!end->connected)
            j->areas[j->count++] = ipc_channel_area(end, true);
    for (dp_exchange_t *x = comm->exchanges; x != NULL; x = x->next)
        if (!x->connected)
            j->areas[j->count++] = ipc_exchange_area(x);
    status = joining_show(j);
    for (dp_channel_end_t *end = comm->ends; end != NULL && status == DP_OK; end = end->next)
        if (!end->connected)
            status = connect_channel(j, end);
    for (dp_exchange_t *x = comm->exchanges; x != NULL && status == DP_OK; x = x->next)
        if (!x->connected)
            status = connect_exchange(j, x);
    return status;
}

/* Mappings are held whatever happened. When all is well the ranks meet once more: all of them have
 * connected. */
static dp_status_t joining_end(joining_t *j, dp_status_t status)
{
    dp_comm_t *comm = j->comm;

    if (j->own_fd >= 0)
        close(j->own_fd);
    for (int32_t p = 0; p < comm->nranks; p++) {
        if (j->fds != NULL && j->fds[p] >= 0)
            close(j->fds[p]);
        if (j->views != NULL && p != comm->rank)
            comm_release(comm, j->views[p].areas);
    }
    if (status == DP_OK && comm->wire != NULL)
        status = ipc_wire_meet(comm->wire, -1, NULL);
    comm_release(comm, j->areas);
    comm_release(comm, j->views);
    comm_release(comm, j->loaded);
    comm_release(comm, j->fds);
    comm->round++;
    comm->broken = status < 0;
    return status;
}

static dp_status_t introduce(dp_comm_t *comm)
{
    wire_address_t address;
    char what[NAME_BYTES + 32], key[128];
    dp_status_t status;

    snprintf(what, sizeof(what), "rank %d, group %s", WORLD(comm), comm->name);
    DO(ipc_wire_open(comm->host, comm->rank, comm->nranks, what, &comm->wire));
    key_of(comm, comm->rank, "wire", 0, key);
    status = comm->boot->put(comm->host, key, ipc_wire_own(comm->wire), sizeof(address));
    for (int32_t p = 0; p < comm->nranks && status == DP_OK; p++) {
        key_of(comm, p, "wire", 0, key);
        if (p == comm->rank)
            continue;
        status = comm->boot->get(comm->host, key, &address, sizeof(address));
        if (status == DP_OK)
            status = ipc_wire_introduce(comm->wire, p, &address);
    }
    return status;
}

dp_status_t ipc_join_open(dp_comm_t *comm)
{
    joining_t j;
    dp_status_t status = comm->nranks > 1 ? introduce(comm) : DP_OK;

    comm->broken = status < 0;
    if (status < 0)
        return status;
    status = joining_begin(&j, comm, 1);
    return joining_end(&j, status == DP_OK ? connect_base(&j) : status);
}

dp_status_t ipc_join_start(dp_comm_t *comm)
{
    joining_t j;
    dp_status_t status = joining_begin(&j, comm, comm_count_opened(comm));

    return joining_end(&j, status == DP_OK ? connect_all(&j) : status);
}
