/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * graph.c: a step as a graph. Every stream that something is put on during a capture joins it, and
 * is joined to the origin at the end; a launch runs behind all earlier work of the device's streams
 * and before all later work. */
#include "device_cuda.h"

#include <string.h>

#define GRAPH_STAMPS 16384

/* Rooms for the stamps of graphs are made when the device opens: host memory for the device cannot
 * be had, nor given back, while kernels of another rank wait on it for what this rank has yet to
 * capture. */
dp_status_t cuda_graphs_open(dp_device_t *device)
{
    const size_t bytes = (size_t)GRAPH_ROOMS * GRAPH_STAMPS * sizeof(uint64_t);
    void *memory = NULL;
    const dp_status_t status = CUDA_CHECK(
        device->host, device->cu->cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
        "host memory for the time stamps of graphs");

    if (status < 0)
        return status;
    device->graph_memory = memory;
    for (int i = 0; i < GRAPH_ROOMS; i++)
        device->graph_rooms[i] = device->graph_memory + (size_t)i * GRAPH_STAMPS;
    return DP_OK;
}

void cuda_graphs_close(dp_device_t *device)
{
    while (device->graphs != NULL)
        cuda_graph_close(device->graphs);
    if (device->graph_memory != NULL)
        (void)device->cu->cuMemFreeHost(device->graph_memory);
}

static volatile uint64_t *take_room(dp_device_t *device)
{
    for (int i = 0; i < GRAPH_ROOMS; i++)
        if (device->graph_rooms[i] != NULL) {
            uint64_t *room = device->graph_rooms[i];
            device->graph_rooms[i] = NULL;
            memset(room, 0, GRAPH_STAMPS * sizeof(*room));
            return room;
        }
    return NULL;
}

static void give_room_back(dp_device_t *device, volatile uint64_t *room)
{
    for (int i = 0; i < GRAPH_ROOMS; i++)
        if (device->graph_rooms[i] == NULL) {
            device->graph_rooms[i] = (uint64_t *)(uintptr_t)room;
            return;
        }
}

static void free_graph(dp_graph_t *g)
{
    dp_device_t *device = g->device;

    if (g->exec != NULL)
        (void)device->cu->cuGraphExecDestroy(g->exec);
    if (g->graph != NULL)
        (void)device->cu->cuGraphDestroy(g->graph);
    if (g->times != NULL)
        give_room_back(device, g->times);
    device->host->release(device->host, g->to);
    device->host->release(device->host, g);
}

static dp_status_t make_graph(dp_device_t *device, dp_graph_t **graph_out)
{
    const dp_host_t *host = device->host;
    dp_graph_t *g = host->allocate(host, sizeof(*g), 64);
    dp_status_t status;

    if (g == NULL)
        return DP_FAIL(host, DP_ERR_NOMEM, "no memory for a graph");
    memset(g, 0, sizeof(*g));
    g->device = device;
    g->room = GRAPH_STAMPS;
    g->to = host->allocate(host, GRAPH_STAMPS * sizeof(*g->to), 64);
    status = g->to != NULL ? DP_OK : DP_FAIL(host, DP_ERR_NOMEM, "no memory for a graph");
    if (status == DP_OK)
        g->times = take_room(device);
    if (status == DP_OK && g->times == NULL)
        status = DP_FAIL(host, DP_ERR_OVERFLOW, "a device holds %d graphs at most: close one", GRAPH_ROOMS);
    if (status < 0) {
        free_graph(g);
        return status;
    }
    *graph_out = g;
    return DP_OK;
}

dp_status_t cuda_graph_stamp(dp_graph_t *g, int64_t *slot, CUdeviceptr *at_out)
{
    if (g->nstamps == g->room)
        return DP_FAIL(g->device->host, DP_ERR_OVERFLOW, "a graph holds %u time stamps at most", g->room);
    g->to[g->nstamps] = slot;
    *at_out = (CUdeviceptr)(uintptr_t)&g->times[g->nstamps++];
    return DP_OK;
}

void cuda_graph_deliver(dp_graph_t *g)
{
    for (uint32_t i = 0; i < g->nstamps && g->launched; i++) {
        uint64_t time = __atomic_load_n(&g->times[i], __ATOMIC_ACQUIRE);

        if (time != 0)
            *g->to[i] = (int64_t)time + g->device->stamps.offset_ns;
    }
}

static void set_origin(dp_device_t *device, dp_stream_t *origin)
{
    pthread_mutex_lock(&device->lock);
    device->capture_origin = origin;
    pthread_mutex_unlock(&device->lock);
}

dp_status_t cuda_graph_begin(dp_stream_t *origin)
{
    dp_device_t *device = origin->device;
    const dp_host_t *host = device->host;
    dp_graph_t *g = NULL;
    dp_status_t status;

    if (device->capture_origin != NULL)
        return DP_FAIL(host, DP_ERR_INVALID, "a capture is on already: one at a time");
    status = cuda_device_make_current(device);
    if (status == DP_OK)
        status = make_graph(device, &g);
    if (status == DP_OK)
        status = CUDA_CHECK(host, device->cu->cuStreamBeginCapture(origin->cu, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                            "beginning a capture");
    if (status < 0) {
        if (g != NULL)
            free_graph(g);
        return status;
    }
    set_origin(device, origin);
    device->capturing = g;
    device->captures++;
    origin->captured = device->captures;
    return CUDA_CHECK(host, device->cu->cuEventRecord(device->fork, origin->cu), "beginning a capture");
}

/* All streams that took part meet in the origin. */
static dp_status_t join_streams(dp_device_t *device, dp_stream_t *origin)
{
    dp_status_t status = DP_OK;

    for (dp_stream_t *s = device->streams; s != NULL && status == DP_OK; s = s->next) {
        if (s == origin || s->captured != device->captures)
            continue;
        status = CUDA_CHECK(device->host, device->cu->cuEventRecord(device->order, s->cu), "ending a capture");
        if (status == DP_OK)
            status = CUDA_CHECK(device->host, device->cu->cuStreamWaitEvent(origin->cu, device->order, 0),
                                "ending a capture");
    }
    return status;
}

dp_status_t cuda_graph_end(dp_stream_t *origin, dp_graph_t **graph_out)
{
    dp_device_t *device = origin->device;
    const dp_host_t *host = device->host;
    const cuda_driver_t *cu = device->cu;
    dp_graph_t *g = device->capturing;
    dp_status_t status, ended;

    if (device->capture_origin != origin)
        return DP_FAIL(host, DP_ERR_INVALID, "no capture began on stream %s", cuda_lane_name(origin->lane));
    status = join_streams(device, origin);
    ended = CUDA_CHECK(host, cu->cuStreamEndCapture(origin->cu, &g->graph), "ending a capture");
    set_origin(device, NULL);
    device->capturing = NULL;
    if (status == DP_OK)
        status = ended;
    if (status == DP_OK)
        status = CUDA_CHECK(host, cu->cuGraphInstantiate(&g->exec, g->graph, 0), "making a graph ready");
    if (status == DP_OK)
        status = CUDA_CHECK(host, cu->cuGraphUpload(g->exec, origin->cu), "bringing a graph to the device");
    if (status < 0) {
        free_graph(g);
        return status;
    }
    g->next = device->graphs;
    device->graphs = g;
    *graph_out = g;
    return DP_OK;
}

dp_status_t cuda_graph_launch(dp_graph_t *g, dp_stream_t *s)
{
    dp_device_t *device = g->device;
    const dp_host_t *host = device->host;
    const cuda_driver_t *cu = device->cu;
    dp_status_t status = DP_OK;

    if (s->device != device)
        return DP_FAIL(host, DP_ERR_INVALID, "a graph cannot be launched on a stream of another device");
    for (dp_stream_t *other = device->streams; other != NULL && status == DP_OK; other = other->next) {
        if (other == s)
            continue;
        status = CUDA_CHECK(host, cu->cuEventRecord(device->order, other->cu), "launching a graph");
        if (status == DP_OK)
            status = CUDA_CHECK(host, cu->cuStreamWaitEvent(s->cu, device->order, 0), "launching a graph");
    }
    if (status == DP_OK)
        status = CUDA_CHECK(host, cu->cuGraphLaunch(g->exec, s->cu), "launching a graph");
    if (status == DP_OK)
        status = CUDA_CHECK(host, cu->cuEventRecord(device->order, s->cu), "launching a graph");
    for (dp_stream_t *other = device->streams; other != NULL && status == DP_OK; other = other->next)
        if (other != s)
            status = CUDA_CHECK(host, cu->cuStreamWaitEvent(other->cu, device->order, 0), "launching a graph");
    g->launched = true;
    return status;
}

void cuda_graph_close(dp_graph_t *g)
{
    dp_graph_t **at;

    if (g == NULL)
        return;
    for (at = &g->device->graphs; *at != g; at = &(*at)->next)
        ;
    *at = g->next;
    free_graph(g);
}
