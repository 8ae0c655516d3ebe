/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * exchanges.c: see exchanges.h. */
#include "exchanges.h"

#include "device_work.h"

#include <stdlib.h>
#include <string.h>

enum { EXCHANGES = 4, SLOTS_MAX = 8 };

/* What a rank brings to the exchange that is on. */
typedef struct post {
    const unsigned char *send;
    int32_t offsets[CONFORM_RANKS_MAX], counts[CONFORM_RANKS_MAX];
    uint32_t id, number;
} post_t;

struct dp_exchange {
    dp_comm_t *comm;
    dp_exchange_config_t config;
    char label[64];
    uint32_t slots, next, awaited, released;
    post_t posted[SLOTS_MAX];
    area_t rows[SLOTS_MAX], counts[SLOTS_MAX];
    int64_t sent[CONFORM_RANKS_MAX]; /* rows, to each rank */
};

struct dp_comm {
    lab_t *lab;
    int32_t rank, ranks;
    post_t *posts; /* of all ranks */
    post_t own;    /* of a rank alone */
    int32_t opened;
    uint32_t rounds;
    dp_exchange_t exchanges[EXCHANGES];
};

/* of the case's ranks: all make the same calls, so one exchange is on */
static post_t everyones[CONFORM_RANKS_MAX];

#define REFUSE(comm, status, ...)                                                                                      \
    do {                                                                                                               \
        conform_fail((comm)->lab->t, __FILE__, __LINE__, __VA_ARGS__);                                                 \
        return (status);                                                                                               \
    } while (0)

static dp_status_t open_threaded_exchange(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **out)
{
    dp_exchange_t *e = &comm->exchanges[comm->opened];

    if (comm->lab->refuse != DP_OK)
        return DP_FAIL(comm->lab->host, comm->lab->refuse, "the comm refuses");
    if (DP_TAKE(comm->lab->host, "an exchange's config", dp_exchange_config_t, DP_EXCHANGE_CONFIG_MIN, NULL, config) <
        0)
        REFUSE(comm, DP_ERR_INVALID, "an exchange is opened with a config of %u bytes", config->struct_size);
    if (comm->opened == EXCHANGES || config->id < EXCHANGES_FIRST_ID || config->id >= EXCHANGES_FIRST_ID + EXCHANGES)
        REFUSE(comm, DP_ERR_INVALID, "exchange %u is opened: four are the instance's, from exchange_id %u on",
               config->id, EXCHANGES_FIRST_ID);
    for (int32_t i = 0; i < comm->opened; i++)
        if (comm->exchanges[i].config.id == config->id)
            REFUSE(comm, DP_ERR_INVALID, "exchange %u is opened twice", config->id);
    if (config->row_bytes == 0 || config->row_bytes % 16 != 0)
        REFUSE(comm, DP_ERR_INVALID, "rows of %zu bytes: they have to be a multiple of 16", config->row_bytes);
    if (config->capacity_rows == 0 || config->slots > SLOTS_MAX)
        REFUSE(comm, DP_ERR_INVALID, "an exchange of %u rows and %u slots", config->capacity_rows, config->slots);
    memset(e, 0, sizeof(*e));
    e->comm = comm;
    if (dp_sized_take(&e->config, sizeof(e->config), config) != 0)
        REFUSE(comm, DP_ERR_UNSUPPORTED, "exchange %u: dp_exchange_config_t asks for what the kit does not know",
               config->id);
    e->slots = config->slots != 0 ? config->slots : 2;
    for (uint32_t i = 0; i < e->slots; i++)
        if (!conform_area_open(comm->lab, &e->rows[i], "the rows that were received", DP_F32,
                               (size_t)comm->ranks * config->capacity_rows * config->row_bytes, 0) ||
            !conform_area_open(comm->lab, &e->counts[i], "the counts of rows that were received", DP_F32,
                               (size_t)comm->ranks * sizeof(int32_t), 0))
            return DP_ERR_NOMEM;
    comm->opened++;
    *out = e;
    return DP_OK;
}

static bool tamper(dp_exchange_t *e, uint32_t slot, int32_t *counts)
{
    lab_t *lab = e->comm->lab;
    unsigned char *rows = conform_area_bytes(lab, &e->rows[slot]);
    bool fine = rows != NULL;

    if (fine) {
        lab->tamper(&e->config, rows, counts, e->comm->rounds);
        fine = conform_area_put(lab, &e->rows[slot], rows);
    }
    free(rows);
    return fine;
}

/* Rows of every rank that are for us, one rank's after another's. */
static dp_status_t take_rows_of_all(dp_exchange_t *e, uint32_t slot, dp_stream_t *s)
{
    dp_comm_t *comm = e->comm;
    const dp_device_vt_t *vt = comm->lab->vt;
    int32_t counts[CONFORM_RANKS_MAX];

    for (int32_t p = 0; p < comm->ranks; p++) {
        const int32_t count = comm->posts[p].counts[comm->rank];
        unsigned char *to = (unsigned char *)conform_area_memory(&e->rows[slot]) +
                            (size_t)p * e->config.capacity_rows * e->config.row_bytes;

        if (comm->posts[p].id != e->config.id || comm->posts[p].number != e->awaited)
            REFUSE(comm, DP_ERR_PROTOCOL,
                   "rank %d makes exchange %u of id %u while this one makes exchange %u of id %u", p,
                   comm->posts[p].number, comm->posts[p].id, e->awaited, e->config.id);
        if (count < 0 || count > (int64_t)e->config.capacity_rows)
            REFUSE(comm, DP_ERR_OVERFLOW, "rank %d sends %d rows where there is room for %u", p, count,
                   e->config.capacity_rows);
        counts[p] = count;
        if (count > 0 &&
            vt->copy(s, to, comm->posts[p].send + (size_t)comm->posts[p].offsets[comm->rank] * e->config.row_bytes,
                     (size_t)count * e->config.row_bytes) != DP_OK)
            REFUSE(comm, DP_ERR_DEVICE, "copying rows: %s", conform_last_error());
    }
    if (vt->synchronize(s, -1) != DP_OK)
        REFUSE(comm, DP_ERR_DEVICE, "copying rows: %s", conform_last_error());
    if (comm->lab->tamper != NULL && !tamper(e, slot, counts))
        return DP_ERR_DEVICE;
    comm->rounds++;
    return conform_area_put(comm->lab, &e->counts[slot], counts) ? DP_OK : DP_ERR_DEVICE;
}

/* All meet; a rank alone meets nobody. */
static bool meet_ranks(const dp_comm_t *comm)
{
    return comm->ranks == 1 || conform_meet(comm->lab->t);
}

/* What we bring is known, and the rows that come are not there. lane: where it has to be. */
static dp_status_t begin_exchange(dp_exchange_t *e, uint32_t number, const void *send, const int32_t *offsets,
                                  const int32_t *counts, int lane, dp_stream_t *s)
{
    dp_comm_t *comm = e->comm;
    const dp_device_vt_t *vt = comm->lab->vt;
    const size_t bytes = (size_t)comm->ranks * sizeof(int32_t);
    const uint32_t slot = number % e->slots;
    post_t *post = &e->posted[slot];

    if (comm->lab->refuse != DP_OK)
        return DP_FAIL(comm->lab->host, comm->lab->refuse, "the comm refuses");
    if (number != e->next)
        REFUSE(comm, DP_ERR_INVALID, "exchange %u of id %u is made as number %u", e->next, e->config.id, number);
    if (e->next - e->released == e->slots)
        REFUSE(comm, DP_ERR_INVALID, "exchange %u of id %u finds no slot: %u were received and not released", number,
               e->config.id, e->slots);
    if (s != comm->lab->lanes[lane])
        REFUSE(comm, DP_ERR_INVALID, "an exchange is put on another stream than the call was given");
    if (vt->synchronize(s, -1) != DP_OK)
        REFUSE(comm, DP_ERR_DEVICE, "before an exchange: %s", conform_last_error());
    post->send = send;
    post->id = e->config.id;
    post->number = number;
    if (conform_work_read(vt, s, post->offsets, offsets, bytes) != DP_OK ||
        conform_work_read(vt, s, post->counts, counts, bytes) != DP_OK)
        REFUSE(comm, DP_ERR_DEVICE, "reading counts of rows: %s", conform_last_error());
    if (!conform_area_poison(comm->lab, &e->rows[slot]))
        return DP_ERR_DEVICE;
    e->next++;
    return DP_OK;
}

static dp_status_t end_exchange(dp_exchange_t *e, uint32_t number, dp_stream_t *s)
{
    dp_comm_t *comm = e->comm;
    const uint32_t slot = number % e->slots;
    dp_status_t status;

    if (number != e->awaited || number == e->next)
        REFUSE(comm, DP_ERR_INVALID, "exchange %u of id %u is awaited, the next to await is %u of %u", number,
               e->config.id, e->awaited, e->next);
    if (comm->lab->vt->synchronize(s, -1) != DP_OK)
        REFUSE(comm, DP_ERR_DEVICE, "before an exchange: %s", conform_last_error());
    comm->posts[comm->rank] = e->posted[slot];
    if (!meet_ranks(comm))
        return DP_ERR_ABORTED;
    status = take_rows_of_all(e, slot, s);
    if (status < 0 || !meet_ranks(comm))
        return status < 0 ? status : DP_ERR_ABORTED;
    for (int32_t p = 0; p < comm->ranks; p++)
        e->sent[p] += comm->posts[comm->rank].counts[p];
    e->awaited++;
    return DP_OK;
}

static dp_status_t name_memory(const dp_exchange_t *e, uint32_t number, dp_status_t status, const void **rows_out,
                               const int32_t **counts_out)
{
    if (status < 0)
        return status;
    *rows_out = conform_area_memory(&e->rows[number % e->slots]);
    *counts_out = conform_area_memory(&e->counts[number % e->slots]);
    return DP_OK;
}

static dp_status_t exchange(dp_exchange_t *e, uint32_t number, const void *send, const int32_t *offsets,
                            const int32_t *counts, const void **rows_out, const int32_t **counts_out, dp_stream_t *s)
{
    dp_status_t status = begin_exchange(e, number, send, offsets, counts, 1, s);

    if (status >= 0)
        status = end_exchange(e, number, s);
    return name_memory(e, number, status, rows_out, counts_out);
}

/* All is sent in the wait: who writes over its rows before that sends those. */
static dp_status_t post_exchange(dp_exchange_t *e, uint32_t number, const void *send, const int32_t *offsets,
                                 const int32_t *counts, const void **rows_out, const int32_t **counts_out,
                                 dp_stream_t *s)
{
    return name_memory(e, number, begin_exchange(e, number, send, offsets, counts, 0, s), rows_out, counts_out);
}

/* Rows and counts of a release are gone, visibly, behind what the stream still does with them. */
static dp_status_t release_threaded_exchange(dp_exchange_t *e, uint32_t number, dp_stream_t *s)
{
    dp_comm_t *comm = e->comm;
    const uint32_t slot = number % e->slots;

    if (number != e->released || number == e->awaited)
        REFUSE(comm, DP_ERR_INVALID, "exchange %u of id %u is released, the next to release is %u of %u received",
               number, e->config.id, e->released, e->awaited);
    e->released++;
    if (comm->lab->vt->synchronize(s, -1) != DP_OK)
        return DP_OK; /* whoever waits for the stream hears of it */
    if (!conform_area_whole(comm->lab, &e->rows[slot], "a call") ||
        !conform_area_whole(comm->lab, &e->counts[slot], "a call") || !conform_area_poison(comm->lab, &e->rows[slot]) ||
        !conform_area_poison(comm->lab, &e->counts[slot]))
        return DP_ERR_DEVICE;
    return DP_OK;
}

const dp_comm_vt_t conform_exchanges_vt = {
    .struct_size = sizeof(conform_exchanges_vt),
    .caps = DP_COMM_CAP_ONE_SIDED,
    .exchange_open = open_threaded_exchange,
    .exchange = exchange,
    .exchange_release = release_threaded_exchange,
    .exchange_post = post_exchange,
    .exchange_wait = end_exchange,
};

dp_comm_t *conform_exchanges_open(lab_t *lab, int32_t ranks)
{
    dp_comm_t *comm = calloc(1, sizeof(*comm));

    if (comm == NULL)
        conform_no_memory();
    comm->lab = lab;
    comm->ranks = ranks;
    comm->rank = ranks > 1 ? lab->t->rank : 0;
    comm->posts = ranks > 1 ? everyones : &comm->own;
    return comm;
}

const dp_exchange_config_t *conform_exchanges_config(const dp_comm_t *comm, int32_t i)
{
    return i < comm->opened ? &comm->exchanges[i].config : NULL;
}

int64_t conform_exchanges_sent(const dp_comm_t *comm, int32_t i, int32_t to)
{
    return comm->exchanges[i].sent[to];
}

bool conform_exchanges_close(dp_comm_t *comm)
{
    for (int32_t i = 0; i < comm->opened; i++) {
        dp_exchange_t *e = &comm->exchanges[i];

        CHECK(comm->lab->t, comm->lab->broken || e->released == e->next,
              "of exchange id %u %u were received and %u released", e->config.id, e->next, e->released);
        for (uint32_t slot = 0; slot < e->slots; slot++) {
            conform_area_close(comm->lab, &e->rows[slot]);
            conform_area_close(comm->lab, &e->counts[slot]);
        }
    }
    free(comm);
    return true;
}
