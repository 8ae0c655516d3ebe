/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * exchange.c: all-to-all-v: every rank puts its counts and exactly those rows into the others'
 * slots. */
#include "channel.h"
#include "join.h"
#include "plugins/common/do.h"

#include <stdio.h>
#include <string.h>

typedef struct round {
    dp_exchange_t *x;
    const unsigned char *send;
    const int32_t *offsets, *counts;
    uint64_t count; /* of this exchange, without wrapping */
    uint32_t number;
} round_t;

/* Bells: credits by rank, heads by slot and rank, rows by slot and rank. Parts of AREA_ROWS: a line
 * that takes credits, heads[slots][n], rows[slots][n][capacity]. */
static size_t ranks_of(const dp_exchange_t *x)
{
    return (size_t)x->comm->nranks;
}

static size_t block_bytes(const dp_exchange_t *x)
{
    return x->config.capacity_rows * x->config.row_bytes;
}

static size_t slot_bytes(const dp_exchange_t *x)
{
    return comm_round_line(ranks_of(x) * block_bytes(x));
}

static size_t head_at(const dp_exchange_t *x, uint32_t slot, int32_t from)
{
    return CACHE_LINE + (slot * ranks_of(x) + (size_t)from) * HEAD_BYTES;
}

/* In the memory where rows are put. */
static size_t block_at(const dp_exchange_t *x, uint32_t slot, int32_t from)
{
    return slot * slot_bytes(x) + (size_t)from * block_bytes(x);
}

static size_t heads_end(const dp_exchange_t *x)
{
    return CACHE_LINE + comm_round_line(x->config.slots * ranks_of(x) * HEAD_BYTES);
}

static size_t rows_at(const dp_exchange_t *x, uint32_t slot, int32_t from)
{
    return heads_end(x) + block_at(x, slot, from);
}

/* What has been received, as the device sees it. */
static unsigned char *ofi_rows_of(const dp_exchange_t *x, uint32_t slot)
{
    return x->part.shown != NULL ? x->part.shown + slot * slot_bytes(x) : x->area + rows_at(x, slot, 0);
}

static int32_t *counts_of(const dp_exchange_t *x, uint32_t slot)
{
    unsigned char *on_device = x->part.shown != NULL ? x->part.shown + x->config.slots * slot_bytes(x) : NULL;

    return (on_device != NULL ? (int32_t *)(void *)on_device : x->counts) + slot * ranks_of(x);
}

static uint32_t head_bell(const dp_exchange_t *x, uint32_t slot, int32_t from)
{
    return (uint32_t)((1 + slot) * ranks_of(x)) + (uint32_t)from;
}

static uint32_t rows_bell(const dp_exchange_t *x, uint32_t slot, int32_t from)
{
    return (uint32_t)((1 + x->config.slots + slot) * ranks_of(x)) + (uint32_t)from;
}

area_t ofi_exchange_area(const dp_exchange_t *x)
{
    size_t n = ranks_of(x);
    bool direct = x->comm->wire.direct;
    area_t area = {
        .kind = AREA_ROWS,
        .id = x->config.id,
        .peer = -1,
        .slots = x->config.slots,
        .unit = x->config.row_bytes,
        .capacity = x->config.capacity_rows,
        .bytes = direct ? heads_end(x) : rows_at(x, x->config.slots, 0),
        .bells = (uint32_t)((1 + 2 * x->config.slots) * n),
        .data_address = x->part.address,
        .data_key = x->part.key,
        .private_bytes = 2 * n * sizeof(op_t) + (x->comm->wire.bounce && !direct ? slot_bytes(x) : 0),
    };

    return area;
}

void ofi_exchange_free(dp_exchange_t *x)
{
    ofi_part_free(x->comm, &x->part);
    comm_release(x->comm, x->far);
    comm_release(x->comm, x->own);
    comm_release(x->comm, x->counts);
    comm_release(x->comm, x->heard);
    comm_release(x->comm, x->sending);
    comm_release(x->comm, x);
}

dp_status_t ofi_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **exchange_out)
{
    const dp_host_t *host = comm->host;
    uint32_t bells = (((1u << BELL_BITS) - 1) / (uint32_t)comm->nranks - 1) / 2;
    size_t n = (size_t)comm->nranks, counts = comm_slots_of(config) * n * sizeof(int32_t);
    dp_exchange_t *x = NULL;
    dp_status_t status = comm_check_new_exchange(comm, "comm_ofi", bells, config);

    if (status == DP_OK)
        status = comm_make_exchange(comm, config, &x);
    if (status < 0)
        return status;
    x->far = host->allocate(host, n * sizeof(*x->far), 16);
    x->own = host->allocate(host, sizeof(*x->own), CACHE_LINE);
    x->counts = host->allocate(host, counts, CACHE_LINE);
    x->sending = host->allocate(host, 2 * n * sizeof(*x->sending), CACHE_LINE);
    x->heard = host->allocate(host, counts, CACHE_LINE);
    if (x->far == NULL || x->own == NULL || x->counts == NULL || x->heard == NULL || x->sending == NULL) {
        ofi_exchange_free(x);
        return DP_FAIL(host, DP_ERR_NOMEM, "group %s: no memory for exchange %u", comm->name, config->id);
    }
    status = ofi_part_open(comm, &x->part, true);
    if (status < 0) {
        ofi_exchange_free(x);
        return status;
    }
    memset(x->own, 0, sizeof(*x->own));
    memset(x->heard, 0, counts);
    comm_add_exchange(x);
    comm->memory_bytes += n * (sizeof(*x->far) + 2 * sizeof(*x->sending)) + sizeof(*x->own) + 2 * counts;
    *exchange_out = x;
    return DP_OK;
}

dp_status_t ofi_exchange_show(dp_exchange_t *x)
{
    return ofi_part_show(x->comm, &x->part, x->config.slots * (slot_bytes(x) + ranks_of(x) * sizeof(int32_t)));
}

dp_status_t ofi_exchange_connect(dp_exchange_t *x, const area_t *ours, const region_t *region, view_t *views)
{
    dp_comm_t *comm = x->comm;
    size_t n = ranks_of(x);
    unsigned char *own = region->base + ours->private_offset;
    area_t expected = ofi_exchange_area(x);
    char what[LABEL_BYTES + 40];

    snprintf(what, sizeof(what), "exchange %u \"%s\"", x->config.id, x->label);
    x->area = region->base + ours->offset;
    x->bells = region->bells + ours->bell;
    x->ops = (op_t *)(void *)own;
    x->credits = x->ops + n;
    for (int32_t rank = 0; rank < comm->nranks; rank++) {
        if (rank == comm->rank)
            continue;
        DO(ofi_join_find(comm, views, rank, &expected, what, &x->far[rank]));
        ofi_op_init(comm, &x->ops[rank], rank, region,
                    comm->wire.direct ? NULL : own + 2 * n * sizeof(op_t) + (size_t)rank * block_bytes(x));
        ofi_op_init(comm, &x->credits[rank], rank, region, NULL);
        for (uint32_t slot = 0; slot < x->config.slots; slot++)
            x->bells[head_bell(x, slot, rank)].head = (const head_t *)(const void *)(x->area + head_at(x, slot, rank));
        x->credits[rank].credit = (put_t){.to = rank,
                                          .bell = x->far[rank].bell + (uint32_t)comm->rank,
                                          .head_at = x->far[rank].address,
                                          .key = x->far[rank].key};
    }
    x->connected = true;
    return DP_OK;
}

/* ---- on the stream ---- */

static dp_status_t explain_round(const round_t *r, dp_status_t status, const char *doing, int32_t peer)
{
    return ofi_wire_is_news(r->x->comm, status) ? comm_explain_round(r->x, r->number, status, doing, peer) : status;
}

static uint32_t slot_of(const round_t *r)
{
    return (uint32_t)(r->count % r->x->config.slots);
}

/* How often a bell of our slot has rung when this exchange is there. */
static uint32_t rings(const round_t *r)
{
    return (uint32_t)(r->count / r->x->config.slots + 1);
}

/* All counts are checked before any row is sent: an overflow sends nothing. */
static dp_status_t read_counts(const round_t *r)
{
    dp_exchange_t *x = r->x;
    dp_comm_t *comm = x->comm;
    size_t bytes = ranks_of(x) * sizeof(int32_t);
    dp_status_t status = ofi_copy(comm, x->sending, r->counts, bytes);

    if (status == DP_OK)
        status = ofi_copy(comm, x->sending + ranks_of(x), r->offsets, bytes);
    if (status < 0)
        return status;
    for (int32_t to = 0; to < comm->nranks; to++) {
        int32_t rows = x->sending[to];

        if (rows < 0 || (uint32_t)rows > x->config.capacity_rows)
            return DP_FAIL(comm->host, rows < 0 ? DP_ERR_INVALID : DP_ERR_OVERFLOW,
                           "rank %d: exchange %u of \"%s\": %d rows for rank %d, the capacity is %u",
                           comm->world[comm->rank], r->number, x->label, rows, comm->world[to],
                           x->config.capacity_rows);
    }
    return DP_OK;
}

static dp_status_t wait_for_credit(const round_t *r, int32_t to)
{
    dp_exchange_t *x = r->x;
    dp_comm_t *comm = x->comm;
    bell_t *credits = to == comm->rank ? x->own : &x->bells[to];

    if (r->count < x->config.slots)
        return DP_OK;
    return ofi_wire_wait(comm, &credits->signal, (uint32_t)(r->count + 1 - x->config.slots),
                         "no slot of the receiver is free");
}

/* desc: of the memory that rows are sent from. */
static dp_status_t put_rows(const round_t *r, int32_t to, void *desc)
{
    dp_exchange_t *x = r->x;
    dp_comm_t *comm = x->comm;
    uint32_t slot = slot_of(r);
    size_t bytes = (size_t)x->sending[to] * x->config.row_bytes;
    const unsigned char *rows = r->send + (bytes > 0 ? (size_t)x->sending[comm->nranks + to] * x->config.row_bytes : 0);
    const place_t *far = &x->far[to];
    dp_status_t status = wait_for_credit(r, to);
    put_t put;

    if (status < 0)
        return explain_round(r, status, "sending to", to);
    if (to == comm->rank) {
        x->counts[slot * ranks_of(x) + (size_t)to] = x->sending[to];
        return ofi_copy(comm, ofi_rows_of(x, slot) + (size_t)to * block_bytes(x), rows, bytes);
    }
    put = (put_t){
        .to = to,
        .bell = far->bell + head_bell(x, slot, comm->rank),
        .data_bell = far->bell + rows_bell(x, slot, comm->rank),
        .head_at = far->address + head_at(x, slot, comm->rank),
        .key = far->key,
        .apart = true,
        .data_at = far->address + rows_at(x, slot, comm->rank),
        .data_key = far->key,
        .data = rows,
        .bytes = bytes,
        .carries = true,
        .what = "the provider takes no more",
    };
    if (comm->wire.direct) {
        put.data_at = far->data_address + block_at(x, slot, comm->rank);
        put.data_key = far->data_key;
        put.desc = desc;
    }
    x->ops[to].head.rows.number = r->number;
    x->ops[to].head.rows.rows = x->sending[to];
    x->ops[to].head.rows.sender = comm->rank;
    status = ofi_wire_put(comm, &x->ops[to], &put);
    return status < 0 ? explain_round(r, status, "sending to", to) : DP_OK;
}

static dp_status_t take_rows(const round_t *r, int32_t from)
{
    dp_exchange_t *x = r->x;
    dp_comm_t *comm = x->comm;
    uint32_t slot = slot_of(r);
    dp_status_t status =
        ofi_wire_wait(comm, &x->bells[head_bell(x, slot, from)].signal, rings(r), "its rows have not come");
    int32_t rows;
    head_t head;

    if (status < 0)
        return explain_round(r, status, "receiving from", from);
    memcpy(&head, x->area + head_at(x, slot, from), HEAD_BYTES);
    rows = head.rows.rows;
    if (head.rows.number != r->number || head.rows.sender != from || rows < 0 ||
        (uint32_t)rows > x->config.capacity_rows)
        return DP_FAIL(comm->host, DP_ERR_PROTOCOL,
                       "rank %d: exchange %u of \"%s\": rank %d sent exchange %u with %d rows, the capacity is %u",
                       comm->world[comm->rank], r->number, x->label, comm->world[from], head.rows.number, rows,
                       x->config.capacity_rows);
    if (rows > 0 && !comm->wire.scatter) {
        status = ofi_wire_wait(comm, &x->bells[rows_bell(x, slot, from)].signal,
                               ++x->heard[slot * ranks_of(x) + (size_t)from], "its rows have not come");
        if (status < 0)
            return explain_round(r, status, "receiving from", from);
    }
    x->counts[slot * ranks_of(x) + (size_t)from] = rows;
    return x->part.shown == NULL || comm->wire.direct
               ? DP_OK
               : ofi_copy(comm, ofi_rows_of(x, slot) + (size_t)from * block_bytes(x), x->area + rows_at(x, slot, from),
                          (size_t)rows * x->config.row_bytes);
}

/* Rows of all ranks lie in one allocation, which is lent before the first of them leaves. */
static dp_status_t lend(const round_t *r, void **desc_out)
{
    dp_exchange_t *x = r->x;

    for (int32_t to = 0; to < x->comm->nranks; to++)
        if (to != x->comm->rank && x->sending[to] > 0)
            return ofi_part_lend(x->comm, &x->part,
                                 r->send + (size_t)x->sending[x->comm->nranks + to] * x->config.row_bytes, desc_out);
    return DP_OK;
}

/* All rows that are under way have left. */
static dp_status_t finish_sends(const round_t *r)
{
    dp_exchange_t *x = r->x;
    int32_t n = x->comm->nranks, me = x->comm->rank;
    dp_status_t status = DP_OK;

    for (int32_t i = 1; i < n && status == DP_OK; i++) {
        status = ofi_wire_finish(x->comm, &x->ops[(me + i) % n], "its rows do not leave");
        if (status < 0)
            status = explain_round(r, status, "sending to", (me + i) % n);
    }
    return status;
}

/* There is one op for each rank: it is done with the rows of the post before. Each rank begins with
 * its right neighbour and ends with itself, so that they do not all write to one at a time. */
static dp_status_t run_rows_post(void *arg)
{
    const round_t *r = arg;
    dp_exchange_t *x = r->x;
    int32_t n = x->comm->nranks, me = x->comm->rank;
    void *desc = NULL;
    dp_status_t status = read_counts(r);

    if (status == DP_OK)
        status = finish_sends(r);
    if (status == DP_OK && x->comm->wire.direct)
        status = lend(r, &desc);
    if (status < 0)
        return status;
    x->leaving = r->count;
    for (int32_t i = 1; i <= n && status == DP_OK; i++)
        status = put_rows(r, (me + i) % n, desc);
    if (status < 0)
        ofi_wire_abandon(x->comm);
    return status;
}

static dp_status_t run_rows_wait(void *arg)
{
    const round_t *r = arg;
    dp_exchange_t *x = r->x;
    int32_t n = x->comm->nranks, me = x->comm->rank;
    dp_status_t status = DP_OK;

    for (int32_t i = 1; i < n && status == DP_OK; i++)
        status = take_rows(r, (me + n - i) % n);
    if (status == DP_OK && x->leaving == r->count) /* else a later post has seen to it */
        status = finish_sends(r);
    if (status == DP_OK && x->part.shown != NULL)
        status = ofi_copy(x->comm, counts_of(x, slot_of(r)), &x->counts[slot_of(r) * ranks_of(x)],
                          ranks_of(x) * sizeof(int32_t));
    if (status < 0)
        ofi_wire_abandon(x->comm);
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
    dp_exchange_t *x = r->x;
    dp_comm_t *comm = x->comm;
    int32_t n = comm->nranks;
    dp_status_t status = DP_OK;

    comm->host->post(comm->host, &x->own->signal, x->own->signal.value + 1);
    for (int32_t i = 1; i < n && status == DP_OK; i++) {
        int32_t to = (comm->rank + i) % n;

        status = ofi_wire_owe(comm, &x->credits[to], x->config.slots);
        if (status < 0)
            status = explain_round(r, status, "releasing rows of", to);
    }
    return status;
}

/* ---- on the caller's thread ---- */

/* The next one. */
static dp_status_t launch_round(dp_launch_fn run, const round_t *r, const void **rows_out, const int32_t **counts_out,
                                dp_stream_t *s)
{
    dp_exchange_t *x = r->x;
    uint32_t slot = slot_of(r);

    DO(ofi_launch(x->comm, x->part.queue, s, run, r, sizeof(*r)));
    x->count++;
    *rows_out = ofi_rows_of(x, slot);
    *counts_out = counts_of(x, slot);
    return DP_OK;
}

dp_status_t ofi_exchange_run(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                             const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                             dp_stream_t *s)
{
    const round_t r = {x, send, send_offsets, send_counts, x->count, number};

    DO(comm_check_whole(x, number));
    DO(launch_round(run_exchange, &r, rows_out, counts_out, s));
    x->awaited++;
    return DP_OK;
}

dp_status_t ofi_exchange_post(dp_exchange_t *x, uint32_t number, const void *send, const int32_t *send_offsets,
                              const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                              dp_stream_t *s)
{
    const round_t r = {x, send, send_offsets, send_counts, x->count, number};

    DO(comm_check_post(x, x->released, number));
    return launch_round(run_rows_post, &r, rows_out, counts_out, s);
}

dp_status_t ofi_exchange_wait(dp_exchange_t *x, uint32_t number, dp_stream_t *s)
{
    const round_t r = {.x = x, .count = x->awaited, .number = number};

    DO(comm_check_await(x, number));
    DO(ofi_launch(x->comm, x->part.queue, s, run_rows_wait, &r, sizeof(r)));
    x->awaited++;
    return DP_OK;
}

dp_status_t ofi_exchange_release(dp_exchange_t *x, uint32_t number, dp_stream_t *s)
{
    round_t r = {.x = x, .number = number};

    DO(comm_check_awaited(x, x->released, number));
    DO(ofi_launch(x->comm, x->part.releases, s, run_rows_release, &r, sizeof(r)));
    x->released++;
    return DP_OK;
}
