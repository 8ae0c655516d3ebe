/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * mock_comm_threads.c: a second comm backend for tests of the engine: ranks as threads of one process, plain memory. */
#include <dualpipe/comm.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

typedef struct member {
    dp_signal_t phase; /* meetings this rank has come to */
    void *data;        /* what it brought                */
    struct {
        dp_signal_t phase;
        void *data;
    } exchanging; /* the same on the all-to-all lane, which runs beside the others */
} member_t;

/* What the ranks of one group share; found by name, freed with the last of them. */
typedef struct shared {
    struct shared *next;
    char name[96];
    int nranks, open;
    member_t *members;
    struct wire *wires;
} shared_t;

typedef struct wire {
    struct wire *next;
    uint32_t id, slots;
    int src, dst;
    size_t slot_bytes;
    dp_signal_t published, released;
    dp_message_tag_t *tags;
    char *data;
} wire_t;

struct dp_comm {
    const dp_host_t *host;
    const dp_device_vt_t *device;
    shared_t *shared;
    int rank, nranks;
    struct dp_channel_end *ends;
    struct dp_exchange *exchanges;
};

/* Received rows of one rank: [2 slots][nranks][capacity]; peers find it through its owner's comm. */
struct dp_exchange {
    struct dp_exchange *next;
    dp_comm_t *comm;
    dp_exchange_config_t config;
    char *rows;
    int32_t *counts; /* [2][nranks] */
};

struct dp_channel_end {
    struct dp_channel_end *next;
    dp_comm_t *comm;
    wire_t *wire;
};

static struct {
    pthread_mutex_t mutex;
    shared_t *first;
} registry = {PTHREAD_MUTEX_INITIALIZER, NULL};

static void *zeroed(const dp_host_t *h, size_t bytes)
{
    void *memory = h->allocate(h, bytes, 64);

    return memory != NULL ? memset(memory, 0, bytes) : NULL;
}

static shared_t *find_shared(const dp_host_t *h, const dp_comm_config_t *config)
{
    shared_t *s;

    for (s = registry.first; s != NULL; s = s->next)
        if (strcmp(s->name, config->name) == 0)
            return s;
    s = zeroed(h, sizeof(*s));
    snprintf(s->name, sizeof(s->name), "%s", config->name);
    s->nranks = config->nranks;
    s->members = zeroed(h, (size_t)config->nranks * sizeof(member_t));
    s->next = registry.first;
    registry.first = s;
    return s;
}

static dp_status_t threads_open(const dp_host_t *host, const dp_comm_config_t *config, dp_comm_t **comm_out)
{
    dp_comm_t *comm = zeroed(host, sizeof(*comm));

    if (comm == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "no memory");
    *comm = (dp_comm_t){.host = host, .device = config->device_vt, .rank = config->rank, .nranks = config->nranks};
    pthread_mutex_lock(&registry.mutex);
    comm->shared = find_shared(host, config);
    comm->shared->open++;
    pthread_mutex_unlock(&registry.mutex);
    *comm_out = comm;
    return DP_OK;
}

/* Everyone comes, bringing something. */
static dp_status_t meet(dp_comm_t *comm, void *data)
{
    member_t *mine = &comm->shared->members[comm->rank];
    uint32_t phase = __atomic_load_n(&mine->phase.value, __ATOMIC_RELAXED) + 1;
    dp_status_t status = DP_OK;

    if (mine->data != data) /* in the later meetings of one operation others may be reading it */
        mine->data = data;
    comm->host->post(comm->host, &mine->phase, phase);
    for (int r = 0; r < comm->nranks && status >= 0; r++)
        status = comm->host->wait(comm->host, &comm->shared->members[r].phase, phase, -1, "a meeting of threads");
    return status;
}

static void free_shared(const dp_host_t *h, shared_t *s)
{
    for (shared_t **at = &registry.first; *at != NULL; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    while (s->wires != NULL) {
        wire_t *w = s->wires;

        s->wires = w->next;
        h->release(h, w->tags);
        h->release(h, w->data);
        h->release(h, w);
    }
    h->release(h, s->members);
    h->release(h, s);
}

static void threads_close(dp_comm_t *comm)
{
    if (comm == NULL)
        return;
    pthread_mutex_lock(&registry.mutex);
    if (--comm->shared->open == 0)
        free_shared(comm->host, comm->shared);
    pthread_mutex_unlock(&registry.mutex);
    while (comm->ends != NULL) {
        dp_channel_end_t *end = comm->ends;

        comm->ends = end->next;
        comm->host->release(comm->host, end);
    }
    while (comm->exchanges != NULL) {
        dp_exchange_t *x = comm->exchanges;

        comm->exchanges = x->next;
        comm->host->release(comm->host, x->rows);
        comm->host->release(comm->host, x->counts);
        comm->host->release(comm->host, x);
    }
    comm->host->release(comm->host, comm);
}

static void threads_abort(dp_comm_t *comm)
{
    (void)comm; /* waits end with the job's abort */
}

static dp_status_t threads_channel_open(dp_comm_t *comm, const dp_channel_config_t *config, dp_channel_end_t **end_out)
{
    const dp_host_t *h = comm->host;
    int src = config->sender ? comm->rank : config->peer, dst = config->sender ? config->peer : comm->rank;
    dp_channel_end_t *end = zeroed(h, sizeof(*end));
    wire_t *w;

    pthread_mutex_lock(&registry.mutex);
    for (w = comm->shared->wires; w != NULL; w = w->next)
        if (w->id == config->id && w->src == src && w->dst == dst)
            break;
    if (w == NULL) {
        w = zeroed(h, sizeof(*w));
        *w = (wire_t){comm->shared->wires, config->id, config->slots, src, dst, config->slot_bytes, {0, 0}, {0, 0}, NULL, NULL};
        w->tags = zeroed(h, config->slots * sizeof(*w->tags));
        w->data = zeroed(h, config->slots * config->slot_bytes);
        comm->shared->wires = w;
    }
    pthread_mutex_unlock(&registry.mutex);
    *end = (dp_channel_end_t){comm->ends, comm, w};
    comm->ends = end;
    *end_out = end;
    return DP_OK;
}

static dp_status_t threads_exchange_open(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **exchange_out)
{
    const dp_host_t *h = comm->host;
    size_t cells = 2 * (size_t)comm->nranks;
    dp_exchange_t *x = zeroed(h, sizeof(*x));

    *x = (dp_exchange_t){comm->exchanges, comm, *config, NULL, NULL};
    x->rows = zeroed(h, cells * config->capacity_rows * config->row_bytes);
    x->counts = zeroed(h, cells * sizeof(*x->counts));
    comm->exchanges = x;
    *exchange_out = x;
    return DP_OK;
}

typedef struct rows {
    dp_exchange_t *x;
    uint32_t slot;
    const char *send;
    const int32_t *offsets, *counts;
} rows_t;

static dp_status_t meet_exchanging(dp_comm_t *comm, void *data)
{
    member_t *mine = &comm->shared->members[comm->rank];
    uint32_t phase = __atomic_load_n(&mine->exchanging.phase.value, __ATOMIC_RELAXED) + 1;
    dp_status_t status = DP_OK;

    mine->exchanging.data = data;
    comm->host->post(comm->host, &mine->exchanging.phase, phase);
    for (int r = 0; r < comm->nranks && status >= 0; r++)
        status = comm->host->wait(comm->host, &comm->shared->members[r].exchanging.phase, phase, -1, "an exchange of threads");
    return status;
}

/* Everyone shows its receiving memory, everyone writes into everyone's, and nobody goes before all have written. */
static dp_status_t run_exchange(void *arg)
{
    const rows_t *t = arg;
    dp_comm_t *comm = t->x->comm;
    size_t row = t->x->config.row_bytes, capacity = t->x->config.capacity_rows;
    size_t cell = (size_t)t->slot * (size_t)comm->nranks + (size_t)comm->rank;
    dp_status_t status = meet_exchanging(comm, t->x);

    for (int r = 0; r < comm->nranks && status >= 0; r++) {
        dp_exchange_t *to = comm->shared->members[r].exchanging.data;

        if ((size_t)t->counts[r] > capacity)
            return DP_FAIL(comm->host, DP_ERR_OVERFLOW, "%d rows, there is room for %zu", t->counts[r], capacity);
        memcpy(to->rows + cell * capacity * row, t->send + (size_t)t->offsets[r] * row, (size_t)t->counts[r] * row);
        to->counts[cell] = t->counts[r];
    }
    return status >= 0 ? meet_exchanging(comm, t->x) : status;
}

static dp_status_t threads_exchange(dp_exchange_t *x, uint32_t sequence, const void *send, const int32_t *send_offsets,
                                    const int32_t *send_counts, const void **rows_out, const int32_t **counts_out,
                                    dp_stream_t *s)
{
    rows_t t = {x, sequence % 2, send, send_offsets, send_counts};
    size_t cell = (size_t)t.slot * (size_t)x->comm->nranks;

    *rows_out = x->rows + cell * x->config.capacity_rows * x->config.row_bytes;
    *counts_out = x->counts + cell;
    return x->comm->device->launch(s, run_exchange, &t, sizeof(t));
}

/* The meetings of the next exchange are the credit: with two slots nobody is more than one exchange ahead. */
static dp_status_t threads_exchange_release(dp_exchange_t *x, uint32_t sequence, dp_stream_t *s)
{
    (void)x, (void)sequence, (void)s;
    return DP_OK;
}

static dp_status_t threads_start(dp_comm_t *comm)
{
    return meet(comm, NULL);
}

typedef struct transfer {
    dp_channel_end_t *end;
    const void *from;
    dp_message_tag_t tag;
} transfer_t;

static dp_status_t run_send(void *arg)
{
    transfer_t *t = arg;
    wire_t *w = t->end->wire;
    const dp_host_t *h = t->end->comm->host;
    uint32_t slot = t->tag.sequence % w->slots;
    dp_status_t status = h->wait(h, &w->released, t->tag.sequence + 1 - w->slots, -1, "a credit");

    if (status < 0)
        return status;
    memcpy(w->data + slot * w->slot_bytes, t->from, t->tag.bytes);
    w->tags[slot] = t->tag;
    h->post(h, &w->published, t->tag.sequence + 1);
    return DP_OK;
}

static dp_status_t run_recv(void *arg)
{
    transfer_t *t = arg;
    wire_t *w = t->end->wire;
    const dp_host_t *h = t->end->comm->host;
    dp_status_t status = h->wait(h, &w->published, t->tag.sequence + 1, -1, "a message");

    if (status < 0)
        return status;
    if (memcmp(&w->tags[t->tag.sequence % w->slots], &t->tag, sizeof(t->tag)) != 0)
        return DP_FAIL(h, DP_ERR_PROTOCOL, "message %u is not the expected one", t->tag.sequence);
    return DP_OK;
}

static dp_status_t run_release(void *arg)
{
    transfer_t *t = arg;

    t->end->comm->host->post(t->end->comm->host, &t->end->wire->released, t->tag.sequence + 1);
    return DP_OK;
}

static dp_status_t put(dp_channel_end_t *end, dp_launch_fn fn, const void *from, const dp_message_tag_t *tag, dp_stream_t *s)
{
    transfer_t t = {end, from, *tag};

    return end->comm->device->launch(s, fn, &t, sizeof(t));
}

static dp_status_t threads_send(dp_channel_end_t *end, const void *from, const dp_message_tag_t *tag, dp_stream_t *s)
{
    return put(end, run_send, from, tag, s);
}

static dp_status_t threads_recv(dp_channel_end_t *end, const dp_message_tag_t *expected, const void **data_out, dp_stream_t *s)
{
    *data_out = end->wire->data + expected->sequence % end->wire->slots * end->wire->slot_bytes;
    return put(end, run_recv, NULL, expected, s);
}

static dp_status_t threads_release(dp_channel_end_t *end, uint32_t sequence, dp_stream_t *s)
{
    dp_message_tag_t tag = {.sequence = sequence};

    return put(end, run_release, NULL, &tag, s);
}

typedef struct sum {
    dp_comm_t *comm;
    void *data;
    size_t count;
    dp_dtype_t dtype;
} sum_t;

static dp_status_t run_sum(void *arg)
{
    const sum_t *t = arg;
    const member_t *members = t->comm->shared->members;
    size_t n = (size_t)t->comm->nranks, r = (size_t)t->comm->rank, size = dp_dtype_bytes(t->dtype);
    dp_status_t status = meet(t->comm, t->data);

    for (size_t i = t->count * r / n; i < t->count * (r + 1) / n && status >= 0; i++) {
        double d = t->dtype == DP_F64 ? ((double *)members[0].data)[i] : 0;
        float f = t->dtype == DP_F32 ? ((float *)members[0].data)[i] : 0;

        for (size_t q = 1; q < n; q++) {
            d += t->dtype == DP_F64 ? ((double *)members[q].data)[i] : 0;
            f += t->dtype == DP_F32 ? ((float *)members[q].data)[i] : 0;
        }
        if (t->dtype == DP_F64)
            ((double *)t->data)[i] = d;
        else
            ((float *)t->data)[i] = f;
    }
    if (status >= 0)
        status = meet(t->comm, t->data);
    for (size_t q = 0; q < n && status >= 0; q++) {
        size_t from = t->count * q / n, to = t->count * (q + 1) / n;

        if (q != r)
            memcpy((char *)t->data + from * size, (char *)members[q].data + from * size, (to - from) * size);
    }
    return status >= 0 ? meet(t->comm, t->data) : status; /* others still read what we brought */
}

static dp_status_t threads_all_reduce(dp_comm_t *comm, void *data, size_t count, dp_dtype_t dtype, dp_stream_t *s)
{
    sum_t t = {comm, data, count, dtype};

    return comm->device->launch(s, run_sum, &t, sizeof(t));
}

static dp_status_t run_meet(void *arg)
{
    return meet(((const sum_t *)arg)->comm, NULL);
}

static dp_status_t threads_barrier(dp_comm_t *comm, dp_stream_t *s)
{
    sum_t t = {comm, NULL, 0, DP_F64};

    return comm->device->launch(s, run_meet, &t, sizeof(t));
}

static size_t threads_memory_bytes(dp_comm_t *comm)
{
    (void)comm;
    return 0;
}

static const dp_comm_vt_t table = {
    .struct_size = sizeof(table),
    .caps = DP_COMM_CAP_ONE_SIDED | DP_COMM_CAP_HOST_INLINE,
    .open = threads_open,
    .close = threads_close,
    .abort = threads_abort,
    .channel_open = threads_channel_open,
    .exchange_open = threads_exchange_open,
    .start = threads_start,
    .send = threads_send,
    .recv = threads_recv,
    .release = threads_release,
    .exchange = threads_exchange,
    .exchange_release = threads_exchange_release,
    .all_reduce = threads_all_reduce,
    .barrier = threads_barrier,
    .memory_bytes = threads_memory_bytes,
};

static const void *get_interface(const char *id)
{
    return strcmp(id, DP_IFACE_COMM) == 0 ? &table : NULL;
}

DP_PLUGIN_DEFINE(mock_comm_threads) = {DP_PLUGIN_HEAD, "mock_comm_threads", "0.1", "threads of one process", NULL, NULL,
                                       get_interface};
