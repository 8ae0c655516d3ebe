/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * exchange.c: all-to-all-v. Every rank writes its rows straight into the receivers' slots, then waits for those meant for it.
 *
 * An area holds [published by source][credit by destination][heads by slot and source][rows by slot and source]. */
#include "comm_shm.h"

#include <stdio.h>
#include <string.h>

typedef struct rows_head {
    alignas(LINE_BYTES) uint32_t sequence;
    int32_t count;
} rows_head_t;

typedef struct run {
    dp_exchange_t *x;
    const unsigned char *send;
    const int32_t *offsets, *counts;
    uint32_t sequence;
} run_t;

static size_t cells(const dp_exchange_t *x)
{
    return (size_t)x->config.slots * (size_t)x->comm->nranks;
}

static size_t cell_bytes(const dp_exchange_t *x)
{
    return (size_t)x->config.capacity_rows * x->config.row_bytes; /* as the interface says: nothing in between */
}

static size_t cell_of(const dp_exchange_t *x, uint32_t sequence, int32_t source)
{
    return (size_t)(sequence % x->config.slots) * (size_t)x->comm->nranks + (size_t)source;
}

/* Places inside the area of one rank. */
static dp_signal_t *published_of(const dp_exchange_t *x, int32_t owner, int32_t source)
{
    return &((line_t *)(void *)x->areas[owner])[source].signal;
}
static dp_signal_t *credit_of(const dp_exchange_t *x, int32_t owner, int32_t destination)
{
    return &((line_t *)(void *)x->areas[owner])[x->comm->nranks + destination].signal;
}
static rows_head_t *head_of(const dp_exchange_t *x, int32_t owner, size_t cell)
{
    return (rows_head_t *)(void *)(x->areas[owner] + 2 * (size_t)x->comm->nranks * sizeof(line_t)) + cell;
}
static unsigned char *rows_of(const dp_exchange_t *x, int32_t owner, size_t cell)
{
    return (unsigned char *)head_of(x, owner, cells(x)) + cell * cell_bytes(x);
}

static dp_status_t check_config(const dp_comm_t *comm, const dp_exchange_config_t *c)
{
    size_t bytes;

    if (c->struct_size < sizeof(*c) || c->row_bytes == 0 || c->row_bytes % 16 != 0 || c->capacity_rows == 0 ||
        __builtin_mul_overflow(c->row_bytes, (size_t)c->capacity_rows, &bytes) || bytes > SIZE_MAX / 64 ||
        __builtin_mul_overflow(bytes + LINE_BYTES, (size_t)(c->slots > 0 ? c->slots : 2) * (size_t)comm->nranks, &bytes) ||
        bytes > SIZE_MAX / 64)
        return DP_FAIL(comm->host, DP_ERR_INVALID,
                       "group %s: an exchange of %u rows of %zu bytes in %u slots is not possible; rows are multiples of 16 bytes",
                       comm->name, c->capacity_rows, c->row_bytes, c->slots);
    for (const dp_exchange_t *x = comm->exchanges; x != NULL; x = x->next)
        if (x->config.id == c->id)
            return DP_FAIL(comm->host, DP_ERR_INVALID, "group %s: exchange %u is open already", comm->name, c->id);
    return DP_OK;
}

dp_status_t exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **exchange_out)
{
    const dp_host_t *host = comm->host;
    dp_status_t status = check_config(comm, config);
    dp_exchange_t *x;

    if (status < 0)
        return status;
    x = host->allocate(host, sizeof(*x), LINE_BYTES);
    if (x == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory for an exchange", comm->name);
    memset(x, 0, sizeof(*x));
    x->comm = comm;
    x->config = *config;
    x->config.slots = config->slots > 0 ? config->slots : 2;
    snprintf(x->label, sizeof(x->label), "%s", config->label != NULL ? config->label : "exchange");
    x->config.label = x->label;
    x->areas = host->allocate(host, (size_t)comm->nranks * sizeof(*x->areas), 16);
    x->counts = host->allocate(host, cells(x) * sizeof(*x->counts), 16);
    if (x->areas == NULL || x->counts == NULL) {
        exchange_free(x);
        return DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory for an exchange of %d ranks", comm->name, comm->nranks);
    }
    x->next = comm->exchanges;
    comm->exchanges = x;
    *exchange_out = x;
    return DP_OK;
}

void exchange_free(dp_exchange_t *x)
{
    const dp_host_t *host = x->comm->host;

    if (x->areas != NULL)
        host->release(host, x->areas);
    if (x->counts != NULL)
        host->release(host, x->counts);
    host->release(host, x);
}

area_t exchange_area(const dp_exchange_t *x)
{
    return (area_t){
        .kind = AREA_ROWS,
        .id = x->config.id,
        .peer = -1,
        .slots = x->config.slots,
        .unit = x->config.row_bytes,
        .capacity = x->config.capacity_rows,
        .bytes = 2 * (size_t)x->comm->nranks * sizeof(line_t) + cells(x) * (sizeof(rows_head_t) + cell_bytes(x)),
    };
}

dp_status_t exchange_connect(dp_exchange_t *x, view_t *views, unsigned char *own)
{
    area_t expected = exchange_area(x);

    for (int32_t r = 0; r < x->comm->nranks; r++) {
        dp_status_t status = DP_OK;

        if (r == x->comm->rank)
            x->areas[r] = own;
        else
            status = shm_find(x->comm, views, r, &expected, x->label, &x->areas[r]);
        if (status < 0)
            return status;
    }
    x->connected = true;
    return DP_OK;
}

static dp_status_t name_exchange(const dp_exchange_t *x, const run_t *t, int32_t peer, dp_status_t status, const char *what)
{
    const dp_comm_t *comm = x->comm;

    if (status != DP_ERR_TIMEOUT)
        return status;
    return DP_FAIL(comm->host, status, "rank %d: %s %u %s rank %d: %s", comm->world[comm->rank], x->label, t->sequence, what,
                   comm->world[peer], comm->host->last_error(comm->host));
}

/* Before anything is sent: a count that does not fit must not reach anybody. */
static dp_status_t check_counts(const run_t *t)
{
    const dp_exchange_t *x = t->x;

    for (int32_t r = 0; r < x->comm->nranks; r++)
        if (t->counts[r] < 0 || (uint32_t)t->counts[r] > x->config.capacity_rows)
            return DP_FAIL(x->comm->host, DP_ERR_OVERFLOW, "rank %d: %s %u: %d rows for rank %d, there is room for %u",
                           x->comm->world[x->comm->rank], x->label, t->sequence, t->counts[r], x->comm->world[r],
                           x->config.capacity_rows);
    return DP_OK;
}

static dp_status_t send_to(const run_t *t, int32_t to)
{
    const dp_exchange_t *x = t->x;
    int32_t me = x->comm->rank;
    size_t cell = cell_of(x, t->sequence, me);
    dp_status_t status = shm_wait(x->comm, credit_of(x, me, to), t->sequence + 1 - x->config.slots, "a credit");

    if (status < 0)
        return name_exchange(x, t, to, status, "cannot be sent to");
    memcpy(rows_of(x, to, cell), t->send + (size_t)t->offsets[to] * x->config.row_bytes,
           (size_t)t->counts[to] * x->config.row_bytes);
    *head_of(x, to, cell) = (rows_head_t){t->sequence, t->counts[to]};
    x->comm->host->post(x->comm->host, published_of(x, to, me), t->sequence + 1);
    return DP_OK;
}

static dp_status_t receive_from(const run_t *t, int32_t from)
{
    dp_exchange_t *x = t->x;
    int32_t me = x->comm->rank;
    size_t cell = cell_of(x, t->sequence, from);
    dp_status_t status = shm_wait(x->comm, published_of(x, me, from), t->sequence + 1, "the rows");
    rows_head_t head;

    if (status < 0)
        return name_exchange(x, t, from, status, "does not come from");
    head = *head_of(x, me, cell);
    if (head.sequence != t->sequence || head.count < 0 || (uint32_t)head.count > x->config.capacity_rows)
        return DP_FAIL(x->comm->host, DP_ERR_PROTOCOL, "rank %d: %s %u: rank %d sent exchange %u with %d rows",
                       x->comm->world[me], x->label, t->sequence, x->comm->world[from], head.sequence, head.count);
    x->counts[cell] = head.count;
    return DP_OK;
}

static dp_status_t run_exchange(void *arg)
{
    const run_t *t = arg;
    int32_t n = t->x->comm->nranks, me = t->x->comm->rank;
    dp_status_t status = check_counts(t);

    for (int32_t i = 1; i <= n && status >= 0; i++) /* neighbours first, so that not all write to rank 0 at once */
        status = send_to(t, (me + i) % n);
    for (int32_t i = 0; i < n && status >= 0; i++)
        status = receive_from(t, (me + n - i) % n);
    return status;
}

static dp_status_t run_release(void *arg)
{
    const run_t *t = arg;
    const dp_exchange_t *x = t->x;

    for (int32_t r = 0; r < x->comm->nranks; r++)
        x->comm->host->post(x->comm->host, credit_of(x, r, x->comm->rank), t->sequence + 1);
    return DP_OK;
}

static dp_status_t check(const dp_exchange_t *x, uint64_t next, uint32_t sequence)
{
    if (!x->connected)
        return DP_FAIL(x->comm->host, DP_ERR_INVALID, "group %s: %s is not connected yet: call start first", x->comm->name,
                       x->label);
    if (sequence != (uint32_t)next)
        return DP_FAIL(x->comm->host, DP_ERR_INVALID, "group %s: %s %u; the next is %u", x->comm->name, x->label, sequence,
                       (uint32_t)next);
    return DP_OK;
}

dp_status_t exchange_run(dp_exchange_t *x, uint32_t sequence, const void *send, const int32_t *send_offsets,
                         const int32_t *send_counts, const void **rows_out, const int32_t **counts_out, dp_stream_t *s)
{
    run_t t = {x, send, send_offsets, send_counts, sequence};
    dp_status_t status = check(x, x->count, sequence);

    if (status >= 0)
        status = x->comm->device->launch(s, run_exchange, &t, sizeof(t));
    if (status < 0)
        return status;
    x->count++;
    *rows_out = rows_of(x, x->comm->rank, cell_of(x, sequence, 0));
    *counts_out = x->counts + cell_of(x, sequence, 0);
    return DP_OK;
}

dp_status_t exchange_release(dp_exchange_t *x, uint32_t sequence, dp_stream_t *s)
{
    run_t t = {.x = x, .sequence = sequence};
    dp_status_t status = check(x, x->released, sequence);

    if (status >= 0)
        status = x->comm->device->launch(s, run_release, &t, sizeof(t));
    x->released += status >= 0;
    return status;
}
