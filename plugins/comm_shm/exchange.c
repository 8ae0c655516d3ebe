/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * exchange.c: all-to-all-v: every rank puts its rows straight into the others' slots, counts in
 * front. */
#include "comm_shm.h"
#include "plugins/common/do.h"

#include <stdio.h>
#include <string.h>

/* In front of the rows of one rank in one slot. */
typedef struct rows_head {
    alignas(CACHE_LINE) dp_signal_t published; /* number + 1 of the exchange in the slot */
    uint32_t number;
    int32_t rows;
} rows_head_t;

typedef struct round {
    dp_exchange_t *x;
    const unsigned char *send;
    const int32_t *offsets, *counts;
    uint32_t number;
    uint32_t slot;
} round_t;

/* Parts of AREA_ROWS: credit[n], heads[slots][n], rows[slots][n][capacity]. */
static size_t slot_rows_bytes(const dp_exchange_t *x)
{
    return comm_round_line((size_t)x->comm->nranks * x->config.capacity_rows * x->config.row_bytes);
}

static size_t rows_offset(const dp_exchange_t *x)
{
    size_t n = (size_t)x->comm->nranks;

    return n * sizeof(line_t) + x->config.slots * n * sizeof(rows_head_t);
}

static dp_signal_t *credit(const dp_exchange_t *x, int32_t at, int32_t by)
{
    return &((line_t *)(void *)x->areas[at])[by].signal;
}

static rows_head_t *head_of(const dp_exchange_t *x, int32_t at, uint32_t slot, int32_t by)
{
    size_t n = (size_t)x->comm->nranks;

    return (rows_head_t *)(void *)(x->areas[at] + n * sizeof(line_t)) + slot * n + (size_t)by;
}

static unsigned char *shm_rows_of(const dp_exchange_t *x, int32_t at, uint32_t slot, int32_t by)
{
    return x->areas[at] + rows_offset(x) + slot * slot_rows_bytes(x) +
           (size_t)by * x->config.capacity_rows * x->config.row_bytes;
}

area_t shm_exchange_area(const dp_exchange_t *x)
{
    area_t area = {
        .kind = AREA_ROWS,
        .id = x->config.id,
        .peer = -1,
        .slots = x->config.slots,
        .unit = x->config.row_bytes,
        .capacity = x->config.capacity_rows,
        .bytes = rows_offset(x) + x->config.slots * slot_rows_bytes(x),
    };

    return area;
}

void shm_exchange_free(dp_exchange_t *x)
{
    comm_release(x->comm, x->areas);
    comm_release(x->comm, x->counts);
    comm_release(x->comm, x->sending);
    comm_release(x->comm, x);
}

dp_status_t shm_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **exchange_out)
{
    const dp_host_t *host = comm->host;
    size_t n = (size_t)comm->nranks, counts = comm_slots_of(config) * n * sizeof(int32_t);
    dp_exchange_t *x = NULL;
    dp_status_t status = comm_check_new_exchange(comm, "comm_shm", 65536, config);

    if (status == DP_OK)
        status = comm_make_exchange(comm, config, &x);
    if (status < 0)
        return status;
    x->areas = host->allocate(host, n * sizeof(*x->areas), 16);
    x->counts = host->allocate(host, counts, CACHE_LINE);
    x->sending = host->allocate(host, n * sizeof(*x->sending), CACHE_LINE);
    if (x->areas == NULL || x->counts == NULL || x->sending == NULL) {
        shm_exchange_free(x);
        return DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory for exchange %u", comm->name, config->id);
    }
    comm_add_exchange(x);
    comm->memory_bytes += n * (sizeof(*x->areas) + sizeof(*x->sending)) + counts;
    *exchange_out = x;
    return DP_OK;
}

dp_status_t shm_exchange_connect(dp_exchange_t *x, view_t *views)
{
    dp_comm_t *comm = x->comm;
    area_t expected = shm_exchange_area(x);
    char what[LABEL_BYTES + 40];

    snprintf(what, sizeof(what), "exchange %u \"%s\"", x->config.id, x->label);
    for (int32_t rank = 0; rank < comm->nranks; rank++) {
        dp_status_t status = shm_find(comm, views, rank, &expected, what, &x->areas[rank]);

        if (status < 0)
            return status;
    }
    x->connected = true;
    return DP_OK;
}

/* ---- on the stream ---- */

static dp_status_t explain_round(const round_t *r, dp_status_t status, const char *doing, int32_t peer)
{
    return shm_is_news(status) ? comm_explain_round(r->x, r->number, status, doing, peer) : status;
}

/* All counts are checked before any row is sent: an overflow sends nothing. */
static dp_status_t read_counts(const round_t *r)
{
    dp_exchange_t *x = r->x;
    const dp_comm_t *comm = x->comm;

    for (int32_t to = 0; to < comm->nranks; to++) {
        int32_t rows = r->counts[to];

        if (rows < 0 || (uint32_t)rows > x->config.capacity_rows)
            return DP_FAIL(comm->host, rows < 0 ? DP_ERR_INVALID : DP_ERR_OVERFLOW,
                           "rank %d: exchange %u of \"%s\": %d rows for rank %d, the capacity is %u",
                           comm->world[comm->rank], r->number, x->label, rows, comm->world[to],
                           x->config.capacity_rows);
        x->sending[to] = rows;
    }
    return DP_OK;
}

static dp_status_t put_rows(const round_t *r, int32_t to)
{
    dp_exchange_t *x = r->x;
    dp_comm_t *comm = x->comm;
    rows_head_t *head = head_of(x, to, r->slot, comm->rank);
    dp_status_t status =
        shm_wait(comm, credit(x, comm->rank, to), r->number + 1 - x->config.slots, "no slot of the receiver is free");

    if (status < 0)
        return explain_round(r, status, "sending to", to);
    head->number = r->number;
    head->rows = x->sending[to];
    if (x->sending[to] > 0)
        memcpy(shm_rows_of(x, to, r->slot, comm->rank), r->send + (size_t)r->offsets[to] * x->config.row_bytes,
               (size_t)x->sending[to] * x->config.row_bytes);
    comm->host->post(comm->host, &head->published, r->number + 1);
    return DP_OK;
}

static dp_status_t take_rows(const round_t *r, int32_t from)
{
    dp_exchange_t *x = r->x;
    dp_comm_t *comm = x->comm;
    rows_head_t *head = head_of(x, comm->rank, r->slot, from);
    dp_status_t status = shm_wait(comm, &head->published, r->number + 1, "its rows have not come");
    uint32_t number;
    int32_t rows;

    if (status < 0)
        return explain_round(r, status, "receiving from", from);
    number = head->number;
    rows = *(volatile int32_t *)&head->rows; /* once: what is checked is what is used */
    if (number != r->number || rows < 0 || (uint32_t)rows > x->config.capacity_rows)
        return DP_FAIL(comm->host, DP_ERR_PROTOCOL,
                       "rank %d: exchange %u of \"%s\": rank %d sent exchange %u with %d rows, the capacity is %u",
                       comm->world[comm->rank], r->number, x->label, comm->world[from], number, rows,
                       x->config.capacity_rows);
    x->counts[r->slot * (uint32_t)comm->nranks + (uint32_t)from] = rows;
    return DP_OK;
}

/* Each rank begins with its right neighbour and ends with itself, so that they do not all write to
 * one at a time. */
static dp_status_t run_rows_post(void *arg)
{
    const round_t *r = arg;
    int32_t n = r->x->comm->nranks, me = r->x->comm->rank;
    dp_status_t status = read_counts(r);

    for (int32_t i = 1; i <= n && status == DP_OK; i++)
        status = put_rows(r, (me + i) % n);
    return status;
}

static dp_status_t run_rows_wait(void *arg)
{
    const round_t *r = arg;
    int32_t n = r->x->comm->nranks, me = r->x->comm->rank;
    dp_status_t status = DP_OK;

    for (int32_t i = 0; i < n && status == DP_OK; i++)
        status = take_rows(r, (me + n - i) % n);
    return status;
}

static dp_status_t run_exchange(void *arg)
{
    dp_status_t status = run_rows_post(arg);

    return status < 0 ? status : run_rows_wait(arg);
}

static dp_status_t run_rows_release(void *arg)
{
    const round_t *r = arg;
    const dp_comm_t *comm = r->x->comm;

    for (int32_t from = 0; from < comm->nranks; from++)
        comm->host->post(comm->host, credit(r->x, from, comm->rank), r->number + 1);
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
    *rows_out = shm_rows_of(x, x->comm->rank, r.slot, 0);
    *counts_out = &x->counts[r.slot * (uint32_t)x->comm->nranks];
    return DP_OK;
}

dp_status_t shm_exchange_run(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                             const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                             dp_stream_t *s)
{
    const round_t r = {x, send, send_offsets, send_counts, number, 0};

    DO(comm_check_whole(x, number));
    DO(launch_round(run_exchange, &r, rows_out, counts_out, s));
    x->awaited++;
    return DP_OK;
}

dp_status_t shm_exchange_post(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                              const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                              dp_stream_t *s)
{
    const round_t r = {x, send, send_offsets, send_counts, number, 0};

    DO(comm_check_post(x, x->released, number));
    return launch_round(run_rows_post, &r, rows_out, counts_out, s);
}

dp_status_t shm_exchange_wait(dp_exchange_t *x, uint32_t number, dp_stream_t *s)
{
    const round_t r = {.x = x, .number = number, .slot = (uint32_t)(x->awaited % x->config.slots)};

    DO(comm_check_await(x, number));
    DO(x->comm->device->launch(s, run_rows_wait, &r, sizeof(r)));
    x->awaited++;
    return DP_OK;
}

dp_status_t shm_exchange_release(dp_exchange_t *x, uint32_t number, dp_stream_t *s)
{
    round_t r = {.x = x, .number = number};

    DO(comm_check_awaited(x, x->released, number));
    DO(x->comm->device->launch(s, run_rows_release, &r, sizeof(r)));
    x->released++;
    return DP_OK;
}
