/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * exchange.c: all-to-all-v. Each rank sends each other one message of just its rows; the receiver
 * offers room for the capacity and learns the number of rows from the size of what comes. */
#include "comm_mpi.h"
#include "plugins/common/do.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

typedef struct round {
    dp_exchange_t *x;
    const unsigned char *send;
    const int32_t *offsets, *counts;
    uint32_t number;
    uint32_t slot;
} round_t;

static dp_status_t allocate_rows(dp_exchange_t *x)
{
    dp_comm_t *comm = x->comm;
    size_t n = (size_t)comm->nranks, requests = 2 * n * x->config.slots;
    entry_t entry;
    int code;

    x->tags = mpi_memory(comm, n, sizeof(*x->tags));
    x->requests = mpi_memory(comm, requests, sizeof(*x->requests));
    x->statuses = mpi_memory(comm, 2 * n, sizeof(*x->statuses));
    x->counts = mpi_memory(comm, n * x->config.slots, sizeof(*x->counts));
    x->slot_bytes = n * x->config.capacity_rows * x->config.row_bytes;
    x->rows = mpi_memory(comm, x->config.slots, x->slot_bytes);
    if (x->tags == NULL || x->requests == NULL || x->statuses == NULL || x->counts == NULL || x->rows == NULL)
        return DP_ERR_NOMEM;
    for (size_t i = 0; i < requests; i++)
        x->requests[i] = MPI_REQUEST_NULL;
    if (comm->mpi == NULL)
        return DP_OK;
    mpi_runtime_enter(&entry);
    code = MPI_Type_contiguous((int)x->config.row_bytes, MPI_BYTE, &x->row);
    if (code == MPI_SUCCESS)
        code = MPI_Type_commit(&x->row);
    mpi_runtime_exit(&entry);
    if (code != MPI_SUCCESS)
        return mpi_check(comm, code, "a type for rows");
    return mpi_runtime_tags(comm->host, 1, &x->tags[comm->rank]);
}

dp_status_t mpi_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **exchange_out)
{
    dp_exchange_t *x = NULL;
    dp_status_t status = comm_check_new_exchange(comm, "comm_mpi", 65536, config);

    if (status == DP_OK && config->row_bytes > INT_MAX)
        return DP_FAIL(comm->host, DP_ERR_INVALID,
                       "group %s: exchange %u: row_bytes %zu is more than MPI counts to, %d", comm->name, config->id,
                       config->row_bytes, INT_MAX);
    if (status == DP_OK)
        status = comm_make_exchange(comm, config, &x);
    if (status < 0)
        return status;
    x->row = MPI_DATATYPE_NULL;
    status = allocate_rows(x);
    if (status < 0) {
        mpi_exchange_free(x);
        return status;
    }
    comm_add_exchange(x);
    *exchange_out = x;
    return DP_OK;
}

void mpi_exchange_free(dp_exchange_t *x)
{
    entry_t entry;

    if (x->row != MPI_DATATYPE_NULL) {
        mpi_runtime_enter(&entry);
        MPI_Type_free(&x->row);
        mpi_runtime_exit(&entry);
    }
    comm_release(x->comm, x->tags);
    comm_release(x->comm, x->requests);
    comm_release(x->comm, x->statuses);
    comm_release(x->comm, x->counts);
    comm_release(x->comm, x->rows);
    comm_release(x->comm, x);
}

/* ---- on the stream ---- */

static unsigned char *mpi_rows_of(const dp_exchange_t *x, uint32_t slot, int32_t from)
{
    return x->rows + slot * x->slot_bytes + (size_t)from * x->config.capacity_rows * x->config.row_bytes;
}

static int32_t *counts_of(const dp_exchange_t *x, uint32_t slot)
{
    return x->counts + slot * (size_t)x->comm->nranks;
}

static dp_status_t check_counts(const round_t *r)
{
    const dp_exchange_t *x = r->x;
    const dp_comm_t *comm = x->comm;

    for (int32_t to = 0; to < comm->nranks; to++)
        if (r->counts[to] < 0 || (uint32_t)r->counts[to] > x->config.capacity_rows)
            return DP_FAIL(comm->host, r->counts[to] < 0 ? DP_ERR_INVALID : DP_ERR_OVERFLOW,
                           "rank %d: exchange %u of \"%s\": %d rows for rank %d, the capacity is %u",
                           comm->world[comm->rank], r->number, x->label, r->counts[to], comm->world[to],
                           x->config.capacity_rows);
    return DP_OK;
}

static const unsigned char *rows_for(const round_t *r, int32_t to)
{
    return r->send + (size_t)r->offsets[to] * r->x->config.row_bytes;
}

static MPI_Request *requests_of(const dp_exchange_t *x, uint32_t slot)
{
    return x->requests + slot * 2 * (size_t)x->comm->nranks;
}

enum { WHAT_BYTES = 160 };

static void name_round(const round_t *r, char what[WHAT_BYTES])
{
    snprintf(what, WHAT_BYTES, "rank %d: exchange %u of \"%s\"", r->x->comm->world[r->x->comm->rank], r->number,
             r->x->label);
}

/* All receives first, so that what comes finds its place. */
static int post_rows(const round_t *r)
{
    dp_exchange_t *x = r->x;
    dp_comm_t *comm = x->comm;
    MPI_Request *requests = requests_of(x, r->slot);
    int peers = comm->nranks - 1, code = MPI_SUCCESS;

    for (int i = 0; i < peers && code == MPI_SUCCESS; i++) {
        int32_t from = peer_rank(comm, i);

        code = MPI_Irecv(mpi_rows_of(x, r->slot, from), (int)x->config.capacity_rows, x->row, comm->places[from],
                         x->tags[comm->rank], comm->mpi->comm, &requests[i]);
    }
    for (int i = 0; i < peers && code == MPI_SUCCESS; i++) {
        int32_t to = peer_rank(comm, i);

        code = MPI_Isend(rows_for(r, to), r->counts[to], x->row, comm->places[to], x->tags[to], comm->mpi->comm,
                         &requests[peers + i]);
    }
    return code;
}

static dp_status_t read_statuses(const round_t *r, int32_t *counts)
{
    dp_exchange_t *x = r->x;
    dp_comm_t *comm = x->comm;

    for (int i = 0; i < comm->nranks - 1; i++) {
        int32_t from = peer_rank(comm, i);
        int rows = MPI_UNDEFINED;

        MPI_Get_count(&x->statuses[i], x->row, &rows);
        if (rows == MPI_UNDEFINED)
            return DP_FAIL(comm->host, DP_ERR_PROTOCOL, "rank %d: exchange %u of \"%s\": rank %d sent no whole rows",
                           comm->world[comm->rank], r->number, x->label, comm->world[from]);
        counts[from] = rows;
    }
    return DP_OK;
}

static dp_status_t run_rows_post(void *arg)
{
    const round_t *r = arg;
    dp_exchange_t *x = r->x;
    dp_comm_t *comm = x->comm;
    int32_t me = comm->rank;
    char what[WHAT_BYTES];
    entry_t entry;
    int code;

    DO(check_counts(r));
    name_round(r, what);
    DO(comm->host->wait(comm->host, &x->released, r->number + 1 - x->config.slots, -1, what));
    if (r->counts[me] > 0)
        memcpy(mpi_rows_of(x, r->slot, me), rows_for(r, me), (size_t)r->counts[me] * x->config.row_bytes);
    counts_of(x, r->slot)[me] = r->counts[me];
    if (comm->mpi == NULL)
        return DP_OK;
    mpi_runtime_enter(&entry);
    code = post_rows(r);
    mpi_runtime_exit(&entry);
    return mpi_check(comm, code, what);
}

static dp_status_t run_rows_wait(void *arg)
{
    const round_t *r = arg;
    dp_exchange_t *x = r->x;
    char what[WHAT_BYTES];

    if (x->comm->mpi == NULL)
        return DP_OK;
    name_round(r, what);
    DO(mpi_wait_peers(x->comm, requests_of(x, r->slot), 2 * (x->comm->nranks - 1), x->statuses, what));
    return read_statuses(r, counts_of(x, r->slot));
}

static dp_status_t run_exchange(void *arg)
{
    dp_status_t status = run_rows_post(arg);

    return status < 0 ? status : run_rows_wait(arg);
}

static dp_status_t run_rows_release(void *arg)
{
    const round_t *r = arg;

    r->x->comm->host->post(r->x->comm->host, &r->x->released, r->number + 1);
    return DP_OK;
}

/* ---- on the caller's thread ---- */

/* The next one. */
static dp_status_t launch_round(dp_launch_fn run, const round_t *given, const void **rows_out,
                                const int32_t **counts_out, dp_stream_t *s)
{
    round_t r = *given;
    dp_exchange_t *x = r.x;

    r.slot = (uint32_t)(x->count % x->config.slots);
    DO(x->comm->device->launch(s, run, &r, sizeof(r)));
    x->count++;
    *rows_out = mpi_rows_of(x, r.slot, 0);
    *counts_out = counts_of(x, r.slot);
    return DP_OK;
}

dp_status_t mpi_exchange_run(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                             const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                             dp_stream_t *s)
{
    const round_t r = {x, send, send_offsets, send_counts, number, 0};

    DO(comm_check_whole(x, number));
    DO(launch_round(run_exchange, &r, rows_out, counts_out, s));
    x->awaited++;
    return DP_OK;
}

dp_status_t mpi_exchange_post(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                              const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                              dp_stream_t *s)
{
    const round_t r = {x, send, send_offsets, send_counts, number, 0};

    DO(comm_check_post(x, x->freed, number));
    return launch_round(run_rows_post, &r, rows_out, counts_out, s);
}

dp_status_t mpi_exchange_wait(dp_exchange_t *x, uint32_t number, dp_stream_t *s)
{
    const round_t r = {.x = x, .number = number, .slot = (uint32_t)(x->awaited % x->config.slots)};

    DO(comm_check_await(x, number));
    DO(x->comm->device->launch(s, run_rows_wait, &r, sizeof(r)));
    x->awaited++;
    return DP_OK;
}

dp_status_t mpi_exchange_release(dp_exchange_t *x, uint32_t number, dp_stream_t *s)
{
    round_t r = {.x = x, .number = number};

    DO(comm_check_awaited(x, x->freed, number));
    DO(x->comm->device->launch(s, run_rows_release, &r, sizeof(r)));
    x->freed++;
    return DP_OK;
}
