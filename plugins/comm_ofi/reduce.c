/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * reduce.c: barriers, and all_reduce as reduce-scatter plus all-gather by puts.
 *
 * all_reduce works in blocks, numbered q over the life of the instance, with two buffers for each
 * purpose:
 *   stage q     our data of block q, cut into slices --> in[q % 2][us] of the rank that sums the
 *               slice
 *   sum q       in[q % 2] of all ranks, added in rank order --> mine[q % 2] --> out[q % 2][us] of
 *               all ranks
 *   gather q    out[q % 2] of all ranks --> our data
 * in the order stage q+1, sum q, gather q. in[q % 2][us] of rank r is free for q + 2 because gather
 * q has seen r's sum of q, which read it; out[q % 2][us] of r is free for q + 2 because sum q+2 has
 * seen r's stage q+2, which r does after its gather q. The n-th ring of a buffer's bell is its n-th
 * block. */
#include "comm_ofi.h"

#include "plugins/comm/sums.h"
#include "plugins/common/do.h"

#include <string.h>

#define REDUCE_BYTES (1 << 20)
#define BLOCK_MIN    4096

typedef struct reduction {
    dp_comm_t *comm;
    unsigned char *data;
    size_t count;
    uint32_t number;
    dp_dtype_t dtype;
} reduction_t;

/* ---- layout of AREA_BASE ---- */

void ofi_base_size(dp_comm_t *comm, size_t reduce_bytes)
{
    size_t budget = reduce_bytes != 0 ? reduce_bytes : REDUCE_BYTES;

    comm->block_bytes = budget / 4 / CACHE_LINE * CACHE_LINE;
    if (comm->block_bytes < BLOCK_MIN)
        comm->block_bytes = BLOCK_MIN;
}

/* A head and the largest slice of a block. */
static size_t cell_bytes(const dp_comm_t *comm)
{
    return CACHE_LINE + comm_round_line(comm->block_bytes / (size_t)comm->nranks + 8);
}

/* Bells: hello by rank, barriers by round, in by buffer and rank, out likewise. Memory: a line for
 * hello and barriers, cells of in and out. What is ours alone: ops for hello and barriers, staging
 * and sums, cells of mine and bounces. */
typedef enum purpose { PURPOSE_IN = 0, PURPOSE_OUT = 1 } purpose_t;

static uint32_t cell_number(const dp_comm_t *comm, purpose_t purpose, uint32_t q, int32_t rank)
{
    return (2 * (uint32_t)purpose + q % 2) * (uint32_t)comm->nranks + (uint32_t)rank;
}

static uint32_t meet_bell(const dp_comm_t *comm, int32_t round)
{
    return (uint32_t)(comm->nranks + round);
}

static uint32_t cell_bell(const dp_comm_t *comm, uint32_t cell)
{
    return (uint32_t)comm->nranks + MEET_ROUNDS + cell;
}

static size_t cell_at(const dp_comm_t *comm, uint32_t cell)
{
    return CACHE_LINE + cell * cell_bytes(comm);
}

static op_t *op_of(const dp_comm_t *comm, purpose_t purpose, uint32_t q, int32_t rank)
{
    return (op_t *)(void *)(comm->ground.base + comm->base.private_offset) + 1 + cell_number(comm, purpose, q, rank);
}

static op_t *host_op(const dp_comm_t *comm)
{
    return (op_t *)(void *)(comm->ground.base + comm->base.private_offset);
}

area_t ofi_base_area(const dp_comm_t *comm)
{
    size_t n = (size_t)comm->nranks;
    area_t area = {
        .kind = AREA_BASE,
        .peer = -1,
        .unit = comm->block_bytes,
        .bytes = cell_at(comm, (uint32_t)(4 * n)),
        .bells = (uint32_t)(n + MEET_ROUNDS + 4 * n),
        .private_bytes = (1 + 4 * n) * sizeof(op_t) + (3 + (comm->wire.bounce ? 2 * n : 0)) * cell_bytes(comm),
    };

    return area;
}

/* Cells of ours: two where the slice that we sum comes together, one for what we add to it where
 * that is on the device, bounces. */
static unsigned char *mine(const dp_comm_t *comm, uint32_t q)
{
    return (unsigned char *)op_of(comm, PURPOSE_OUT, 1, comm->nranks) + q % 2 * cell_bytes(comm);
}

void ofi_base_prepare(dp_comm_t *comm, const region_t *region)
{
    int32_t n = comm->nranks;

    ofi_op_init(comm, host_op(comm), comm->rank, region, NULL);
    for (uint32_t q = 0; q < 2; q++)
        for (int32_t rank = 0; rank < n; rank++) {
            size_t bounce = 3 + q * (size_t)n + (size_t)rank;

            ofi_op_init(comm, op_of(comm, PURPOSE_IN, q, rank), rank, region,
                        mine(comm, 0) + bounce * cell_bytes(comm));
            ofi_op_init(comm, op_of(comm, PURPOSE_OUT, q, rank), rank, region, NULL);
        }
}

static bell_t *bell_of(const dp_comm_t *comm, uint32_t bell)
{
    return &comm->ground.bells[comm->base.bell + bell];
}

/* ---- barriers ---- */

/* News without data. It is finished only when it has arrived: behind the last barrier the endpoints
 * are closed. */
static dp_status_t ring_at(dp_comm_t *comm, int32_t to, uint32_t bell)
{
    const place_t *far = &comm->bases[to];
    put_t put = {
        .to = to,
        .bell = far->bell + bell,
        .head_at = far->address,
        .key = far->key,
        .delivered = true,
        .what = "the news of a barrier does not leave",
    };
    dp_status_t status = ofi_wire_put(comm, host_op(comm), &put);

    return status == DP_OK ? ofi_wire_finish(comm, host_op(comm), "the news of a barrier does not arrive") : status;
}

static dp_status_t explain_barrier(dp_comm_t *comm, dp_status_t status, int32_t peer)
{
    cause_t cause = comm_cause_of(comm->host);

    if (!ofi_wire_is_news(comm, status))
        return status;
    return DP_FAIL(comm->host, status, "rank %d: barrier of group %s, rank %d: %s", comm->world[comm->rank], comm->name,
                   comm->world[peer], cause.text);
}

/* The first that goes from rank to rank. */
static dp_status_t explain_greeting(dp_comm_t *comm, dp_status_t status, const char *direction, int32_t peer)
{
    const wire_t *w = &comm->wire;
    cause_t cause = comm_cause_of(comm->host);

    if (!ofi_wire_is_news(comm, status))
        return status;
    return DP_FAIL(comm->host, status,
                   "rank %d: group %s: no way %s rank %d by %s at %s (a firewall? ports that the system gives out have "
                   "to be open): %s",
                   comm->world[comm->rank], comm->name, direction, comm->world[peer], w->provider, w->local,
                   cause.text);
}

dp_status_t ofi_base_greet(dp_comm_t *comm)
{
    int32_t n = comm->nranks;
    dp_status_t status = DP_OK;

    for (int32_t i = 1; i < n; i++) {
        int32_t to = (comm->rank + i) % n;

        status = ring_at(comm, to, (uint32_t)comm->rank);
        if (status < 0)
            return explain_greeting(comm, status, "to", to);
    }
    for (int32_t i = 1; i < n; i++) {
        int32_t from = (comm->rank + i) % n;

        status = ofi_wire_wait(comm, &bell_of(comm, (uint32_t)from)->signal, 1, "a rank has not come");
        if (status < 0)
            return explain_greeting(comm, status, "from", from);
    }
    return DP_OK;
}

/* Dissemination: in round k each rank hears from the one 2^k before it. */
dp_status_t ofi_base_meet(dp_comm_t *comm)
{
    uint32_t number = ++comm->barriers;

    for (int32_t k = 0, step = 1; step < comm->nranks; k++, step *= 2) {
        int32_t to = (comm->rank + step) % comm->nranks, from = (comm->rank + comm->nranks - step) % comm->nranks;
        dp_status_t status = ring_at(comm, to, meet_bell(comm, k));

        if (status < 0)
            return explain_barrier(comm, status, to);
        status = ofi_wire_wait(comm, &bell_of(comm, meet_bell(comm, k))->signal, number, "a rank has not come");
        if (status < 0)
            return explain_barrier(comm, status, from);
    }
    return DP_OK;
}

/* ---- sums ---- */

/* Block i of a reduction: `bytes` at `offset` of the data. */
typedef struct block {
    size_t offset, bytes, elements;
    uint32_t q;
} block_t;

static block_t block_of(const reduction_t *r, size_t i, uint32_t first)
{
    size_t unit = dp_dtype_bytes(r->dtype), most = r->comm->block_bytes / unit;
    block_t p = {.offset = i * most * unit, .q = first + (uint32_t)i};

    p.elements = r->count - i * most < most ? r->count - i * most : most;
    p.bytes = p.elements * unit;
    return p;
}

/* Where the slice that `rank` sums begins, in bytes of the block; of `nranks`: its end. */
static size_t slice_at(const reduction_t *r, const block_t *p, int32_t rank)
{
    return p->elements * (size_t)rank / (size_t)r->comm->nranks * dp_dtype_bytes(r->dtype);
}

static dp_status_t explain_sum(const reduction_t *r, dp_status_t status, int32_t peer)
{
    dp_comm_t *comm = r->comm;
    cause_t cause = comm_cause_of(comm->host);

    if (!ofi_wire_is_news(comm, status))
        return status;
    return DP_FAIL(comm->host, status, "rank %d: all_reduce %u of %zu elements in group %s, waiting for rank %d: %s",
                   comm->world[comm->rank], r->number, r->count, comm->name, comm->world[peer], cause.text);
}

static dp_status_t send_slice(const reduction_t *r, const block_t *p, purpose_t purpose, int32_t to, const void *data,
                              size_t bytes)
{
    dp_comm_t *comm = r->comm;
    uint32_t cell = cell_number(comm, purpose, p->q, comm->rank);
    op_t *op = op_of(comm, purpose, p->q, to);
    put_t put = {
        .to = to,
        .bell = comm->bases[to].bell + cell_bell(comm, cell),
        .head_at = comm->bases[to].address + cell_at(comm, cell) + CACHE_LINE - HEAD_BYTES,
        .key = comm->bases[to].key,
        .data = data,
        .bytes = bytes,
        .what = "the provider takes no more",
    };
    dp_status_t status;

    op->head.sum.count = r->count;
    op->head.sum.number = r->number;
    op->head.sum.dtype = (uint32_t)r->dtype;
    op->head.sum.block = p->q;
    op->head.sum.sender = comm->rank;
    status = ofi_wire_put(comm, op, &put);
    return status < 0 ? explain_sum(r, status, to) : DP_OK;
}

/* All puts of a purpose have left. */
static dp_status_t finish_puts(const reduction_t *r, const block_t *p, purpose_t purpose)
{
    dp_comm_t *comm = r->comm;

    for (int32_t i = 1; i < comm->nranks; i++) {
        int32_t to = (comm->rank + i) % comm->nranks;
        dp_status_t status = ofi_wire_finish(comm, op_of(comm, purpose, p->q, to), "its slice does not leave");

        if (status < 0)
            return explain_sum(r, status, to);
    }
    return DP_OK;
}

/* The slice that `from` put into our cell. */
static dp_status_t hear_slice(const reduction_t *r, const block_t *p, purpose_t purpose, int32_t from,
                              const unsigned char **data_out)
{
    dp_comm_t *comm = r->comm;
    uint32_t cell = cell_number(comm, purpose, p->q, from);
    const unsigned char *at = comm->ground.base + comm->base.offset + cell_at(comm, cell) + CACHE_LINE;
    dp_status_t status =
        ofi_wire_wait(comm, &bell_of(comm, cell_bell(comm, cell))->signal, p->q / 2 + 1, "its part has not come");
    head_t head;

    if (status < 0)
        return explain_sum(r, status, from);
    memcpy(&head, at - HEAD_BYTES, HEAD_BYTES);
    if (head.sum.count != r->count || head.sum.number != r->number || head.sum.dtype != (uint32_t)r->dtype ||
        head.sum.block != p->q || head.sum.sender != from)
        return DP_FAIL(comm->host, DP_ERR_PROTOCOL,
                       "rank %d: all_reduce %u in group %s has %zu elements of dtype %d, on rank %d it is %u of "
                       "%llu, dtype %u",
                       comm->world[comm->rank], r->number, comm->name, r->count, (int)r->dtype, comm->world[from],
                       head.sum.number, (unsigned long long)head.sum.count, head.sum.dtype);
    *data_out = at;
    return DP_OK;
}

static dp_status_t stage(const reduction_t *r, const block_t *p)
{
    dp_comm_t *comm = r->comm;
    const unsigned char *data = r->data + p->offset;
    dp_status_t status = DP_OK;

    for (int32_t i = 1; i < comm->nranks && status == DP_OK; i++) {
        int32_t to = (comm->rank + i) % comm->nranks;
        size_t begin = slice_at(r, p, to), end = slice_at(r, p, to + 1);

        status = send_slice(r, p, PURPOSE_IN, to, data + begin, end - begin);
    }
    return status;
}

static dp_status_t sum_block(const reduction_t *r, const block_t *p)
{
    dp_comm_t *comm = r->comm;
    int32_t n = comm->nranks;
    unsigned char *out = mine(comm, p->q), *own = r->data + p->offset + slice_at(r, p, comm->rank);
    unsigned char *ours = comm->gpu != NULL ? mine(comm, 0) + 2 * cell_bytes(comm) : own;
    size_t bytes = slice_at(r, p, comm->rank + 1) - slice_at(r, p, comm->rank);
    const unsigned char *from;
    dp_status_t status = ours != own ? ofi_copy(comm, ours, own, bytes) : DP_OK;

    for (int32_t rank = 0; rank < n && status == DP_OK; rank++)
        if (rank != comm->rank)
            status = hear_slice(r, p, PURPOSE_IN, rank, &from);
    for (size_t at = 0; at < bytes && status == DP_OK; at += SUM_CACHE_BYTES) {
        size_t some = bytes - at < SUM_CACHE_BYTES ? bytes - at : SUM_CACHE_BYTES;

        for (int32_t rank = 0; rank < n; rank++) {
            from = comm->ground.base + comm->base.offset + cell_at(comm, cell_number(comm, PURPOSE_IN, p->q, rank)) +
                   CACHE_LINE;
            if (rank == comm->rank)
                from = ours;
            if (rank == 0)
                memcpy(out + at, from + at, some);
            else
                comm_add_values(out + at, from + at, some, r->dtype);
        }
    }
    for (int32_t i = 1; i < n && status == DP_OK; i++)
        status = send_slice(r, p, PURPOSE_OUT, (comm->rank + i) % n, out, bytes);
    return status == DP_OK ? ofi_copy(comm, own, out, bytes) : status;
}

static dp_status_t gather_block(const reduction_t *r, const block_t *p)
{
    dp_comm_t *comm = r->comm;
    dp_status_t status = finish_puts(r, p, PURPOSE_IN); /* which read what is about to change */

    for (int32_t i = 1; i < comm->nranks && status == DP_OK; i++) {
        int32_t rank = (comm->rank + i) % comm->nranks;
        size_t begin = slice_at(r, p, rank), end = slice_at(r, p, rank + 1);
        const unsigned char *from;

        status = hear_slice(r, p, PURPOSE_OUT, rank, &from);
        if (status == DP_OK)
            status = ofi_copy(comm, r->data + p->offset + begin, from, end - begin);
    }
    return status == DP_OK ? finish_puts(r, p, PURPOSE_OUT) : status;
}

static dp_status_t run_reduce(void *arg)
{
    const reduction_t *r = arg;
    dp_comm_t *comm = r->comm;
    size_t most = comm->block_bytes / dp_dtype_bytes(r->dtype), blocks = (r->count + most - 1) / most;
    uint32_t first = comm->blocks;
    dp_status_t status = DP_OK;

    for (size_t i = 0; i <= blocks && status == DP_OK; i++) {
        block_t p;

        if (i < blocks) {
            p = block_of(r, i, first);
            status = stage(r, &p);
        }
        if (i > 0 && status == DP_OK) {
            p = block_of(r, i - 1, first);
            status = sum_block(r, &p);
            if (status == DP_OK)
                status = gather_block(r, &p);
        }
    }
    comm->blocks = first + (uint32_t)blocks;
    if (status < 0)
        ofi_wire_abandon(comm);
    return status;
}

dp_status_t ofi_all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s)
{
    reduction_t r = {comm, data, count, comm->reductions, dtype};

    DO(comm_check_sum(comm->host, comm->name, dtype));
    if (comm->nranks == 1 || count == 0)
        return DP_OK;
    DO(ofi_launch(comm, comm->sums.queue, s, run_reduce, &r, sizeof(r)));
    comm->reductions++;
    return DP_OK;
}
