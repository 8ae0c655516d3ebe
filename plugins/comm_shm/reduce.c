/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * reduce.c: meetings, barriers, and sums in rank order.
 *
 * A sum goes piece by piece through two sets of staging: every rank lays its piece open, adds its own slice of everybody's in
 * rank order, lays that open, and copies the others'. The `staged` of piece p + 1 tells that a rank has copied all of piece p,
 * so with two sets nothing is overwritten that somebody still reads. */
#include "comm_shm.h"

#include <string.h>

/* What a staged piece belongs to; ranks that call with different arguments find out here. */
typedef struct reduce_head {
    alignas(LINE_BYTES) uint64_t count;
    uint32_t reduction;
    int32_t dtype;
} reduce_head_t;

static size_t slice_bytes(const dp_comm_t *comm)
{
    return round_line(comm->piece_bytes / (size_t)comm->nranks + 2 * sizeof(double));
}

area_t base_area(const dp_comm_t *comm)
{
    size_t lines = 2 * MEET_ROUNDS + 2 * (size_t)comm->nranks;

    return (area_t){
        .kind = AREA_BASE,
        .peer = -1,
        .unit = comm->piece_bytes,
        .bytes = lines * sizeof(line_t) + 2 * (sizeof(reduce_head_t) + comm->piece_bytes + slice_bytes(comm)),
    };
}

void base_connect(dp_comm_t *comm, int32_t rank, unsigned char *at)
{
    base_t *b = &comm->bases[rank];
    size_t n = (size_t)comm->nranks;

    b->meet = (line_t *)(void *)at;
    b->barrier = b->meet + MEET_ROUNDS;
    b->staged = b->barrier + MEET_ROUNDS;
    b->summed = b->staged + n;
    b->heads = (reduce_head_t *)(void *)(b->summed + n);
    b->in[0] = (unsigned char *)(b->heads + 2);
    b->in[1] = b->in[0] + comm->piece_bytes;
    b->out[0] = b->in[1] + comm->piece_bytes;
    b->out[1] = b->out[0] + slice_bytes(comm);
}

/* Dissemination: in round k everybody tells the rank 2^k further on, and hears from the one 2^k behind. */
static dp_status_t come_together(dp_comm_t *comm, size_t lines, uint32_t number, const char *what)
{
    dp_status_t status = DP_OK;

    for (int32_t k = 0, step = 1; step < comm->nranks && status >= 0; k++, step *= 2) {
        line_t *theirs = (line_t *)(void *)((unsigned char *)comm->bases[(comm->rank + step) % comm->nranks].meet + lines);
        line_t *ours = (line_t *)(void *)((unsigned char *)comm->bases[comm->rank].meet + lines);

        comm->host->post(comm->host, &theirs[k].signal, number);
        status = shm_wait(comm, &ours[k].signal, number, what);
    }
    return status;
}

dp_status_t shm_meet(dp_comm_t *comm)
{
    return come_together(comm, 0, ++comm->meetings, "all ranks of the group to meet");
}

typedef struct barrier_run {
    dp_comm_t *comm;
    uint32_t number;
} barrier_run_t;

static dp_status_t run_barrier(void *arg)
{
    const barrier_run_t *t = arg;

    return come_together(t->comm, MEET_ROUNDS * sizeof(line_t), t->number, "all ranks of the group at a barrier");
}

dp_status_t shm_barrier(dp_comm_t *comm, dp_stream_t *s)
{
    barrier_run_t t = {comm, comm->barriers + 1};
    dp_status_t status = comm->nranks > 1 ? comm->device->launch(s, run_barrier, &t, sizeof(t)) : DP_OK;

    comm->barriers += status >= 0;
    return status;
}

/* ---- sums ---- */

typedef struct reduction {
    dp_comm_t *comm;
    unsigned char *data;
    size_t count;
    uint32_t number;
    dp_dtype_t dtype;
} reduction_t;

/* Elements [first, first + n) of a piece of `count` belong to `rank`. */
static size_t slice_start(const dp_comm_t *comm, size_t count, int32_t rank)
{
    return count / (size_t)comm->nranks * (size_t)rank +
           ((size_t)rank < count % (size_t)comm->nranks ? (size_t)rank : count % (size_t)comm->nranks);
}

static void add_f32(float *restrict to, const float *restrict from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += from[i];
}

static void add_f64(double *restrict to, const double *restrict from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += from[i];
}

static void add_i64(uint64_t *restrict to, const uint64_t *restrict from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += from[i]; /* two's complement: wraps like any 64-bit counter */
}

static void add(dp_dtype_t dtype, unsigned char *to, const unsigned char *from, size_t n)
{
    if (dtype == DP_F32)
        add_f32((float *)(void *)to, (const float *)(const void *)from, n);
    else if (dtype == DP_F64)
        add_f64((double *)(void *)to, (const double *)(const void *)from, n);
    else
        add_i64((uint64_t *)(void *)to, (const uint64_t *)(const void *)from, n);
}

/* Tells everybody, then hears from everybody. `lines`: staged or summed, of each base. */
static dp_status_t tell_all(dp_comm_t *comm, int summed, uint32_t number)
{
    dp_status_t status = DP_OK;

    for (int32_t r = 0; r < comm->nranks; r++) {
        base_t *b = &comm->bases[r];

        if (r != comm->rank)
            comm->host->post(comm->host, &(summed ? b->summed : b->staged)[comm->rank].signal, number);
    }
    for (int32_t r = 0; r < comm->nranks && status >= 0; r++) {
        base_t *b = &comm->bases[comm->rank];

        if (r != comm->rank)
            status = shm_wait(comm, &(summed ? b->summed : b->staged)[r].signal, number, "the other ranks of a sum");
        if (status == DP_ERR_TIMEOUT)
            status = DP_FAIL(comm->host, status, "rank %d: rank %d does not come to a sum over group %s",
                             comm->world[comm->rank], comm->world[r], comm->name);
    }
    return status;
}

static dp_status_t check_heads(const reduction_t *t, uint32_t set)
{
    const dp_comm_t *comm = t->comm;

    for (int32_t r = 0; r < comm->nranks; r++) {
        reduce_head_t h = comm->bases[r].heads[set];

        if (h.count != t->count || h.reduction != t->number || h.dtype != (int32_t)t->dtype)
            return DP_FAIL(comm->host, DP_ERR_PROTOCOL,
                           "rank %d: sum %u over group %s of %zu elements of dtype %d meets sum %u of %llu elements of dtype "
                           "%d on rank %d",
                           comm->world[comm->rank], t->number, comm->name, t->count, (int)t->dtype, h.reduction,
                           (unsigned long long)h.count, h.dtype, comm->world[r]);
    }
    return DP_OK;
}

static dp_status_t sum_piece(const reduction_t *t, unsigned char *data, size_t count)
{
    dp_comm_t *comm = t->comm;
    uint32_t number = ++comm->pieces, set = number % 2;
    size_t size = dp_dtype_bytes(t->dtype), first = slice_start(comm, count, comm->rank);
    size_t n = slice_start(comm, count, comm->rank + 1) - first;
    base_t *own = &comm->bases[comm->rank];
    dp_status_t status;

    memcpy(own->in[set], data, count * size);
    own->heads[set] = (reduce_head_t){t->count, t->number, (int32_t)t->dtype};
    status = tell_all(comm, 0, number);
    if (status >= 0)
        status = check_heads(t, set);
    if (status < 0)
        return status;
    memcpy(own->out[set], comm->bases[0].in[set] + first * size, n * size);
    for (int32_t r = 1; r < comm->nranks; r++)
        add(t->dtype, own->out[set], comm->bases[r].in[set] + first * size, n);
    status = tell_all(comm, 1, number);
    for (int32_t r = 0; r < comm->nranks && status >= 0; r++) {
        size_t from = slice_start(comm, count, r);

        memcpy(data + from * size, comm->bases[r].out[set], (slice_start(comm, count, r + 1) - from) * size);
    }
    return status;
}

static dp_status_t run_reduction(void *arg)
{
    const reduction_t *t = arg;
    size_t size = dp_dtype_bytes(t->dtype), room = t->comm->piece_bytes / size;
    dp_status_t status = DP_OK;

    for (size_t at = 0; at < t->count && status >= 0; at += room)
        status = sum_piece(t, t->data + at * size, t->count - at < room ? t->count - at : room);
    return status;
}

dp_status_t shm_all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s)
{
    reduction_t t = {comm, data, count, comm->reductions + 1, dtype};
    dp_status_t status = DP_OK;

    if (dtype != DP_F32 && dtype != DP_F64 && dtype != DP_I64)
        return DP_FAIL(comm->host, DP_ERR_UNSUPPORTED, "group %s: sums of dtype %d: f32, f64 and i64 are possible", comm->name,
                       (int)dtype);
    if (comm->nranks > 1 && count > 0)
        status = comm->device->launch(s, run_reduction, &t, sizeof(t));
    comm->reductions += status >= 0;
    return status;
}
