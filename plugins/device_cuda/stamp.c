/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * stamp.c: times of points in streams. A kernel of one thread writes the device's clock into memory
 * that the host sees; the host turns it into its own when it next waits. The clocks are set by each
 * other at the start, and now and then: the host calls, a kernel answers with its time, and of
 * several rounds the shortest one counts. Where a launch returns only when its kernel has
 * (CUDA_LAUNCH_BLOCKING, profilers that replay kernels), the host's time around a stamp serves. */
#include "device_cuda.h"
#include "plugins/common/do.h"

#include <string.h>

#define ROUNDS 16
/* of the kernel that answers, then of those that stamp: it may still be at work */
#define ANSWERS        (2 * ROUNDS)
#define RECALIBRATE_NS 5000000000
#define ECHO_NS        100000000 /* the kernel waits half as long for the host */
#define ANSWER_NS      5000000000

static dp_status_t launch_stamp(dp_stream_t *s, CUdeviceptr to)
{
    return cuda_launch(s->device->host, s->device->cu, s->device->stamp, CUDA_DIM(1), CUDA_DIM(1), 0, s->cu, &to);
}

/* Of several rounds, the one that left least doubt. */
static void take_round(device_stamps_t *st, int64_t before, int64_t after, uint64_t answer, int64_t *best)
{
    if (answer != 0 && after - before < *best) {
        *best = after - before;
        st->offset_ns = before + (after - before) / 2 - (int64_t)answer;
    }
}

/* The device's answer, or 0 when it has not come by then. */
static uint64_t await_answer(const dp_host_t *host, const volatile uint64_t *answer, int64_t give_up, int64_t *after)
{
    uint64_t time;

    do {
        time = __atomic_load_n(answer, __ATOMIC_ACQUIRE);
        *after = host->now_ns(host);
    } while (time == 0 && *after < give_up);
    return time;
}

/* The kernel is there after microseconds, or has given up by itself when the launch returns. */
static dp_status_t call_and_answer(dp_device_t *device, int64_t *best)
{
    const dp_host_t *host = device->host;
    device_stamps_t *st = &device->stamps;
    int rounds = ROUNDS;
    dp_status_t status = cuda_launch(host, device->cu, device->echo, CUDA_DIM(1), CUDA_DIM(1), 0, device->service,
                                     &st->device_call, &st->device_answers, &rounds);
    uint64_t answer = status == DP_OK;

    for (int round = 1; round <= ROUNDS && answer != 0; round++) {
        int64_t before = host->now_ns(host), after;

        __atomic_store_n(st->call, (uint64_t)round, __ATOMIC_RELEASE);
        answer = await_answer(host, &st->answers[round - 1], before + ECHO_NS, &after);
        take_round(st, before, after, answer, best);
    }
    __atomic_store_n(st->call, (uint64_t)ROUNDS, __ATOMIC_RELEASE);
    return status;
}

static dp_status_t stamp_and_look(dp_device_t *device, int64_t *best)
{
    const dp_host_t *host = device->host;
    device_stamps_t *st = &device->stamps;
    dp_status_t status = DP_OK;

    for (int round = 0; round < ROUNDS && status == DP_OK; round++) {
        CUdeviceptr to = st->device_answers + (size_t)(ROUNDS + round) * sizeof(uint64_t);
        int64_t before = host->now_ns(host), after;
        uint64_t answer = 0;

        status = cuda_launch(host, device->cu, device->stamp, CUDA_DIM(1), CUDA_DIM(1), 0, device->service, &to);
        if (status == DP_OK)
            answer = await_answer(host, &st->answers[ROUNDS + round], before + ANSWER_NS, &after);
        if (status == DP_OK)
            take_round(st, before, after, answer, best);
    }
    return status;
}

static dp_status_t calibrate_clock(dp_device_t *device)
{
    const dp_host_t *host = device->host;
    device_stamps_t *st = &device->stamps;
    int64_t best = INT64_MAX;
    dp_status_t status;

    *st->call = 0;
    memset((void *)(uintptr_t)st->answers, 0, ANSWERS * sizeof(uint64_t));
    status = call_and_answer(device, &best);
    if (status == DP_OK && best == INT64_MAX) {
        host->log(host, DP_LOG_WARN, "device_cuda",
                  "launches wait for their kernels: device times are good to some 10 us");
        status = stamp_and_look(device, &best);
        if (status == DP_OK && best == INT64_MAX)
            status = DP_FAIL(host, DP_ERR_TIMEOUT, "the device does not answer when its clock is asked for");
    }
    st->calibrated_ns = host->now_ns(host);
    return status;
}

dp_status_t cuda_stamps_calibrate_late(dp_device_t *device)
{
    const dp_host_t *host = device->host;

    if (host->now_ns(host) - device->stamps.calibrated_ns < RECALIBRATE_NS ||
        device->cu->cuStreamQuery(device->service) != CUDA_SUCCESS)
        return DP_OK;
    return calibrate_clock(device);
}

dp_status_t cuda_stamps_open(dp_device_t *device)
{
    const dp_host_t *host = device->host;
    device_stamps_t *st = &device->stamps;
    size_t words = STAMPS + 8 + ANSWERS;
    void *memory = NULL;
    CUdeviceptr at = 0;
    dp_status_t status;

    st->to = host->allocate(host, STAMPS * sizeof(*st->to), 64);
    if (st->to == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "no memory for time stamps");
    DO(CUDA_CHECK(host,
                  device->cu->cuMemHostAlloc(&memory, words * sizeof(uint64_t),
                                             CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                  "host memory for time stamps"));
    memset(memory, 0, words * sizeof(uint64_t));
    st->times = memory;
    st->call = st->times + STAMPS;
    st->answers = st->call + 8;
    status = CUDA_CHECK(host, device->cu->cuMemHostGetDevicePointer(&at, memory, 0), "mapping host memory");
    st->device_times = at;
    st->device_call = at + STAMPS * sizeof(uint64_t);
    st->device_answers = st->device_call + 8 * sizeof(uint64_t);
    return status == DP_OK ? calibrate_clock(device) : status;
}

void cuda_stamps_close(dp_device_t *device)
{
    if (device->stamps.times != NULL)
        (void)device->cu->cuMemFreeHost((void *)(uintptr_t)device->stamps.times);
    device->host->release(device->host, device->stamps.to);
}

/* A slot under way holds up the end of the ring alone: streams run at different speeds. */
void cuda_stamps_deliver(dp_device_t *device)
{
    device_stamps_t *st = &device->stamps;

    for (uint32_t i = st->first; i != st->next; i++) {
        uint32_t at = i & (STAMPS - 1);
        uint64_t time = st->to[at] != NULL ? __atomic_load_n(&st->times[at], __ATOMIC_ACQUIRE) : 0;

        if (time != 0) {
            *st->to[at] = (int64_t)time + st->offset_ns;
            st->to[at] = NULL;
            st->delivered++;
        }
    }
    while (st->first != st->next && st->to[st->first & (STAMPS - 1)] == NULL)
        st->first++;
    for (dp_graph_t *g = device->graphs; g != NULL; g = g->next)
        cuda_graph_deliver(g);
}

uint32_t cuda_stamps_delivered(const dp_device_t *device)
{
    return device->stamps.delivered;
}

/* As many on their way as there is room for: waits for the oldest. */
static dp_status_t grow_stamps(dp_stream_t *s)
{
    dp_device_t *device = s->device;
    device_stamps_t *st = &device->stamps;
    const dp_host_t *host = device->host;
    dp_signal_t never = {0, 0};
    int64_t give_up = host->now_ns(host) + device->hang_ns;
    dp_status_t status = DP_OK;

    while (st->next - st->first == STAMPS && status == DP_OK) {
        cuda_stamps_deliver(device);
        if (st->next - st->first < STAMPS)
            break;
        if (host->now_ns(host) > give_up)
            return DP_FAIL(host, DP_ERR_TIMEOUT, "stream %s: %u time stamps are on their way and none comes",
                           cuda_lane_name(s->lane), STAMPS);
        status = host->wait(host, &never, 1, 100000, "time stamps wait for room");
        if (status == DP_ERR_TIMEOUT)
            status = cuda_device_ask_watches(device);
    }
    return status;
}

dp_status_t cuda_stamp_put(dp_stream_t *s, int64_t *slot)
{
    dp_device_t *device = s->device;
    device_stamps_t *st = &device->stamps;
    uint32_t at = st->next & (STAMPS - 1);
    CUdeviceptr to;
    dp_status_t status = cuda_stream_enter(s);

    if (status == DP_OK && device->capturing != NULL) {
        status = cuda_graph_stamp(device->capturing, slot, &to);
        return status == DP_OK ? launch_stamp(s, to) : status;
    }
    if (status == DP_OK)
        status = grow_stamps(s);
    if (status < 0)
        return status;
    st->times[at] = 0;
    DO(launch_stamp(s, st->device_times + at * sizeof(uint64_t)));
    st->to[at] = slot;
    st->next++;
    cuda_stream_entered(s);
    return DP_OK;
}
