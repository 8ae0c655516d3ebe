/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * reduce.c: meetings, and all_reduce as reduce-scatter plus all-gather over shared staging.
 *
 * all_reduce works in pieces, numbered q over the life of the instance, with two buffers for each purpose:
 *   stage q     our data of piece q --> our in[q % 2]                                   post staged >= q + 1 at all
 *   sum q       all ranks' in[q % 2], our slice of it, added in rank order --> out[q % 2]  post summed >= q + 1 at all
 *   gather q    all ranks' out[q % 2] --> our data
 * in the order stage q+1, sum q, gather q. in[q % 2] is free for q + 2 because gather q has seen all sums of q, which
 * read it; out[q % 2] is free for q + 2 because sum q+2 has seen all stage q+2, which every rank does after its gather
 * q. */
#include "comm_shm.h"

#include "plugins/comm/sums.h"

#include <string.h>

#define REDUCE_BYTES (1 << 20)
#define PIECE_MIN    4096

/* What a staged piece belongs to: a rank that reduces something else is found out. */
typedef struct reduce_head {
    alignas(LINE_BYTES) uint64_t count;
    uint32_t number, dtype;
} reduce_head_t;

typedef struct reduction {
    dp_comm_t *comm;
    unsigned char *data;
    size_t count;
    uint32_t number;
    dp_dtype_t dtype;
} reduction_t;

/* ---- layout of AREA_BASE ---- */

void base_size(dp_comm_t *comm, size_t reduce_bytes)
{
    size_t budget = reduce_bytes != 0 ? reduce_bytes : REDUCE_BYTES;

    comm->piece_bytes = budget / 4 / LINE_BYTES * LINE_BYTES;
    if (comm->piece_bytes < PIECE_MIN)
        comm->piece_bytes = PIECE_MIN;
}

/* The largest slice of a piece. */
static size_t slice_room(const dp_comm_t *comm)
{
    return round_line(comm->piece_bytes / (size_t)comm->nranks + 8);
}

area_t base_area(const dp_comm_t *comm)
{
    size_t n = (size_t)comm->nranks;
    area_t area = {
        .kind = AREA_BASE,
        .peer = -1,
        .unit = comm->piece_bytes,
        .bytes = (MEET_ROUNDS + 2 * n) * sizeof(line_t) + 2 * sizeof(reduce_head_t) +
                 2 * (comm->piece_bytes + slice_room(comm)),
    };

    return area;
}

void base_connect(dp_comm_t *comm, int32_t rank, unsigned char *at)
{
    base_t *base = &comm->bases[rank];

    base->meet = (line_t *)(void *)at;
    base->staged = base->meet + MEET_ROUNDS;
    base->summed = base->staged + comm->nranks;
    base->heads = (reduce_head_t *)(void *)(base->summed + comm->nranks);
    base->in[0] = (unsigned char *)(base->heads + 2);
    base->in[1] = base->in[0] + comm->piece_bytes;
    base->out[0] = base->in[1] + comm->piece_bytes;
    base->out[1] = base->out[0] + slice_room(comm);
}

/* ---- meetings ---- */

/* Dissemination: in round k each rank hears from the one 2^k before it. */
dp_status_t shm_meet(dp_comm_t *comm)
{
    const dp_host_t *host = comm->host;
    uint32_t number = ++comm->meetings;

    for (int32_t k = 0, step = 1; step < comm->nranks; k++, step *= 2) {
        int32_t to = (comm->rank + step) % comm->nranks, from = (comm->rank + comm->nranks - step) % comm->nranks;
        dp_status_t status;

        host->post(host, &comm->bases[to].meet[k].signal, number);
        status = shm_wait(comm, &comm->bases[comm->rank].meet[k].signal, number, "a rank has not come");
        if (shm_is_news(status)) {
            cause_t cause = cause_of(comm->host);

            return DP_FAIL(host, status, "rank %d: meeting of group %s, waiting for rank %d: %s",
                           comm->world[comm->rank], comm->name, comm->world[from], cause.text);
        }
        if (status < 0)
            return status;
    }
    return DP_OK;
}

/* ---- sums ---- */

/* Piece i of a reduction: `bytes` at `offset` of the data, staged in buffer q % 2. */
typedef struct piece {
    size_t offset, bytes, elements;
    uint32_t q;
} piece_t;

static piece_t piece_of(const reduction_t *r, size_t i, uint32_t first)
{
    size_t unit = dp_dtype_bytes(r->dtype), most = r->comm->piece_bytes / unit;
    piece_t p = {.offset = i * most * unit, .q = first + (uint32_t)i};

    p.elements = r->count - i * most < most ? r->count - i * most : most;
    p.bytes = p.elements * unit;
    return p;
}

/* Where the slice that `rank` sums begins, in bytes of the piece; of `nranks`: its end. */
static size_t slice_at(const reduction_t *r, const piece_t *p, int32_t rank)
{
    return p->elements * (size_t)rank / (size_t)r->comm->nranks * dp_dtype_bytes(r->dtype);
}

static dp_status_t hear(const reduction_t *r, const piece_t *p, bool summed, int32_t from)
{
    dp_comm_t *comm = r->comm;
    base_t *own = &comm->bases[comm->rank];
    dp_status_t status =
        shm_wait(comm, &(summed ? own->summed : own->staged)[from].signal, p->q + 1, "its part has not come");
    cause_t cause;

    if (!shm_is_news(status))
        return status;
    cause = cause_of(comm->host);
    return DP_FAIL(comm->host, status, "rank %d: all_reduce %u of %zu elements in group %s, waiting for rank %d: %s",
                   comm->world[comm->rank], r->number, r->count, comm->name, comm->world[from], cause.text);
}

static void tell(const reduction_t *r, const piece_t *p, bool summed)
{
    dp_comm_t *comm = r->comm;

    for (int32_t i = 1; i < comm->nranks; i++) {
        base_t *far = &comm->bases[(comm->rank + i) % comm->nranks];

        comm->host->post(comm->host, &(summed ? far->summed : far->staged)[comm->rank].signal, p->q + 1);
    }
}

/* Our own slice stays where it is: nobody else reads it. */
static void stage(const reduction_t *r, const piece_t *p)
{
    dp_comm_t *comm = r->comm;
    base_t *own = &comm->bases[comm->rank];
    unsigned char *in = own->in[p->q % 2];
    const unsigned char *data = r->data + p->offset;
    size_t begin = slice_at(r, p, comm->rank), end = slice_at(r, p, comm->rank + 1);

    own->heads[p->q % 2].count = r->count;
    own->heads[p->q % 2].number = r->number;
    own->heads[p->q % 2].dtype = (uint32_t)r->dtype;
    memcpy(in, data, begin);
    memcpy(in + end, data + end, p->bytes - end);
    tell(r, p, false);
}

static dp_status_t check_head(const reduction_t *r, const piece_t *p, int32_t rank)
{
    const dp_comm_t *comm = r->comm;
    reduce_head_t head = comm->bases[rank].heads[p->q % 2];

    if (head.count == r->count && head.number == r->number && head.dtype == (uint32_t)r->dtype)
        return DP_OK;
    return DP_FAIL(comm->host, DP_ERR_PROTOCOL,
                   "rank %d: all_reduce %u in group %s has %zu elements of dtype %d, on rank %d it is %u of "
                   "%llu, dtype %u",
                   comm->world[comm->rank], r->number, comm->name, r->count, (int)r->dtype, comm->world[rank],
                   head.number, (unsigned long long)head.count, head.dtype);
}

static dp_status_t sum(const reduction_t *r, const piece_t *p)
{
    dp_comm_t *comm = r->comm;
    unsigned char *out = comm->bases[comm->rank].out[p->q % 2];
    size_t begin = slice_at(r, p, comm->rank), bytes = slice_at(r, p, comm->rank + 1) - begin;
    dp_status_t status = DP_OK;

    for (int32_t i = 0; i < comm->nranks && status == DP_OK; i++)
        if (i != comm->rank) {
            status = hear(r, p, false, i);
            if (status == DP_OK)
                status = check_head(r, p, i);
        }
    if (status < 0)
        return status;
    for (size_t at = 0; at < bytes; at += SUM_BLOCK_BYTES) {
        size_t block = bytes - at < SUM_BLOCK_BYTES ? bytes - at : SUM_BLOCK_BYTES;

        for (int32_t i = 0; i < comm->nranks; i++) {
            const unsigned char *from = i == comm->rank ? r->data + p->offset : comm->bases[i].in[p->q % 2];

            if (i == 0)
                memcpy(out + at, from + begin + at, block);
            else
                add(out + at, from + begin + at, block, r->dtype);
        }
    }
    tell(r, p, true);
    memcpy(r->data + p->offset + begin, out, bytes);
    return DP_OK;
}

static dp_status_t gather(const reduction_t *r, const piece_t *p)
{
    dp_comm_t *comm = r->comm;

    for (int32_t i = 1; i < comm->nranks; i++) {
        int32_t from = (comm->rank + i) % comm->nranks;
        size_t begin = slice_at(r, p, from), end = slice_at(r, p, from + 1);
        dp_status_t status = hear(r, p, true, from);

        if (status < 0)
            return status;
        memcpy(r->data + p->offset + begin, comm->bases[from].out[p->q % 2], end - begin);
    }
    return DP_OK;
}

static dp_status_t run_reduce(void *arg)
{
    const reduction_t *r = arg;
    dp_comm_t *comm = r->comm;
    size_t most = comm->piece_bytes / dp_dtype_bytes(r->dtype), pieces = (r->count + most - 1) / most;
    uint32_t first = comm->pieces;
    dp_status_t status = DP_OK;

    for (size_t i = 0; i <= pieces && status == DP_OK; i++) {
        piece_t p;

        if (i < pieces) {
            p = piece_of(r, i, first);
            stage(r, &p);
        }
        if (i > 0) {
            p = piece_of(r, i - 1, first);
            status = sum(r, &p);
            if (status == DP_OK)
                status = gather(r, &p);
        }
    }
    comm->pieces = first + (uint32_t)pieces;
    return status;
}

dp_status_t shm_all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s)
{
    reduction_t r = {comm, data, count, comm->reductions, dtype};
    dp_status_t status = check_sum(comm->host, comm->name, dtype);

    if (status < 0)
        return status;
    if (comm->nranks == 1 || count == 0)
        return DP_OK;
    status = comm->device->launch(s, run_reduce, &r, sizeof(r));
    comm->reductions += status == DP_OK;
    return status;
}
