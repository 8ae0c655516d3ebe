/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * test_comm_nccl.c: the transport through NCCL: the contract of dp.comm/1, then what is its own: a
 * library that is missing, a GPU that is there twice, groups of two messages, errors that NCCL
 * reports later. With ONE_SIDED it is the same of one-sided channels, which want a GPU for each
 * rank: so far only through the fakes.
 *
 * On one real GPU only processes can share it (DUALPIPE_DEBUG=nccl.same_gpu); through the fakes
 * also threads (DP_FAKE_NCCL_SHARE). */
#include "conform/conform.h"
#include "gpu.h"
#include "tests/support/debug.h"

#include <dlfcn.h>

#define BYTES 512 /* of a message */
#ifndef ONE_SIDED
#define ONE_SIDED 0
#endif

typedef struct rig {
    conform_t *t;
    const dp_device_vt_t *device_vt;
    const dp_comm_vt_t *vt;
    dp_device_t *device;
    dp_stream_t *s, *back; /* to the next rank, from the one before */
    dp_comm_t *comm;
    dp_channel_end_t *to[2], *from[2];
} rig_t;

static dp_status_t rig_open_on(rig_t *rig, conform_t *t, uint32_t comm_sms)
{
    static const int32_t world[CONFORM_RANKS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7};
    dp_device_config_t device = {.struct_size = sizeof(device), .comm_sms = comm_sms};
    static _Thread_local int opened; /* names are for one instance each */
    char name[16];
    dp_comm_config_t comm = {.struct_size = sizeof(comm), .name = name, .world_ranks = world, .reduce_bytes = 65536};
    dp_status_t status;

    snprintf(name, sizeof(name), "own%d", opened++);
    memset(rig, 0, sizeof(*rig));
    rig->t = t;
    rig->device_vt = t->device;
    rig->vt = t->comm;
    status = t->device->open(t->host, &device, &rig->device);
    if (status == DP_OK)
        status = t->device->stream_open(rig->device, DP_LANE_P2P, &rig->s);
    if (status == DP_OK)
        status = t->device->stream_open(rig->device, DP_LANE_P2P, &rig->back);
    comm.rank = t->rank;
    comm.nranks = t->size;
    comm.vt = t->comm;
    comm.device_vt = t->device;
    comm.device = rig->device;
    return status == DP_OK ? t->comm->open(t->host, &comm, &rig->comm) : status;
}

static dp_status_t rig_open(rig_t *rig, conform_t *t)
{
    return rig_open_on(rig, t, 0);
}

static dp_status_t channels_open(rig_t *rig)
{
    const conform_t *t = rig->t;
    dp_status_t status = DP_OK;

    for (uint32_t i = 0; i < 2 && status == DP_OK; i++) {
        dp_channel_config_t channel = {
            .struct_size = sizeof(channel), .id = i, .slots = 2, .slot_bytes = BYTES, .label = "F chunk 1"};

        channel.peer = (t->rank + 1) % t->size;
        channel.sender = 1;
        status = rig->vt->channel_open(rig->comm, &channel, &rig->to[i]);
        channel.peer = (t->rank + t->size - 1) % t->size;
        channel.sender = 0;
        if (status == DP_OK)
            status = rig->vt->channel_open(rig->comm, &channel, &rig->from[i]);
    }
    return status == DP_OK ? rig->vt->start(rig->comm) : status;
}

static void rig_close(rig_t *rig)
{
    rig->vt->close(rig->comm);
    if (rig->s != NULL)
        rig->device_vt->stream_close(rig->s);
    if (rig->back != NULL)
        rig->device_vt->stream_close(rig->back);
    rig->device_vt->close(rig->device);
}

/* All ranks send two messages to the next and receive two from the one before: a group for each
 * direction, on a separate stream. */
static dp_status_t pass_on(rig_t *rig, uint32_t number, unsigned char *out[2], const void *in[2])
{
    dp_message_tag_t tag = {.number = number, .bytes = BYTES};
    dp_status_t status = rig->vt->bundle_begin(rig->comm, rig->s);

    for (int i = 0; i < 2 && status == DP_OK; i++)
        status = rig->vt->send(rig->to[i], out[i], &tag, rig->s);
    if (status == DP_OK)
        status = rig->vt->bundle_end(rig->comm, rig->s);
    if (status == DP_OK)
        status = rig->vt->bundle_begin(rig->comm, rig->back);
    for (int i = 0; i < 2 && status == DP_OK; i++)
        status = rig->vt->recv(rig->from[i], &tag, &in[i], rig->back);
    return status == DP_OK ? rig->vt->bundle_end(rig->comm, rig->back) : status;
}

static void groups_go_around_a_ring(conform_t *t)
{
    unsigned char *out[2], *seen = malloc(BYTES);
    const void *in[2];
    rig_t rig;

    EXPECT_OK(t, rig_open(&rig, t));
    EXPECT_OK(t, channels_open(&rig));
    for (int i = 0; i < 2; i++) {
        void *memory = NULL;

        EXPECT_OK(t, rig.device_vt->allocate(rig.device, BYTES, &memory));
        out[i] = memory;
    }
    for (uint32_t number = 0; number < 10; number++) {
        for (int i = 0; i < 2; i++) {
            memset(seen, (int)(10 * number) + 2 * t->rank + i, BYTES);
            EXPECT_OK(t, rig.device_vt->copy(rig.s, out[i], seen, BYTES));
            EXPECT_OK(t, rig.device_vt->synchronize(rig.s, -1));
        }
        EXPECT_OK(t, pass_on(&rig, number, out, in));
        for (int i = 0; i < 2; i++) {
            int wanted = (int)(10 * number) + 2 * ((t->rank + t->size - 1) % t->size) + i;

            EXPECT_OK(t, rig.device_vt->copy(rig.back, seen, in[i], BYTES));
            EXPECT_OK(t, rig.vt->release(rig.from[i], number, rig.back));
            EXPECT_OK(t, rig.device_vt->synchronize(rig.back, -1));
            EXPECT_OK(t, rig.device_vt->synchronize(rig.s, -1));
            for (int k = 0; k < BYTES; k++)
                EXPECT(t, seen[k] == wanted, "byte %d of message %u is %d, not %d", k, number, seen[k], wanted);
        }
    }
    for (int i = 0; i < 2; i++)
        rig.device_vt->release(rig.device, out[i]);
    rig_close(&rig);
    free(seen);
}

/* Ranks that are threads share one environment: one of them changes it while no other reads it. */
static void change_environment(conform_t *t, const char *name, const char *value /* NULL: none */)
{
    EXPECT(t, conform_meet(t), "the other rank failed");
    if (t->mode == CONFORM_PROCESSES || t->rank == 0) {
        if (strchr(name, '.') != NULL)
            debug_set(name, value);
        else if (value != NULL)
            setenv(name, value, 1);
        else
            unsetenv(name);
    }
    EXPECT(t, conform_meet(t), "the other rank failed");
}

static void a_missing_library_is_named(conform_t *t)
{
    rig_t rig;

    change_environment(t, "lib.nccl", "/nowhere/libnccl.so.2");
    EXPECT_STATUS(t, rig_open(&rig, t), DP_ERR_UNSUPPORTED, "open without a library that fits");
    EXPECT(t,
           strstr(conform_last_error(), "/nowhere/libnccl.so.2") != NULL &&
               strstr(conform_last_error(), "lib.nccl") != NULL,
           "%s", conform_last_error());
    rig_close(&rig);
    change_environment(t, "lib.nccl", "libm.so.6");
    EXPECT_STATUS(t, rig_open(&rig, t), DP_ERR_UNSUPPORTED, "open without a library that fits");
    EXPECT(t, strstr(conform_last_error(), "ncclGetVersion") != NULL, "%s", conform_last_error());
    rig_close(&rig);
}

/* NCCL refuses it, and what it says reaches the user. */
static void a_gpu_twice_is_refused(conform_t *t)
{
    dp_status_t status;
    rig_t rig;

    change_environment(t, "DP_FAKE_NCCL_SHARE", NULL);
    change_environment(t, "nccl.same_gpu", NULL);
    change_environment(t, "NCCL_HOSTID", NULL);
    status = rig_open(&rig, t);
    EXPECT(t, status < 0 && strstr(conform_last_error(), "uplicate GPU") != NULL, "%s: %s", dp_status_name(status),
           conform_last_error());
    EXPECT(t, conform_meet(t), "the other rank failed");
    rig_close(&rig);
}

static void processes_may_share_a_gpu(conform_t *t)
{
    double *sum;
    void *memory = NULL;
    rig_t rig;

    if (t->mode == CONFORM_THREADS) {
        conform_skip(t, "NCCL tells processes apart, not threads");
        return;
    }
    change_environment(t, "DP_FAKE_NCCL_SHARE", NULL);
    change_environment(t, "nccl.same_gpu", "1");
    EXPECT_OK(t, rig_open(&rig, t));
    EXPECT_OK(t, channels_open(&rig));
    EXPECT_OK(t, rig.device_vt->allocate(rig.device, sizeof(double), &memory));
    sum = malloc(sizeof(*sum));
    *sum = t->rank + 1;
    EXPECT_OK(t, rig.device_vt->copy(rig.s, memory, sum, sizeof(*sum)));
    EXPECT_OK(t, rig.vt->all_reduce(rig.comm, memory, 1, DP_F64, rig.s));
    EXPECT_OK(t, rig.device_vt->copy(rig.s, sum, memory, sizeof(*sum)));
    EXPECT_OK(t, rig.device_vt->synchronize(rig.s, -1));
    EXPECT(t, *sum == t->size * (t->size + 1) / 2.0, "%g", *sum);
    rig.device_vt->release(rig.device, memory);
    rig_close(&rig);
    free(sum);
}

/* Only the fake can be asked for an error. Everyone's stream comes to rest, and says what NCCL
 * said. */
static void errors_that_come_later_end_the_streams(conform_t *t)
{
    unsigned char *out[2];
    const void *in[2];
    dp_status_t status = DP_OK;
    rig_t rig;

    if (!gpu_is_fake()) {
        conform_skip(t, "a real NCCL fails when it likes");
        return;
    }
    change_environment(t, "DP_FAKE_NCCL_FAIL", "20") /* of a step */;
    EXPECT_OK(t, rig_open(&rig, t));
    EXPECT_OK(t, channels_open(&rig));
    for (int i = 0; i < 2; i++) {
        void *memory = NULL;

        EXPECT_OK(t, rig.device_vt->allocate(rig.device, BYTES, &memory));
        out[i] = memory;
    }
    for (uint32_t number = 0; number < 20 && status == DP_OK; number++) {
        status = pass_on(&rig, number, out, in);
        for (int i = 0; i < 2 && status == DP_OK; i++)
            status = rig.vt->release(rig.from[i], number, rig.back);
    }
    if (status == DP_OK)
        status = rig.device_vt->synchronize(rig.s, -1);
    EXPECT(t, status < 0, "20 rounds went well");
    if (status != DP_ERR_ABORTED) /* who hears of it first, tells the job, as the engine does */
        EXPECT(t, strstr(conform_last_error(), "asked for") != NULL || strstr(conform_last_error(), "told so") != NULL,
               "%s: %s", dp_status_name(status), conform_last_error());
    conform_abort(t, DP_ERR_DEVICE, "told so");
    (void)rig.device_vt->synchronize(rig.s, -1);
    (void)rig.device_vt->synchronize(rig.back, -1);
    for (int i = 0; i < 2; i++)
        rig.device_vt->release(rig.device, out[i]);
    rig_close(&rig);
}

/* ---- a divided device ---- */

static dp_host_sm_t divided = {.struct_size = sizeof(divided)};
static const void *(*other_services)(const dp_host_t *h, const char *id);

static const void *service(const dp_host_t *h, const char *id)
{
    return strcmp(id, DP_HOST_SM) == 0 ? &divided : other_services(h, id);
}

/* The engine tells transports how the device is divided. Only in processes: each rank needs a
 * device to divide. */
static dp_status_t rig_open_divided(rig_t *rig, conform_t *t, uint32_t comm_sms)
{
    divided.comm_sms = comm_sms;
    other_services = t->host->get_service;
    ((dp_host_t *)t->host)->get_service = service;
    return rig_open_on(rig, t, comm_sms);
}

typedef struct swap {
    dp_exchange_t *x;
    dp_stream_t *s;
    int32_t *table; /* offsets, then counts */
    unsigned char *rows;
} swap_t;

static dp_status_t swap_open(rig_t *rig, swap_t *swap)
{
    const dp_exchange_config_t config = {
        .struct_size = sizeof(config), .id = 1, .row_bytes = 16, .capacity_rows = 4, .label = "rows"};
    int32_t table[4] = {0, 1, 1, 1}; /* a row to each of two ranks */
    unsigned char rows[32];
    void *memory = NULL;
    dp_status_t status = rig->vt->exchange_open(rig->comm, &config, &swap->x);

    memset(rows, 10 * (rig->t->rank + 1), 16);
    memset(rows + 16, 10 * (rig->t->rank + 1) + 1, 16);
    if (status == DP_OK)
        status = rig->device_vt->stream_open(rig->device, DP_LANE_ALL_TO_ALL, &swap->s);
    if (status == DP_OK)
        status = rig->device_vt->allocate(rig->device, sizeof(table), &memory);
    swap->table = memory;
    if (status == DP_OK)
        status = rig->device_vt->copy(swap->s, swap->table, table, sizeof(table));
    if (status == DP_OK)
        status = rig->device_vt->allocate(rig->device, sizeof(rows), &memory);
    swap->rows = memory;
    if (status == DP_OK)
        status = rig->device_vt->copy(swap->s, swap->rows, rows, sizeof(rows));
    return status == DP_OK ? rig->device_vt->synchronize(swap->s, -1) : status;
}

/* A function of the fake NCCL. */
static void *of_fake(const char *name)
{
    void *library = gpu_is_fake() ? dlopen(debug_entry("lib.nccl"), RTLD_NOW) : NULL;

    return library != NULL ? dlsym(library, name) : NULL;
}

/* One exchange: what the other rank has for us has come, and our own. */
static void swap_once(rig_t *rig, swap_t *swap, uint32_t number)
{
    conform_t *t = rig->t;
    const void *got = NULL;
    const int32_t *counts = NULL;
    unsigned char rows[2][16] = {0};
    int32_t came[2] = {0};

    EXPECT_OK(t, rig->vt->exchange(swap->x, number, swap->rows, swap->table, swap->table + 2, &got, &counts, swap->s));
    for (int i = 0; i < 2; i++)
        EXPECT_OK(t, rig->device_vt->copy(swap->s, rows[i], (const unsigned char *)got + (size_t)i * 64, 16));
    EXPECT_OK(t, rig->device_vt->copy(swap->s, came, counts, sizeof(came)));
    EXPECT_OK(t, rig->vt->exchange_release(swap->x, number, swap->s));
    EXPECT_OK(t, rig->device_vt->synchronize(swap->s, -1));
    for (int i = 0; i < 2; i++)
        EXPECT(t, came[i] == 1 && rows[i][0] == 10 * (i + 1) + t->rank && rows[i][15] == rows[i][0],
               "rank %d: %d rows, the first of %d", i, came[i], rows[i][0]);
}

static void swap_close(rig_t *rig, swap_t *swap)
{
    rig->device_vt->release(rig->device, swap->table);
    rig->device_vt->release(rig->device, swap->rows);
    rig->device_vt->stream_close(swap->s);
}

/* Rank 0 starts a sum and then an exchange, rank 1 the other way around, as chunks that finish
 * while others run do. Kernels of both have to find room in the share for communication, on both
 * ranks, whichever is there first. */
static void sums_and_exchanges_fit_into_the_share(conform_t *t)
{
    const void *got = NULL;
    const int32_t *counts = NULL;
    unsigned char row[16] = {0};
    double sum = t->rank + 1;
    void *memory = NULL;
    dp_stream_t *s;
    swap_t swap;
    rig_t rig;

    if (t->mode == CONFORM_THREADS) {
        conform_skip(t, "each rank needs a device to divide");
        return;
    }
    EXPECT_OK(t, rig_open_divided(&rig, t, 20));
    EXPECT_OK(t, swap_open(&rig, &swap));
    EXPECT_OK(t, channels_open(&rig));
    EXPECT_OK(t, rig.device_vt->stream_open(rig.device, DP_LANE_REDUCE, &s));
    EXPECT_OK(t, rig.device_vt->allocate(rig.device, sizeof(sum), &memory));
    EXPECT_OK(t, rig.device_vt->copy(s, memory, &sum, sizeof(sum)));
    EXPECT_OK(t, rig.device_vt->synchronize(s, -1));
    for (int i = 0; i < 2; i++) {
        if (i == t->rank)
            EXPECT_OK(t, rig.vt->all_reduce(rig.comm, memory, 1, DP_F64, s));
        else
            EXPECT_OK(t, rig.vt->exchange(swap.x, 0, swap.rows, swap.table, swap.table + 2, &got, &counts, swap.s));
        conform_nap_ms(50); /* the first has what it wants before the second comes */
    }
    EXPECT_OK(t, rig.device_vt->copy(s, &sum, memory, sizeof(sum)));
    EXPECT_OK(t, rig.device_vt->synchronize(s, -1));
    EXPECT(t, sum == 3, "%g", sum);
    EXPECT_OK(t, rig.device_vt->copy(swap.s, row, (const unsigned char *)got + (size_t)(1 - t->rank) * 64, 16));
    EXPECT_OK(t, rig.device_vt->synchronize(swap.s, -1));
    EXPECT(t, row[0] == 10 * (2 - t->rank) + t->rank, "%d", row[0]);
    rig.device_vt->release(rig.device, memory);
    rig.device_vt->stream_close(s);
    swap_close(&rig, &swap);
    rig_close(&rig);
}

/* One row for each rank where there is room for four: what goes over is one row, and its count.
 * NCCL may want launches in the same order on all ranks: then it is all the room. */
static void exchanges_move_the_rows_that_there_are(conform_t *t)
{
    uint64_t (*sent)(void) = NULL, before;
    swap_t swap;
    rig_t rig;

    *(void **)&sent = of_fake("fake_nccl_bytes");
    if (sent == NULL || t->mode == CONFORM_THREADS) {
        conform_skip(t, "only the fake NCCL counts bytes, of a process");
        return;
    }
    for (int in_order = 0; in_order < 2; in_order++) {
        const uint64_t bytes = 5 * ((in_order ? 4 : 1) * 16 + sizeof(int32_t));

        change_environment(t, "NCCL_LAUNCH_ORDER_IMPLICIT", in_order ? "1" : "0");
        EXPECT_OK(t, rig_open(&rig, t));
        EXPECT_OK(t, swap_open(&rig, &swap));
        EXPECT_OK(t, rig.vt->start(rig.comm));
        before = sent();
        for (uint32_t i = 0; i < 5 && !conform_failed(t); i++)
            swap_once(&rig, &swap, i);
        EXPECT(t, sent() - before == bytes, "%llu bytes were sent for 5 rows of 16, not %llu",
               (unsigned long long)(sent() - before), (unsigned long long)bytes);
        EXPECT(t, conform_meet(t), "the other rank failed");
        swap_close(&rig, &swap);
        rig_close(&rig);
    }
    change_environment(t, "nccl.exchange", "exact");
    EXPECT_STATUS(t, rig_open(&rig, t), DP_ERR_INVALID, "open with that way of exchanging");
    EXPECT(t, strstr(conform_last_error(), "unset NCCL_LAUNCH_ORDER_IMPLICIT") != NULL, "%s", conform_last_error());
    rig_close(&rig);
}

/* One rank is gone while the other waits for its rows and for its message: an abort of one
 * communicator waits for the whole device, for the kernels of the others and for the streams that
 * wait for rows. */
static void waits_of_all_kinds_end_with_the_job(conform_t *t)
{
    const dp_message_tag_t tag = {.bytes = BYTES};
    const void *got = NULL;
    const int32_t *counts = NULL;
    swap_t swap;
    rig_t rig;

    EXPECT_OK(t, rig_open(&rig, t));
    EXPECT_OK(t, swap_open(&rig, &swap));
    EXPECT_OK(t, channels_open(&rig));
    EXPECT(t, conform_meet(t), "the other rank failed");
    if (t->rank == 0) {
        EXPECT_OK(t, rig.vt->recv(rig.from[0], &tag, &got, rig.back));
        EXPECT_OK(t, rig.vt->exchange(swap.x, 0, swap.rows, swap.table, swap.table + 2, &got, &counts, swap.s));
        EXPECT_STATUS(t, rig.device_vt->synchronize(swap.s, -1), DP_ERR_DEVICE, "rows that never come");
        EXPECT_STATUS(t, rig.device_vt->synchronize(rig.back, -1), DP_ERR_DEVICE, "a message that never comes");
    } else {
        conform_nap_ms(100);
        conform_abort(t, DP_ERR_DEVICE, "told so");
    }
    swap_close(&rig, &swap);
    rig_close(&rig);
}

/* The other rank fails between its counts and its rows. When communicators are aborted, the stream
 * that moves rows says that the first have come, behind the word that all have. */
static void rows_that_stop_halfway_end_with_the_job(conform_t *t)
{
    const void *got = NULL;
    const int32_t *counts = NULL;
    swap_t swap;
    rig_t rig;

    if (!gpu_is_fake() || t->mode == CONFORM_THREADS) {
        conform_skip(t, "only the fake NCCL fails when it is told to, in one of two processes");
        return;
    }
    EXPECT_OK(t, rig_open(&rig, t));
    EXPECT_OK(t, swap_open(&rig, &swap));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    if (t->rank == 1)
        setenv("DP_FAKE_NCCL_FAIL", "2", 1); /* of those from now on */
    EXPECT(t, conform_meet(t), "the other rank failed");
    for (uint32_t i = 0; i < 2; i++)
        EXPECT_OK(t, rig.vt->exchange(swap.x, i, swap.rows, swap.table, swap.table + 2, &got, &counts, swap.s));
    EXPECT_STATUS(t, rig.device_vt->synchronize(swap.s, -1), DP_ERR_DEVICE, "rows that never come");
    if (t->rank == 1)
        conform_abort(t, DP_ERR_DEVICE, "told so");
    swap_close(&rig, &swap);
    rig_close(&rig);
}

/* Of rank 0: its thread that moves rows sleeps in a wait, once it is told to. */
static struct {
    dp_status_t (*wait)(const dp_host_t *h, dp_signal_t *signal, uint32_t target, int64_t timeout_ns, const char *what);
    bool armed, sleeps, over;
} mover;

static dp_status_t wait_of_mover(const dp_host_t *h, dp_signal_t *signal, uint32_t target, int64_t timeout_ns,
                                 const char *what)
{
    if (strcmp(what, "rows") != 0 || !__atomic_exchange_n(&mover.armed, false, __ATOMIC_ACQ_REL))
        return mover.wait(h, signal, target, timeout_ns, what);
    __atomic_store_n(&mover.sleeps, true, __ATOMIC_RELEASE);
    while (!__atomic_load_n(&mover.over, __ATOMIC_ACQUIRE))
        conform_nap_ms(1);
    return DP_ERR_TIMEOUT;
}

/* The thread has seen that counts have come, and what ends the job lets the caller go, who frees
 * its rows, before the thread goes on. */
static void rows_of_a_job_that_is_over_are_not_touched(conform_t *t)
{
    const void *got = NULL;
    const int32_t *counts = NULL;
    swap_t swap;
    rig_t rig;

    EXPECT_OK(t, rig_open(&rig, t));
    EXPECT_OK(t, swap_open(&rig, &swap));
    if (t->rank == 0) {
        mover.wait = t->host->wait;
        ((dp_host_t *)t->host)->wait = wait_of_mover;
    }
    EXPECT_OK(t, rig.vt->start(rig.comm));
    if (t->rank == 0) {
        EXPECT_OK(t, rig.vt->exchange(swap.x, 0, swap.rows, swap.table, swap.table + 2, &got, &counts, swap.s));
        conform_nap_ms(100); /* it waits for the counts of the other rank now */
        __atomic_store_n(&mover.armed, true, __ATOMIC_RELEASE);
        while (!__atomic_load_n(&mover.sleeps, __ATOMIC_ACQUIRE) && !conform_failed(t))
            conform_nap_ms(1);
    }
    EXPECT(t, conform_meet(t), "the other rank failed");
    if (t->rank == 1) {
        EXPECT_OK(t, rig.vt->exchange(swap.x, 0, swap.rows, swap.table, swap.table + 2, &got, &counts, swap.s));
        conform_nap_ms(100); /* its counts come */
        conform_abort(t, DP_ERR_DEVICE, "told so");
    }
    EXPECT_STATUS(t, rig.device_vt->synchronize(swap.s, -1), DP_ERR_DEVICE, "rows that never come");
    swap_close(&rig, &swap);
    if (t->rank == 0)
        __atomic_store_n(&mover.over, true, __ATOMIC_RELEASE);
    rig_close(&rig);
    if (t->rank == 0)
        ((dp_host_t *)t->host)->wait = mover.wait;
}

/* By name, and where streams would have to share a hardware queue with what they wait for. */
static void exchanges_of_the_capacity_are_left(conform_t *t)
{
    const char *const ways[] = {"capacity", NULL, "exact", "roundabout"};
    swap_t swap;
    rig_t rig;

    if (t->mode == CONFORM_THREADS) {
        conform_skip(t, "CUDA reads its environment once a process");
        return;
    }
    change_environment(t, "CUDA_DEVICE_MAX_CONNECTIONS", "8");
    change_environment(t, "DP_FAKE_QUEUES", "1");
    for (int way = 0; way < 4; way++) {
        change_environment(t, "nccl.exchange", ways[way]);
        if (way >= 2) {
            EXPECT_STATUS(t, rig_open(&rig, t), DP_ERR_INVALID, "open with that way of exchanging");
            EXPECT(t,
                   strstr(conform_last_error(), way == 2 ? "CUDA_DEVICE_MAX_CONNECTIONS is 8" : "roundabout") != NULL,
                   "%s", conform_last_error());
            rig_close(&rig);
            continue;
        }
        EXPECT_OK(t, rig_open(&rig, t));
        EXPECT_OK(t, swap_open(&rig, &swap));
        EXPECT_OK(t, rig.vt->start(rig.comm));
        swap_once(&rig, &swap, 0);
        EXPECT(t, conform_meet(t), "the other rank failed");
        swap_close(&rig, &swap);
        rig_close(&rig);
    }
}

/* 1e16 + 1 - 1e16: the fake adds from the last rank to the first, and the plugin from the first to
 * the last. */
/* A function of the fake driver. */
static void *of_driver(const char *name)
{
    void *library = gpu_is_fake() ? dlopen(debug_entry("lib.cuda"), RTLD_NOW) : NULL;

    return library != NULL ? dlsym(library, name) : NULL;
}

static char crowded[512]; /* what was said of streams; a process's */

static void hear_of_streams(void *user, int level, const char *origin, const char *message)
{
    (void)user;
    if (level == DP_LOG_WARN && strcmp(origin, "comm_nccl") == 0 && strstr(message, "hardware queues") != NULL)
        snprintf(crowded, sizeof(crowded), "%s", message);
}

enum { QUEUES = 32, GROUPS = 11 };

/* A group with an exchange beside others without, whose communicators have so many streams that the
 * one that moves rows gets the queue of the one that waits for them. */
static void crowd(conform_t *t, rig_t *rig, swap_t *swap, unsigned (*placed)(void), dp_comm_t *groups[GROUPS])
{
    static const int32_t world[] = {0, 1};
    unsigned at;

    EXPECT_OK(t, rig_open(rig, t));
    EXPECT_OK(t, swap_open(rig, swap));
    at = placed() - 1; /* the stream of `swap` is the last */
    for (int i = 0; i < GROUPS; i++) {
        static int opened;
        char name[16];
        const dp_comm_config_t config = {.struct_size = sizeof(config),
                                         .name = name,
                                         .world_ranks = world,
                                         .reduce_bytes = 4096,
                                         .rank = t->rank,
                                         .nranks = t->size,
                                         .vt = t->comm,
                                         .device_vt = t->device,
                                         .device = rig->device};

        snprintf(name, sizeof(name), "beside%d", opened++);
        EXPECT_OK(t, t->comm->open(t->host, &config, &groups[i]));
    }
    while (placed() % QUEUES != at % QUEUES) {
        dp_stream_t *s = NULL;

        EXPECT_OK(t, rig->device_vt->stream_open(rig->device, DP_LANE_COMPUTE, &s));
    }
    crowded[0] = '\0';
    EXPECT_OK(t, rig->vt->start(rig->comm));
    EXPECT(t, t->rank != 0 || strstr(crowded, "rank 0 has 34 streams on its device") != NULL, "\"%s\" was said",
           crowded);
}

static void uncrowd(rig_t *rig, swap_t *swap, dp_comm_t *groups[GROUPS])
{
    for (int i = 0; i < GROUPS; i++)
        rig->vt->close(groups[i]);
    swap_close(rig, swap);
    rig_close(rig);
}

/* Each communicator has two: above the number of queues exchanges move their capacity. Those that
 * are exact by name wait for ever, where the fake driver has streams take turns with queues. */
static void streams_of_nccl_are_counted(conform_t *t)
{
    const void *got = NULL;
    const int32_t *counts = NULL;
    unsigned (*placed)(void) = NULL;
    dp_comm_t *groups[GROUPS] = {NULL};
    swap_t swap;
    rig_t rig;

    *(void **)&placed = of_driver("fake_streams_placed");
    if (placed == NULL || t->mode == CONFORM_THREADS) {
        conform_skip(t, "only the fake driver says which streams share a queue, of a process");
        return;
    }
    change_environment(t, "DP_FAKE_QUEUES", "32");
    dp_log_set(hear_of_streams, NULL, DP_LOG_WARN);
    crowd(t, &rig, &swap, placed, groups);
    EXPECT(t, t->rank != 0 || strstr(crowded, "so exchanges move their whole capacity") != NULL, "\"%s\" was said",
           crowded);
    swap_once(&rig, &swap, 0);
    EXPECT(t, conform_meet(t), "the other rank failed");
    uncrowd(&rig, &swap, groups);
    change_environment(t, "nccl.exchange", "exact");
    crowd(t, &rig, &swap, placed, groups);
    EXPECT_OK(t, rig.vt->exchange(swap.x, 0, swap.rows, swap.table, swap.table + 2, &got, &counts, swap.s));
    EXPECT_STATUS(t, rig.device_vt->synchronize(swap.s, 500000000), DP_ERR_TIMEOUT, "rows that nobody moves");
    EXPECT(t, conform_meet(t), "the other rank failed");
    if (t->rank == 1)
        conform_abort(t, DP_ERR_DEVICE, "told so");
    EXPECT_STATUS(t, rig.device_vt->synchronize(swap.s, -1), DP_ERR_DEVICE, "the end of the job");
    dp_log_set(NULL, NULL, DP_LOG_WARN);
    uncrowd(&rig, &swap, groups);
}

static void sums_may_be_those_of_nccl(conform_t *t)
{
    static const double own[3] = {1, 1e16, -1e16};
    const char *const ways[] = {"unordered", "ordered", "sorted"};
    void *memory = NULL;
    double sum;
    rig_t rig;

    if (!gpu_is_fake()) {
        conform_skip(t, "who knows in which order NCCL adds");
        return;
    }
    for (int way = 0; way < 3; way++) {
        change_environment(t, "nccl.sums", ways[way]);
        if (way == 2) {
            EXPECT_STATUS(t, rig_open(&rig, t), DP_ERR_INVALID, "open with that way of summing");
            rig_close(&rig);
            break;
        }
        EXPECT_OK(t, rig_open(&rig, t));
        sum = own[t->rank];
        EXPECT_OK(t, rig.device_vt->allocate(rig.device, sizeof(sum), &memory));
        EXPECT_OK(t, rig.device_vt->copy(rig.s, memory, &sum, sizeof(sum)));
        EXPECT_OK(t, rig.vt->all_reduce(rig.comm, memory, 1, DP_F64, rig.s));
        EXPECT_OK(t, rig.vt->all_reduce(rig.comm, memory, 0, DP_F64, rig.s));
        EXPECT_OK(t, rig.device_vt->copy(rig.s, &sum, memory, sizeof(sum)));
        EXPECT_OK(t, rig.device_vt->synchronize(rig.s, -1));
        EXPECT(t, sum == (way == 0 ? 1 : 0), "%s: %g", ways[way], sum);
        EXPECT(t, conform_meet(t), "another rank failed");
        rig.device_vt->release(rig.device, memory);
        rig_close(&rig);
    }
}

/* Ranks that connect while streams wait for each other may wait for ever; only the fake counts. */
static void no_step_connects_ranks(conform_t *t)
{
    void *library = gpu_is_fake() ? dlopen(debug_entry("lib.nccl"), RTLD_NOW) : NULL;
    unsigned (*connections)(void) = NULL, before;
    unsigned char *out[2];
    const void *in[2], *got = NULL;
    const int32_t *counts = NULL;
    void *memory = NULL;
    swap_t swap;
    rig_t rig;

    if (library == NULL) {
        conform_skip(t, "only the fake NCCL counts connections");
        return;
    }
    if (t->mode == CONFORM_PROCESSES &&
        !ONE_SIDED) { /* as with NCCL itself: whoever connects waits until its context is idle */
        change_environment(t, "DP_FAKE_NCCL_SHARE", NULL);
        change_environment(t, "nccl.same_gpu", "1");
    }
    *(void **)&connections = dlsym(library, "fake_nccl_connections");
    EXPECT_OK(t, rig_open(&rig, t));
    EXPECT_OK(t, swap_open(&rig, &swap));
    EXPECT_OK(t, channels_open(&rig));
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(t, rig.device_vt->allocate(rig.device, BYTES, &memory));
        out[i] = memory;
    }
    EXPECT(t, conform_meet(t), "the other rank failed");
    before = connections();
    EXPECT(t, conform_meet(t), "the other rank failed");
    EXPECT_OK(t, pass_on(&rig, 0, out, in));
    EXPECT_OK(t, rig.vt->exchange(swap.x, 0, swap.rows, swap.table, swap.table + 2, &got, &counts, swap.s));
    EXPECT_OK(t, rig.device_vt->synchronize(swap.s, -1));
    EXPECT_OK(t, rig.vt->all_reduce(rig.comm, out[0], BYTES / sizeof(double), DP_F64, swap.s));
    EXPECT_OK(t, rig.device_vt->synchronize(swap.s, -1));
    EXPECT_OK(t, rig.device_vt->synchronize(rig.back, -1));
    EXPECT(t, before > 0 && connections() == before, "%u ends of connections before a step, %u behind it", before,
           connections());
    EXPECT(t, conform_meet(t), "the other rank failed");
    for (int i = 0; i < 2; i++)
        rig.device_vt->release(rig.device, out[i]);
    swap_close(&rig, &swap);
    rig_close(&rig);
    dlclose(library);
}

/* What the user asks of NCCL may be more than the share has. */
static void more_blocks_than_the_share_has_are_refused(conform_t *t)
{
    dp_status_t status;
    swap_t swap;
    rig_t rig;

    if (t->mode == CONFORM_THREADS) {
        conform_skip(t, "each rank needs a device to divide");
        return;
    }
    change_environment(t, "NCCL_MAX_CTAS", "5"); /* NCCL makes 8 of it */
    EXPECT_OK(t, rig_open_divided(&rig, t, 20));
    EXPECT_OK(t, swap_open(&rig, &swap));
    status = channels_open(&rig);
    EXPECT(t, status == DP_ERR_INVALID, "two pairs, an exchange and a sum of 8 blocks each, on 20 multiprocessors: %s",
           dp_status_name(status));
    EXPECT(t,
           strstr(conform_last_error(), "have 32 blocks") != NULL &&
               strstr(conform_last_error(), "unset NCCL_MAX_CTAS") != NULL,
           "%s", conform_last_error());
    EXPECT(t, conform_meet(t), "the other rank failed");
    swap_close(&rig, &swap);
    rig_close(&rig);
}

/* ---- one-sided channels ---- */

/* Of the groups that are opened next; only this rank's, where ranks are processes. */
static void choose_channels(conform_t *t, const char *channels)
{
    change_environment(t, "nccl.channels", channels);
    EXPECT(t, conform_meet(t), "the other rank failed");
}

/* What an instance says of itself. */
static void expect_one_sided(conform_t *t, bool expected)
{
    rig_t rig;

    EXPECT_OK(t, rig_open(&rig, t));
    EXPECT(t, ((dp_comm_caps(rig.vt, rig.comm) & DP_COMM_CAP_ONE_SIDED) != 0) == expected,
           expected ? "not one-sided, where signals were asked for" : "one-sided, and nobody has asked for it");
    rig_close(&rig);
    EXPECT(t, conform_meet(t), "the other rank failed");
}

static unsigned told; /* how often which channels there are; a process's */

static void hear(void *user, int level, const char *origin, const char *message)
{
    (void)user;
    if (level == DP_LOG_INFO && strcmp(origin, "comm_nccl") == 0 && strstr(message, "channels are ") != NULL)
        __atomic_add_fetch(&told, 1, __ATOMIC_RELAXED);
}

/* A round over both channels. */
static void pass_on_once(rig_t *rig)
{
    conform_t *t = rig->t;
    unsigned char *out[2];
    const void *in[2];
    void *memory = NULL;

    for (int i = 0; i < 2; i++) {
        EXPECT_OK(t, rig->device_vt->allocate(rig->device, BYTES, &memory));
        out[i] = memory;
    }
    EXPECT_OK(t, pass_on(rig, 0, out, in));
    EXPECT_OK(t, rig->device_vt->synchronize(rig->s, -1));
    EXPECT_OK(t, rig->device_vt->synchronize(rig->back, -1));
    EXPECT(t, conform_meet(t), "the other rank failed");
    for (int i = 0; i < 2; i++)
        rig->device_vt->release(rig->device, out[i]);
}

/* Opens, passes messages on and closes; so many windows each rank makes, the one to try it among
 * them. */
static void expect_windows(conform_t *t, unsigned expected, const char *where)
{
    const unsigned ranks = t->mode == CONFORM_THREADS ? (unsigned)t->size : 1;
    unsigned (*windows)(void) = NULL, before;
    rig_t rig;

    *(void **)&windows = of_fake("fake_nccl_windows");
    if (t->mode == CONFORM_PROCESSES || t->rank == 0) {
        told = 0;
        dp_log_set(hear, NULL, DP_LOG_INFO);
    }
    before = windows();
    EXPECT(t, conform_meet(t), "the other rank failed");
    EXPECT_OK(t, rig_open(&rig, t));
    EXPECT_OK(t, channels_open(&rig));
    pass_on_once(&rig);
    rig_close(&rig);
    EXPECT(t, conform_meet(t), "the other rank failed");
    if (t->rank == 0)
        EXPECT(t, told == 1, "said %u times which channels there are", told);
    if (t->mode == CONFORM_PROCESSES || t->rank == 0)
        dp_log_set(NULL, NULL, DP_LOG_WARN);
    EXPECT(t, windows() - before == expected * ranks, "%u windows where %s", windows() - before, where);
}

/* By name; without one, what the library has. */
static void an_old_library_is_left_to_groups(conform_t *t)
{
    rig_t rig;

    change_environment(t, "DP_FAKE_NCCL_VERSION", "22809");
    EXPECT_STATUS(t, rig_open(&rig, t), DP_ERR_UNSUPPORTED, "open with one-sided channels");
    EXPECT(t,
           strstr(conform_last_error(), "NCCL 2.28.9") != NULL &&
               strstr(conform_last_error(), "nccl.channels=groups") != NULL,
           "%s", conform_last_error());
    rig_close(&rig);
    choose_channels(t, "auto");
    expect_windows(t, 0, "the library is 2.28.9");
}

/* All of them: those that could have a window do not wait for one that cannot. */
static void ranks_without_windows_are_left_to_groups(conform_t *t)
{
    choose_channels(t, "auto");
    expect_windows(t, 1 + 4, "all can have them");
    change_environment(t, "DP_FAKE_NCCL_WINDOWLESS", "1");
    expect_windows(t, 0, "a rank has none");
    change_environment(t, "DP_FAKE_NCCL_WINDOWLESS", "2:late");
    expect_windows(t, 0, "a rank's fail when all have come");
    change_environment(t, "DP_FAKE_NCCL_WINDOWLESS", NULL);
    change_environment(t, "NCCL_WIN_ENABLE", "0");
    expect_windows(t, 0, "they are off");
    if (t->mode == CONFORM_THREADS)
        return;
    change_environment(t, "NCCL_WIN_ENABLE", NULL);
    change_environment(t, "NCCL_LAUNCH_ORDER_IMPLICIT", t->rank == 1 ? "1" : NULL);
    expect_windows(t, 0, "the launches of a rank are in order");
}

static void channels_are_chosen_by_name(conform_t *t)
{
    rig_t rig;

    expect_one_sided(t, true);
    choose_channels(t, NULL);
    expect_one_sided(t, false);
    choose_channels(t, "groups");
    expect_one_sided(t, false);
    EXPECT_OK(t, rig_open(&rig, t));
    EXPECT_OK(t, channels_open(&rig));
    pass_on_once(&rig);
    rig_close(&rig);
    choose_channels(t, "signals");
    change_environment(t, "NCCL_LAUNCH_ORDER_IMPLICIT", "1");
    EXPECT_STATUS(t, rig_open(&rig, t), DP_ERR_INVALID, "open with launches in order");
    EXPECT(t, strstr(conform_last_error(), "unset NCCL_LAUNCH_ORDER_IMPLICIT") != NULL, "%s", conform_last_error());
    rig_close(&rig);
    choose_channels(t, "pigeons");
    EXPECT_STATUS(t, rig_open(&rig, t), DP_ERR_INVALID, "open with those channels");
    EXPECT(t, strstr(conform_last_error(), "nccl.channels=pigeons") != NULL, "%s", conform_last_error());
    rig_close(&rig);
}

/* One rank has been told to take others than the other. */
static void ranks_that_differ_in_channels_are_refused(conform_t *t)
{
    rig_t rig;

    if (t->mode == CONFORM_THREADS) {
        conform_skip(t, "ranks that are threads have one environment");
        return;
    }
    choose_channels(t, t->rank == 0 ? "signals" : "groups");
    EXPECT_OK(t, rig_open(&rig, t));
    EXPECT_STATUS(t, channels_open(&rig), DP_ERR_MISMATCH, "start with channels of two kinds");
    EXPECT(t, strstr(conform_last_error(), "set DUALPIPE_DEBUG=nccl.channels the same on all ranks") != NULL, "%s",
           conform_last_error());
    EXPECT(t, conform_meet(t), "the other rank failed");
    rig_close(&rig);
}

/* Where a stream that waits could be in front of the one that would end its wait. */
static void few_queues_are_refused(conform_t *t)
{
    rig_t rig;

    if (t->mode == CONFORM_THREADS) {
        conform_skip(t, "CUDA reads its environment once a process");
        return;
    }
    change_environment(t, "CUDA_DEVICE_MAX_CONNECTIONS", "8");
    EXPECT_STATUS(t, rig_open(&rig, t), DP_ERR_INVALID, "open with few hardware queues");
    EXPECT(t, strstr(conform_last_error(), "CUDA_DEVICE_MAX_CONNECTIONS is 8") != NULL, "%s", conform_last_error());
    rig_close(&rig);
}

/* NCCL says nothing, there is just no window. */
static void gpus_without_windows_are_refused(conform_t *t)
{
    rig_t rig;

    change_environment(t, "NCCL_WIN_ENABLE", "0");
    EXPECT_OK(t, rig_open(&rig, t));
    EXPECT_STATUS(t, channels_open(&rig), DP_ERR_UNSUPPORTED, "start without windows");
    EXPECT(t,
           strstr(conform_last_error(), "makes no windows") != NULL &&
               strstr(conform_last_error(), "nccl.channels=groups") != NULL,
           "%s", conform_last_error());
    EXPECT(t, conform_meet(t), "the other rank failed");
    rig_close(&rig);
}

/* One waits for a message, and several sends for credits, one after the other. */
static void waits_in_channels_end_with_the_job(conform_t *t)
{
    const void *got = NULL;
    void *memory = NULL;
    rig_t rig;

    EXPECT_OK(t, rig_open(&rig, t));
    EXPECT_OK(t, channels_open(&rig));
    EXPECT_OK(t, rig.device_vt->allocate(rig.device, BYTES, &memory));
    EXPECT(t, conform_meet(t), "the other rank failed");
    if (t->rank == 0) {
        const dp_message_tag_t first = {.bytes = BYTES};

        EXPECT_OK(t, rig.vt->recv(rig.from[0], &first, &got, rig.back));
        for (uint32_t number = 0; number < 8; number++) { /* there are two slots */
            const dp_message_tag_t tag = {.number = number, .bytes = BYTES};

            EXPECT_OK(t, rig.vt->send(rig.to[1], memory, &tag, rig.s));
        }
    }
    EXPECT(t, conform_meet(t), "the other rank failed");
    if (t->rank == 0) {
        EXPECT_STATUS(t, rig.device_vt->synchronize(rig.s, -1), DP_ERR_DEVICE, "credits that never come");
        EXPECT_STATUS(t, rig.device_vt->synchronize(rig.back, -1), DP_ERR_DEVICE, "a message that never comes");
    } else {
        conform_nap_ms(100);
        conform_abort(t, DP_ERR_DEVICE, "told so");
    }
    rig.device_vt->release(rig.device, memory);
    rig_close(&rig);
}

/* Whatever kernels of NCCL may have: three kinds of 8 blocks would not fit into 20. */
static void puts_take_no_blocks_of_the_share(conform_t *t)
{
    swap_t swap;
    rig_t rig;

    if (t->mode == CONFORM_THREADS) {
        conform_skip(t, "each rank needs a device to divide");
        return;
    }
    change_environment(t, "NCCL_MAX_CTAS", "5"); /* NCCL makes 8 of it */
    EXPECT_OK(t, rig_open_divided(&rig, t, 20));
    EXPECT_OK(t, swap_open(&rig, &swap));
    EXPECT_OK(t, channels_open(&rig));
    pass_on_once(&rig);
    swap_close(&rig, &swap);
    rig_close(&rig);
}

static const conform_case_t one_sided_cases[] = {
    {CONFORM_CASE(groups_go_around_a_ring, 4, "Messages go around a ring of ranks.")},
    {CONFORM_CASE(an_old_library_is_left_to_groups, 2, "A library before 2.29 is refused by name, or left to groups.")},
    {CONFORM_CASE(ranks_without_windows_are_left_to_groups, 3, "Where one rank has no windows, all take groups."),
     .hang_seconds = 10},
    {CONFORM_CASE(channels_are_chosen_by_name, 2, "One-sided channels are those that were asked for.")},
    {CONFORM_CASE(ranks_that_differ_in_channels_are_refused, 2, "Ranks have channels of the same kind.")},
    {CONFORM_CASE(few_queues_are_refused, 2, "Streams that wait need hardware queues.")},
    {CONFORM_CASE(gpus_without_windows_are_refused, 2, "GPUs that do not reach each other are refused.")},
    {CONFORM_CASE(no_step_connects_ranks, 2, "Ranks are connected before the first step."), .hang_seconds = 10},
    {CONFORM_CASE(waits_in_channels_end_with_the_job, 2, "Waits for messages and credits end with the job."),
     .hang_seconds = 10},
    {CONFORM_CASE(waits_of_all_kinds_end_with_the_job, 2, "Beside streams that wait for rows."), .hang_seconds = 10},
    {CONFORM_CASE(puts_take_no_blocks_of_the_share, 2, "What is put needs no multiprocessor.")},
    {CONFORM_CASE(errors_that_come_later_end_the_streams, 2, "Errors that NCCL reports later end the streams.")},
    {0},
};
static const conform_suite_t one_sided_suite = {
    .name = "comm_nccl_one_sided",
    .interface = DP_IFACE_COMM,
    .plugin = "comm_nccl",
    .table_bytes = sizeof(dp_comm_vt_t),
    .needs = CONFORM_NEEDS_DEVICE,
    .cases = one_sided_cases,
};

static const conform_case_t own_cases[] = {
    {CONFORM_CASE(groups_go_around_a_ring, 4, "Bundles go around a ring of ranks.")},
    {CONFORM_CASE(a_missing_library_is_named, 1,
                  "A missing libnccl.so.2 is named, and so is a function that it lacks.")},
    {CONFORM_CASE(a_gpu_twice_is_refused, 2, "Two ranks on one GPU are refused with NCCL's words.")},
    {CONFORM_CASE(processes_may_share_a_gpu, 3, "With DUALPIPE_DEBUG=nccl.same_gpu processes share a GPU.")},
    {CONFORM_CASE(sums_and_exchanges_fit_into_the_share, 2, "Kernels of NCCL that may run at once fit into the share."),
     .hang_seconds = 10},
    {CONFORM_CASE(exchanges_move_the_rows_that_there_are, 2, "Exchanges move rows, not the room for them.")},
    {CONFORM_CASE(waits_of_all_kinds_end_with_the_job, 2, "Streams that wait for rows and messages end with the job."),
     .hang_seconds = 10},
    {CONFORM_CASE(rows_that_stop_halfway_end_with_the_job, 2, "So do those that wait for rows behind them."),
     .hang_seconds = 10},
    {CONFORM_CASE(rows_of_a_job_that_is_over_are_not_touched, 2, "Behind the end nobody touches a caller's rows."),
     .hang_seconds = 10},
    {CONFORM_CASE(exchanges_of_the_capacity_are_left, 2, "Exchanges of the capacity need few hardware queues."),
     .hang_seconds = 10},
    {CONFORM_CASE(streams_of_nccl_are_counted, 2, "Exchanges are exact where each stream has a queue."),
     .hang_seconds = 10},
    {CONFORM_CASE(sums_may_be_those_of_nccl, 3, "Sums in an order of NCCL's choice, where asked for.")},
    {CONFORM_CASE(no_step_connects_ranks, 2, "Ranks are connected before the first step."), .hang_seconds = 10},
    {CONFORM_CASE(more_blocks_than_the_share_has_are_refused, 2, "More blocks than the share has are refused.")},
    {CONFORM_CASE(errors_that_come_later_end_the_streams, 2, "Errors that NCCL reports later end the streams.")},
    {0},
};
static const conform_suite_t own_suite = {
    .name = "comm_nccl",
    .interface = DP_IFACE_COMM,
    .plugin = "comm_nccl",
    .table_bytes = sizeof(dp_comm_vt_t),
    .needs = CONFORM_NEEDS_DEVICE,
    .cases = own_cases,
};

/* ---- the program ---- */

#define COMMON "test_comm_nccl", "--plugin", "comm_nccl", "--device", "device_cuda"
#define CHANNELS                                                                                                       \
    "messages_arrive_in_order_and_whole", "a_bundle_takes_several_channels", "credits_are_the_slots",                  \
        "no_peer_holds_up_another", "from_belongs_to_the_sender_again_behind_the_send",                                \
        "a_message_of_another_step_is_refused", "mistakes_with_channels_are_refused",                                  \
        "releases_out_of_order_are_refused", "ends_with_other_slots_do_not_connect", "start_connects_what_is_new"
#define EXCHANGES                                                                                                      \
    "exchanges_bring_every_row", "exchanges_may_lie_unreleased", "rows_are_kept_until_their_release_runs",             \
        "rows_and_counts_are_read_when_the_stream_gets_there", "a_read_of_rows_goes_no_further_than_its_counts",       \
        "the_capacity_can_be_used", "too_many_rows_are_an_overflow", "mistakes_with_exchanges_are_refused"

static int run(const conform_suite_t *suite, char **argv)
{
    int argc = 0;

    while (argv[argc] != NULL)
        argc++;
    return conform_main((const conform_suite_t *[]){suite, NULL}, NULL, argc, argv);
}

int main(int argc, char **argv)
{
    char *all[] = {COMMON, NULL};
    char *processes[] = {COMMON, "--mode", "processes", NULL};
    char *channels[] = {COMMON, CHANNELS, NULL};
    char *exchanges[] = {COMMON, EXCHANGES, NULL};
    char *exchanges_of_processes[] = {COMMON, "--mode", "processes", EXCHANGES, NULL};
    int status;

    gpu_or_skip("test_comm_nccl");
    if (!gpu_is_fake() &&
        dlopen(debug_entry("lib.nccl") != NULL ? debug_entry("lib.nccl") : "libnccl.so.2", RTLD_LAZY) == NULL) {
        fprintf(stderr, "test_comm_nccl: SKIP: %s\n", dlerror());
        return 77;
    }
    if (ONE_SIDED && !gpu_is_fake()) {
        fprintf(stderr,
                "test_comm_nccl_one_sided: SKIP: ranks of this test share a GPU, and windows want one for each\n");
        return 77;
    }
    if (gpu_is_fake())
        setenv("DP_FAKE_NCCL_SHARE", "1", 0);
    else
        debug_set("nccl.same_gpu", "1");
    if (ONE_SIDED) {
        debug_set("nccl.channels", "signals");
        setenv("DP_FAKE_NCCL_VERSION", "22907", 1);
    }
    if (argc > 1) /* by hand: cases, or another device */
        return conform_main((const conform_suite_t *[]){&conform_comm, ONE_SIDED ? &one_sided_suite : &own_suite, NULL},
                            "comm_nccl", argc, argv);
    if (ONE_SIDED) {
        status = run(&one_sided_suite, all) | run(&conform_comm, gpu_is_hurried() ? channels : all);
        /* the program of bundles over windows */
        debug_set("nccl.channels", "auto");
        return status | run(&conform_comm, channels);
    }
    status = run(&own_suite, gpu_is_fake() ? all : processes) | run(&conform_comm, gpu_is_fake() ? all : processes);
    debug_set("nccl.exchange", "capacity");
    return status | run(&conform_comm, gpu_is_fake() ? exchanges : exchanges_of_processes);
}
