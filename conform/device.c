/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * device.c: the contract of dp.device/1. Cases that need launch() skip devices without. */
#include "device_work.h"
#include "guard.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STREAMS 8

/* A device with some streams, opened for one case. */
typedef struct rig {
    conform_t *t;
    const dp_device_vt_t *vt;
    dp_device_t *device;
    dp_stream_t *streams[STREAMS];
    int count;
} rig_t;

static bool rig_open(rig_t *rig, conform_t *t, int streams, uint32_t queue_length)
{
    dp_device_config_t config = {.struct_size = sizeof(config), .queue_length = queue_length};

    memset(rig, 0, sizeof(*rig));
    rig->t = t;
    rig->vt = t->device;
    if (rig->vt->open(t->host, &config, &rig->device) != DP_OK) {
        conform_fail(t, __FILE__, __LINE__, "open failed: %s", conform_last_error());
        return false;
    }
    for (; rig->count < streams; rig->count++)
        if (rig->vt->stream_open(rig->device, (dp_lane_t)(rig->count % DP_LANE_COUNT), &rig->streams[rig->count]) !=
            DP_OK) {
            conform_fail(t, __FILE__, __LINE__, "stream_open failed: %s", conform_last_error());
            return false;
        }
    return true;
}

/* For cases that are about functions run by streams. */
static bool rig_launches(rig_t *rig, conform_t *t, int streams, uint32_t queue_length)
{
    if (!conform_work_launches(t->device)) {
        conform_skip(t, "the device has no launch() on host memory");
        return false;
    }
    return rig_open(rig, t, streams, queue_length);
}

static void rig_close(rig_t *rig)
{
    for (int i = 0; i < rig->count; i++)
        rig->vt->stream_close(rig->streams[i]);
    rig->vt->close(rig->device);
}

/* ---- functions that streams run ---- */

static dp_status_t nap(void *arg)
{
    conform_nap_ms(*(int *)arg);
    return DP_OK;
}

typedef struct refusal {
    const dp_host_t *host;
    dp_status_t status;
    int number;
} refusal_t;

static dp_status_t expect_refusal(void *arg)
{
    const refusal_t *r = arg;

    return DP_FAIL(r->host, r->status, "kernel %d is not in the mood", r->number);
}

static dp_status_t bump(void *arg)
{
    (**(int **)arg)++;
    return DP_OK;
}

static dp_status_t put_bump(rig_t *rig, int stream, int *counter)
{
    return rig->vt->launch(rig->streams[stream], bump, &counter, sizeof(counter));
}

/* Leaves the case with a skip when the device has nothing to hold a stream with. */
#define MAKE_GATE(t, rig, gate)                                                                                        \
    do {                                                                                                               \
        dp_status_t gate_status = conform_gate_make((gate), (rig)->vt, (rig)->device, (t)->host);                      \
        if (gate_status == DP_ERR_UNSUPPORTED) {                                                                       \
            conform_skip((t), "nothing holds a stream of this device");                                                \
            rig_close(rig);                                                                                            \
            return;                                                                                                    \
        }                                                                                                              \
        EXPECT(t, gate_status == DP_OK, "%s", conform_last_error());                                                   \
    } while (0)

/* ---- memory ---- */

static void memory_is_aligned_and_zeroed(conform_t *t)
{
    static const size_t sizes[] = {0, 1, 63, 257, 1 << 20};
    static unsigned char bytes[1 << 20];
    void *memory[5];
    rig_t rig;

    if (!rig_open(&rig, t, 1, 0))
        return;
    for (int i = 0; i < 5; i++) {
        EXPECT_OK(t, rig.vt->allocate(rig.device, sizes[i], &memory[i]));
        EXPECT(t, memory[i] != NULL && (uintptr_t)memory[i] % 256 == 0, "%p for %zu bytes", memory[i], sizes[i]);
        memset(bytes, 0xff, sizeof(bytes));
        EXPECT_OK(t, conform_work_read(rig.vt, rig.streams[0], bytes, memory[i], sizes[i]));
        for (size_t k = 0; k < sizes[i]; k++)
            EXPECT(t, bytes[k] == 0, "byte %zu of %zu", k, sizes[i]);
        memset(bytes, 0xff, sizeof(bytes));
        EXPECT_OK(t, conform_work_write(rig.vt, rig.streams[0], memory[i], bytes, sizes[i]));
    }
    for (int i = 0; i < 5; i++)
        rig.vt->release(rig.device, memory[i]);
    rig.vt->release(rig.device, NULL);
    rig_close(&rig);
}

static void host_memory_is_shared(conform_t *t)
{
    static const size_t sizes[] = {1, 100, 70000};
    void *memory[3], *there;
    rig_t rig;

    if (!rig_open(&rig, t, 1, 0))
        return;
    EXPECT_OK(t, rig.vt->allocate(rig.device, 70000, &there));
    for (int i = 0; i < 3; i++) {
        unsigned char *bytes;

        EXPECT_OK(t, rig.vt->host_allocate(rig.device, sizes[i], &memory[i]));
        EXPECT(t, memory[i] != NULL && (uintptr_t)memory[i] % 256 == 0, "%p", memory[i]);
        bytes = memory[i];
        for (size_t k = 0; k < sizes[i]; k++) {
            EXPECT(t, bytes[k] == 0, "byte %zu of %zu", k, sizes[i]);
            bytes[k] = (unsigned char)(k * 5 + 1);
        }
        EXPECT_OK(t, rig.vt->copy(rig.streams[0], there, bytes, sizes[i]));
        EXPECT_OK(t, rig.vt->zero(rig.streams[0], bytes, sizes[i]));
        EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
        for (size_t k = 0; k < sizes[i]; k++)
            EXPECT(t, bytes[k] == 0, "byte %zu of %zu was not zeroed", k, sizes[i]);
        EXPECT_OK(t, rig.vt->copy(rig.streams[0], bytes, there, sizes[i]));
        EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
        for (size_t k = 0; k < sizes[i]; k++)
            EXPECT(t, bytes[k] == (unsigned char)(k * 5 + 1), "byte %zu of %zu", k, sizes[i]);
    }
    for (int i = 0; i < 3; i++)
        rig.vt->host_release(rig.device, memory[i]);
    rig.vt->host_release(rig.device, NULL);
    rig.vt->release(rig.device, there);
    rig_close(&rig);
}

static void copies_and_zeroes(conform_t *t)
{
    enum { ROOM = (1 << 20) + 2 };
    static const size_t sizes[] = {0, 1, 7, 4097, 1 << 20};
    static unsigned char from[ROOM], to[ROOM], poison[ROOM];
    unsigned char *memory[2];
    rig_t rig;

    if (!rig_open(&rig, t, 1, 0))
        return;
    EXPECT_OK(t, rig.vt->allocate(rig.device, ROOM, (void **)&memory[0]));
    EXPECT_OK(t, rig.vt->allocate(rig.device, ROOM, (void **)&memory[1]));
    memset(poison, 0xee, sizeof(poison));
    for (size_t k = 0; k < ROOM; k++)
        from[k] = (unsigned char)(k * 7 + 3);
    EXPECT_OK(t, conform_work_write(rig.vt, rig.streams[0], memory[0], from, ROOM));
    for (int i = 0; i < 5; i++) {
        size_t n = sizes[i];

        EXPECT_OK(t, conform_work_write(rig.vt, rig.streams[0], memory[1], poison, ROOM));
        EXPECT_OK(t, rig.vt->copy(rig.streams[0], memory[1] + 1, memory[0] + 1, n));
        EXPECT_OK(t, rig.vt->zero(rig.streams[0], memory[1] + 1, n / 2));
        EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
        EXPECT_OK(t, conform_work_read(rig.vt, rig.streams[0], to, memory[1], ROOM));
        EXPECT(t, to[0] == 0xee && to[n + 1] == 0xee, "bytes around %zu", n);
        for (size_t k = 1; k <= n; k++)
            EXPECT(t, to[k] == (k <= n / 2 ? 0 : from[k]), "byte %zu of %zu", k, n);
    }
    rig.vt->release(rig.device, memory[0]);
    rig.vt->release(rig.device, memory[1]);
    rig_close(&rig);
}

static void additions_add(conform_t *t)
{
    enum { COUNT = 1003 };
    float singles[2][COUNT];
    double doubles[2][COUNT];
    void *there[2];
    rig_t rig;

    if (!rig_open(&rig, t, 1, 0))
        return;
    for (int i = 0; i < COUNT; i++) {
        doubles[0][i] = i * 1e-3 + 1e9;
        doubles[1][i] = 1.0 / (i + 1);
        singles[0][i] = (float)doubles[0][i];
        singles[1][i] = (float)doubles[1][i];
    }
    EXPECT_OK(t, rig.vt->allocate(rig.device, sizeof(singles), &there[0]));
    EXPECT_OK(t, rig.vt->allocate(rig.device, sizeof(doubles), &there[1]));
    EXPECT_OK(t, conform_work_write(rig.vt, rig.streams[0], there[0], singles, sizeof(singles)));
    EXPECT_OK(t, conform_work_write(rig.vt, rig.streams[0], there[1], doubles, sizeof(doubles)));
    EXPECT_OK(t, rig.vt->add(rig.streams[0], there[1], (double *)there[1] + COUNT, COUNT - 1, DP_F64));
    EXPECT_OK(t, rig.vt->add(rig.streams[0], there[0], (float *)there[0] + COUNT, COUNT - 1, DP_F32));
    EXPECT_OK(t, rig.vt->add(rig.streams[0], there[1], (double *)there[1] + COUNT, 0, DP_F64));
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
    EXPECT_OK(t, conform_work_read(rig.vt, rig.streams[0], singles, there[0], sizeof(singles)));
    EXPECT_OK(t, conform_work_read(rig.vt, rig.streams[0], doubles, there[1], sizeof(doubles)));
    for (int i = 0; i < COUNT; i++) {
        double start = i * 1e-3 + 1e9, term = 1.0 / (i + 1);
        bool last = i == COUNT - 1; /* behind the end */

        EXPECT(t, doubles[0][i] == (last ? start : start + term), "double %d is %.17g", i, doubles[0][i]);
        EXPECT(t, singles[0][i] == (last ? (float)start : (float)start + (float)term), "float %d is %.9g", i,
               (double)singles[0][i]);
    }
    EXPECT_STATUS(t, rig.vt->add(rig.streams[0], there[0], there[1], 1, DP_I64), DP_ERR_UNSUPPORTED, "a sum of DP_I64");
    rig.vt->release(rig.device, there[0]);
    rig.vt->release(rig.device, there[1]);
    rig_close(&rig);
}

/* ---- order ---- */

static void work_runs_in_order(conform_t *t)
{
    uint64_t steps = conform_work_launches(t->device) ? 20000 : 2000;
    tally_t tally;
    rig_t rig;

    if (!rig_open(&rig, t, 1, 16))
        return;
    EXPECT_OK(t, conform_tally_open(&tally, rig.vt, rig.device, steps));
    for (uint64_t i = 0; i < steps; i++)
        EXPECT_OK(t, conform_tally_step(&tally, rig.streams[0]));
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
    EXPECT(t, conform_tally_count(&tally, rig.streams[0]) == steps, "steps ran out of order");
    conform_tally_close(&tally);
    rig_close(&rig);
}

static unsigned char seen[DP_LAUNCH_ARG_MAX];
static uintptr_t seen_at;

static dp_status_t look_at_device(void *arg)
{
    memcpy(seen, arg, sizeof(seen));
    seen_at = (uintptr_t)arg;
    return DP_OK;
}

static void arguments_are_copied(conform_t *t)
{
    unsigned char arg[DP_LAUNCH_ARG_MAX + 1];
    gate_t gate;
    rig_t rig;

    if (!rig_launches(&rig, t, 1, 0))
        return;
    MAKE_GATE(t, &rig, &gate);
    for (size_t i = 0; i < sizeof(arg); i++)
        arg[i] = (unsigned char)(i + 1);
    EXPECT_OK(t, conform_gate_hold(&gate, rig.streams[0]));
    EXPECT_OK(t, rig.vt->launch(rig.streams[0], look_at_device, arg, DP_LAUNCH_ARG_MAX));
    memset(arg, 0, sizeof(arg));
    conform_gate_open(&gate);
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
    for (size_t i = 0; i < DP_LAUNCH_ARG_MAX; i++)
        EXPECT(t, seen[i] == (unsigned char)(i + 1), "byte %zu", i);
    EXPECT(t, seen_at % 16 == 0, "the argument is not aligned");
    EXPECT_STATUS(t, rig.vt->launch(rig.streams[0], look_at_device, arg, DP_LAUNCH_ARG_MAX + 1), DP_ERR_INVALID,
                  "a launch of more than DP_LAUNCH_ARG_MAX bytes");
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
    rig_close(&rig);
}

static void *open_gate_later(void *arg)
{
    conform_nap_ms(30);
    conform_gate_open(arg);
    return NULL;
}

static void full_queue_waits_for_room(conform_t *t)
{
    static const uint32_t lengths[] = {1, 2, 4, 64};

    for (int k = 0; k < 4; k++) {
        pthread_t helper;
        tally_t tally;
        gate_t gate;
        rig_t rig;

        if (!rig_open(&rig, t, 1, lengths[k]))
            return;
        MAKE_GATE(t, &rig, &gate);
        EXPECT_OK(t, conform_tally_open(&tally, rig.vt, rig.device, 1000));
        EXPECT(t, pthread_create(&helper, NULL, open_gate_later, &gate) == 0, "no thread");
        EXPECT_OK(t, conform_gate_hold(&gate, rig.streams[0]));
        for (uint64_t i = 0; i < 1000; i++)
            EXPECT_OK(t, conform_tally_step(&tally, rig.streams[0]));
        EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
        pthread_join(helper, NULL);
        EXPECT(t, conform_tally_count(&tally, rig.streams[0]) == 1000, "out of order with a queue of %u", lengths[k]);
        conform_tally_close(&tally);
        conform_gate_free(&gate);
        rig_close(&rig);
    }
}

static void queue_length_is_checked(conform_t *t)
{
    dp_device_config_t config = {.struct_size = sizeof(config), .queue_length = 3};
    dp_device_t *device = NULL;

    EXPECT_STATUS(t, t->device->open(t->host, &config, &device), DP_ERR_INVALID,
                  "a queue length that is no power of two");
    EXPECT(t, device == NULL, "an output was set by a failed open");
    EXPECT(t, conform_host_blocks(t->host) == 0, "memory left behind");
    t->device->close(NULL);
}

/* ---- events ---- */

static void events_order_streams(conform_t *t)
{
    dp_event_t *events[STREAMS];
    tally_t tally;
    rig_t rig;

    if (!rig_open(&rig, t, STREAMS, 64))
        return;
    EXPECT_OK(t, conform_tally_open(&tally, rig.vt, rig.device, 4000));
    for (int i = 0; i < STREAMS; i++)
        EXPECT_OK(t, rig.vt->event_open(rig.device, &events[i]));
    for (uint64_t i = 0; i < 4000; i++) {
        int here = (int)(i % STREAMS);

        if (i > 0)
            EXPECT_OK(t, rig.vt->stream_wait(rig.streams[here], events[(here + STREAMS - 1) % STREAMS]));
        EXPECT_OK(t, conform_tally_step(&tally, rig.streams[here]));
        EXPECT_OK(t, rig.vt->event_record(events[here], rig.streams[here]));
    }
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[(4000 - 1) % STREAMS], -1));
    EXPECT(t, conform_tally_count(&tally, rig.streams[0]) == 4000, "steps ran out of order");
    for (int i = 0; i < STREAMS; i++)
        rig.vt->event_close(events[i]);
    conform_tally_close(&tally);
    rig_close(&rig);
}

/* Random lanes, random waits on one event that moves from stream to stream, delays: any missing
 * edge shows. */
static void one_event_moves_between_streams(conform_t *t)
{
    enum { DELAY = 4 << 20 };
    uint64_t random = 42;
    dp_event_t *event;
    tally_t tally;
    void *room;
    rig_t rig;

    if (!rig_open(&rig, t, 4, 32))
        return;
    EXPECT_OK(t, conform_tally_open(&tally, rig.vt, rig.device, 600));
    EXPECT_OK(t, rig.vt->allocate(rig.device, DELAY, &room));
    EXPECT_OK(t, rig.vt->event_open(rig.device, &event));
    for (uint64_t i = 0; i < 600; i++) {
        int here = (int)(conform_random(&random) % 4), ms = (int)(conform_random(&random) % 40 == 0);

        EXPECT_OK(t, rig.vt->stream_wait(rig.streams[here], event));
        if (ms > 0 && conform_work_launches(rig.vt))
            EXPECT_OK(t, rig.vt->launch(rig.streams[here], nap, &ms, sizeof(ms)));
        else if (ms > 0)
            EXPECT_OK(t, rig.vt->zero(rig.streams[here], room, DELAY));
        EXPECT_OK(t, conform_tally_step(&tally, rig.streams[here]));
        EXPECT_OK(t, rig.vt->event_record(event, rig.streams[here]));
    }
    for (int i = 0; i < 4; i++)
        EXPECT_OK(t, rig.vt->synchronize(rig.streams[i], -1));
    EXPECT(t, conform_tally_count(&tally, rig.streams[0]) == 600, "steps ran out of order");
    rig.vt->event_close(event);
    rig.vt->release(rig.device, room);
    conform_tally_close(&tally);
    rig_close(&rig);
}

/* A wait is for the record that was the latest when it was enqueued, wherever the event is recorded
 * afterwards. */
static void waits_keep_their_record(conform_t *t)
{
    tally_t tally, passed;
    gate_t gate;
    dp_event_t *event;
    rig_t rig;

    if (!rig_open(&rig, t, 4, 0))
        return;
    MAKE_GATE(t, &rig, &gate);
    EXPECT_OK(t, conform_tally_open(&tally, rig.vt, rig.device, 2));
    EXPECT_OK(t, conform_tally_open(&passed, rig.vt, rig.device, 1));
    EXPECT_OK(t, rig.vt->event_open(rig.device, &event));
    EXPECT_OK(t, rig.vt->stream_wait(rig.streams[3], event)); /* never recorded: passes */
    EXPECT_OK(t, conform_gate_hold(&gate, rig.streams[0]));
    EXPECT_OK(t, conform_tally_step(&tally, rig.streams[0]));
    EXPECT_OK(t, rig.vt->event_record(event, rig.streams[0]));
    EXPECT_OK(t, rig.vt->stream_wait(rig.streams[1], event)); /* for stream 0, which is held */
    EXPECT_OK(t, conform_tally_step(&tally, rig.streams[1]));
    EXPECT_OK(t, rig.vt->event_record(event, rig.streams[2])); /* passes at once */
    EXPECT_OK(t, rig.vt->stream_wait(rig.streams[3], event));
    EXPECT_OK(t, conform_tally_step(&passed, rig.streams[3]));
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[3], -1)); /* does not depend on stream 0 */
    EXPECT(t, conform_tally_count(&passed, rig.streams[3]) == 1 && conform_tally_count(&tally, rig.streams[3]) == 0,
           "a wait did not wait for its own record");
    conform_gate_open(&gate);
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[1], -1));
    EXPECT(t, conform_tally_count(&tally, rig.streams[1]) == 2, "a wait did not wait for its record");
    rig.vt->event_close(event);
    /* maybe the same memory: not recorded all the same */
    EXPECT_OK(t, rig.vt->event_open(rig.device, &event));
    EXPECT_OK(t, rig.vt->stream_wait(rig.streams[2], event));
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[2], -1));
    conform_tally_close(&tally);
    conform_tally_close(&passed);
    conform_gate_free(&gate);
    rig_close(&rig);
}

static void own_events_cost_nothing(conform_t *t)
{
    dp_event_t *event;
    tally_t tally;
    rig_t rig;

    if (!rig_open(&rig, t, 1, 0))
        return;
    EXPECT_OK(t, conform_tally_open(&tally, rig.vt, rig.device, 100));
    EXPECT_OK(t, rig.vt->event_open(rig.device, &event));
    for (uint64_t i = 0; i < 100; i++) {
        EXPECT_OK(t, conform_tally_step(&tally, rig.streams[0]));
        EXPECT_OK(t, rig.vt->event_record(event, rig.streams[0]));
        EXPECT_OK(t, rig.vt->stream_wait(rig.streams[0], event)); /* of itself: never a deadlock */
    }
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
    EXPECT(t, conform_tally_count(&tally, rig.streams[0]) == 100, "steps ran out of order");
    conform_tally_close(&tally);
    rig_close(&rig);
}

/* ---- time ---- */

/* How far apart clocks may be that are set by each other; on the emulator, by threads that wait for
 * a core. */
static int64_t clock_slack(const conform_t *t)
{
    return conform_work_launches(t->device) ? 0 : getenv("DP_TEST_FAKE") != NULL ? 20000000 : 200000;
}

static void stamps_lie_in_order(conform_t *t)
{
    int64_t before, after, slack = clock_slack(t), slots[3] = {0, 0, 0};
    dp_event_t *stamped[2] = {NULL, NULL};
    gate_t gates[2];
    rig_t rig;

    if (!rig_open(&rig, t, 2, 0))
        return;
    MAKE_GATE(t, &rig, &gates[0]);
    MAKE_GATE(t, &rig, &gates[1]);
    for (int i = 0; i < 2; i++)
        EXPECT_OK(t, rig.vt->event_open(rig.device, &stamped[i]));
    before = t->host->now_ns(t->host);
    for (int i = 0; i < 3; i++) {
        EXPECT_OK(t, rig.vt->stamp(rig.streams[0], &slots[i]));
        if (i < 2) {
            EXPECT_OK(t, rig.vt->event_record(stamped[i], rig.streams[0]));
            EXPECT_OK(t, conform_gate_hold(&gates[i], rig.streams[0]));
        }
    }
    for (int i = 0; i < 2; i++) {
        /* a busy machine may be slow to get there */
        EXPECT_OK(t, rig.vt->stream_wait(rig.streams[1], stamped[i]));
        EXPECT_OK(t, rig.vt->synchronize(rig.streams[1], -1));
        conform_nap_ms(5);
        conform_gate_open(&gates[i]);
    }
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
    after = t->host->now_ns(t->host);
    EXPECT(t,
           before - slack <= slots[0] && slots[0] <= slots[1] && slots[1] + 1000000 <= slots[2] &&
               slots[2] <= after + slack,
           "%lld %lld %lld %lld %lld", (long long)before, (long long)slots[0], (long long)slots[1], (long long)slots[2],
           (long long)after);
    conform_gate_free(&gates[0]);
    conform_gate_free(&gates[1]);
    for (int i = 0; i < 2; i++)
        rig.vt->event_close(stamped[i]);
    rig_close(&rig);
}

static void synchronize_gives_up_in_time(conform_t *t)
{
    gate_t gate;
    rig_t rig;

    if (!rig_open(&rig, t, 1, 0))
        return;
    MAKE_GATE(t, &rig, &gate);
    EXPECT_OK(t, conform_gate_hold(&gate, rig.streams[0]));
    EXPECT_STATUS(t, rig.vt->synchronize(rig.streams[0], 5000000), DP_ERR_TIMEOUT,
                  "synchronize for 5 ms on a stream that is held");
    EXPECT_OK(t, rig.vt->query_error(rig.device)); /* late is not failed */
    conform_gate_open(&gate);
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
    conform_gate_free(&gate);
    rig_close(&rig);
}

static int64_t cpu_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void idle_and_waiting_streams_sleep(conform_t *t)
{
    gate_t gate;
    dp_event_t *event;
    int64_t before, used;
    rig_t rig;

    if (!rig_launches(&rig, t, 4, 0))
        return;
    MAKE_GATE(t, &rig, &gate);
    EXPECT_OK(t, rig.vt->event_open(rig.device, &event));
    EXPECT_OK(t, conform_gate_hold(&gate, rig.streams[0]));
    EXPECT_OK(t, rig.vt->event_record(event, rig.streams[0]));
    EXPECT_OK(t, rig.vt->stream_wait(rig.streams[1], event));
    conform_nap_ms(20);
    before = cpu_ns();
    conform_nap_ms(300);
    used = cpu_ns() - before;
    EXPECT(t, used < 60000000, "%.1f ms of CPU time in 300 ms of nothing to do", (double)used * 1e-6);
    conform_gate_open(&gate);
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[1], -1));
    rig_close(&rig);
}

/* ---- failures ---- */

typedef struct asker {
    rig_t *rig;
    dp_status_t status;
    char message[256];
} asker_t;

static void *ask_device(void *arg)
{
    asker_t *a = arg;

    a->status = a->rig->vt->query_error(a->rig->device);
    snprintf(a->message, sizeof(a->message), "%s", conform_last_error());
    return NULL;
}

static void first_failure_sticks(conform_t *t)
{
    refusal_t first = {t->host, DP_ERR_NUMERIC, 7}, second = {t->host, DP_ERR_OVERFLOW, 8};
    int before = 0, after = 0;
    pthread_t thread;
    asker_t asker;
    rig_t rig;

    for (int round = 0; round < 3; round++) {
        if (!rig_launches(&rig, t, 2, 8))
            return;
        asker.rig = &rig;
        before = after = 0;
        EXPECT_OK(t, rig.vt->query_error(rig.device));
        EXPECT_OK(t, put_bump(&rig, 0, &before));
        EXPECT_OK(t, rig.vt->launch(rig.streams[0], expect_refusal, &first, sizeof(first)));
        EXPECT_OK(t, rig.vt->launch(rig.streams[0], expect_refusal, &second, sizeof(second)));
        for (int i = 0; i < 20; i++)
            EXPECT_OK(t, put_bump(&rig, 0, &after));
        EXPECT_STATUS(t, rig.vt->synchronize(rig.streams[0], -1), DP_ERR_NUMERIC, "a stream whose function failed");
        EXPECT(t, strstr(conform_last_error(), "kernel 7 is not in the mood") != NULL, "\"%s\"", conform_last_error());
        EXPECT(t, before == 1 && after == 0, "%d before, %d after the failure", before, after);
        EXPECT_OK(t, rig.vt->synchronize(rig.streams[1], -1)); /* other streams go on */

        EXPECT(t, pthread_create(&thread, NULL, ask_device, &asker) == 0, "no thread");
        pthread_join(thread, NULL);
        EXPECT(t, asker.status == DP_ERR_NUMERIC && strstr(asker.message, "kernel 7") != NULL, "%d \"%s\"",
               asker.status, asker.message);
        rig_close(&rig); /* a device that is opened anew is sound */
    }
}

static void failure_spreads_along_events(conform_t *t)
{
    refusal_t r = {t->host, DP_ERR_NUMERIC, 3};
    int early = 0, late = 0, independent = 0;
    dp_event_t *before, *after;
    rig_t rig;

    if (!rig_launches(&rig, t, 4, 0))
        return;
    EXPECT_OK(t, rig.vt->event_open(rig.device, &before));
    EXPECT_OK(t, rig.vt->event_open(rig.device, &after));
    EXPECT_OK(t, rig.vt->event_record(before, rig.streams[0]));
    EXPECT_OK(t, rig.vt->launch(rig.streams[0], expect_refusal, &r, sizeof(r)));
    EXPECT_OK(t, rig.vt->event_record(after, rig.streams[0]));
    EXPECT_OK(t, rig.vt->stream_wait(rig.streams[1], before));
    EXPECT_OK(t, put_bump(&rig, 1, &early)); /* what it waits for is sound */
    EXPECT_OK(t, rig.vt->stream_wait(rig.streams[2], after));
    EXPECT_OK(t, put_bump(&rig, 2, &late)); /* would work on what was never made */
    EXPECT_OK(t, put_bump(&rig, 3, &independent));
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[1], -1));
    EXPECT_STATUS(t, rig.vt->synchronize(rig.streams[2], -1), DP_ERR_NUMERIC, "a stream that waits for a failed one");
    EXPECT(t, strstr(conform_last_error(), "kernel 3") != NULL, "\"%s\"", conform_last_error());
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[3], -1));
    EXPECT(t, early == 1 && late == 0 && independent == 1, "%d %d %d", early, late, independent);
    /* the same when its record is long past */
    EXPECT_OK(t, rig.vt->stream_wait(rig.streams[3], after));
    EXPECT_OK(t, put_bump(&rig, 3, &independent));
    EXPECT_STATUS(t, rig.vt->synchronize(rig.streams[3], -1), DP_ERR_NUMERIC,
                  "a stream that waits for a record of a failed one");
    EXPECT(t, independent == 1, "%d", independent);
    rig_close(&rig);
}

typedef struct ender {
    conform_t *t;
    dp_status_t cause;
    gate_t *gate; /* NULL: what holds the stream hears of the end by itself */
} ender_t;

/* Kernels of GPUs watch words that their plugin sets at the end: here that is the gate. */
static void *abort_later(void *arg)
{
    const ender_t *e = arg;

    conform_nap_ms(20);
    conform_abort(e->t, e->cause, "rank 5 died");
    conform_nap_ms(20);
    if (e->gate != NULL)
        conform_gate_open(e->gate);
    return NULL;
}

static void abort_ends_every_wait(conform_t *t)
{
    bool launches = conform_work_launches(t->device);
    gate_t gate;
    ender_t ender = {t, DP_ERR_PEER, launches ? NULL : &gate};
    pthread_t helper;
    dp_event_t *event;
    int64_t start;
    tally_t tallies[3]; /* one for each stream: what an abort lets go is in no order */
    dp_status_t status = DP_OK;
    rig_t rig;

    if (!rig_open(&rig, t, 3, 8))
        return;
    MAKE_GATE(t, &rig, &gate);
    for (int i = 0; i < 3; i++)
        EXPECT_OK(t, conform_tally_open(&tallies[i], rig.vt, rig.device, 1000));
    EXPECT_OK(t, rig.vt->event_open(rig.device, &event));
    EXPECT_OK(t, conform_gate_hold(&gate, rig.streams[0]));
    EXPECT_OK(t, rig.vt->event_record(event, rig.streams[0]));
    EXPECT_OK(t, rig.vt->stream_wait(rig.streams[1], event));
    EXPECT_OK(t, conform_tally_step(&tallies[1], rig.streams[1]));
    EXPECT(t, pthread_create(&helper, NULL, abort_later, &ender) == 0, "no thread");
    start = t->host->now_ns(t->host);
    EXPECT_STATUS(t, rig.vt->synchronize(rig.streams[1], -1), DP_ERR_PEER,
                  "a stream that waits for another when the job ends");
    EXPECT(t, strstr(conform_last_error(), "rank 5 died") != NULL, "\"%s\"", conform_last_error());
    if (launches)
        EXPECT_STATUS(t, rig.vt->synchronize(rig.streams[0], -1), DP_ERR_PEER,
                      "a stream whose function waits when the job ends");
    for (int i = 0; i < 100 && status == DP_OK; i++) /* more than the queue holds: never a hang */
        status = conform_tally_step(&tallies[0], rig.streams[0]);
    for (int i = 0; i < 100 && status == DP_OK; i++)
        status = conform_tally_step(&tallies[2], rig.streams[2]);
    pthread_join(helper, NULL);
    rig_close(&rig);
    EXPECT(t, t->host->now_ns(t->host) - start < 5000000000, "the end took too long");
}

/* Whoever asks a stream of such a job would take its cause for a kernel that does not return. */
static void late_job_lets_streams_go(conform_t *t)
{
    bool launches = conform_work_launches(t->device);
    gate_t gate;
    ender_t ender = {t, DP_ERR_TIMEOUT, launches ? NULL : &gate};
    pthread_t helper;
    dp_status_t status;
    rig_t rig;

    if (!rig_open(&rig, t, 2, 8))
        return;
    MAKE_GATE(t, &rig, &gate);
    EXPECT_OK(t, conform_gate_hold(&gate, rig.streams[0]));
    EXPECT(t, pthread_create(&helper, NULL, abort_later, &ender) == 0, "no thread");
    for (int i = 0; i < 4; i++) { /* while it ends, and later */
        status = rig.vt->synchronize(rig.streams[i % 2], -1);
        /* a gate that has been opened again leaves its stream idle, whatever became of the job */
        EXPECT(t, status < 0 ? status != DP_ERR_TIMEOUT : i % 2 == 1 || (i > 0 && !launches), "stream %d: %d \"%s\"",
               i % 2, status, conform_last_error());
    }
    pthread_join(helper, NULL);
    rig_close(&rig);
}

/* ---- watches ---- */

typedef struct record {
    const dp_host_t *host;
    int bad, asked;
} record_t;

static dp_status_t read_device(void *arg)
{
    record_t *r = arg;

    r->asked++;
    return __atomic_load_n(&r->bad, __ATOMIC_ACQUIRE)
               ? DP_FAIL(r->host, DP_ERR_OVERFLOW, "a kernel of the test overflowed")
               : DP_OK;
}

static void watched_records_fail_the_device(conform_t *t)
{
    record_t first = {t->host, 0, 0}, second = {t->host, 0, 0};
    pthread_t thread;
    asker_t asker;
    gate_t gate;
    int asked;
    rig_t rig;

    if (conform_work_launches(t->device)) {
        conform_skip(t, "the device's functions return their failures");
        return;
    }
    if (!rig_open(&rig, t, 2, 0))
        return;
    MAKE_GATE(t, &rig, &gate);
    EXPECT_OK(t, rig.vt->watch(rig.device, read_device, &first));
    EXPECT_OK(t, rig.vt->watch(rig.device, read_device, &second));
    EXPECT_OK(t, rig.vt->query_error(rig.device));
    EXPECT(t, first.asked > 0 && second.asked > 0, "query_error did not ask");
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
    rig.vt->unwatch(rig.device, read_device, &second);
    asked = second.asked;
    EXPECT_OK(t, conform_gate_hold(&gate, rig.streams[0]));
    __atomic_store_n(&first.bad, 1, __ATOMIC_RELEASE);
    EXPECT_STATUS(t, rig.vt->synchronize(rig.streams[0], -1), DP_ERR_OVERFLOW,
                  "synchronize while a watched record is bad"); /* though the stream is held */
    EXPECT(t, strstr(conform_last_error(), "overflowed") != NULL, "\"%s\"", conform_last_error());
    EXPECT(t, second.asked == asked, "asked after unwatch");
    asker.rig = &rig;
    EXPECT(t, pthread_create(&thread, NULL, ask_device, &asker) == 0, "no thread");
    pthread_join(thread, NULL);
    EXPECT(t, asker.status == DP_ERR_OVERFLOW && strstr(asker.message, "overflowed") != NULL, "%d \"%s\"", asker.status,
           asker.message);
    conform_gate_open(&gate);
    __atomic_store_n(&first.bad, 0, __ATOMIC_RELEASE);
    EXPECT_STATUS(t, rig.vt->query_error(rig.device), DP_ERR_OVERFLOW, "query_error once a watched record was bad");
    rig.vt->unwatch(rig.device, read_device, &first);
    conform_gate_free(&gate);
    rig_close(&rig);
}

/* ---- graphs ---- */

/* Steps on several streams, captured and replayed between ordinary ones. */
static void graphs_replay(conform_t *t)
{
    enum { ROUNDS = 5, LENGTH = 12 };
    double *memory, values[LENGTH + 2], expected = 0;
    int64_t stamps[2] = {0, 0}, before, last = 0, slack = clock_slack(t);
    dp_event_t *events[LENGTH];
    dp_graph_t *graph = NULL;
    rig_t rig;

    if (!(t->device->caps & DP_DEVICE_CAP_GRAPH)) {
        conform_skip(t, "the device has no graphs");
        return;
    }
    if (!rig_open(&rig, t, 3, 0))
        return;
    memset(values, 0, sizeof(values));
    values[1] = 1;
    EXPECT_OK(t, rig.vt->allocate(rig.device, sizeof(values), (void **)&memory));
    EXPECT_OK(t, conform_work_write(rig.vt, rig.streams[0], memory, values, sizeof(values)));
    for (int i = 0; i < LENGTH; i++)
        EXPECT_OK(t, rig.vt->event_open(rig.device, &events[i]));
    /* before: no edge inside */
    EXPECT_OK(t, rig.vt->event_record(events[LENGTH - 1], rig.streams[2]));
    for (int i = 0; i < 3; i++)
        EXPECT_OK(t, rig.vt->synchronize(rig.streams[i], -1));
    EXPECT_OK(t, rig.vt->capture_begin(rig.streams[0]));
    EXPECT_STATUS(t, rig.vt->synchronize(rig.streams[0], -1), DP_ERR_INVALID, "synchronize during a capture");
    EXPECT_STATUS(t, rig.vt->capture_begin(rig.streams[1]), DP_ERR_INVALID, "a second capture_begin");
    EXPECT_OK(t, rig.vt->stream_wait(rig.streams[1], events[LENGTH - 1]));
    EXPECT_OK(t, rig.vt->stamp(rig.streams[0], &stamps[0]));
    for (int i = 0; i < LENGTH; i++) {
        dp_stream_t *s = rig.streams[i % 3];

        if (i > 0)
            EXPECT_OK(t, rig.vt->stream_wait(s, events[i - 1]));
        EXPECT_OK(t, rig.vt->add(s, memory, memory + 1, 1, DP_F64));
        EXPECT_OK(t, rig.vt->copy(s, memory + 2 + i, memory, sizeof(double)));
        EXPECT_OK(t, rig.vt->event_record(events[i], s));
    }
    EXPECT_OK(t, rig.vt->stamp(rig.streams[(LENGTH - 1) % 3], &stamps[1]));
    EXPECT_OK(t, rig.vt->capture_end(rig.streams[0], &graph));
    EXPECT_OK(t, conform_work_read(rig.vt, rig.streams[0], values, memory, sizeof(values)));
    EXPECT(t, values[0] == 0 && stamps[0] == 0, "something ran during the capture");
    for (int round = 0; round < ROUNDS; round++) {
        before = t->host->now_ns(t->host);
        /* before the launch */
        EXPECT_OK(t, rig.vt->add(rig.streams[1], memory, memory + 1, 1, DP_F64));
        EXPECT_OK(t, rig.vt->graph_launch(graph, rig.streams[round % 2]));
        /* recorded inside: no edge */
        EXPECT_OK(t, rig.vt->stream_wait(rig.streams[2], events[0]));
        EXPECT_OK(t, rig.vt->add(rig.streams[2], memory, memory + 1, 1, DP_F64)); /* behind it */
        EXPECT_OK(t, rig.vt->synchronize(rig.streams[2], -1));
        EXPECT_OK(t, conform_work_read(rig.vt, rig.streams[2], values, memory, sizeof(values)));
        for (int i = 0; i < LENGTH; i++)
            EXPECT(t, values[2 + i] == expected + 2 + i, "round %d: step %d saw %g", round, i, values[2 + i]);
        expected += LENGTH + 2;
        EXPECT(t, values[0] == expected, "round %d: %g", round, values[0]);
        EXPECT(t, stamps[0] > last - slack && stamps[0] >= before - slack && stamps[0] <= stamps[1],
               "round %d: stamps %lld %lld", round, (long long)stamps[0], (long long)stamps[1]);
        last = stamps[1];
    }
    rig.vt->graph_close(graph);
    rig.vt->graph_close(NULL);
    for (int i = 0; i < LENGTH; i++)
        rig.vt->event_close(events[i]);
    rig.vt->release(rig.device, memory);
    rig_close(&rig);
}

/* ---- partitions and threads ---- */

static dp_status_t note_cores(void *arg)
{
    return sched_getaffinity(0, sizeof(cpu_set_t), *(cpu_set_t **)arg) == 0 ? DP_OK : DP_ERR_DEVICE;
}

/* Whether the device can be asked to keep lanes to cores at all; else the case is skipped. */
static bool confines(conform_t *t)
{
    const dp_device_config_t config = {.struct_size = sizeof(config), .comm_sms = 1};
    dp_device_t *device = NULL;

    if (t->device->open(t->host, &config, &device) != DP_ERR_UNSUPPORTED) {
        t->device->close(device);
        return true;
    }
    conform_skip(t, "the device confines no lane: %s", conform_last_error());
    return false;
}

static void lanes_get_their_cores(conform_t *t)
{
    dp_device_config_t config = {.struct_size = sizeof(config), .comm_sms = 1};
    cpu_set_t usable, lanes[DP_LANE_COUNT], both;
    uint32_t sms[DP_LANE_COUNT] = {9, 9, 9, 9};
    rig_t rig;

    if (!rig_launches(&rig, t, 0, 0))
        return;
    EXPECT_OK(t, rig.vt->partition(rig.device, sms));
    for (int i = 0; i < DP_LANE_COUNT; i++)
        EXPECT(t, sms[i] == 0, "lane %d was confined to %u without being asked to", i, sms[i]);
    rig_close(&rig);

    sched_getaffinity(0, sizeof(usable), &usable);
    if (CPU_COUNT(&usable) < 2) {
        conform_skip(t, "one core cannot be shared out");
        return;
    }
    if (!confines(t))
        return;
    EXPECT_OK(t, rig.vt->open(t->host, &config, &rig.device));
    EXPECT_OK(t, rig.vt->partition(rig.device, sms));
    EXPECT(t, sms[0] == (uint32_t)CPU_COUNT(&usable) - 1 && sms[1] == 1 && sms[2] == 1 && sms[3] == 1, "%u %u %u %u",
           sms[0], sms[1], sms[2], sms[3]);
    for (int i = 0; i < DP_LANE_COUNT; i++) {
        cpu_set_t *set = &lanes[i];

        EXPECT_OK(t, rig.vt->stream_open(rig.device, (dp_lane_t)i, &rig.streams[0]));
        EXPECT_OK(t, rig.vt->launch(rig.streams[0], note_cores, &set, sizeof(set)));
        EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
        EXPECT(t, (uint32_t)CPU_COUNT(set) == sms[i], "lane %d runs on %d cores", i, CPU_COUNT(set));
        CPU_AND(&both, &lanes[0], set);
        EXPECT(t, i == 0 || CPU_COUNT(&both) == 0, "lane %d shares cores with compute", i);
        rig.vt->stream_close(rig.streams[0]);
    }
    rig.vt->close(rig.device);
}

static void senseless_cores_are_refused(conform_t *t)
{
    static const char *const lists[] = {"", "x", "1-", "-1", "0,", "3-1", "0;1", "99999", "1023"};
    dp_device_config_t config = {.struct_size = sizeof(config)};
    dp_device_t *device = NULL;

    if (strcmp(t->device->kind, "cpu") != 0) {
        conform_skip(t, "the device has no cores");
        return;
    }
    if (!confines(t))
        return;
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        config.cores = lists[i];
        EXPECT(t, t->device->open(t->host, &config, &device) == DP_ERR_INVALID, "cores \"%s\" were taken", lists[i]);
    }
    config.cores = NULL;
    config.comm_sms = 100000;
    EXPECT_STATUS(t, t->device->open(t->host, &config, &device), DP_ERR_INVALID, "100000 cores for communication");
    EXPECT(t, conform_host_blocks(t->host) == 0, "memory left behind");
}

static dp_status_t note_signals(void *arg)
{
    return pthread_sigmask(SIG_BLOCK, NULL, *(sigset_t **)arg) == 0 ? DP_OK : DP_ERR_DEVICE;
}

static void workers_take_no_signals(conform_t *t)
{
    static const int blocked[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGALRM, SIGUSR1};
    sigset_t mask, own, *at = &mask;
    rig_t rig;

    if (!rig_launches(&rig, t, 1, 0))
        return;
    pthread_sigmask(SIG_BLOCK, NULL, &own);
    EXPECT(t, !sigismember(&own, SIGINT), "opening a device changed the caller's mask");
    EXPECT_OK(t, rig.vt->launch(rig.streams[0], note_signals, &at, sizeof(at)));
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
    for (size_t i = 0; i < sizeof(blocked) / sizeof(blocked[0]); i++)
        EXPECT(t, sigismember(&mask, blocked[i]), "signal %d reaches a worker", blocked[i]);
    rig_close(&rig);
}

/* ---- the end ---- */

static void nothing_is_left_behind(conform_t *t)
{
    conform_held_t before = {0, 0, 0}, after;

    for (int round = 0; round < 4; round++) { /* the first one is for what libraries start once */
        dp_event_t *event;
        int64_t stamp = 0;
        void *memory;
        rig_t a, b;

        if (!rig_open(&a, t, 4, 0) || !rig_open(&b, t, 2, 0))
            return;
        EXPECT_OK(t, a.vt->allocate(a.device, 100, &memory));
        EXPECT_OK(t, a.vt->event_open(a.device, &event));
        EXPECT_OK(t, a.vt->event_record(event, a.streams[0]));
        EXPECT_STATUS(t, b.vt->stream_wait(b.streams[0], event), DP_ERR_INVALID,
                      "a wait for an event of another device");
        EXPECT_OK(t, a.vt->stamp(a.streams[0], &stamp));
        if (round < 2) {
            for (int i = 0; i < a.count; i++) /* with work queued and events open */
                a.vt->stream_close(a.streams[i]);
            a.vt->release(a.device, memory);
            a.vt->close(a.device);
            rig_close(&b);
        } else {
            EXPECT_OK(t, a.vt->synchronize(a.streams[0], -1));
            a.vt->release(a.device, memory);
            a.vt->close(a.device); /* with streams open */
            b.vt->close(b.device);
        }
        EXPECT(t, stamp != 0, "queued work did not run before close returned");
        if (round == 0)
            before = conform_held(t);
    }
    after = conform_held(t);
    EXPECT(t, after.blocks == before.blocks, "%lld blocks", (long long)(after.blocks - before.blocks));
    EXPECT(t, after.threads == before.threads, "%d threads before, %d after", before.threads, after.threads);
    EXPECT(t, after.descriptors == before.descriptors, "%d descriptors before, %d after", before.descriptors,
           after.descriptors);
}

static void configs_are_judged(conform_t *t)
{
    struct {
        dp_device_config_t known;
        unsigned char more[64];
    } longer;
    dp_device_config_t config = {.struct_size = 0};
    dp_device_t *device = NULL;
    dp_stream_t *s = NULL;
    int64_t stamp = 0;

    conform_forget_error();
    EXPECT_STATUS(t, t->device->open(t->host, &config, &device), DP_ERR_INVALID, "open with struct_size 0");
    EXPECT(t, conform_last_error()[0] != '\0', "open with struct_size 0 failed without a message");
    EXPECT(t, device == NULL, "an open that failed has written its output");
    memset(&longer, 0, sizeof(longer));
    longer.known = (dp_device_config_t){.struct_size = sizeof(longer)};
    longer.more[7] = 1;
    EXPECT_STATUS(t, t->device->open(t->host, &longer.known, &device), DP_ERR_UNSUPPORTED,
                  "open with a config that asks for what is not known");
    longer.more[7] = 0;
    EXPECT_STATUS(t, t->device->open(t->host, &longer.known, &device), DP_OK,
                  "open with a config that is 64 bytes longer");
    if (device == NULL)
        return;
    EXPECT_OK(t, t->device->stream_open(device, DP_LANE_COMPUTE, &s));
    EXPECT_OK(t, t->device->stamp(s, &stamp));
    EXPECT_OK(t, t->device->synchronize(s, -1));
    t->device->stream_close(s);
    t->device->close(device);
}

/* Everything that an engine calls in a step, on two streams, on blocks that were there before. */
static void steps_allocate_nothing(conform_t *t)
{
    enum { STEPS = 50, COUNT = 256 };
    static int64_t stamps[STEPS];
    size_t bytes = COUNT * sizeof(float);
    void *from = NULL, *to = NULL;
    dp_event_t *event = NULL;
    int64_t before, calls;
    const char *name;
    rig_t rig;

    if (!rig_open(&rig, t, 2, 0))
        return;
    EXPECT_OK(t, rig.vt->allocate(rig.device, bytes, &from));
    EXPECT_OK(t, rig.vt->allocate(rig.device, bytes, &to));
    EXPECT_OK(t, rig.vt->event_open(rig.device, &event));
    (void)conform_watch_module((const void *)rig.vt->open);
    before = conform_host_given(t->host);
    conform_watch_begin();
    for (int i = 0; i < STEPS; i++) {
        EXPECT_OK(t, rig.vt->zero(rig.streams[0], from, bytes));
        EXPECT_OK(t, rig.vt->copy(rig.streams[0], to, from, bytes));
        EXPECT_OK(t, rig.vt->event_record(event, rig.streams[0]));
        EXPECT_OK(t, rig.vt->stream_wait(rig.streams[1], event));
        EXPECT_OK(t, rig.vt->add(rig.streams[1], to, from, COUNT, DP_F32));
        EXPECT_OK(t, rig.vt->stamp(rig.streams[1], &stamps[i]));
        EXPECT_OK(t, rig.vt->event_record(event, rig.streams[1]));
        EXPECT_OK(t, rig.vt->stream_wait(rig.streams[0], event));
        if (i % 10 == 0)
            EXPECT_OK(t, rig.vt->synchronize(rig.streams[1], -1));
    }
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[1], -1));
    EXPECT_OK(t, rig.vt->query_error(rig.device));
    calls = conform_watch_end(&name);
    EXPECT(t, conform_host_given(t->host) == before, "%lld blocks of the host's memory were allocated in %d steps",
           (long long)(conform_host_given(t->host) - before), STEPS);
    EXPECT(t, calls == 0, "%s and its kin were called %lld times in %d steps: nothing may be allocated in a step", name,
           (long long)calls, STEPS);
    rig.vt->event_close(event);
    rig.vt->release(rig.device, to);
    rig.vt->release(rig.device, from);
    rig_close(&rig);
}

static const conform_case_t cases[] = {
    {CONFORM_CASE(configs_are_judged, 0,
                  "struct_size 0 is DP_ERR_INVALID with a message, a longer config is taken while what nobody "
                  "knows in it is 0, else DP_ERR_UNSUPPORTED.")},
    {CONFORM_CASE(steps_allocate_nothing, 0,
                  "Copies, sums, events, stamps and synchronize allocate nothing, by whatever means.")},
    {CONFORM_CASE(memory_is_aligned_and_zeroed, 0, "allocate gives zeroed memory, 256-byte aligned, of 0 bytes too.")},
    {CONFORM_CASE(host_memory_is_shared, 0,
                  "host_allocate gives zeroed memory that host and device both read and write.")},
    {CONFORM_CASE(copies_and_zeroes, 0, "copy and zero take any size and alignment and touch nothing around.")},
    {CONFORM_CASE(additions_add, 0, "add sums f32 and f64 element by element, and refuses other types.")},
    {CONFORM_CASE(work_runs_in_order, 0, "A stream runs its work in order.")},
    {CONFORM_CASE(arguments_are_copied, 0,
                  "launch copies its argument, 16-byte aligned, and refuses more than DP_LAUNCH_ARG_MAX bytes.")},
    {CONFORM_CASE(full_queue_waits_for_room, 0, "Enqueueing on a full queue waits for room.")},
    {CONFORM_CASE(queue_length_is_checked, 0,
                  "A queue length that is no power of two is DP_ERR_INVALID; close(NULL) is legal.")},
    {CONFORM_CASE(events_order_streams, 0, "Work after stream_wait starts after what was recorded.")},
    {CONFORM_CASE(one_event_moves_between_streams, 0, "An event may be recorded on another stream again and again.")},
    {CONFORM_CASE(
        waits_keep_their_record, 0,
        "A wait is for the record that was the latest when it was enqueued; an event never recorded does not hold.")},
    {CONFORM_CASE(own_events_cost_nothing, 0, "A stream that waits for its own record does not hang.")},
    {CONFORM_CASE(stamps_lie_in_order, 0, "Stamps are of the host's clock and in stream order.")},
    {CONFORM_CASE(synchronize_gives_up_in_time, 0,
                  "synchronize gives up with DP_ERR_TIMEOUT, and late is not failed.")},
    {CONFORM_CASE(idle_and_waiting_streams_sleep, 0, "Streams that wait or have nothing to do take no CPU time.")},
    {CONFORM_CASE(first_failure_sticks, 0, "The first failure of a stream stays, and later work on it does not run.")},
    {CONFORM_CASE(failure_spreads_along_events, 0,
                  "A stream that waits for a record behind a failure fails with the same cause; others go on.")},
    {CONFORM_CASE(abort_ends_every_wait, 0, "The end of the job ends every wait with its cause.")},
    {CONFORM_CASE(
        late_job_lets_streams_go, 0,
        "After a job ended with DP_ERR_TIMEOUT, synchronize says that only of a kernel that does not return.")},
    {CONFORM_CASE(watched_records_fail_the_device, 0,
                  "synchronize and query_error ask the watches, and a bad answer is a failure of the device.")},
    {CONFORM_CASE(graphs_replay, 0,
                  "A captured step runs again as it was captured, behind all earlier work and before all later work.")},
    {CONFORM_CASE(lanes_get_their_cores, 0, "With comm_sms, compute and communication lanes run on different cores.")},
    {CONFORM_CASE(senseless_cores_are_refused, 0, "A list of cores that makes no sense is DP_ERR_INVALID.")},
    {CONFORM_CASE(workers_take_no_signals, 0, "Threads of the device take no signals.")},
    {CONFORM_CASE(nothing_is_left_behind, 0,
                  "After close no thread, descriptor or block of memory is left, whatever was open or queued.")},
    {0},
};

const conform_suite_t conform_device = {
    .name = "device",
    .interface = DP_IFACE_DEVICE,
    .plugin = "device_cpu",
    .table_bytes = DP_DEVICE_VT_MIN,
    .cases = cases,
};
