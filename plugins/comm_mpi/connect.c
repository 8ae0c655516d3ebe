/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * connect.c: what members of a group tell each other: at open, over the boot service, where in MPI
 * they are; at start, over MPI, what they have opened and on which tags they listen. */
#include "comm_mpi.h"
#include "plugins/common/do.h"

#include <stdio.h>
#include <string.h>

/* ---- open ---- */

typedef struct place {
    uint64_t nonce[2], slice_bytes;
    int32_t rank, tag;
} place_t;

static dp_status_t judge_place(dp_comm_t *comm, const place_t *own, const place_t *place, int32_t rank)
{
    const int32_t *world = comm->world;

    if (memcmp(place->nonce, own->nonce, sizeof(own->nonce)) != 0)
        return DP_FAIL(comm->host, DP_ERR_UNSUPPORTED,
                       "group %s: ranks %d and %d are of different MPI jobs: start all ranks by one mpirun or srun",
                       comm->name, world[comm->rank], world[rank]);
    if (place->slice_bytes != own->slice_bytes)
        return DP_FAIL(comm->host, DP_ERR_MISMATCH,
                       "group %s: rank %d sums %llu bytes at a time, rank %d %llu: give both the same reduce_bytes",
                       comm->name, world[comm->rank], (unsigned long long)own->slice_bytes, world[rank],
                       (unsigned long long)place->slice_bytes);
    for (int32_t before = 0; before < rank; before++)
        if (comm->places[before] == place->rank)
            return DP_FAIL(comm->host, DP_ERR_UNSUPPORTED,
                           "group %s: ranks %d and %d are in one process; over MPI each rank is a separate process",
                           comm->name, world[before], world[rank]);
    return DP_OK;
}

dp_status_t mpi_connect_members(dp_comm_t *comm)
{
    place_t own = {{comm->mpi->nonce[0], comm->mpi->nonce[1]}, comm->slice_bytes, comm->mpi->rank, 0}, place;
    char key[NAME_BYTES + 32];
    int tag;
    dp_status_t status;

    DO(mpi_runtime_tags(comm->host, 2, &tag));
    own.tag = tag;
    snprintf(key, sizeof(key), "mpi.%s.%d", comm->name, comm->rank);
    status = comm->boot->put(comm->host, key, &own, sizeof(own));
    for (int32_t rank = 0; rank < comm->nranks && status >= 0; rank++) {
        snprintf(key, sizeof(key), "mpi.%s.%d", comm->name, rank);
        status = comm->boot->get(comm->host, key, &place, sizeof(place));
        if (status >= 0)
            status = judge_place(comm, &own, &place, rank);
        comm->places[rank] = place.rank;
        comm->tags[rank] = place.tag;
    }
    return status;
}

/* ---- start ---- */

/* An end or exchange as its owner tells a peer of it. */
typedef struct record {
    uint64_t unit; /* slot_bytes, row_bytes */
    uint32_t id, slots, capacity;
    int32_t kind, tag; /* where the owner listens */
    char label[LABEL_BYTES];
    int32_t filler;
} record_t;

enum { RECORD_SENDS = 1, RECORD_RECEIVES, RECORD_EXCHANGE };

/* What goes to and comes from one peer. */
struct talk {
    record_t *sent, *heard;
    uint32_t sent_count, heard_count;
    MPI_Request requests[4]; /* counts in and out, records in and out */
};

static uint32_t write_records(const dp_comm_t *comm, int32_t peer, record_t *records)
{
    uint32_t count = 0;

    for (const dp_channel_end_t *end = comm->ends; end != NULL; end = end->next) {
        record_t *r = &records[count];

        if (end->connected || end->config.peer != peer)
            continue;
        *r = (record_t){end->config.slot_bytes,
                        end->config.id,
                        end->config.slots,
                        0,
                        end->config.sender != 0 ? RECORD_SENDS : RECORD_RECEIVES,
                        end->tag,
                        "",
                        0};
        memcpy(r->label, end->label, LABEL_BYTES);
        count++;
    }
    for (const dp_exchange_t *x = comm->exchanges; x != NULL; x = x->next) {
        record_t *r = &records[count];

        if (x->connected)
            continue;
        *r = (record_t){x->config.row_bytes,
                        x->config.id,
                        x->config.slots,
                        x->config.capacity_rows,
                        RECORD_EXCHANGE,
                        x->tags[comm->rank],
                        "",
                        0};
        memcpy(r->label, x->label, LABEL_BYTES);
        count++;
    }
    return count;
}

static uint32_t count_opened(const dp_comm_t *comm)
{
    uint32_t count = 0;

    for (const dp_channel_end_t *end = comm->ends; end != NULL; end = end->next)
        count += !end->connected;
    for (const dp_exchange_t *x = comm->exchanges; x != NULL; x = x->next)
        count += !x->connected;
    return count;
}

static const record_t *find_record(const record_t *records, uint32_t count, int32_t kind, uint32_t id)
{
    for (uint32_t i = 0; i < count; i++)
        if (records[i].kind == kind && records[i].id == id)
            return &records[i];
    return NULL;
}

static int32_t other_side(int32_t kind)
{
    return kind == RECORD_SENDS ? RECORD_RECEIVES : kind == RECORD_RECEIVES ? RECORD_SENDS : kind;
}

static dp_status_t compare_records(const dp_comm_t *comm, const record_t *own, const record_t *found, int32_t peer)
{
    if (found->unit == own->unit && found->slots == own->slots && found->capacity == own->capacity)
        return DP_OK;
    return DP_FAIL(
        comm->host, DP_ERR_MISMATCH,
        "group %s: %s %u \"%s\": rank %d has %u slots of %llu bytes and capacity %u, rank %d %u of %llu and %u",
        comm->name, own->kind == RECORD_EXCHANGE ? "exchange" : "channel", own->id, own->label, comm->world[comm->rank],
        own->slots, (unsigned long long)own->unit, own->capacity, comm->world[peer], found->slots,
        (unsigned long long)found->unit, found->capacity);
}

static dp_status_t lacking(const dp_comm_t *comm, const record_t *record, int32_t has, int32_t lacks)
{
    return DP_FAIL(comm->host, DP_ERR_MISMATCH,
                   "group %s: rank %d has opened %s %u \"%s\" with rank %d, which has not opened its side", comm->name,
                   comm->world[has], record->kind == RECORD_EXCHANGE ? "exchange" : "channel", record->id,
                   record->label, comm->world[lacks]);
}

static dp_status_t connect_peer(dp_comm_t *comm, const talk_t *talk, int32_t peer)
{
    dp_status_t status = DP_OK;

    for (uint32_t i = 0; i < talk->sent_count && status >= 0; i++) {
        const record_t *own = &talk->sent[i];
        const record_t *found = find_record(talk->heard, talk->heard_count, other_side(own->kind), own->id);

        status = found != NULL ? compare_records(comm, own, found, peer) : lacking(comm, own, comm->rank, peer);
    }
    for (uint32_t i = 0; i < talk->heard_count && status >= 0; i++) {
        record_t *heard = &talk->heard[i];

        heard->label[LABEL_BYTES - 1] = '\0';
        if (find_record(talk->sent, talk->sent_count, other_side(heard->kind), heard->id) == NULL)
            status = lacking(comm, heard, peer, comm->rank);
    }
    if (status < 0)
        return status;
    for (dp_channel_end_t *end = comm->ends; end != NULL; end = end->next)
        if (!end->connected && end->config.peer == peer && end->config.sender != 0)
            end->tag = find_record(talk->heard, talk->heard_count, RECORD_RECEIVES, end->config.id)->tag;
    for (dp_exchange_t *x = comm->exchanges; x != NULL; x = x->next)
        if (!x->connected)
            x->tags[peer] = find_record(talk->heard, talk->heard_count, RECORD_EXCHANGE, x->config.id)->tag;
    return DP_OK;
}

static dp_status_t trade_counts(dp_comm_t *comm, talk_t *talk, int32_t peer)
{
    MPI_Comm c = comm->mpi->comm;
    entry_t entry;
    int code;

    mpi_runtime_enter(&entry);
    code = MPI_Irecv(&talk->heard_count, 1, MPI_UINT32_T, comm->places[peer], comm->tags[comm->rank], c,
                     &talk->requests[0]);
    if (code == MPI_SUCCESS)
        code =
            MPI_Isend(&talk->sent_count, 1, MPI_UINT32_T, comm->places[peer], comm->tags[peer], c, &talk->requests[1]);
    if (code == MPI_SUCCESS)
        code = MPI_Isend(talk->sent, (int)(talk->sent_count * sizeof(record_t)), MPI_BYTE, comm->places[peer],
                         comm->tags[peer], c, &talk->requests[3]);
    mpi_runtime_exit(&entry);
    return mpi_check(comm, code, "start");
}

static dp_status_t hear_peer(dp_comm_t *comm, talk_t *talk, int32_t peer)
{
    entry_t entry;
    char what[160];
    int code;
    dp_status_t status;

    snprintf(what, sizeof(what), "rank %d: start of group %s, waiting for rank %d", comm->world[comm->rank], comm->name,
             comm->world[peer]);
    DO(mpi_wait(comm, talk->requests, 1, MPI_STATUSES_IGNORE, what));
    talk->heard = mpi_memory(comm, (size_t)talk->heard_count + 1, sizeof(record_t));
    if (talk->heard == NULL)
        return DP_ERR_NOMEM;
    mpi_runtime_enter(&entry);
    code = MPI_Irecv(talk->heard, (int)(talk->heard_count * sizeof(record_t)), MPI_BYTE, comm->places[peer],
                     comm->tags[comm->rank], comm->mpi->comm, &talk->requests[2]);
    mpi_runtime_exit(&entry);
    status = mpi_check(comm, code, what);
    if (status >= 0)
        status = mpi_wait(comm, talk->requests, 4, MPI_STATUSES_IGNORE, what);
    return status < 0 ? status : connect_peer(comm, talk, peer);
}

void mpi_talks_free(dp_comm_t *comm)
{
    for (int i = 0; comm->talks != NULL && i < comm->nranks - 1; i++) {
        comm_release(comm, comm->talks[i].sent);
        comm_release(comm, comm->talks[i].heard);
    }
    comm_release(comm, comm->talks);
    comm->talks = NULL;
}

bool mpi_talks_pending(dp_comm_t *comm)
{
    bool pending = false;

    for (int i = 0; comm->talks != NULL && i < comm->nranks - 1; i++)
        pending |= mpi_pending(comm->talks[i].requests, 4);
    return pending;
}

/* Every rank says all it has to say before it listens to the others in rank order: nobody waits in
 * a circle. */
static dp_status_t talk_to_all(dp_comm_t *comm)
{
    int peers = comm->nranks - 1;
    size_t room = (size_t)count_opened(comm) + 1;
    dp_status_t status = DP_OK;

    comm->talks = mpi_memory(comm, (size_t)peers, sizeof(*comm->talks));
    if (comm->talks == NULL)
        return DP_ERR_NOMEM;
    for (int i = 0; i < peers; i++)
        for (int k = 0; k < 4; k++)
            comm->talks[i].requests[k] = MPI_REQUEST_NULL;
    for (int i = 0; i < peers && status >= 0; i++) {
        talk_t *talk = &comm->talks[i];

        talk->sent = mpi_memory(comm, room, sizeof(record_t));
        if (talk->sent == NULL)
            return DP_ERR_NOMEM;
        talk->sent_count = write_records(comm, peer_rank(comm, i), talk->sent);
        status = trade_counts(comm, talk, peer_rank(comm, i));
    }
    for (int i = 0; i < peers && status >= 0; i++)
        status = hear_peer(comm, &comm->talks[i], peer_rank(comm, i));
    return status;
}

dp_status_t mpi_connect_opened(dp_comm_t *comm)
{
    size_t bytes = comm->memory_bytes;
    dp_status_t status = comm->mpi != NULL ? talk_to_all(comm) : DP_OK;

    if (status < 0)
        return status; /* what MPI may still be at is close's business */
    mpi_talks_free(comm);
    comm->memory_bytes = bytes;
    for (dp_channel_end_t *end = comm->ends; end != NULL; end = end->next)
        end->connected = true;
    for (dp_exchange_t *x = comm->exchanges; x != NULL; x = x->next)
        x->connected = true;
    return DP_OK;
}
