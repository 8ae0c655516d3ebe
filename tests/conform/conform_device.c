/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * conform_device.c: the contract of dp.device/1. Cases that need launch() or host memory skip devices without. */
#include "conform.h"

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
    if (rig->vt->launch == NULL || !(rig->vt->caps & DP_DEVICE_CAP_LAUNCH) ||
        !(rig->vt->caps & DP_DEVICE_CAP_HOST_MEMORY)) {
        conform_skip(t, "the device has no launch() on host memory");
        return false;
    }
    if (rig->vt->open(t->host, &config, &rig->device) != DP_OK) {
        conform_fail(t, __FILE__, __LINE__, "open", "%s", conform_last_error());
        return false;
    }
    for (; rig->count < streams; rig->count++)
        if (rig->vt->stream_open(rig->device, (dp_lane_t)(rig->count % DP_LANE_COUNT),
                                 &rig->streams[rig->count]) != DP_OK) {
            conform_fail(t, __FILE__, __LINE__, "stream_open", "%s", conform_last_error());
            return false;
        }
    return true;
}

static void rig_close(rig_t *rig)
{
    for (int i = 0; i < rig->count; i++)
        rig->vt->stream_close(rig->streams[i]);
    rig->vt->close(rig->device);
}

/* ---- functions that streams run ---- */

typedef struct add {
    uint64_t *sum; /* plain memory: only the order of the stream protects it */
    uint64_t expected, value;
} add_t;

/* *sum goes from `expected` to `value`. */
static dp_status_t step_to(void *arg)
{
    const add_t *a = arg;

    if (*a->sum != a->expected)
        *a->sum = UINT64_MAX;
    else
        *a->sum = a->value;
    return DP_OK;
}

typedef struct gate {
    const dp_host_t *host;
    dp_signal_t *signal;
    uint32_t target;
} gate_t;

/* Holds the stream until the test posts the signal. */
static dp_status_t hold(void *arg)
{
    const gate_t *g = arg;

    return g->host->wait(g->host, g->signal, g->target, -1, "the gate of the test");
}

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

static dp_status_t refuse(void *arg)
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

/* ---- memory ---- */

static void memory_is_aligned_and_zeroed(conform_t *t)
{
    static const size_t sizes[] = {0, 1, 63, 257, 1 << 20};
    void *memory[5];
    rig_t rig;

    if (!rig_open(&rig, t, 0, 0))
        return;
    for (int i = 0; i < 5; i++) {
        EXPECT_OK(t, rig.vt->allocate(rig.device, sizes[i], &memory[i]));
        EXPECT(t, memory[i] != NULL && (uintptr_t)memory[i] % 256 == 0, "%p for %zu bytes", memory[i],
               sizes[i]);
        for (size_t k = 0; k < sizes[i]; k++)
            EXPECT(t, ((unsigned char *)memory[i])[k] == 0, "byte %zu of %zu", k, sizes[i]);
        memset(memory[i], 0xff, sizes[i]);
    }
    for (int i = 0; i < 5; i++)
        rig.vt->release(rig.device, memory[i]);
    rig.vt->release(rig.device, NULL);
    rig_close(&rig);
}

static void copies_and_zeroes(conform_t *t)
{
    static const size_t sizes[] = {0, 1, 7, 4097, 1 << 20};
    unsigned char *from, *to;
    void *memory[2];
    rig_t rig;

    if (!rig_open(&rig, t, 1, 0))
        return;
    EXPECT_OK(t, rig.vt->allocate(rig.device, (1 << 20) + 2, &memory[0]));
    EXPECT_OK(t, rig.vt->allocate(rig.device, (1 << 20) + 2, &memory[1]));
    from = memory[0];
    to = memory[1];
    for (size_t k = 0; k < (1 << 20) + 2; k++)
        from[k] = (unsigned char)(k * 7 + 3);
    for (int i = 0; i < 5; i++) {
        size_t n = sizes[i];

        memset(to, 0xee, (1 << 20) + 2);
        EXPECT_OK(t, rig.vt->copy(rig.streams[0], to + 1, from + 1, n));
        EXPECT_OK(t, rig.vt->zero(rig.streams[0], to + 1, n / 2));
        EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
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
    rig_t rig;

    if (!rig_open(&rig, t, 1, 0))
        return;
    if (!DP_HAS(rig.vt, dp_device_vt_t, add)) {
        conform_skip(t, "the device does not add");
        rig_close(&rig);
        return;
    }
    for (int i = 0; i < COUNT; i++) {
        doubles[0][i] = i * 1e-3 + 1e9;
        doubles[1][i] = 1.0 / (i + 1);
        singles[0][i] = (float)doubles[0][i];
        singles[1][i] = (float)doubles[1][i];
    }
    EXPECT_OK(t, rig.vt->add(rig.streams[0], doubles[0], doubles[1], COUNT - 1, DP_F64));
    EXPECT_OK(t, rig.vt->add(rig.streams[0], singles[0], singles[1], COUNT - 1, DP_F32));
    EXPECT_OK(t, rig.vt->add(rig.streams[0], doubles[0], doubles[1], 0, DP_F64));
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
    for (int i = 0; i < COUNT; i++) {
        double start = i * 1e-3 + 1e9, term = 1.0 / (i + 1);
        bool last = i == COUNT - 1; /* behind the end */

        EXPECT(t, doubles[0][i] == (last ? start : start + term), "double %d is %.17g", i, doubles[0][i]);
        EXPECT(t, singles[0][i] == (last ? (float)start : (float)start + (float)term), "float %d is %.9g", i,
               (double)singles[0][i]);
    }
    rig_close(&rig);
}

/* ---- order ---- */

static void launches_run_in_order(conform_t *t)
{
    uint64_t sum = 0;
    rig_t rig;

    if (!rig_open(&rig, t, 1, 16))
        return;
    for (uint64_t i = 0; i < 20000; i++) {
        add_t a = {&sum, i, i + 1};

        EXPECT_OK(t, rig.vt->launch(rig.streams[0], step_to, &a, sizeof(a)));
    }
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
    EXPECT(t, sum == 20000, "%llu", (unsigned long long)sum);
    rig_close(&rig);
}

static unsigned char seen[DP_LAUNCH_ARG_MAX];
static uintptr_t seen_at;

static dp_status_t look(void *arg)
{
    memcpy(seen, arg, sizeof(seen));
    seen_at = (uintptr_t)arg;
    return DP_OK;
}

static void arguments_are_copied(conform_t *t)
{
    unsigned char arg[DP_LAUNCH_ARG_MAX + 1];
    rig_t rig;
    dp_signal_t gate = {0, 0};
    gate_t g = {t->host, &gate, 1};

    if (!rig_open(&rig, t, 1, 0))
        return;
    for (size_t i = 0; i < sizeof(arg); i++)
        arg[i] = (unsigned char)(i + 1);
    EXPECT_OK(t, rig.vt->launch(rig.streams[0], hold, &g, sizeof(g)));
    EXPECT_OK(t, rig.vt->launch(rig.streams[0], look, arg, DP_LAUNCH_ARG_MAX));
    memset(arg, 0, sizeof(arg));
    t->host->post(t->host, &gate, 1);
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
    for (size_t i = 0; i < DP_LAUNCH_ARG_MAX; i++)
        EXPECT(t, seen[i] == (unsigned char)(i + 1), "byte %zu", i);
    EXPECT(t, seen_at % 16 == 0, "the argument is not aligned");
    EXPECT_STATUS(t, rig.vt->launch(rig.streams[0], look, arg, DP_LAUNCH_ARG_MAX + 1), DP_ERR_INVALID);
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
    rig_close(&rig);
}

static void *open_gate_later(void *arg)
{
    const gate_t *g = arg;

    conform_nap_ms(30);
    g->host->post(g->host, g->signal, g->target);
    return NULL;
}

static void full_queue_waits_for_room(conform_t *t)
{
    static const uint32_t lengths[] = {1, 2, 4, 64};

    for (int k = 0; k < 4; k++) {
        uint64_t sum = 0;
        dp_signal_t gate = {0, 0};
        gate_t g = {t->host, &gate, 1};
        pthread_t helper;
        rig_t rig;

        if (!rig_open(&rig, t, 1, lengths[k]))
            return;
        EXPECT(t, pthread_create(&helper, NULL, open_gate_later, &g) == 0, "no thread");
        EXPECT_OK(t, rig.vt->launch(rig.streams[0], hold, &g, sizeof(g)));
        for (uint64_t i = 0; i < 1000; i++) {
            add_t a = {&sum, i, i + 1};

            EXPECT_OK(t, rig.vt->launch(rig.streams[0], step_to, &a, sizeof(a)));
        }
        EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
        pthread_join(helper, NULL);
        EXPECT(t, sum == 1000, "%llu with a queue of %u", (unsigned long long)sum, lengths[k]);
        rig_close(&rig);
    }
}

static void queue_length_is_checked(conform_t *t)
{
    dp_device_config_t config = {.struct_size = sizeof(config), .queue_length = 3};
    dp_device_t *device = NULL;

    EXPECT_STATUS(t, t->device->open(t->host, &config, &device), DP_ERR_INVALID);
    EXPECT(t, device == NULL, "an output was set by a failed open");
    EXPECT(t, conform_host_blocks(t->host) == 0, "memory left behind");
    t->device->close(NULL);
}

/* ---- events ---- */

static void events_order_streams(conform_t *t)
{
    uint64_t sum = 0;
    dp_event_t *events[STREAMS];
    rig_t rig;

    if (!rig_open(&rig, t, STREAMS, 64))
        return;
    for (int i = 0; i < STREAMS; i++)
        EXPECT_OK(t, rig.vt->event_open(rig.device, &events[i]));
    for (uint64_t i = 0; i < 4000; i++) {
        int here = (int)(i % STREAMS);
        add_t a = {&sum, i, i + 1};

        if (i > 0)
            EXPECT_OK(t, rig.vt->stream_wait(rig.streams[here], events[(here + STREAMS - 1) % STREAMS]));
        EXPECT_OK(t, rig.vt->launch(rig.streams[here], step_to, &a, sizeof(a)));
        EXPECT_OK(t, rig.vt->event_record(events[here], rig.streams[here]));
    }
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[(4000 - 1) % STREAMS], -1));
    EXPECT(t, sum == 4000, "%llu", (unsigned long long)sum);
    for (int i = 0; i < STREAMS; i++)
        rig.vt->event_close(events[i]);
    rig_close(&rig);
}

/* Random lanes, random waits on one event that moves from stream to stream, naps: any missing edge shows in `sum`. */
static void one_event_moves_between_streams(conform_t *t)
{
    uint64_t sum = 0, random = 42;
    dp_event_t *event;
    rig_t rig;

    if (!rig_open(&rig, t, 4, 32))
        return;
    EXPECT_OK(t, rig.vt->event_open(rig.device, &event));
    for (uint64_t i = 0; i < 600; i++) {
        int here = (int)(conform_random(&random) % 4), ms = (int)(conform_random(&random) % 40 == 0);
        add_t a = {&sum, i, i + 1};

        EXPECT_OK(t, rig.vt->stream_wait(rig.streams[here], event));
        if (ms > 0)
            EXPECT_OK(t, rig.vt->launch(rig.streams[here], nap, &ms, sizeof(ms)));
        EXPECT_OK(t, rig.vt->launch(rig.streams[here], step_to, &a, sizeof(a)));
        EXPECT_OK(t, rig.vt->event_record(event, rig.streams[here]));
    }
    for (int i = 0; i < 4; i++)
        EXPECT_OK(t, rig.vt->synchronize(rig.streams[i], -1));
    EXPECT(t, sum == 600, "%llu", (unsigned long long)sum);
    rig.vt->event_close(event);
    rig_close(&rig);
}

/* A wait is for the record that was the latest when it was enqueued, wherever the event is recorded afterwards. */
static void waits_keep_their_record(conform_t *t)
{
    uint64_t sum = 0;
    int passed = 0;
    dp_signal_t gate = {0, 0};
    gate_t g = {t->host, &gate, 1};
    add_t first = {&sum, 0, 1}, second = {&sum, 1, 2};
    dp_event_t *event;
    rig_t rig;

    if (!rig_open(&rig, t, 4, 0))
        return;
    EXPECT_OK(t, rig.vt->event_open(rig.device, &event));
    EXPECT_OK(t, rig.vt->stream_wait(rig.streams[3], event)); /* never recorded: passes */
    EXPECT_OK(t, rig.vt->launch(rig.streams[0], hold, &g, sizeof(g)));
    EXPECT_OK(t, rig.vt->launch(rig.streams[0], step_to, &first, sizeof(first)));
    EXPECT_OK(t, rig.vt->event_record(event, rig.streams[0]));
    EXPECT_OK(t, rig.vt->stream_wait(rig.streams[1], event)); /* for stream 0, which is held */
    EXPECT_OK(t, rig.vt->launch(rig.streams[1], step_to, &second, sizeof(second)));
    EXPECT_OK(t, rig.vt->event_record(event, rig.streams[2])); /* passes at once */
    EXPECT_OK(t, rig.vt->stream_wait(rig.streams[3], event));
    EXPECT_OK(t, put_bump(&rig, 3, &passed));
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[3], -1)); /* does not depend on stream 0 */
    EXPECT(t, passed == 1 && sum == 0, "%d, %llu", passed, (unsigned long long)sum);
    t->host->post(t->host, &gate, 1);
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[1], -1));
    EXPECT(t, sum == 2, "%llu", (unsigned long long)sum);
    rig.vt->event_close(event);
    EXPECT_OK(t,
              rig.vt->event_open(rig.device, &event)); /* maybe the same memory: not recorded all the same */
    EXPECT_OK(t, rig.vt->stream_wait(rig.streams[2], event));
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[2], -1));
    rig_close(&rig);
}

static void own_events_cost_nothing(conform_t *t)
{
    uint64_t sum = 0;
    dp_event_t *event;
    rig_t rig;

    if (!rig_open(&rig, t, 1, 0))
        return;
    EXPECT_OK(t, rig.vt->event_open(rig.device, &event));
    for (uint64_t i = 0; i < 100; i++) {
        add_t a = {&sum, i, i + 1};

        EXPECT_OK(t, rig.vt->launch(rig.streams[0], step_to, &a, sizeof(a)));
        EXPECT_OK(t, rig.vt->event_record(event, rig.streams[0]));
        EXPECT_OK(t, rig.vt->stream_wait(rig.streams[0], event)); /* of itself: never a deadlock */
    }
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
    EXPECT(t, sum == 100, "%llu", (unsigned long long)sum);
    rig_close(&rig);
}

/* ---- time ---- */

static void stamps_lie_in_order(conform_t *t)
{
    int64_t before, after, slots[3] = {0, 0, 0};
    int ms = 2;
    rig_t rig;

    if (!rig_open(&rig, t, 1, 0))
        return;
    before = t->host->now_ns(t->host);
    for (int i = 0; i < 3; i++) {
        EXPECT_OK(t, rig.vt->stamp(rig.streams[0], &slots[i]));
        EXPECT_OK(t, rig.vt->launch(rig.streams[0], nap, &ms, sizeof(ms)));
    }
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
    after = t->host->now_ns(t->host);
    EXPECT(t,
           before <= slots[0] && slots[0] + 1000000 <= slots[1] && slots[1] + 1000000 <= slots[2] &&
               slots[2] <= after,
           "%lld %lld %lld %lld %lld", (long long)before, (long long)slots[0], (long long)slots[1],
           (long long)slots[2], (long long)after);
    rig_close(&rig);
}

static void synchronize_gives_up_in_time(conform_t *t)
{
    dp_signal_t gate = {0, 0};
    gate_t g = {t->host, &gate, 1};
    rig_t rig;

    if (!rig_open(&rig, t, 1, 0))
        return;
    EXPECT_OK(t, rig.vt->launch(rig.streams[0], hold, &g, sizeof(g)));
    EXPECT_STATUS(t, rig.vt->synchronize(rig.streams[0], 5000000), DP_ERR_TIMEOUT);
    EXPECT_OK(t, rig.vt->query_error(rig.device)); /* late is not failed */
    t->host->post(t->host, &gate, 1);
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
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
    dp_signal_t gate = {0, 0};
    gate_t g = {t->host, &gate, 1};
    dp_event_t *event;
    int64_t before, used;
    rig_t rig;

    if (!rig_open(&rig, t, 4, 0))
        return;
    EXPECT_OK(t, rig.vt->event_open(rig.device, &event));
    EXPECT_OK(t, rig.vt->launch(rig.streams[0], hold, &g, sizeof(g)));
    EXPECT_OK(t, rig.vt->event_record(event, rig.streams[0]));
    EXPECT_OK(t, rig.vt->stream_wait(rig.streams[1], event));
    conform_nap_ms(20);
    before = cpu_ns();
    conform_nap_ms(300);
    used = cpu_ns() - before;
    EXPECT(t, used < 60000000, "%.1f ms of CPU time in 300 ms of nothing to do", (double)used * 1e-6);
    t->host->post(t->host, &gate, 1);
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[1], -1));
    rig_close(&rig);
}

/* ---- failures ---- */

typedef struct asker {
    rig_t *rig;
    dp_status_t status;
    char message[256];
} asker_t;

static void *ask(void *arg)
{
    asker_t *a = arg;

    a->status = a->rig->vt->query_error(a->rig->device);
    snprintf(a->message, sizeof(a->message), "%s", conform_last_error());
    return NULL;
}

static void first_failure_sticks_until_reset(conform_t *t)
{
    refusal_t first = {t->host, DP_ERR_NUMERIC, 7}, second = {t->host, DP_ERR_OVERFLOW, 8};
    int before = 0, after = 0;
    pthread_t thread;
    asker_t asker;
    rig_t rig;

    if (!rig_open(&rig, t, 2, 8))
        return;
    asker.rig = &rig;
    for (int round = 0; round < 3; round++) {
        before = after = 0;
        EXPECT_OK(t, rig.vt->query_error(rig.device));
        EXPECT_OK(t, put_bump(&rig, 0, &before));
        EXPECT_OK(t, rig.vt->launch(rig.streams[0], refuse, &first, sizeof(first)));
        EXPECT_OK(t, rig.vt->launch(rig.streams[0], refuse, &second, sizeof(second)));
        for (int i = 0; i < 20; i++)
            EXPECT_OK(t, put_bump(&rig, 0, &after));
        EXPECT_STATUS(t, rig.vt->synchronize(rig.streams[0], -1), DP_ERR_NUMERIC);
        EXPECT(t, strstr(conform_last_error(), "kernel 7 is not in the mood") != NULL, "\"%s\"",
               conform_last_error());
        EXPECT(t, before == 1 && after == 0, "%d before, %d after the failure", before, after);
        EXPECT_OK(t, rig.vt->synchronize(rig.streams[1], -1)); /* other streams go on */

        EXPECT(t, pthread_create(&thread, NULL, ask, &asker) == 0, "no thread");
        pthread_join(thread, NULL);
        EXPECT(t, asker.status == DP_ERR_NUMERIC && strstr(asker.message, "kernel 7") != NULL, "%d \"%s\"",
               asker.status, asker.message);

        EXPECT_OK(t, rig.vt->reset(rig.device));
        EXPECT_OK(t, rig.vt->query_error(rig.device));
        EXPECT_OK(t, put_bump(&rig, 0, &after));
        EXPECT_OK(t, rig.vt->synchronize(rig.streams[0], -1));
        EXPECT(t, after == 1, "%d", after);
    }
    rig_close(&rig);
}

static void failure_spreads_along_events(conform_t *t)
{
    refusal_t r = {t->host, DP_ERR_NUMERIC, 3};
    int early = 0, late = 0, independent = 0, fresh[4] = {0};
    dp_event_t *before, *after;
    rig_t rig;

    if (!rig_open(&rig, t, 4, 0))
        return;
    EXPECT_OK(t, rig.vt->event_open(rig.device, &before));
    EXPECT_OK(t, rig.vt->event_open(rig.device, &after));
    EXPECT_OK(t, rig.vt->event_record(before, rig.streams[0]));
    EXPECT_OK(t, rig.vt->launch(rig.streams[0], refuse, &r, sizeof(r)));
    EXPECT_OK(t, rig.vt->event_record(after, rig.streams[0]));
    EXPECT_OK(t, rig.vt->stream_wait(rig.streams[1], before));
    EXPECT_OK(t, put_bump(&rig, 1, &early)); /* what it waits for is sound */
    EXPECT_OK(t, rig.vt->stream_wait(rig.streams[2], after));
    EXPECT_OK(t, put_bump(&rig, 2, &late)); /* would work on what was never made */
    EXPECT_OK(t, put_bump(&rig, 3, &independent));
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[1], -1));
    EXPECT_STATUS(t, rig.vt->synchronize(rig.streams[2], -1), DP_ERR_NUMERIC);
    EXPECT(t, strstr(conform_last_error(), "kernel 3") != NULL, "\"%s\"", conform_last_error());
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[3], -1));
    EXPECT(t, early == 1 && late == 0 && independent == 1, "%d %d %d", early, late, independent);
    EXPECT_OK(t, rig.vt->stream_wait(rig.streams[3], after)); /* the same when its record is long past */
    EXPECT_OK(t, put_bump(&rig, 3, &independent));
    EXPECT_STATUS(t, rig.vt->synchronize(rig.streams[3], -1), DP_ERR_NUMERIC);
    EXPECT(t, independent == 1, "%d", independent);
    EXPECT_OK(t, rig.vt->reset(rig.device));
    for (int i = 0; i < 4; i++)
        EXPECT_OK(t, put_bump(&rig, i, &fresh[i]));
    for (int i = 0; i < 4; i++)
        EXPECT_OK(t, rig.vt->synchronize(rig.streams[i], -1));
    EXPECT(t, fresh[0] + fresh[1] + fresh[2] + fresh[3] == 4, "work after a reset did not run");
    EXPECT_OK(t, rig.vt->stream_wait(rig.streams[1], after));
    EXPECT_OK(t, rig.vt->synchronize(rig.streams[1], -1));
    rig_close(&rig);
}

static void *abort_later(void *arg)
{
    conform_nap_ms(20);
    conform_abort(arg, DP_ERR_PEER, "rank 5 died");
    return NULL;
}

static void abort_ends_every_wait(conform_t *t)
{
    dp_signal_t gate = {0, 0};
    gate_t g = {t->host, &gate, 1};
    pthread_t helper;
    dp_event_t *event;
    int64_t start;
    int skipped = 0;
    dp_status_t status = DP_OK;
    rig_t rig;

    if (!rig_open(&rig, t, 3, 8))
        return;
    EXPECT_OK(t, rig.vt->event_open(rig.device, &event));
    EXPECT_OK(t, rig.vt->launch(rig.streams[0], hold, &g, sizeof(g)));
    EXPECT_OK(t, rig.vt->event_record(event, rig.streams[0]));
    EXPECT_OK(t, rig.vt->stream_wait(rig.streams[1], event));
    EXPECT_OK(t, put_bump(&rig, 1, &skipped));
    EXPECT(t, pthread_create(&helper, NULL, abort_later, t) == 0, "no thread");
    start = t->host->now_ns(t->host);
    EXPECT_STATUS(t, rig.vt->synchronize(rig.streams[1], -1), DP_ERR_PEER);
    EXPECT(t, strstr(conform_last_error(), "rank 5 died") != NULL, "\"%s\"", conform_last_error());
    EXPECT_STATUS(t, rig.vt->synchronize(rig.streams[0], -1), DP_ERR_PEER);
    for (int i = 0; i < 100 && status == DP_OK; i++) /* more than the queue holds: never a hang */
        status = put_bump(&rig, 0, &skipped);
    for (int i = 0; i < 100 && status == DP_OK; i++)
        status = put_bump(&rig, 2, &skipped);
    pthread_join(helper, NULL);
    EXPECT_STATUS(t, rig.vt->reset(rig.device), DP_ERR_PEER);
    rig_close(&rig);
    EXPECT(t, t->host->now_ns(t->host) - start < 5000000000, "the end took too long");
}

/* ---- partitions and threads ---- */

static dp_status_t note_cores(void *arg)
{
    return sched_getaffinity(0, sizeof(cpu_set_t), *(cpu_set_t **)arg) == 0 ? DP_OK : DP_ERR_DEVICE;
}

static void lanes_get_their_cores(conform_t *t)
{
    dp_device_config_t config = {.struct_size = sizeof(config), .comm_sms = 1};
    cpu_set_t usable, lanes[DP_LANE_COUNT], both;
    uint32_t sms[DP_LANE_COUNT] = {9, 9, 9, 9};
    rig_t rig;

    if (!rig_open(&rig, t, 0, 0))
        return;
    if (!(rig.vt->caps & DP_DEVICE_CAP_PARTITION)) {
        conform_skip(t, "the device has no partitions");
        return;
    }
    EXPECT_OK(t, rig.vt->partition(rig.device, sms));
    for (int i = 0; i < DP_LANE_COUNT; i++)
        EXPECT(t, sms[i] == 0, "lane %d was confined to %u without being asked to", i, sms[i]);
    rig_close(&rig);

    sched_getaffinity(0, sizeof(usable), &usable);
    if (CPU_COUNT(&usable) < 2) {
        conform_skip(t, "one core cannot be shared out");
        return;
    }
    EXPECT_OK(t, rig.vt->open(t->host, &config, &rig.device));
    EXPECT_OK(t, rig.vt->partition(rig.device, sms));
    EXPECT(t, sms[0] == (uint32_t)CPU_COUNT(&usable) - 1 && sms[1] == 1 && sms[2] == 1 && sms[3] == 1,
           "%u %u %u %u", sms[0], sms[1], sms[2], sms[3]);
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

    if (!(t->device->caps & DP_DEVICE_CAP_PARTITION) || !(t->device->caps & DP_DEVICE_CAP_HOST_MEMORY)) {
        conform_skip(t, "the device has no cores");
        return;
    }
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        config.cores = lists[i];
        EXPECT(t, t->device->open(t->host, &config, &device) == DP_ERR_INVALID, "cores \"%s\" were taken",
               lists[i]);
    }
    config.cores = NULL;
    config.comm_sms = 100000;
    EXPECT_STATUS(t, t->device->open(t->host, &config, &device), DP_ERR_INVALID);
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

    if (!rig_open(&rig, t, 1, 0))
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
    int counter = 0;

    for (int round = 0; round < 4; round++) { /* the first one is for what libraries start once */
        dp_event_t *event;
        rig_t a, b;

        if (!rig_open(&a, t, 4, 0) || !rig_open(&b, t, 2, 0))
            return;
        EXPECT_OK(t, a.vt->event_open(a.device, &event));
        EXPECT_OK(t, a.vt->event_record(event, a.streams[0]));
        EXPECT_STATUS(t, b.vt->stream_wait(b.streams[0], event), DP_ERR_INVALID);
        EXPECT_OK(t, put_bump(&a, 0, &counter));
        if (round < 2) {
            rig_close(&a); /* with work queued and events open */
            rig_close(&b);
        } else {
            a.vt->close(a.device); /* with streams open */
            b.vt->close(b.device);
        }
        if (round == 0)
            before = conform_held(t);
    }
    after = conform_held(t);
    EXPECT(t, counter == 4, "%d of 4 queued functions ran before close returned", counter);
    EXPECT(t, after.blocks == before.blocks, "%lld blocks", (long long)(after.blocks - before.blocks));
    EXPECT(t, after.threads == before.threads, "%d threads before, %d after", before.threads, after.threads);
    EXPECT(t, after.descriptors == before.descriptors, "%d descriptors before, %d after", before.descriptors,
           after.descriptors);
}

#define CASE(name)                                                                                           \
    {                                                                                                        \
#name, name, 0, 0, 0                                                                                 \
    }
static const conform_case_t cases[] = {
    CASE(memory_is_aligned_and_zeroed),
    CASE(copies_and_zeroes),
    CASE(additions_add),
    CASE(launches_run_in_order),
    CASE(arguments_are_copied),
    CASE(full_queue_waits_for_room),
    CASE(queue_length_is_checked),
    CASE(events_order_streams),
    CASE(one_event_moves_between_streams),
    CASE(waits_keep_their_record),
    CASE(own_events_cost_nothing),
    CASE(stamps_lie_in_order),
    CASE(synchronize_gives_up_in_time),
    CASE(idle_and_waiting_streams_sleep),
    CASE(first_failure_sticks_until_reset),
    CASE(failure_spreads_along_events),
    CASE(abort_ends_every_wait),
    CASE(lanes_get_their_cores),
    CASE(senseless_cores_are_refused),
    CASE(workers_take_no_signals),
    CASE(nothing_is_left_behind),
    {NULL, NULL, 0, 0, 0},
};

const conform_suite_t conform_device = {"device", DP_IFACE_DEVICE, "device_cpu", cases};
