/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * inline.h: a device that does its work at once, in the caller, and a comm whose ranks are threads
 * of this process and which offers exchanges alone. Small enough to be right by reading; for tests
 * and benches of blocks. */
#ifndef DP_TESTS_INLINE_H
#define DP_TESTS_INLINE_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <dualpipe/moe.h>

enum { INLINE_RANKS = 8, INLINE_EXCHANGES = 8 };

/* ---- device: a stream is nothing but a status, which the first failing launch sets ---- */

struct dp_device {
    int nothing;
};

struct dp_stream {
    dp_status_t status;
    size_t launches;
};

static inline dp_status_t inline_launch(dp_stream_t *s, dp_launch_fn fn, const void *arg, size_t bytes)
{
    union {
        char bytes[DP_LAUNCH_ARG_MAX];
        max_align_t aligned;
    } copy;

    if (bytes > sizeof(copy.bytes))
        return DP_ERR_INVALID;
    memcpy(copy.bytes, arg, bytes);
    s->launches++;
    if (s->status == DP_OK)
        s->status = fn(copy.bytes);
    memset(&copy, 0xff, sizeof(copy));
    return DP_OK;
}

static const dp_device_vt_t inline_device_vt = {
    .struct_size = sizeof(inline_device_vt),
    .kind = "cpu",
    .caps = DP_DEVICE_CAP_HOST_MEMORY | DP_DEVICE_CAP_LAUNCH,
    .launch = inline_launch,
};

/* ---- comm ---- */

typedef struct inline_group {
    pthread_barrier_t gathering;
    struct {
        const char *send;
        const int32_t *offsets, *counts;
        uint32_t id, sequence;
    } post[INLINE_RANKS];
    struct dp_comm {
        struct inline_group *group;
        int32_t rank, nranks;
        dp_exchange_t *exchanges[INLINE_EXCHANGES];
        int32_t opened;
        /* what exchange() and exchange_open() answer unless DP_OK */
        dp_status_t refuse;
        /* sees what arrived before the receiver does; round: of all */
        void (*tamper)(dp_exchange_t *e, int32_t round);
        int32_t rounds;
    } comms[INLINE_RANKS];
} inline_group_t;

struct dp_exchange {
    dp_comm_t *comm;
    dp_exchange_config_t config;
    uint32_t next, released;
    char *rows; /* one slot: whoever holds it for long is found out */
    int32_t counts[INLINE_RANKS];
};

static inline size_t inline_pair_bytes(const dp_exchange_t *e)
{
    return e->config.capacity_rows * e->config.row_bytes;
}

static inline dp_status_t inline_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **out)
{
    dp_exchange_t *e;

    if (comm->refuse != DP_OK)
        return comm->refuse;
    if (comm->opened == INLINE_EXCHANGES || config->row_bytes % 16 != 0 || config->struct_size != sizeof(*config))
        return DP_ERR_INVALID;
    e = calloc(1, sizeof(*e));
    if (e == NULL)
        return DP_ERR_NOMEM;
    e->comm = comm;
    e->config = *config;
    /* one more for tampering */
    e->rows = malloc((size_t)comm->nranks * inline_pair_bytes(e) + config->row_bytes);
    if (e->rows == NULL) {
        free(e);
        return DP_ERR_NOMEM;
    }
    comm->exchanges[comm->opened++] = e;
    *out = e;
    return DP_OK;
}

/* Every rank posts, all meet, each copies what is for it, all meet again. */
static inline dp_status_t inline_exchange(dp_exchange_t *e, uint32_t sequence, const void *send, const int32_t *offsets,
                                          const int32_t *counts, const void **rows_out, const int32_t **counts_out,
                                          dp_stream_t *s)
{
    dp_comm_t *comm = e->comm;
    inline_group_t *group = comm->group;
    int32_t p;

    if (comm->refuse != DP_OK)
        return comm->refuse;
    if (sequence != e->next || e->released != e->next)
        return DP_ERR_PROTOCOL;
    group->post[comm->rank].send = send;
    group->post[comm->rank].offsets = offsets;
    group->post[comm->rank].counts = counts;
    group->post[comm->rank].id = e->config.id;
    group->post[comm->rank].sequence = sequence;
    pthread_barrier_wait(&group->gathering);
    for (p = 0; p < comm->nranks; p++) {
        const int32_t count = group->post[p].counts[comm->rank];

        if (group->post[p].id != e->config.id || group->post[p].sequence != sequence)
            s->status = DP_ERR_PROTOCOL;
        else if (count < 0 || count > (int32_t)e->config.capacity_rows)
            s->status = DP_ERR_OVERFLOW;
        e->counts[p] = count;
        if (s->status == DP_OK)
            memcpy(e->rows + (size_t)p * inline_pair_bytes(e),
                   group->post[p].send + (size_t)group->post[p].offsets[comm->rank] * e->config.row_bytes,
                   (size_t)count * e->config.row_bytes);
    }
    pthread_barrier_wait(&group->gathering);
    if (comm->tamper != NULL)
        comm->tamper(e, comm->rounds);
    comm->rounds++;
    e->next++;
    *rows_out = e->rows;
    *counts_out = e->counts;
    return DP_OK;
}

/* What was received is gone, visibly. */
static inline dp_status_t inline_exchange_release(dp_exchange_t *e, uint32_t sequence, dp_stream_t *s)
{
    int32_t p;

    (void)s;
    if (sequence != e->released || e->next != sequence + 1)
        return DP_ERR_PROTOCOL;
    e->released++;
    for (p = 0; p < e->comm->nranks; p++)
        if (e->counts[p] > 0 && e->counts[p] <= (int32_t)e->config.capacity_rows)
            memset(e->rows + (size_t)p * inline_pair_bytes(e), 0xff, (size_t)e->counts[p] * e->config.row_bytes);
    memset(e->counts, 0xff, sizeof(e->counts));
    return DP_OK;
}

static const dp_comm_vt_t inline_comm_vt = {
    .struct_size = sizeof(inline_comm_vt),
    .caps = DP_COMM_CAP_ONE_SIDED,
    .exchange_open = inline_exchange_open,
    .exchange = inline_exchange,
    .exchange_release = inline_exchange_release,
};

static inline void inline_group_open(inline_group_t *group, int32_t nranks)
{
    int32_t r;

    memset(group, 0, sizeof(*group));
    pthread_barrier_init(&group->gathering, NULL, (unsigned)nranks);
    for (r = 0; r < nranks; r++) {
        group->comms[r].group = group;
        group->comms[r].rank = r;
        group->comms[r].nranks = nranks;
    }
}

static inline void inline_group_close(inline_group_t *group)
{
    int32_t r, i;

    for (r = 0; r < INLINE_RANKS; r++)
        for (i = 0; i < group->comms[r].opened; i++) {
            free(group->comms[r].exchanges[i]->rows);
            free(group->comms[r].exchanges[i]);
        }
    pthread_barrier_destroy(&group->gathering);
}

#endif
