/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * reduce.c: all_reduce. Each rank adds up one slice: it receives that slice of all others, adds in
 * rank order and hands the sum out. MPI's own sums promise no order. A head goes first, so that
 * ranks which sum different things find out. */
#include "comm_mpi.h"

#include "plugins/comm/sums.h"
#include "plugins/common/do.h"

#include <stdio.h>
#include <string.h>

#define REDUCE_BYTES ((size_t)1 << 20)
#define SLICE_MIN    256
#define SLICE_MOST   ((size_t)1 << 28)

typedef struct reduction {
    dp_comm_t *comm;
    unsigned char *data;
    size_t count;
    uint32_t number;
    dp_dtype_t dtype;
} reduction_t;

/* What is summed at a time: `count` elements from `data` on. */
typedef struct block {
    unsigned char *data;
    size_t count;
} block_t;

dp_status_t mpi_reduce_open(dp_comm_t *comm, size_t reduce_bytes)
{
    size_t peers = (size_t)comm->nranks - 1, slice = (reduce_bytes != 0 ? reduce_bytes : REDUCE_BYTES) / peers;

    slice = slice < SLICE_MIN ? SLICE_MIN : slice > SLICE_MOST ? SLICE_MOST : slice;
    comm->slice_bytes = slice / CACHE_LINE * CACHE_LINE;
    comm->staging = mpi_memory(comm, peers, comm->slice_bytes);
    comm->sum_heads = mpi_memory(comm, peers, sizeof(*comm->sum_heads));
    comm->requests = mpi_memory(comm, 4 * peers, sizeof(*comm->requests));
    if (comm->staging == NULL || comm->sum_heads == NULL || comm->requests == NULL)
        return DP_ERR_NOMEM;
    for (size_t i = 0; i < 4 * peers; i++)
        comm->requests[i] = MPI_REQUEST_NULL;
    return DP_OK;
}

/* ---- slices ---- */

static size_t slice_at(const reduction_t *r, const block_t *p, int32_t rank)
{
    return p->count * (size_t)rank / (size_t)r->comm->nranks * dp_dtype_bytes(r->dtype);
}

static int slice_bytes(const reduction_t *r, const block_t *p, int32_t rank)
{
    return (int)(slice_at(r, p, rank + 1) - slice_at(r, p, rank));
}

/* Rank 0's + rank 1's + ...: where rank 0 is another, its slice is what is added to. */
static void add_slice(const reduction_t *r, const block_t *p)
{
    dp_comm_t *comm = r->comm;
    unsigned char *own = p->data + slice_at(r, p, comm->rank), *sum = comm->rank == 0 ? own : comm->staging;
    size_t bytes = (size_t)slice_bytes(r, p, comm->rank);

    for (size_t at = 0; at < bytes; at += SUM_CACHE_BYTES) {
        size_t some = bytes - at < SUM_CACHE_BYTES ? bytes - at : SUM_CACHE_BYTES;

        for (int32_t rank = 1; rank < comm->nranks; rank++)
            comm_add_values(sum + at,
                            rank == comm->rank
                                ? own + at
                                : comm->staging + (size_t)(rank - (rank > comm->rank)) * comm->slice_bytes + at,
                            some, r->dtype);
        if (sum != own)
            memcpy(own + at, sum + at, some);
    }
}

/* ---- between ranks ---- */

/* From and to peer i; either may be NULL: nothing that way. */
static int swap(dp_comm_t *comm, int i, void *in, int in_bytes, const void *out, int out_bytes, int slot)
{
    int peers = comm->nranks - 1;
    int32_t peer = peer_rank(comm, i);
    int code = MPI_Irecv(in, in_bytes, MPI_BYTE, comm->places[peer], comm->tags[comm->rank] + 1, comm->mpi->comm,
                         &comm->requests[slot * peers + i]);

    return code != MPI_SUCCESS ? code
                               : MPI_Isend(out, out_bytes, MPI_BYTE, comm->places[peer], comm->tags[peer] + 1,
                                           comm->mpi->comm, &comm->requests[(slot + 1) * peers + i]);
}

static dp_status_t check_heads(const reduction_t *r)
{
    const dp_comm_t *comm = r->comm;

    for (int i = 0; i < comm->nranks - 1; i++) {
        const sum_head_t *own = &comm->sum_head, *head = &comm->sum_heads[i];

        if (head->count != own->count || head->number != own->number || head->dtype != own->dtype)
            return DP_FAIL(comm->host, DP_ERR_PROTOCOL,
                           "rank %d: all_reduce %u in group %s has %zu elements of dtype %u, on rank %d it is %u of "
                           "%llu, dtype %u",
                           comm->world[comm->rank], r->number, comm->name, r->count, own->dtype,
                           comm->world[peer_rank(comm, i)], head->number, (unsigned long long)head->count, head->dtype);
    }
    return DP_OK;
}

/* Heads, with the first block, are slots 0 and 1 of the requests; slices slots 2 and 3. */
static dp_status_t gather_slices(const reduction_t *r, const block_t *p, bool first, const char *what)
{
    dp_comm_t *comm = r->comm;
    int peers = comm->nranks - 1, code = MPI_SUCCESS, head_bytes = (int)sizeof(sum_head_t);
    entry_t entry;
    dp_status_t status;

    mpi_runtime_enter(&entry);
    for (int i = 0; i < peers && code == MPI_SUCCESS; i++) {
        int32_t peer = peer_rank(comm, i);

        if (first)
            code = swap(comm, i, &comm->sum_heads[i], head_bytes, &comm->sum_head, head_bytes, 0);
        if (code == MPI_SUCCESS)
            code = swap(comm, i, comm->staging + (size_t)i * comm->slice_bytes, slice_bytes(r, p, comm->rank),
                        p->data + slice_at(r, p, peer), slice_bytes(r, p, peer), 2);
    }
    mpi_runtime_exit(&entry);
    status = mpi_check(comm, code, what);
    if (status >= 0 && first) {
        status = mpi_wait_peers(comm, comm->requests, peers, MPI_STATUSES_IGNORE, what);
        if (status >= 0)
            status = check_heads(r);
    }
    return status < 0 ? status : mpi_wait_peers(comm, comm->requests, 4 * peers, MPI_STATUSES_IGNORE, what);
}

static dp_status_t hand_out(const reduction_t *r, const block_t *p, const char *what)
{
    dp_comm_t *comm = r->comm;
    int peers = comm->nranks - 1, code = MPI_SUCCESS;
    entry_t entry;
    dp_status_t status;

    mpi_runtime_enter(&entry);
    for (int i = 0; i < peers && code == MPI_SUCCESS; i++) {
        int32_t peer = peer_rank(comm, i);

        code = swap(comm, i, p->data + slice_at(r, p, peer), slice_bytes(r, p, peer),
                    p->data + slice_at(r, p, comm->rank), slice_bytes(r, p, comm->rank), 2);
    }
    mpi_runtime_exit(&entry);
    status = mpi_check(comm, code, what);
    return status < 0 ? status : mpi_wait_peers(comm, comm->requests, 4 * peers, MPI_STATUSES_IGNORE, what);
}

static dp_status_t run_reduce(void *arg)
{
    const reduction_t *r = arg;
    dp_comm_t *comm = r->comm;
    size_t unit = dp_dtype_bytes(r->dtype), most = comm->slice_bytes / unit * (size_t)comm->nranks, done = 0;
    char what[160];
    dp_status_t status;

    snprintf(what, sizeof(what), "rank %d: all_reduce %u of %zu elements in group %s", comm->world[comm->rank],
             r->number, r->count, comm->name);
    comm->sum_head = (sum_head_t){r->count, r->number, (uint32_t)r->dtype};
    do {
        block_t p = {r->data + done * unit, r->count - done < most ? r->count - done : most};

        status = gather_slices(r, &p, done == 0, what);
        if (status >= 0) {
            add_slice(r, &p);
            status = hand_out(r, &p, what);
        }
        done += p.count;
    } while (status >= 0 && done < r->count);
    return status;
}

dp_status_t mpi_all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s)
{
    reduction_t r = {comm, data, count, comm->reductions, dtype};

    DO(comm_check_sum(comm->host, comm->name, dtype));
    if (comm->mpi == NULL)
        return DP_OK;
    DO(comm->device->launch(s, run_reduce, &r, sizeof(r)));
    comm->reductions++;
    return DP_OK;
}
