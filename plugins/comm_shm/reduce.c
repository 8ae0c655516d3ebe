/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * reduce.c: barriers, and all_reduce as reduce-scatter plus all-gather over shared staging, or
 * either of the two alone.
 *
 * Reductions work in blocks, numbered q over the life of the instance, with two buffers for each
 * purpose. Of a block each rank sums, or gives, a slice:
 *   stage q     our data of block q --> our in[q % 2] post staged >= q + 1 at all
 *   sum q       all ranks' in[q % 2], our slice of it, added in rank order --> out[q % 2] post
 *               summed >= q + 1 at all
 *   gather q    all ranks' out[q % 2] --> our data
 * in the order stage q+1, sum q, gather q. in[q % 2] is free for q + 2 because gather q has seen
 * all sums of q, which read it; out[q % 2] is free for q + 2 because sum q+2 has seen all stage
 * q+2, which every rank does after its gather q. So reduce_scatter, which gathers nothing, and
 * all_gather, which stages nothing and sums nothing, post and hear the same. */
#include "comm_shm.h"

#include "plugins/comm/sums.h"
#include "plugins/common/do.h"

#include <string.h>

#define REDUCE_BYTES (1 << 20)
#define BLOCK_MIN    4096

typedef enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER } kind_t;

static const char *const kind_names[] = {"all_reduce", "reduce_scatter", "all_gather"};

/* What a staged block belongs to: it finds out a rank that reduces something else. */
typedef struct reduce_head {
    alignas(CACHE_LINE) uint64_t count;
    uint64_t parts;
    uint32_t number, dtype, kind;
} reduce_head_t;

typedef struct reduction {
    dp_comm_t *comm;
    unsigned char *data;
    /* [nranks + 1] parts of ranks, elements; NULL: each has its slice of each block */
    const size_t *bounds;
    size_t count, width; /* elements: of all, of the largest slice */
    uint64_t parts;      /* digest of bounds */
    uint32_t number;
    dp_dtype_t dtype;
    kind_t kind;
} reduction_t;

/* ---- layout of AREA_BASE ---- */

void shm_base_size(dp_comm_t *comm, size_t reduce_bytes)
{
    size_t budget = reduce_bytes != 0 ? reduce_bytes : REDUCE_BYTES;

    comm->block_bytes = budget / 4 / CACHE_LINE * CACHE_LINE;
    if (comm->block_bytes < BLOCK_MIN)
        comm->block_bytes = BLOCK_MIN;
}

/* The largest slice of a block. */
static size_t slice_room(const dp_comm_t *comm)
{
    return comm_round_line(comm->block_bytes / (size_t)comm->nranks + 8);
}

area_t shm_base_area(const dp_comm_t *comm)
{
    size_t n = (size_t)comm->nranks;
    area_t area = {
        .kind = AREA_BASE,
        .peer = -1,
        .unit = comm->block_bytes,
        .bytes = (MEET_ROUNDS + 2 * n) * sizeof(line_t) + 2 * sizeof(reduce_head_t) +
                 2 * (comm->block_bytes + slice_room(comm)),
    };

    return area;
}

void shm_base_connect(dp_comm_t *comm, int32_t rank, unsigned char *at)
{
    base_t *base = &comm->bases[rank];

    base->meet = (line_t *)(void *)at;
    base->staged = base->meet + MEET_ROUNDS;
    base->summed = base->staged + comm->nranks;
    base->heads = (reduce_head_t *)(void *)(base->summed + comm->nranks);
    base->in[0] = (unsigned char *)(base->heads + 2);
    base->in[1] = base->in[0] + comm->block_bytes;
    base->out[0] = base->in[1] + comm->block_bytes;
    base->out[1] = base->out[0] + slice_room(comm);
}

/* ---- barriers ---- */

/* Dissemination: in round k each rank hears from the one 2^k before it. */
dp_status_t shm_meet(dp_comm_t *comm)
{
    const dp_host_t *host = comm->host;
    uint32_t number = ++comm->barriers;

    for (int32_t k = 0, step = 1; step < comm->nranks; k++, step *= 2) {
        int32_t to = (comm->rank + step) % comm->nranks, from = (comm->rank + comm->nranks - step) % comm->nranks;
        dp_status_t status;

        host->post(host, &comm->bases[to].meet[k].signal, number);
        status = shm_wait(comm, &comm->bases[comm->rank].meet[k].signal, number, "a rank has not come");
        if (shm_is_news(status)) {
            cause_t cause = comm_cause_of(comm->host);

            return DP_FAIL(host, status, "rank %d: barrier of group %s, waiting for rank %d: %s",
                           comm->world[comm->rank], comm->name, comm->world[from], cause.text);
        }
        if (status < 0)
            return status;
    }
    return DP_OK;
}

/* ---- sums ---- */

/* Block i of a reduction, staged in buffer q % 2. */
typedef struct block {
    size_t i;
    uint32_t q;
} block_t;

/* What a rank sums of a block, or gives: bytes. */
typedef struct slice {
    size_t data, in, bytes; /* where it begins in the data, and where it is staged */
} slice_t;

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static slice_t slice_of(const reduction_t *r, const block_t *p, int32_t rank)
{
    const size_t n = (size_t)r->comm->nranks, at = (size_t)rank, unit = dp_dtype_bytes(r->dtype);
    size_t begin, part;

    if (r->bounds == NULL) {
        begin = p->i * r->width * n;
        part = least(r->count - begin, r->width * n);
        return (slice_t){(begin + part * at / n) * unit, part * at / n * unit,
                         (part * (at + 1) / n - part * at / n) * unit};
    }
    part = r->bounds[at + 1] - r->bounds[at];
    begin = least(p->i * r->width, part);
    return (slice_t){(r->bounds[at] + begin) * unit, at * r->width * unit, least(part - begin, r->width) * unit};
}

static size_t count_blocks(const reduction_t *r)
{
    size_t most = r->bounds == NULL ? (r->count + (size_t)r->comm->nranks - 1) / (size_t)r->comm->nranks : 0;

    for (int32_t i = 0; r->bounds != NULL && i < r->comm->nranks; i++)
        if (r->bounds[i + 1] - r->bounds[i] > most)
            most = r->bounds[i + 1] - r->bounds[i];
    return (most + r->width - 1) / r->width;
}

static dp_status_t hear_block(const reduction_t *r, const block_t *p, bool summed, int32_t from)
{
    dp_comm_t *comm = r->comm;
    base_t *own = &comm->bases[comm->rank];
    dp_status_t status =
        shm_wait(comm, &(summed ? own->summed : own->staged)[from].signal, p->q + 1, "its part has not come");
    cause_t cause;

    if (!shm_is_news(status))
        return status;
    cause = comm_cause_of(comm->host);
    return DP_FAIL(comm->host, status, "rank %d: %s %u of %zu elements in group %s, waiting for rank %d: %s",
                   comm->world[comm->rank], kind_names[r->kind], r->number, r->count, comm->name, comm->world[from],
                   cause.text);
}

static void tell_block(const reduction_t *r, const block_t *p, bool summed)
{
    dp_comm_t *comm = r->comm;

    for (int32_t i = 1; i < comm->nranks; i++) {
        base_t *far = &comm->bases[(comm->rank + i) % comm->nranks];

        comm->host->post(comm->host, &(summed ? far->summed : far->staged)[comm->rank].signal, p->q + 1);
    }
}

/* Our own slice stays where it is: nobody else reads it. */
static void stage(const reduction_t *r, const block_t *p)
{
    dp_comm_t *comm = r->comm;
    base_t *own = &comm->bases[comm->rank];

    own->heads[p->q % 2] = (reduce_head_t){r->count, r->parts, r->number, (uint32_t)r->dtype, r->kind};
    for (int32_t i = 0; i < comm->nranks && r->kind != ALL_GATHER; i++) {
        const slice_t slice = slice_of(r, p, i);

        if (i != comm->rank)
            memcpy(own->in[p->q % 2] + slice.in, r->data + slice.data, slice.bytes);
    }
    tell_block(r, p, false);
}

static dp_status_t check_head(const reduction_t *r, const block_t *p, int32_t rank)
{
    const dp_comm_t *comm = r->comm;
    reduce_head_t head = comm->bases[rank].heads[p->q % 2];

    if (head.count == r->count && head.number == r->number && head.dtype == (uint32_t)r->dtype &&
        head.kind == (uint32_t)r->kind && head.parts == r->parts)
        return DP_OK;
    return DP_FAIL(
        comm->host, DP_ERR_PROTOCOL,
        "rank %d: %s %u in group %s has %zu elements of dtype %d, on rank %d it is %s %u of %llu, dtype %u%s",
        comm->world[comm->rank], kind_names[r->kind], r->number, comm->name, r->count, (int)r->dtype, comm->world[rank],
        head.kind <= ALL_GATHER ? kind_names[head.kind] : "something", head.number, (unsigned long long)head.count,
        head.dtype, head.parts != r->parts ? ", in other parts" : "");
}

static void add_slices(const reduction_t *r, const block_t *p, const slice_t *slice, unsigned char *out)
{
    const dp_comm_t *comm = r->comm;

    for (size_t at = 0; at < slice->bytes; at += SUM_CACHE_BYTES) {
        size_t some = least(slice->bytes - at, SUM_CACHE_BYTES);

        for (int32_t i = 0; i < comm->nranks; i++) {
            const unsigned char *from =
                i == comm->rank ? r->data + slice->data : comm->bases[i].in[p->q % 2] + slice->in;

            if (i == 0)
                memcpy(out + at, from + at, some);
            else
                comm_add_values(out + at, from + at, some, r->dtype);
        }
    }
}

static dp_status_t sum_block(const reduction_t *r, const block_t *p)
{
    dp_comm_t *comm = r->comm;
    unsigned char *out = comm->bases[comm->rank].out[p->q % 2];
    const slice_t slice = slice_of(r, p, comm->rank);
    dp_status_t status = DP_OK;

    for (int32_t i = 0; i < comm->nranks && status == DP_OK; i++)
        if (i != comm->rank) {
            status = hear_block(r, p, false, i);
            if (status == DP_OK)
                status = check_head(r, p, i);
        }
    if (status < 0)
        return status;
    if (r->kind == ALL_GATHER)
        memcpy(out, r->data + slice.data, slice.bytes);
    else
        add_slices(r, p, &slice, out);
    tell_block(r, p, true);
    if (r->kind != ALL_GATHER)
        memcpy(r->data + slice.data, out, slice.bytes);
    return DP_OK;
}

static dp_status_t gather_block(const reduction_t *r, const block_t *p)
{
    dp_comm_t *comm = r->comm;

    for (int32_t i = 1; i < comm->nranks; i++) {
        int32_t from = (comm->rank + i) % comm->nranks;
        const slice_t slice = slice_of(r, p, from);
        dp_status_t status = hear_block(r, p, true, from);

        if (status < 0)
            return status;
        if (r->kind != REDUCE_SCATTER)
            memcpy(r->data + slice.data, comm->bases[from].out[p->q % 2], slice.bytes);
    }
    return DP_OK;
}

static dp_status_t run_reduce(void *arg)
{
    const reduction_t *r = arg;
    dp_comm_t *comm = r->comm;
    size_t blocks = count_blocks(r);
    uint32_t first = comm->blocks;
    dp_status_t status = DP_OK;

    for (size_t i = 0; i <= blocks && status == DP_OK; i++) {
        block_t p = {i, first + (uint32_t)i};

        if (i < blocks)
            stage(r, &p);
        if (i > 0) {
            p = (block_t){i - 1, first + (uint32_t)(i - 1)};
            status = sum_block(r, &p);
            if (status == DP_OK)
                status = gather_block(r, &p);
        }
    }
    comm->blocks = first + (uint32_t)blocks;
    return status;
}

static uint64_t digest(const size_t *bounds, int32_t n)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */

    for (int32_t i = 0; bounds != NULL && i <= n; i++)
        h = (h ^ bounds[i]) * 1099511628211u;
    return h;
}

static dp_status_t enqueue_sum(reduction_t *r, dp_stream_t *s)
{
    dp_comm_t *comm = r->comm;

    DO(r->kind == ALL_GATHER ? DP_OK : comm_check_sum(comm->host, comm->name, r->dtype));
    if (comm->nranks == 1 || r->count == 0)
        return DP_OK;
    r->number = comm->reductions;
    r->width = comm->block_bytes / dp_dtype_bytes(r->dtype) / (size_t)comm->nranks;
    r->parts = digest(r->bounds, comm->nranks);
    DO(comm->device->launch(s, run_reduce, r, sizeof(*r)));
    comm->reductions++;
    return DP_OK;
}

dp_status_t shm_all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s)
{
    reduction_t r = {.comm = comm, .data = data, .count = count, .dtype = dtype, .kind = ALL_REDUCE};

    return enqueue_sum(&r, s);
}

static dp_status_t check_bounds(dp_comm_t *comm, kind_t kind, const void *data, const size_t *bounds)
{
    bool right = bounds != NULL && bounds[0] == 0 && (kind != ALL_GATHER || (uintptr_t)data % sizeof(uint64_t) == 0);

    for (int32_t i = 0; right && i < comm->nranks; i++)
        right = bounds[i] <= bounds[i + 1] && (kind != ALL_GATHER || bounds[i + 1] % sizeof(uint64_t) == 0);
    if (right)
        return DP_OK;
    return DP_FAIL(comm->host, DP_ERR_INVALID, "rank %d: %s in group %s: bounds must rise from 0%s",
                   comm->world[comm->rank], kind_names[kind], comm->name,
                   kind == ALL_GATHER ? ", they and data in multiples of 8" : "");
}

dp_status_t shm_reduce_scatter(dp_comm_t *comm, void *data, const size_t *bounds, dp_dtype_t dtype, dp_stream_t *s)
{
    reduction_t r = {.comm = comm, .data = data, .bounds = bounds, .dtype = dtype, .kind = REDUCE_SCATTER};

    DO(check_bounds(comm, r.kind, data, bounds));
    r.count = bounds[comm->nranks];
    return enqueue_sum(&r, s);
}

/* Elements are bytes here, for no arithmetic is done. */
dp_status_t shm_all_gather(dp_comm_t *comm, void *data, const size_t *bounds, dp_stream_t *s)
{
    reduction_t r = {.comm = comm, .data = data, .bounds = bounds, .dtype = DP_U8, .kind = ALL_GATHER};

    DO(check_bounds(comm, r.kind, data, bounds));
    r.count = bounds[comm->nranks];
    return enqueue_sum(&r, s);
}
