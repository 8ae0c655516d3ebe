/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * conform_comm.c: the contract of dp.comm/1, with ranks as threads and as processes. Where the device has launch() on host
 * memory, data are made and looked at by the streams. On others they are made on the host, brought to a buffer of the device
 * beforehand and copied from there by the streams, or copied there and looked at later. */
#include "conform.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LANES       DP_LANE_COUNT
#define ROOMS       16
#define ARENA_BYTES ((size_t)40 << 20)
#define LOOKS       2048

typedef struct pattern {
    unsigned char *data;
    size_t bytes;
    uint32_t seed;
    uint64_t *wrong; /* of the stream that looks */
} pattern_t;

typedef struct swap {
    int32_t rank, size;
    uint32_t number;
    size_t row_bytes;
    unsigned char *rows; /* to send, or received */
    int32_t *offsets, *counts;
    uint64_t *wrong;
} swap_t;

/* Something to look at once the streams are at rest: a message, or rows with their counts, at `at` in the arena. */
typedef struct later {
    bool is_swap;
    pattern_t pattern;
    swap_t swap;
    size_t at;
} later_t;

/* One rank's device, a stream for each lane, and an instance. */
typedef struct rig {
    conform_t *t;
    const dp_device_vt_t *device_vt;
    const dp_comm_vt_t *vt;
    dp_device_t *device;
    dp_stream_t *streams[LANES];
    dp_comm_t *comm;
    void *rooms[ROOMS]; /* device memory of the case */
    int room_count;
    bool launches;
    dp_stream_t *side;    /* the rest is for devices without launch() */
    unsigned char *arena; /* device memory */
    size_t used;
    later_t *laters;
    int later_count;
} rig_t;

static dp_status_t comm_open(rig_t *rig, const char *name, int32_t rank, int32_t nranks, const int32_t *world,
                             size_t reduce_bytes)
{
    dp_comm_config_t config = {.struct_size = sizeof(config),
                               .name = name,
                               .rank = rank,
                               .nranks = nranks,
                               .world_ranks = world,
                               .device_vt = rig->device_vt,
                               .device = rig->device,
                               .reduce_bytes = reduce_bytes};

    return rig->vt->open(rig->t->host, &config, &rig->comm);
}

static dp_status_t arena_open(rig_t *rig)
{
    const dp_device_vt_t *device = rig->device_vt;
    dp_status_t status = device->stream_open(rig->device, DP_LANE_COMPUTE, &rig->side);

    rig->laters = malloc(LOOKS * sizeof(*rig->laters));
    return status == DP_OK ? device->allocate(rig->device, ARENA_BYTES, (void **)&rig->arena) : status;
}

static bool device_open(rig_t *rig, conform_t *t)
{
    dp_device_config_t config = {.struct_size = sizeof(config), .queue_length = 256};
    dp_status_t status;

    memset(rig, 0, sizeof(*rig));
    rig->t = t;
    rig->device_vt = t->device;
    rig->vt = t->comm;
    rig->launches = (t->device->caps & DP_DEVICE_CAP_LAUNCH) && (t->device->caps & DP_DEVICE_CAP_HOST_MEMORY);
    status = t->device->open(t->host, &config, &rig->device);
    for (int lane = 0; lane < LANES && status == DP_OK; lane++)
        status = t->device->stream_open(rig->device, (dp_lane_t)lane, &rig->streams[lane]);
    if (status == DP_OK && !rig->launches)
        status = arena_open(rig);
    if (status != DP_OK)
        conform_fail(t, __FILE__, __LINE__, "device", "%s", conform_last_error());
    return status == DP_OK;
}

static bool rig_open(rig_t *rig, conform_t *t, const char *name, size_t reduce_bytes)
{
    static const int32_t world[CONFORM_RANKS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7};

    if (!device_open(rig, t))
        return false;
    if (comm_open(rig, name, t->rank, t->size, world, reduce_bytes) == DP_OK)
        return true;
    conform_fail(t, __FILE__, __LINE__, "open", "%s", conform_last_error());
    return false;
}

static void device_close(rig_t *rig)
{
    for (int lane = 0; lane < LANES; lane++)
        rig->device_vt->stream_close(rig->streams[lane]);
    for (int i = 0; i < rig->room_count; i++)
        rig->device_vt->release(rig->device, rig->rooms[i]);
    if (!rig->launches) {
        rig->device_vt->stream_close(rig->side);
        rig->device_vt->release(rig->device, rig->arena);
        free(rig->laters);
    }
    rig->device_vt->close(rig->device);
}

/* Zeroed device memory that lives as long as the rig; NULL when there is none. */
static void *room(rig_t *rig, size_t bytes)
{
    void *memory = NULL;

    if (rig->room_count == ROOMS || rig->device_vt->allocate(rig->device, bytes, &memory) != DP_OK) {
        conform_fail(rig->t, __FILE__, __LINE__, "room", "%s", conform_last_error());
        return NULL;
    }
    rig->rooms[rig->room_count++] = memory;
    return memory;
}

/* Between host and device, at once, whatever the lanes wait for. */
static dp_status_t move(rig_t *rig, void *to, const void *from, size_t bytes)
{
    dp_status_t status;

    if (rig->launches) {
        memcpy(to, from, bytes);
        return DP_OK;
    }
    status = rig->device_vt->copy(rig->side, to, from, bytes);
    return status == DP_OK ? rig->device_vt->synchronize(rig->side, -1) : status;
}

static void rig_close(rig_t *rig)
{
    rig->vt->close(rig->comm);
    device_close(rig);
}

static dp_status_t look_now(rig_t *rig);

/* The first failure among the streams, once all are at rest. */
static dp_status_t rest(rig_t *rig)
{
    dp_status_t status = DP_OK;

    for (int lane = 0; lane < LANES; lane++) {
        dp_status_t one = rig->device_vt->synchronize(rig->streams[lane], -1);

        status = status == DP_OK ? one : status;
    }
    return status == DP_OK && !rig->launches ? look_now(rig) : status;
}

static dp_status_t channel(rig_t *rig, uint32_t id, int32_t peer, int sender, uint32_t slots, size_t bytes,
                           dp_channel_end_t **end_out)
{
    dp_channel_config_t config = {.struct_size = sizeof(config),
                                  .id = id,
                                  .peer = peer,
                                  .sender = sender,
                                  .slots = slots,
                                  .slot_bytes = bytes,
                                  .label = "F chunk 1"};

    return rig->vt->channel_open(rig->comm, &config, end_out);
}

/* ---- data that say where they come from ---- */

static unsigned char pattern_byte(uint32_t seed, size_t k)
{
    uint32_t mixed =
        (seed + 1) * UINT32_C(2654435761); /* neighbouring seeds differ in the byte that is left */

    return (unsigned char)((mixed >> 24) + k * 7 + (k >> 8) + (k >> 16) * 3);
}

static dp_status_t fill(void *arg)
{
    const pattern_t *p = arg;

    for (size_t k = 0; k < p->bytes; k++)
        p->data[k] = pattern_byte(p->seed, k);
    return DP_OK;
}

static dp_status_t look(void *arg)
{
    const pattern_t *p = arg;

    for (size_t k = 0; k < p->bytes; k++)
        *p->wrong += p->data[k] != pattern_byte(p->seed, k);
    return DP_OK;
}

/* A place in the arena. When it is full everything there is looked at first, which waits for the streams. */
static dp_status_t arena_take(rig_t *rig, size_t bytes, size_t *at_out)
{
    dp_status_t status = DP_OK;

    bytes = (bytes + 255) / 256 * 256;
    if (rig->used + bytes > ARENA_BYTES || rig->later_count == LOOKS)
        status = rest(rig);
    *at_out = rig->used;
    rig->used += bytes;
    return status;
}

/* Brings `bytes` from the host to the arena now, and has the lane copy them to `to`. */
static dp_status_t bring(rig_t *rig, int lane, void *to, const void *from, size_t bytes)
{
    size_t at;
    dp_status_t status = arena_take(rig, bytes, &at);

    if (status == DP_OK && bytes > 0)
        status = move(rig, rig->arena + at, from, bytes);
    return status == DP_OK && bytes > 0 ? rig->device_vt->copy(rig->streams[lane], to, rig->arena + at, bytes)
                                        : status;
}

static dp_status_t fill_on(rig_t *rig, int lane, const pattern_t *p)
{
    pattern_t here = *p;
    dp_status_t status;

    if (rig->launches)
        return rig->device_vt->launch(rig->streams[lane], fill, p, sizeof(*p));
    here.data = malloc(p->bytes + 1);
    fill(&here);
    status = bring(rig, lane, p->data, here.data, p->bytes);
    free(here.data);
    return status;
}

static dp_status_t look_on(rig_t *rig, int lane, const pattern_t *p)
{
    dp_status_t status;
    size_t at;

    if (rig->launches)
        return rig->device_vt->launch(rig->streams[lane], look, p, sizeof(*p));
    status = arena_take(rig, p->bytes, &at);
    if (status == DP_OK && p->bytes > 0)
        status = rig->device_vt->copy(rig->streams[lane], rig->arena + at, p->data, p->bytes);
    rig->laters[rig->later_count++] = (later_t){.pattern = *p, .at = at};
    return status;
}

static dp_status_t nap(void *arg)
{
    conform_nap_ms(*(int *)arg);
    return DP_OK;
}

static dp_status_t nap_now_and_then(rig_t *rig, int lane, uint64_t *random)
{
    int ms = 1;

    if (conform_random(random) % 16 != 0)
        return DP_OK;
    if (rig->launches)
        return rig->device_vt->launch(rig->streams[lane], nap, &ms, sizeof(ms));
    conform_nap_ms(ms);
    return DP_OK;
}

static uint32_t seed_of(int32_t from, int32_t to, uint32_t number)
{
    return number * 64 + (uint32_t)from * 8 + (uint32_t)to;
}

static dp_message_tag_t tag_of(uint32_t number, size_t bytes)
{
    dp_message_tag_t tag = {number, number / 10, (int32_t)(number % 10), (uint32_t)bytes};

    return tag;
}

/* Makes message `number` in `buffer` and sends it. */
static dp_status_t put(rig_t *rig, dp_channel_end_t *end, int lane, int32_t to, uint32_t number,
                       unsigned char *buffer, size_t bytes)
{
    pattern_t p = {buffer, bytes, seed_of(rig->t->rank, to, number), NULL};
    dp_message_tag_t tag = tag_of(number, bytes);
    dp_status_t status = fill_on(rig, lane, &p);

    return status == DP_OK ? rig->vt->send(end, buffer, &tag, rig->streams[lane]) : status;
}

/* Receives message `number`, looks at it and gives its slot back. */
static dp_status_t take(rig_t *rig, dp_channel_end_t *end, int lane, int32_t from, uint32_t number,
                        size_t bytes, uint64_t *wrong)
{
    pattern_t p = {NULL, bytes, seed_of(from, rig->t->rank, number), wrong};
    dp_message_tag_t tag = tag_of(number, bytes);
    const void *data;
    dp_status_t status = rig->vt->recv(end, &tag, &data, rig->streams[lane]);

    p.data = (unsigned char *)data;
    if (status == DP_OK)
        status = look_on(rig, lane, &p);
    return status == DP_OK ? rig->vt->release(end, number, rig->streams[lane]) : status;
}

/* Nothing, one byte, odd sizes, all of the slot. */
static size_t size_of_message(uint32_t number, size_t slot_bytes)
{
    static const size_t small[] = {1, 0, 7, 63};

    return number % 3 == 2 ? slot_bytes : small[number % 4] < slot_bytes ? small[number % 4] : slot_bytes;
}

/* ---- channels ---- */

static void messages_arrive_in_order_and_whole(conform_t *t)
{
    static const size_t sizes[] = {1, 100, 4096, 70001};
    unsigned char *buffer;
    rig_t rig;

    if (!rig_open(&rig, t, "pair", 0) || (buffer = room(&rig, 70001)) == NULL)
        return;
    for (uint32_t slots = 1; slots <= 4; slots++) {
        dp_channel_end_t *end;
        uint64_t wrong = 0, random = slots + 10 * (uint64_t)t->rank;
        size_t bytes = sizes[slots - 1];

        EXPECT_OK(t, channel(&rig, slots, 1 - t->rank, t->rank == 0, slots, bytes, &end));
        EXPECT_OK(t, rig.vt->start(rig.comm));
        for (uint32_t i = 0; i < 150; i++) {
            EXPECT_OK(t, nap_now_and_then(&rig, DP_LANE_P2P, &random));
            if (t->rank == 0)
                EXPECT_OK(t, put(&rig, end, DP_LANE_P2P, 1, i, buffer, size_of_message(i, bytes)));
            else
                EXPECT_OK(t, take(&rig, end, DP_LANE_P2P, 0, i, size_of_message(i, bytes), &wrong));
        }
        EXPECT_OK(t, rest(&rig));
        EXPECT(t, wrong == 0, "%llu bytes are wrong with %u slots of %zu bytes", (unsigned long long)wrong,
               slots, bytes);
    }
    rig_close(&rig);
}

static void every_rank_talks_to_every_other(conform_t *t)
{
    enum { BYTES = 300, MESSAGES = 60 };
    dp_channel_end_t *to[CONFORM_RANKS_MAX], *from[CONFORM_RANKS_MAX];
    unsigned char *buffer;
    uint64_t wrong = 0, random = (uint64_t)t->rank;
    rig_t rig;

    if (!rig_open(&rig, t, "mesh", 0) || (buffer = room(&rig, BYTES)) == NULL)
        return;
    for (int32_t p = 0; p < t->size; p++) {
        if (p == t->rank)
            continue;
        EXPECT_OK(t, channel(&rig, 5, p, 1, 2, BYTES, &to[p]));
        EXPECT_OK(t, channel(&rig, 5, p, 0, 2, BYTES, &from[p]));
    }
    EXPECT_OK(t, rig.vt->start(rig.comm));
    for (uint32_t i = 0; i < MESSAGES; i++) {
        for (int32_t k = 1; k < t->size; k++) {
            int32_t p = (t->rank + k) % t->size;

            EXPECT_OK(t, nap_now_and_then(&rig, DP_LANE_P2P, &random));
            EXPECT_OK(t, put(&rig, to[p], DP_LANE_P2P, p, i, buffer, size_of_message(i, BYTES)));
        }
        for (int32_t k = 1; k < t->size; k++) {
            int32_t p = (t->rank + t->size - k) % t->size;

            EXPECT_OK(t, nap_now_and_then(&rig, DP_LANE_COMPUTE, &random));
            EXPECT_OK(t, take(&rig, from[p], DP_LANE_COMPUTE, p, i, size_of_message(i, BYTES), &wrong));
        }
    }
    EXPECT_OK(t, rest(&rig));
    EXPECT(t, wrong == 0, "%llu bytes are wrong", (unsigned long long)wrong);
    rig_close(&rig);
}

/* A sender gets as far as there are slots, without the receiver; then it waits for the first of them, in order. */
static void credits_are_the_slots(conform_t *t)
{
    enum { SLOTS = 3, BYTES = 40 };
    dp_channel_end_t *end;
    unsigned char *buffer;
    uint64_t wrong = 0;
    const void *data[SLOTS];
    rig_t rig;

    if (!rig_open(&rig, t, "credits", 0) || (buffer = room(&rig, BYTES)) == NULL)
        return;
    if (!(rig.vt->caps & DP_COMM_CAP_ONE_SIDED)) {
        conform_skip(t, "the backend is not one-sided");
        rig_close(&rig);
        return;
    }
    EXPECT_OK(t, channel(&rig, 1, 1 - t->rank, t->rank == 0, SLOTS, BYTES, &end));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    if (t->rank == 0) {
        for (uint32_t i = 0; i < SLOTS; i++)
            EXPECT_OK(t, put(&rig, end, DP_LANE_P2P, 1, i, buffer, BYTES));
        EXPECT_OK(t, rest(&rig)); /* nobody has received anything */
        EXPECT_OK(t, put(&rig, end, DP_LANE_P2P, 1, SLOTS, buffer, BYTES));
        EXPECT_STATUS(t, rig.device_vt->synchronize(rig.streams[DP_LANE_P2P], 30000000), DP_ERR_TIMEOUT);
    }
    EXPECT(t, conform_meet(t), "the other rank failed");
    if (t->rank == 1) {
        for (uint32_t i = 0; i < SLOTS; i++) {
            dp_message_tag_t tag = tag_of(i, BYTES);

            EXPECT_OK(t, rig.vt->recv(end, &tag, &data[i], rig.streams[DP_LANE_P2P]));
            EXPECT(t, (uintptr_t)data[i] % 16 == 0, "slot at %p", data[i]);
        }
        for (uint32_t i = 0; i < SLOTS; i++) { /* all slots are full at once, and each has its own message */
            pattern_t p = {(unsigned char *)data[i], BYTES, seed_of(0, 1, i), &wrong};

            EXPECT_OK(t, look_on(&rig, DP_LANE_P2P, &p));
        }
        EXPECT_OK(t, rig.vt->release(end, 0, rig.streams[DP_LANE_P2P]));
        /* its release is refused: 1 and 2 come first */
        EXPECT_STATUS(t, take(&rig, end, DP_LANE_P2P, 0, SLOTS, BYTES, &wrong), DP_ERR_INVALID);
        EXPECT_OK(t, rest(&rig));
        EXPECT(t, wrong == 0, "%llu bytes are wrong", (unsigned long long)wrong);
    }
    EXPECT_OK(t, rest(&rig)); /* rank 0: the fourth message has gone */
    rig_close(&rig);
}

static void unexpected_messages_are_protocol_errors(conform_t *t)
{
    static const dp_message_tag_t sent = {0, 3, 5, 32};
    static const dp_message_tag_t expected[] = {{0, 4, 5, 32}, {0, 3, 6, 32}, {0, 3, 5, 31}};

    for (uint32_t i = 0; i < 3; i++) {
        dp_channel_end_t *end;
        const void *data, *buffer;
        char name[24];
        rig_t rig;

        snprintf(name, sizeof(name), "tags%u", i);
        if (!rig_open(&rig, t, name, 0) || (buffer = room(&rig, 32)) == NULL)
            return;
        EXPECT_OK(t, channel(&rig, 7, 1 - t->rank, t->rank == 1, 2, 32, &end));
        EXPECT_OK(t, rig.vt->start(rig.comm));
        if (t->rank == 1) {
            EXPECT_OK(t, rig.vt->send(end, buffer, &sent, rig.streams[DP_LANE_P2P]));
            EXPECT_OK(t, rest(&rig));
        } else {
            EXPECT_OK(t, rig.vt->recv(end, &expected[i], &data, rig.streams[DP_LANE_P2P]));
            EXPECT_STATUS(t, rest(&rig), DP_ERR_PROTOCOL);
            EXPECT(t,
                   strstr(conform_last_error(), "F chunk 1") != NULL &&
                       strstr(conform_last_error(), "rank 1") != NULL,
                   "the message names neither channel nor peer: %s", conform_last_error());
        }
        EXPECT(t, conform_meet(t), "the other rank failed");
        rig.vt->abort(rig.comm);
        rig_close(&rig);
    }
}

static void mistakes_of_the_caller_are_refused(conform_t *t)
{
    enum { BYTES = 64 };
    dp_exchange_config_t exchange = {
        .struct_size = sizeof(exchange), .id = 1, .row_bytes = 24, .capacity_rows = 4};
    dp_exchange_t *x = NULL;
    dp_channel_end_t *end, *none = NULL;
    dp_message_tag_t tag = tag_of(0, BYTES);
    unsigned char buffer[BYTES] = {0};
    const void *data;
    rig_t rig;

    if (!rig_open(&rig, t, "mistakes", 0))
        return;
    EXPECT_STATUS(t, channel(&rig, 1, t->size, 1, 2, BYTES, &none), DP_ERR_INVALID);
    EXPECT_STATUS(t, channel(&rig, 1, -1, 1, 2, BYTES, &none), DP_ERR_INVALID);
    EXPECT_STATUS(t, channel(&rig, 1, 1 - t->rank, 1, 0, BYTES, &none), DP_ERR_INVALID);
    EXPECT_STATUS(t, channel(&rig, 1, 1 - t->rank, 1, UINT32_MAX, SIZE_MAX / 2, &none), DP_ERR_INVALID);
    EXPECT_STATUS(t, rig.vt->exchange_open(rig.comm, &exchange, &x), DP_ERR_INVALID);
    exchange.row_bytes = 16;
    exchange.capacity_rows = 0;
    EXPECT_STATUS(t, rig.vt->exchange_open(rig.comm, &exchange, &x), DP_ERR_INVALID);
    EXPECT(t, none == NULL && x == NULL, "an output was set by a call that failed");

    EXPECT_OK(t, channel(&rig, 1, 1 - t->rank, t->rank == 0, 2, BYTES, &end));
    EXPECT_STATUS(t, channel(&rig, 1, 1 - t->rank, t->rank == 0, 2, BYTES, &none), DP_ERR_INVALID);
    EXPECT_STATUS(t, rig.vt->send(end, buffer, &tag, rig.streams[0]), DP_ERR_INVALID); /* before start */
    EXPECT_OK(t, rig.vt->start(rig.comm));
    if (t->rank == 0) {
        tag.sequence = 1;
        EXPECT_STATUS(t, rig.vt->send(end, buffer, &tag, rig.streams[0]), DP_ERR_INVALID);
        tag = tag_of(0, BYTES + 1);
        EXPECT_STATUS(t, rig.vt->send(end, buffer, &tag, rig.streams[0]), DP_ERR_INVALID);
        tag = tag_of(0, BYTES);
        EXPECT_STATUS(t, rig.vt->recv(end, &tag, &data, rig.streams[0]), DP_ERR_INVALID);
        EXPECT_STATUS(t, rig.vt->release(end, 0, rig.streams[0]), DP_ERR_INVALID);
    } else {
        EXPECT_STATUS(t, rig.vt->send(end, buffer, &tag, rig.streams[0]), DP_ERR_INVALID);
        EXPECT_STATUS(t, rig.vt->release(end, 0, rig.streams[0]), DP_ERR_INVALID); /* not received */
    }
    EXPECT_STATUS(t, rig.vt->all_reduce(rig.comm, buffer, 4, DP_BF16, rig.streams[0]), DP_ERR_UNSUPPORTED);
    EXPECT_OK(t, rest(&rig));
    rig_close(&rig);
    rig.vt->close(NULL);
}

static void ends_that_differ_do_not_connect(conform_t *t)
{
    dp_channel_end_t *end;
    rig_t rig;
    dp_status_t status;

    for (int difference = 0; difference < 3; difference++) {
        char name[24];

        snprintf(name, sizeof(name), "unequal%d", difference);
        if (!rig_open(&rig, t, name, 0))
            return;
        if (difference < 2 || t->rank == 0)
            EXPECT_OK(t,
                      channel(&rig, 3, 1 - t->rank, t->rank == 0, difference == 0 ? 2 + (uint32_t)t->rank : 2,
                              difference == 1 ? 64 + (size_t)t->rank : 64, &end));
        status = rig.vt->start(rig.comm);
        if (t->rank == 0) {
            EXPECT(t, status == DP_ERR_MISMATCH, "start came to %s", dp_status_name(status));
            EXPECT(t, strstr(conform_last_error(), "F chunk 1") != NULL, "\"%s\"", conform_last_error());
        }
        if (difference == 2 && t->rank == 0)
            conform_abort(t, DP_ERR_MISMATCH,
                          "the other end is missing"); /* as the engine does; ends rank 1's start */
        if (difference == 2)
            EXPECT(t, status == DP_ERR_MISMATCH, "start came to %s on rank %d", dp_status_name(status),
                   t->rank);
        else
            EXPECT(t, conform_meet(t),
                   "the other rank failed"); /* who closes first leaves nothing to compare with */
        rig_close(&rig);
    }
}

static void start_connects_what_is_new(conform_t *t)
{
    dp_channel_end_t *ends[3];
    unsigned char *buffer;
    uint64_t wrong = 0;
    size_t before, after;
    rig_t rig;

    if (!rig_open(&rig, t, "rounds", 0) || (buffer = room(&rig, 128)) == NULL)
        return;
    EXPECT_OK(t, rig.vt->start(rig.comm)); /* nothing yet */
    for (uint32_t round = 0; round < 3; round++) {
        before = rig.vt->memory_bytes(rig.comm);
        EXPECT_OK(t, channel(&rig, round, 1 - t->rank, (t->rank == 0) == (round != 1), 2, 128, &ends[round]));
        EXPECT_OK(t, rig.vt->start(rig.comm));
        after = rig.vt->memory_bytes(rig.comm);
        EXPECT(t, after > before && ((t->rank == 0) == (round != 1) || after - before >= 256),
               "%zu bytes before, %zu after", before, after);
        for (uint32_t c = 0; c <= round; c++) {
            uint32_t number = round - c;

            if ((t->rank == 0) == (c != 1))
                EXPECT_OK(t, put(&rig, ends[c], DP_LANE_P2P, 1 - t->rank, number, buffer, 128));
            else
                EXPECT_OK(t, take(&rig, ends[c], DP_LANE_P2P, 1 - t->rank, number, 128, &wrong));
        }
    }
    EXPECT_OK(t, rest(&rig));
    EXPECT(t, wrong == 0, "%llu bytes are wrong", (unsigned long long)wrong);
    rig_close(&rig);
}

/* ---- exchanges ---- */

#define ROUNDS   24
#define CAPACITY 5

/* Rows from `from` to `to` in round `number`; anybody can tell. */
static int32_t rows_between(int32_t from, int32_t to, uint32_t number)
{
    uint64_t state = number * 1000 + (uint64_t)from * 30 + (uint64_t)to;

    if (number % 7 == 3)
        return 0;
    if (number % 7 == 5)
        return CAPACITY;
    return (int32_t)(conform_random(&state) % (CAPACITY + 1));
}

/* Row k for rank `to` is a pattern; the ranks' rows lie in descending order of rank, so that offsets matter. */
static dp_status_t make_rows(void *arg)
{
    const swap_t *s = arg;
    int32_t at = 0;

    for (int32_t to = s->size - 1; to >= 0; to--) {
        s->offsets[to] = at;
        s->counts[to] = rows_between(s->rank, to, s->number);
        for (int32_t k = 0; k < s->counts[to]; k++, at++) {
            pattern_t p = {s->rows + (size_t)at * s->row_bytes, s->row_bytes,
                           seed_of(s->rank, to, s->number * 16 + (uint32_t)k), NULL};

            fill(&p);
        }
    }
    return DP_OK;
}

static dp_status_t look_at_rows(void *arg)
{
    const swap_t *s = arg;

    for (int32_t from = 0; from < s->size; from++) {
        if (s->counts[from] != rows_between(from, s->rank, s->number)) {
            *s->wrong += 1;
            continue;
        }
        for (int32_t k = 0; k < s->counts[from]; k++) {
            pattern_t p = {s->rows + ((size_t)from * CAPACITY + (size_t)k) * s->row_bytes, s->row_bytes,
                           seed_of(from, s->rank, s->number * 16 + (uint32_t)k), s->wrong};

            look(&p);
        }
    }
    return DP_OK;
}

static dp_status_t make_rows_on(rig_t *rig, int lane, const swap_t *s)
{
    size_t n = (size_t)s->size, rows_bytes = n * CAPACITY * s->row_bytes;
    int32_t offsets[CONFORM_RANKS_MAX], counts[CONFORM_RANKS_MAX];
    swap_t here = *s;
    dp_status_t status;

    if (rig->launches)
        return rig->device_vt->launch(rig->streams[lane], make_rows, s, sizeof(*s));
    here.offsets = offsets;
    here.counts = counts;
    here.rows = calloc(1, rows_bytes);
    make_rows(&here);
    status = bring(rig, lane, s->rows, here.rows, rows_bytes);
    free(here.rows);
    if (status == DP_OK)
        status = bring(rig, lane, s->offsets, offsets, n * sizeof(int32_t));
    return status == DP_OK ? bring(rig, lane, s->counts, counts, n * sizeof(int32_t)) : status;
}

/* Counts first, then all rows, whether they were sent or not. */
static dp_status_t look_at_rows_on(rig_t *rig, int lane, const swap_t *s)
{
    size_t n = (size_t)s->size, at;
    dp_status_t status;

    if (rig->launches)
        return rig->device_vt->launch(rig->streams[lane], look_at_rows, s, sizeof(*s));
    status = arena_take(rig, 256 + n * CAPACITY * s->row_bytes, &at);
    if (status == DP_OK)
        status = rig->device_vt->copy(rig->streams[lane], rig->arena + at, s->counts, n * sizeof(int32_t));
    if (status == DP_OK)
        status = rig->device_vt->copy(rig->streams[lane], rig->arena + at + 256, s->rows,
                                      n * CAPACITY * s->row_bytes);
    rig->laters[rig->later_count++] = (later_t){.is_swap = true, .swap = *s, .at = at};
    return status;
}

static dp_status_t look_now(rig_t *rig)
{
    unsigned char *here = malloc(rig->used + 1);
    dp_status_t status = rig->used > 0 ? move(rig, here, rig->arena, rig->used) : DP_OK;

    for (int i = 0; i < rig->later_count && status == DP_OK; i++) {
        later_t *l = &rig->laters[i];

        if (l->is_swap) {
            l->swap.counts = (int32_t *)(void *)(here + l->at);
            l->swap.rows = here + l->at + 256;
            look_at_rows(&l->swap);
        } else {
            l->pattern.data = here + l->at;
            look(&l->pattern);
        }
    }
    rig->later_count = 0;
    rig->used = 0;
    free(here);
    return status;
}

/* What a rank sends rows from. */
static bool swap_rooms(rig_t *rig, size_t row_bytes, swap_t *s)
{
    s->rows = room(rig, (size_t)rig->t->size * CAPACITY * row_bytes);
    s->offsets = room(rig, CONFORM_RANKS_MAX * sizeof(int32_t));
    s->counts = room(rig, CONFORM_RANKS_MAX * sizeof(int32_t));
    return s->rows != NULL && s->offsets != NULL && s->counts != NULL;
}

static void exchanges_bring_every_row(conform_t *t)
{
    static const size_t row_bytes[] = {16, 48, 1024};
    dp_exchange_t *xs[3];
    uint64_t wrong = 0, random = (uint64_t)t->rank;
    swap_t rooms;
    rig_t rig;

    if (!rig_open(&rig, t, "experts", 0) || !swap_rooms(&rig, 1024, &rooms))
        return;
    for (uint32_t i = 0; i < 3; i++) {
        dp_exchange_config_t config = {.struct_size = sizeof(config),
                                       .id = i,
                                       .row_bytes = row_bytes[i],
                                       .capacity_rows = CAPACITY,
                                       .slots = i == 1 ? 0 : i + 1,
                                       .label = "dispatch"};

        EXPECT_OK(t, rig.vt->exchange_open(rig.comm, &config, &xs[i]));
    }
    EXPECT_OK(t, rig.vt->start(rig.comm));
    for (uint32_t number = 0; number < ROUNDS; number++)
        for (uint32_t i = 0; i < 3; i++) {
            swap_t s = {t->rank,    t->size,       number,       row_bytes[i],
                        rooms.rows, rooms.offsets, rooms.counts, &wrong};
            dp_stream_t *lane = rig.streams[DP_LANE_ALL_TO_ALL];
            const int32_t *counts_in;
            const void *rows_in;

            EXPECT_OK(t, nap_now_and_then(&rig, DP_LANE_ALL_TO_ALL, &random));
            EXPECT_OK(t, make_rows_on(&rig, DP_LANE_ALL_TO_ALL, &s));
            EXPECT_OK(
                t, rig.vt->exchange(xs[i], number, s.rows, s.offsets, s.counts, &rows_in, &counts_in, lane));
            s.rows = (unsigned char *)rows_in;
            s.counts = (int32_t *)counts_in;
            EXPECT_OK(t, look_at_rows_on(&rig, DP_LANE_ALL_TO_ALL, &s));
            EXPECT_OK(t, rig.vt->exchange_release(xs[i], number, lane));
        }
    EXPECT_OK(t, rest(&rig));
    EXPECT(t, wrong == 0, "%llu counts or bytes are wrong", (unsigned long long)wrong);
    rig_close(&rig);
}

/* As many exchanges as there are slots may lie received and unreleased. */
static void exchanges_may_lie_unreleased(conform_t *t)
{
    enum { SLOTS = 3 };
    dp_exchange_config_t config = {.struct_size = sizeof(config),
                                   .id = 9,
                                   .row_bytes = 32,
                                   .capacity_rows = CAPACITY,
                                   .slots = SLOTS,
                                   .label = "combine"};
    dp_stream_t *lane;
    dp_exchange_t *x;
    uint64_t wrong = 0;
    swap_t received[SLOTS], rooms;
    rig_t rig;

    if (!rig_open(&rig, t, "held", 0) || !swap_rooms(&rig, 32, &rooms))
        return;
    lane = rig.streams[DP_LANE_ALL_TO_ALL];
    EXPECT_OK(t, rig.vt->exchange_open(rig.comm, &config, &x));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    for (uint32_t turn = 0; turn < 4; turn++) {
        for (uint32_t i = 0; i < SLOTS; i++) {
            uint32_t number = turn * SLOTS + i;
            swap_t s = {t->rank, t->size, number, 32, rooms.rows, rooms.offsets, rooms.counts, &wrong};
            const int32_t *counts_in;
            const void *rows_in;

            EXPECT_OK(t, make_rows_on(&rig, DP_LANE_ALL_TO_ALL, &s));
            EXPECT_OK(t,
                      rig.vt->exchange(x, number, s.rows, s.offsets, s.counts, &rows_in, &counts_in, lane));
            s.rows = (unsigned char *)rows_in;
            s.counts = (int32_t *)counts_in;
            received[i] = s;
        }
        for (uint32_t i = 0; i < SLOTS; i++)
            EXPECT_OK(t, look_at_rows_on(&rig, DP_LANE_ALL_TO_ALL, &received[i]));
        for (uint32_t i = 0; i < SLOTS; i++)
            EXPECT_OK(t, rig.vt->exchange_release(x, turn * SLOTS + i, lane));
    }
    EXPECT_OK(t, rest(&rig));
    EXPECT(t, wrong == 0, "%llu counts or bytes are wrong", (unsigned long long)wrong);
    EXPECT_STATUS(t, rig.vt->exchange_release(x, 4 * SLOTS, lane), DP_ERR_INVALID);
    rig_close(&rig);
}

static void too_many_rows_are_an_overflow(conform_t *t)
{
    dp_exchange_config_t config = {.struct_size = sizeof(config),
                                   .id = 2,
                                   .row_bytes = 16,
                                   .capacity_rows = CAPACITY,
                                   .label = "dispatch"};
    int32_t counts[2] = {1, 1};
    const int32_t *counts_in;
    const void *rows_in;
    dp_exchange_t *x;
    dp_status_t status;
    swap_t rooms;
    rig_t rig;

    if (!rig_open(&rig, t, "overflow", 0) || !swap_rooms(&rig, 16, &rooms))
        return;
    EXPECT_OK(t, rig.vt->exchange_open(rig.comm, &config, &x));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    if (t->rank == 1)
        counts[0] = CAPACITY + 1;
    EXPECT_OK(t, move(&rig, rooms.counts, counts, sizeof(counts)));
    EXPECT(t, conform_meet(t),
           "the other rank failed"); /* its overflow ends the job, and every wait of ours */
    EXPECT_OK(t, rig.vt->exchange(x, 0, rooms.rows, rooms.offsets, rooms.counts, &rows_in, &counts_in,
                                  rig.streams[DP_LANE_ALL_TO_ALL]));
    if (t->rank == 1) {
        EXPECT_STATUS(t, rest(&rig), DP_ERR_OVERFLOW);
        EXPECT(t, strstr(conform_last_error(), "dispatch") != NULL, "\"%s\"", conform_last_error());
        conform_abort(t, DP_ERR_OVERFLOW, "too many rows on rank 1"); /* as the engine does */
    } else {
        status = rest(&rig);
        EXPECT(t, status == DP_ERR_OVERFLOW, "rank 0 waits for rows that cannot come: %s",
               dp_status_name(status));
    }
    rig_close(&rig);
}

/* ---- sums ---- */

/* Element i on rank r: magnitudes far apart, so that the order of additions shows in the bits. */
static double element(int32_t rank, size_t i)
{
    uint64_t state = (uint64_t)rank * 1000003 + i;
    uint64_t bits = conform_random(&state);
    double value = (double)(int64_t)bits / 9e18;

    return value * (double)(UINT64_C(1) << (bits % 40));
}

static void set_element(void *data, size_t i, dp_dtype_t dtype, double value)
{
    if (dtype == DP_F32)
        ((float *)data)[i] = (float)value;
    else if (dtype == DP_F64)
        ((double *)data)[i] = value;
    else
        ((int64_t *)data)[i] = (int64_t)(value * 1000);
}

/* sum = sum + the element of `rank`, in the arithmetic of the dtype. */
static void add_element(void *sum, size_t i, dp_dtype_t dtype, int32_t rank)
{
    union {
        float f32;
        double f64;
        int64_t i64;
    } x;

    set_element(&x, 0, dtype, element(rank, i));
    if (dtype == DP_F32)
        ((float *)sum)[i] += x.f32;
    else if (dtype == DP_F64)
        ((double *)sum)[i] += x.f64;
    else
        ((int64_t *)sum)[i] += x.i64;
}

static void sums_have_the_bits_of_a_serial_sum(conform_t *t)
{
    static const size_t counts[] = {1, 2, 3, 5, 64, 1000, 4097, 65537, 300001};
    static const dp_dtype_t dtypes[] = {DP_F32, DP_F64, DP_I64};
    bool launches =
        (t->device->caps & DP_DEVICE_CAP_LAUNCH) != 0; /* kernels may be emulated: less for them */
    const size_t staging[] = {launches ? 0 : 300000, 1, launches ? 20000 : 40000};
    unsigned char *data = malloc(300001 * 8 + 16), *expected = malloc(300001 * 8), *there;

    for (int k = 0; k < 3; k++) {
        size_t most = k == 1     ? 4097
                      : launches ? 300001
                                 : 20001; /* with the least of staging there are many pieces */
        char name[24];
        rig_t rig;

        snprintf(name, sizeof(name), "sums%d", k);
        if (!rig_open(&rig, t, name, staging[k]) || (there = room(&rig, 300001 * 8 + 16)) == NULL)
            return;
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]) && (c == 0 || counts[c - 1] < most); c++)
            for (int d = 0; d < 3; d++) {
                size_t count = counts[c] < most ? counts[c] : most, bytes = count * dp_dtype_bytes(dtypes[d]);

                for (size_t i = 0; i < count; i++) {
                    set_element(data, i, dtypes[d], element(t->rank, i));
                    set_element(expected, i, dtypes[d], element(0, i));
                    for (int32_t r = 1; r < t->size; r++)
                        add_element(expected, i, dtypes[d], r);
                }
                memset(data + bytes, 0xa5, 16);
                EXPECT_OK(t, move(&rig, there, data, bytes + 16));
                EXPECT_OK(t,
                          rig.vt->all_reduce(rig.comm, there, count, dtypes[d], rig.streams[DP_LANE_REDUCE]));
                EXPECT_OK(t, rest(&rig));
                EXPECT_OK(t, move(&rig, data, there, bytes + 16));
                EXPECT(t, memcmp(data, expected, bytes) == 0, "%zu elements of dtype %d", count,
                       (int)dtypes[d]);
                for (int i = 0; i < 16; i++)
                    EXPECT(t, data[bytes + (size_t)i] == 0xa5,
                           "%zu elements of dtype %d: written behind the end", count, (int)dtypes[d]);
            }
        EXPECT_OK(t, rig.vt->all_reduce(rig.comm, there, 0, DP_F32, rig.streams[DP_LANE_REDUCE]));
        EXPECT_OK(t, rest(&rig));
        rig_close(&rig);
    }
    free(data);
    free(expected);
}

static void sums_follow_each_other(conform_t *t)
{
    enum { COUNT = 777, SUMS = 60 };
    double(*data)[COUNT] = malloc(sizeof(double[SUMS][COUNT])), (*there)[COUNT];
    uint64_t random = (uint64_t)t->rank;
    rig_t rig;

    if (!rig_open(&rig, t, "many sums", 4096) || (there = room(&rig, sizeof(double[SUMS][COUNT]))) == NULL)
        return;
    for (int k = 0; k < SUMS; k++)
        for (int i = 0; i < COUNT; i++)
            data[k][i] = (double)((t->rank + 1) * (i + k));
    EXPECT_OK(t, move(&rig, there, data, sizeof(double[SUMS][COUNT])));
    for (int k = 0; k < SUMS; k++) {
        EXPECT_OK(t, nap_now_and_then(&rig, DP_LANE_REDUCE, &random));
        EXPECT_OK(t, rig.vt->all_reduce(rig.comm, there[k], COUNT, DP_F64, rig.streams[DP_LANE_REDUCE]));
    }
    EXPECT_OK(t, rest(&rig));
    EXPECT_OK(t, move(&rig, data, there, sizeof(double[SUMS][COUNT])));
    for (int k = 0; k < SUMS; k++)
        for (int i = 0; i < COUNT; i++)
            EXPECT(t, data[k][i] == (double)(t->size * (t->size + 1) / 2 * (i + k)), "sum %d, element %d: %g",
                   k, i, data[k][i]);
    rig_close(&rig);
    free(data);
}

static void sums_of_different_things_are_found_out(conform_t *t)
{
    double *data;
    dp_status_t status;
    rig_t rig;

    if (!rig_open(&rig, t, "unlike", 0) || (data = room(&rig, 40 * sizeof(double))) == NULL)
        return;
    /* the later one may hear of it at once */
    status = rig.vt->all_reduce(rig.comm, data, t->rank == 0 ? 40 : 39, DP_F64, rig.streams[DP_LANE_REDUCE]);
    if (status == DP_OK)
        status = rest(&rig);
    EXPECT(t, status < 0, "the sum of 40 and of 39 elements came to %s", dp_status_name(status));
    EXPECT(t, conform_meet(t), "the other rank failed");
    rig.vt->abort(rig.comm);
    rig_close(&rig);
}

static void barriers_hold_everybody_back(conform_t *t)
{
    enum { BARRIERS = 20 };
    int64_t times[BARRIERS][2], all[CONFORM_RANKS_MAX][BARRIERS][2];
    uint64_t random = 77 + (uint64_t)t->rank;
    rig_t rig;

    if (!rig_open(&rig, t, "barrier", 0))
        return;
    for (int k = 0; k < BARRIERS; k++) {
        int ms = (int)(conform_random(&random) % 3);
        dp_stream_t *lane = rig.streams[DP_LANE_REDUCE];

        if (rig.launches) {
            EXPECT_OK(t, rig.device_vt->launch(lane, nap, &ms, sizeof(ms)));
            EXPECT_OK(t, rig.device_vt->stamp(lane, &times[k][0]));
            EXPECT_OK(t, rig.vt->barrier(rig.comm, lane));
            EXPECT_OK(t, rig.device_vt->stamp(lane, &times[k][1]));
        } else { /* clocks of devices differ by more than a barrier takes */
            conform_nap_ms(ms);
            times[k][0] = t->host->now_ns(t->host);
            EXPECT_OK(t, rig.vt->barrier(rig.comm, lane));
            EXPECT_OK(t, rest(&rig));
            times[k][1] = t->host->now_ns(t->host);
        }
    }
    EXPECT_OK(t, rest(&rig));
    EXPECT_OK(t, dp_group_all_gather(t->group, times, sizeof(times), all));
    for (int k = 0; k < BARRIERS; k++)
        for (int32_t a = 0; a < t->size; a++)
            for (int32_t b = 0; b < t->size; b++)
                EXPECT(t, all[a][k][0] <= all[b][k][1], "rank %d left barrier %d before rank %d had come", b,
                       k, a);
    rig_close(&rig);
}

/* ---- everything at once ---- */

static void all_traffic_at_once(conform_t *t)
{
    enum { BYTES = 2000, TIMES = 30 };
    int32_t next = (t->rank + 1) % t->size, previous = (t->rank + t->size - 1) % t->size;
    dp_exchange_config_t config = {.struct_size = sizeof(config),
                                   .id = 0,
                                   .row_bytes = 64,
                                   .capacity_rows = CAPACITY,
                                   .label = "dispatch"};
    unsigned char *buffer;
    uint64_t wrong[2] = {0, 0}, random = (uint64_t)t->rank;
    float sums[TIMES], *sums_there;
    dp_channel_end_t *to, *from;
    dp_exchange_t *x;
    swap_t rooms;
    rig_t rig;

    if (!rig_open(&rig, t, "all", 0) || (buffer = room(&rig, BYTES)) == NULL ||
        !swap_rooms(&rig, 64, &rooms) || (sums_there = room(&rig, sizeof(sums))) == NULL)
        return;
    for (int32_t i = 0; i < TIMES; i++)
        sums[i] = (float)(t->rank + i);
    EXPECT_OK(t, move(&rig, sums_there, sums, sizeof(sums)));
    EXPECT_OK(t, channel(&rig, 0, next, 1, 2, BYTES, &to));
    EXPECT_OK(t, channel(&rig, 0, previous, 0, 2, BYTES, &from));
    EXPECT_OK(t, rig.vt->exchange_open(rig.comm, &config, &x));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    for (uint32_t i = 0; i < TIMES; i++) {
        swap_t s = {t->rank, t->size, i, 64, rooms.rows, rooms.offsets, rooms.counts, &wrong[1]};
        dp_stream_t *lane = rig.streams[DP_LANE_ALL_TO_ALL];
        const int32_t *counts_in;
        const void *rows_in;

        EXPECT_OK(t, nap_now_and_then(&rig, (int)(conform_random(&random) % LANES), &random));
        EXPECT_OK(t, make_rows_on(&rig, DP_LANE_ALL_TO_ALL, &s));
        EXPECT_OK(t, rig.vt->exchange(x, i, s.rows, s.offsets, s.counts, &rows_in, &counts_in, lane));
        s.rows = (unsigned char *)rows_in;
        s.counts = (int32_t *)counts_in;
        EXPECT_OK(t, look_at_rows_on(&rig, DP_LANE_ALL_TO_ALL, &s));
        EXPECT_OK(t, rig.vt->exchange_release(x, i, lane));
        EXPECT_OK(t, put(&rig, to, DP_LANE_P2P, next, i, buffer, BYTES));
        EXPECT_OK(t, take(&rig, from, DP_LANE_COMPUTE, previous, i, BYTES, &wrong[0]));
        EXPECT_OK(t, rig.vt->all_reduce(rig.comm, &sums_there[i], 1, DP_F32, rig.streams[DP_LANE_REDUCE]));
    }
    EXPECT_OK(t, rest(&rig));
    EXPECT_OK(t, move(&rig, sums, sums_there, sizeof(sums)));
    EXPECT(t, wrong[0] == 0 && wrong[1] == 0, "%llu bytes of messages, %llu of rows",
           (unsigned long long)wrong[0], (unsigned long long)wrong[1]);
    for (int32_t i = 0; i < TIMES; i++)
        EXPECT(t, sums[i] == (float)(t->size * (t->size - 1) / 2 + t->size * i), "sum %d is %g", i,
               (double)sums[i]);
    rig_close(&rig);
}

/* Ranks {0, 2} and {1, 3} form groups; several instances live side by side, and messages name ranks of the job. */
static void groups_of_some_ranks(conform_t *t)
{
    int32_t world[2] = {t->rank % 2, t->rank % 2 + 2}, rank = t->rank / 2;
    dp_message_tag_t sent = tag_of(0, 8), wanted = tag_of(0, 4);
    dp_comm_t *whole;
    dp_channel_end_t *end;
    double one[2] = {1, 1}, *there;
    const void *data;
    char peer[16];
    rig_t rig;

    if (!rig_open(&rig, t, "whole", 0) || (there = room(&rig, sizeof(one))) == NULL)
        return;
    EXPECT_OK(t, move(&rig, there, one, sizeof(one)));
    whole = rig.comm;
    EXPECT_OK(t, comm_open(&rig, t->rank % 2 == 0 ? "even" : "odd", rank, 2, world, 0));
    EXPECT_OK(t, channel(&rig, 0, 1 - rank, rank == 0, 1, 8, &end));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    EXPECT_OK(t, rig.vt->all_reduce(whole, &there[0], 1, DP_F64, rig.streams[DP_LANE_REDUCE]));
    EXPECT_OK(t, rig.vt->all_reduce(rig.comm, &there[1], 1, DP_F64, rig.streams[DP_LANE_REDUCE]));
    EXPECT_OK(t, rest(&rig));
    EXPECT_OK(t, move(&rig, one, there, sizeof(one)));
    EXPECT(t, one[0] == 4 && one[1] == 2, "%g of 4 ranks, %g of 2", one[0], one[1]);
    if (rank == 0) {
        EXPECT_OK(t, rig.vt->send(end, there, &sent, rig.streams[0]));
        EXPECT_OK(t, rest(&rig));
    } else {
        EXPECT_OK(t, rig.vt->recv(end, &wanted, &data, rig.streams[0]));
        EXPECT_STATUS(t, rest(&rig), DP_ERR_PROTOCOL);
        snprintf(peer, sizeof(peer), "rank %d", world[0]);
        EXPECT(t, strstr(conform_last_error(), peer) != NULL, "no %s in \"%s\"", peer, conform_last_error());
    }
    EXPECT(t, conform_meet(t), "another rank failed");
    rig.vt->abort(rig.comm);
    rig.vt->close(rig.comm);
    rig.comm = whole;
    rig_close(&rig);
}

/* ---- the end ---- */

typedef enum trap { TRAP_RECV, TRAP_SEND, TRAP_EXCHANGE, TRAP_SUM, TRAP_BARRIER, TRAPS } trap_t;

/* Enqueues something that cannot end while the others do nothing. */
static dp_status_t walk_into(rig_t *rig, trap_t trap, dp_channel_end_t *end, dp_exchange_t *x)
{
    unsigned char *zeros = rig->rooms[0];
    dp_message_tag_t tag = {0, 0, 0, 8};
    dp_stream_t *s = rig->streams[DP_LANE_P2P];
    const int32_t *counts;
    const void *data;
    dp_status_t status;

    switch (trap) {
    case TRAP_RECV:
        return rig->vt->recv(end, &tag, &data, s);
    case TRAP_SEND:
        status = rig->vt->send(end, zeros, &tag, s);
        tag.sequence = 1;
        return status == DP_OK ? rig->vt->send(end, zeros, &tag, s) : status;
    case TRAP_EXCHANGE:
        return rig->vt->exchange(x, 0, zeros, (int32_t *)(void *)zeros, (int32_t *)(void *)zeros, &data,
                                 &counts, s);
    case TRAP_SUM:
        return rig->vt->all_reduce(rig->comm, zeros, 1, DP_F64, s);
    default:
        return rig->vt->barrier(rig->comm, s);
    }
}

static bool trap_open(rig_t *rig, conform_t *t, const char *name, dp_channel_end_t *ends[2],
                      dp_exchange_t **x_out)
{
    dp_exchange_config_t config = {.struct_size = sizeof(config),
                                   .id = 0,
                                   .row_bytes = 16,
                                   .capacity_rows = CAPACITY,
                                   .label = "dispatch"};
    dp_status_t status;

    if (!rig_open(rig, t, name, 0) || room(rig, 16 * CAPACITY) == NULL)
        return false;
    status = channel(rig, 0, 1 - t->rank, 1, 1, 8, &ends[TRAP_SEND]);
    if (status == DP_OK)
        status = channel(rig, 0, 1 - t->rank, 0, 1, 8, &ends[TRAP_RECV]);
    if (status == DP_OK)
        status = rig->vt->exchange_open(rig->comm, &config, x_out);
    if (status == DP_OK)
        status = rig->vt->start(rig->comm);
    if (status != DP_OK)
        conform_fail(t, __FILE__, __LINE__, "start", "%s", conform_last_error());
    return status == DP_OK;
}

static void abort_of_an_instance_ends_its_waits(conform_t *t)
{
    for (int trap = 0; trap < TRAPS; trap++) {
        dp_channel_end_t *ends[2];
        dp_exchange_t *x;
        char name[24];
        rig_t rig;

        snprintf(name, sizeof(name), "trap%d", trap);
        if (!trap_open(&rig, t, name, ends, &x))
            return;
        if (t->rank == 1) {
            EXPECT_OK(t, walk_into(&rig, (trap_t)trap, ends[trap == TRAP_SEND], x));
            EXPECT_STATUS(t, rig.device_vt->synchronize(rig.streams[DP_LANE_P2P], 20000000), DP_ERR_TIMEOUT);
            rig.vt->abort(rig.comm);
            rig.vt->abort(rig.comm);
            EXPECT_STATUS(t, rig.device_vt->synchronize(rig.streams[DP_LANE_P2P], 5000000000),
                          DP_ERR_ABORTED);
            EXPECT_OK(t, t->host->aborted(t->host)); /* the job lives on */
        }
        EXPECT(t, conform_meet(t), "the other rank failed");
        if (t->rank == 0)
            rig.vt->abort(rig.comm);
        rig_close(&rig);
    }
}

static void end_of_the_job_ends_all_waits(conform_t *t)
{
    dp_channel_end_t *ends[2];
    dp_exchange_t *x;
    int64_t begin;
    rig_t rig;

    if (!trap_open(&rig, t, "trap", ends, &x))
        return;
    EXPECT_OK(t, walk_into(&rig, t->rank == 0 ? TRAP_RECV : TRAP_SUM, ends[TRAP_RECV], x));
    EXPECT(t, conform_meet(t), "the other rank failed");
    begin = t->host->now_ns(t->host);
    if (t->rank == 0)
        conform_abort(t, DP_ERR_INTERRUPTED, "somebody had enough");
    EXPECT_STATUS(t, rest(&rig), DP_ERR_INTERRUPTED);
    EXPECT(t, strstr(conform_last_error(), "somebody had enough") != NULL, "\"%s\"", conform_last_error());
    rig_close(&rig);
    EXPECT(t, t->host->now_ns(t->host) - begin < 5000000000, "the end took too long");
}

static void *die_soon(void *arg)
{
    usleep(*(unsigned *)arg);
    kill(getpid(), SIGKILL);
    return NULL;
}

/* A sends large messages to B until one of them dies in the middle of one: what has arrived is whole, nothing hangs. */
static void killed_among_messages(conform_t *t, bool sender_dies)
{
    enum { BYTES = 1 << 20 };
    unsigned char *buffer;
    unsigned delay = 3000 + (unsigned)(getpid() % 13) * 700;
    uint64_t wrong = 0;
    dp_channel_end_t *end;
    dp_status_t status = DP_OK;
    pthread_t thread;
    int64_t begin;
    bool sends = (t->rank == 1) == sender_dies;
    rig_t rig;

    if (!rig_open(&rig, t, "doomed", 0) || (buffer = room(&rig, BYTES)) == NULL)
        return;
    EXPECT_OK(t, channel(&rig, 0, 1 - t->rank, sends, 2, BYTES, &end));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    begin = t->host->now_ns(t->host);
    if (t->rank == 1)
        EXPECT(t, pthread_create(&thread, NULL, die_soon, &delay) == 0, "no thread");
    for (uint32_t i = 0; i < 1000000 && status == DP_OK; i++) {
        status = sends ? put(&rig, end, DP_LANE_P2P, 1 - t->rank, i, buffer, BYTES)
                       : take(&rig, end, DP_LANE_P2P, 1 - t->rank, i, BYTES, &wrong);
        if (status == DP_OK && i % 4 == 3)
            status = rest(&rig);
    }
    EXPECT(t, status == DP_ERR_PEER, "%s: %s", dp_status_name(status), conform_last_error());
    EXPECT(t, strstr(conform_last_error(), "rank 1") != NULL, "the dead rank is not named: %s",
           conform_last_error());
    (void)rest(&rig);
    EXPECT(t, wrong == 0, "%llu bytes of messages that had arrived are wrong", (unsigned long long)wrong);
    rig_close(&rig);
    EXPECT(t, t->host->now_ns(t->host) - begin < 10000000000, "the end took too long");
}

static void killed_while_sending(conform_t *t)
{
    killed_among_messages(t, true);
}

static void killed_while_receiving(conform_t *t)
{
    killed_among_messages(t, false);
}

static void killed_among_sums_and_exchanges(conform_t *t)
{
    enum { COUNT = 100000 };
    dp_exchange_config_t config = {.struct_size = sizeof(config),
                                   .id = 0,
                                   .row_bytes = 1 << 16,
                                   .capacity_rows = CAPACITY,
                                   .label = "dispatch"};
    int32_t offsets[3] = {0, CAPACITY, 2 * CAPACITY}, counts[3] = {CAPACITY, CAPACITY, CAPACITY};
    double *data;
    unsigned delay = 3000 + (unsigned)(getpid() % 11) * 900;
    dp_status_t status = DP_OK;
    dp_exchange_t *x;
    pthread_t thread;
    swap_t rooms;
    rig_t rig;

    if (!rig_open(&rig, t, "doomed", 0) || !swap_rooms(&rig, 1 << 16, &rooms) ||
        (data = room(&rig, COUNT * sizeof(double))) == NULL)
        return;
    EXPECT_OK(t, move(&rig, rooms.offsets, offsets, sizeof(offsets)));
    EXPECT_OK(t, move(&rig, rooms.counts, counts, sizeof(counts)));
    EXPECT_OK(t, rig.vt->exchange_open(rig.comm, &config, &x));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    if (t->rank == 0)
        EXPECT(t, pthread_create(&thread, NULL, die_soon, &delay) == 0, "no thread");
    for (uint32_t i = 0; i < 1000000 && status == DP_OK; i++) {
        const int32_t *counts_in;
        const void *rows_in;

        status = rig.vt->all_reduce(rig.comm, data, COUNT, DP_F64, rig.streams[DP_LANE_REDUCE]);
        if (status == DP_OK)
            status = rig.vt->exchange(x, i, rooms.rows, rooms.offsets, rooms.counts, &rows_in, &counts_in,
                                      rig.streams[1]);
        if (status == DP_OK)
            status = rig.vt->exchange_release(x, i, rig.streams[1]);
        if (status == DP_OK && i % 4 == 3)
            status = rest(&rig);
    }
    EXPECT(t, status == DP_ERR_PEER, "%s: %s", dp_status_name(status), conform_last_error());
    (void)rest(&rig);
    rig_close(&rig);
}

static int shared_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], mode[8];
    int count = 0;

    while (maps != NULL && fgets(line, sizeof(line), maps) != NULL)
        count += sscanf(line, "%*s %7s", mode) == 1 && mode[3] == 's';
    if (maps != NULL)
        fclose(maps);
    return count;
}

static void use_and_close(conform_t *t, int round)
{
    dp_channel_end_t *end;
    unsigned char *buffer;
    uint64_t wrong = 0;
    double sum = 1, *there;
    char name[24];
    rig_t rig;

    snprintf(name, sizeof(name), "round%d", round);
    if (!rig_open(&rig, t, name, 0) || (buffer = room(&rig, 64)) == NULL ||
        (there = room(&rig, sizeof(sum))) == NULL)
        return;
    EXPECT_OK(t, move(&rig, there, &sum, sizeof(sum)));
    EXPECT_OK(t, channel(&rig, 0, 1 - t->rank, t->rank == 0, 2, 64, &end));
    EXPECT_OK(t, rig.vt->start(rig.comm));
    if (t->rank == 0)
        EXPECT_OK(t, put(&rig, end, DP_LANE_P2P, 1, 0, buffer, 64));
    else
        EXPECT_OK(t, take(&rig, end, DP_LANE_P2P, 0, 0, 64, &wrong));
    EXPECT_OK(t, rig.vt->all_reduce(rig.comm, there, 1, DP_F64, rig.streams[DP_LANE_REDUCE]));
    EXPECT_OK(t, rest(&rig));
    EXPECT_OK(t, move(&rig, &sum, there, sizeof(sum)));
    EXPECT(t, wrong == 0 && sum == 2, "%llu, %g", (unsigned long long)wrong, sum);
    rig_close(&rig);
}

/* Ranks as threads hold things together: one of them counts while the others wait. */
static void nothing_is_left_behind(conform_t *t)
{
    bool counts = t->rank == 0 || t->mode == CONFORM_PROCESSES;
    conform_held_t before = {0, 0, 0}, after;
    int mapped = 0, names = conform_entries("/dev/shm");

    for (int round = 0; round < 4; round++) { /* the first one is for what libraries start once */
        use_and_close(t, round);
        EXPECT(t, conform_meet(t), "a rank failed");
        if (round == 0 && counts) {
            before = conform_held(t);
            mapped = shared_mappings();
        }
        EXPECT(t, conform_meet(t), "a rank failed");
    }
    after = counts ? conform_held(t) : before;
    EXPECT(t, after.blocks == before.blocks && after.blocks == 0, "%lld blocks", (long long)after.blocks);
    EXPECT(t, after.threads == before.threads, "%d threads before, %d after", before.threads, after.threads);
    EXPECT(t, after.descriptors == before.descriptors, "%d descriptors before, %d after", before.descriptors,
           after.descriptors);
    EXPECT(t, !counts || shared_mappings() == mapped, "%d shared mappings before, %d after", mapped,
           shared_mappings());
    EXPECT(t, conform_entries("/dev/shm") <= names, "names were left in /dev/shm");
    EXPECT(t, conform_meet(t), "a rank failed");
}

#define CASE(name, ranks)                                                                                    \
    {                                                                                                        \
#name, name, ranks, 0, 0                                                                             \
    }
#define SIZES(name, ranks)                                                                                   \
    {                                                                                                        \
#name, name, ranks, 0, CONFORM_ALL_SIZES                                                             \
    }
static const conform_case_t cases[] = {
    CASE(messages_arrive_in_order_and_whole, 2),
    CASE(every_rank_talks_to_every_other, 4),
    CASE(credits_are_the_slots, 2),
    CASE(unexpected_messages_are_protocol_errors, 2),
    CASE(mistakes_of_the_caller_are_refused, 2),
    CASE(ends_that_differ_do_not_connect, 2),
    CASE(start_connects_what_is_new, 2),
    SIZES(exchanges_bring_every_row, 4),
    CASE(exchanges_may_lie_unreleased, 3),
    CASE(too_many_rows_are_an_overflow, 2),
    SIZES(sums_have_the_bits_of_a_serial_sum, 5),
    CASE(sums_follow_each_other, 3),
    CASE(sums_of_different_things_are_found_out, 2),
    SIZES(barriers_hold_everybody_back, 5),
    CASE(all_traffic_at_once, 4),
    CASE(groups_of_some_ranks, 4),
    CASE(abort_of_an_instance_ends_its_waits, 2),
    CASE(end_of_the_job_ends_all_waits, 2),
    {"killed_while_sending", killed_while_sending, 2, 1, CONFORM_VICTIM},
    {"killed_while_receiving", killed_while_receiving, 2, 1, CONFORM_VICTIM},
    {"killed_among_sums_and_exchanges", killed_among_sums_and_exchanges, 3, 0, CONFORM_VICTIM},
    CASE(nothing_is_left_behind, 2),
    {NULL, NULL, 0, 0, 0},
};

const conform_suite_t conform_comm = {"comm", DP_IFACE_COMM, "comm_shm", cases};
