/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * messages.c: a transport between two ranks, timed on a stream. */
#include "bench/messages.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define QUEUE (1 << 14)

void messages_check(dp_status_t status)
{
    if (status >= 0)
        return;
    fprintf(stderr, "%s\n", dp_last_error());
    _exit(1);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double messages_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), compare);
    return values[count / 2];
}

static void open_channel(messages_t *m, uint32_t id, int sender, size_t bytes, dp_channel_end_t **end_out)
{
    dp_channel_config_t config = {.struct_size = sizeof(config),
                                  .id = id,
                                  .peer = 1 - m->rank,
                                  .sender = sender,
                                  .slots = MESSAGES_SLOTS,
                                  .slot_bytes = bytes,
                                  .label = "bench"};

    messages_check(m->vt->channel_open(m->comm, &config, end_out));
}

/* The rank-th core that we may use; all of them when there is only one. */
static const char *core_of(int32_t rank)
{
    static char text[16];
    cpu_set_t usable;
    int core = 0;

    if (sched_getaffinity(0, sizeof(usable), &usable) != 0 || CPU_COUNT(&usable) < 2)
        return NULL;
    for (int32_t left = rank; !CPU_ISSET(core, &usable) || left-- > 0; core++)
        ;
    snprintf(text, sizeof(text), "%d", core);
    return text;
}

void messages_open(messages_t *m, dp_group_t *group, const char *name)
{
    static const int32_t world[2] = {0, 1};
    dp_device_config_t device = {.struct_size = sizeof(device), .queue_length = QUEUE};
    dp_comm_config_t config = {.struct_size = sizeof(config), .name = "bench", .nranks = 2, .world_ranks = world};
    const dp_plugin_t *plugin;
    const void *table;

    *m = (messages_t){.rank = dp_group_rank(group), .group = group, .host = dp_group_host(group)};
    device.cores = core_of(m->rank);
    config.rank = m->rank;
    messages_check(dp_plugin_load("device_cpu", &plugin));
    messages_check(dp_plugin_interface(plugin, DP_IFACE_DEVICE, sizeof(dp_device_vt_t), &table));
    m->device_vt = table;
    messages_check(dp_plugin_load(name, &plugin));
    messages_check(dp_plugin_interface(plugin, DP_IFACE_COMM, sizeof(dp_comm_vt_t), &table));
    m->vt = table;
    messages_check(m->device_vt->open(m->host, &device, &m->device));
    messages_check(m->device_vt->stream_open(m->device, DP_LANE_P2P, &m->stream));
    config.vt = m->vt;
    config.device_vt = m->device_vt;
    config.device = m->device;
    messages_check(m->vt->open(m->host, &config, &m->comm));
    for (uint32_t i = 0; i < MESSAGES_SIZES; i++)
        open_channel(m, i, m->rank == 0, MESSAGES_SMALLEST << i, &m->data[i]);
    open_channel(m, 100, m->rank == 0, 8, &m->ping);
    open_channel(m, 101, m->rank == 1, 8, &m->pong);
    messages_check(m->vt->start(m->comm));
}

void messages_close(messages_t *m)
{
    m->vt->close(m->comm);
    m->device_vt->close(m->device);
}

typedef struct gate {
    const dp_host_t *host;
    dp_signal_t *signal;
    uint32_t target;
} gate_t;

static dp_status_t hold(void *arg)
{
    const gate_t *g = arg;

    return g->host->wait(g->host, g->signal, g->target, -1, "the gate of the benchmark");
}

static void close_gate(messages_t *m)
{
    gate_t g = {m->host, &m->gate, ++m->gates};

    messages_check(m->device_vt->launch(m->stream, hold, &g, sizeof(g)));
}

/* Both have enqueued all their work: go. */
static void open_gate(messages_t *m)
{
    messages_check(dp_group_barrier(m->group));
    m->host->post(m->host, &m->gate, m->gates);
    messages_check(m->device_vt->synchronize(m->stream, -1));
}

static void put(messages_t *m, dp_channel_end_t *end, uint32_t *number, const void *from, size_t bytes)
{
    dp_message_tag_t tag = {.number = (*number)++, .bytes = (uint32_t)bytes};

    messages_check(m->vt->send(end, from, &tag, m->stream));
}

static void take(messages_t *m, dp_channel_end_t *end, const uint32_t *number, size_t bytes)
{
    dp_message_tag_t tag = {.number = *number, .bytes = (uint32_t)bytes};
    const void *data;

    messages_check(m->vt->recv(end, &tag, &data, m->stream));
}

static void give_back(messages_t *m, dp_channel_end_t *end, uint32_t *number)
{
    messages_check(m->vt->release(end, (*number)++, m->stream));
}

/* Rank 0 sends, rank 1 receives and says when it has the last one. */
double messages_transfer(messages_t *m, int size, size_t volume, const void *from)
{
    size_t bytes = MESSAGES_SMALLEST << size, count = volume / bytes;
    int64_t times[2] = {0, 0};

    close_gate(m);
    messages_check(m->device_vt->stamp(m->stream, &times[0]));
    for (size_t i = 0; i < count; i++) {
        if (m->rank == 0) {
            put(m, m->data[size], &m->data_number[size], from, bytes);
        } else {
            take(m, m->data[size], &m->data_number[size], bytes);
            give_back(m, m->data[size], &m->data_number[size]);
        }
    }
    if (m->rank == 0) {
        take(m, m->pong, &m->pong_number, 8);
        give_back(m, m->pong, &m->pong_number);
    } else {
        put(m, m->pong, &m->pong_number, from, 8);
    }
    messages_check(m->device_vt->stamp(m->stream, &times[1]));
    open_gate(m);
    return (double)(count * bytes) / ((double)(times[1] - times[0]) * 1e-9);
}

double messages_trip(messages_t *m, int trips)
{
    uint64_t word = 0;
    int64_t times[2];

    close_gate(m);
    messages_check(m->device_vt->stamp(m->stream, &times[0]));
    for (int i = 0; i < trips; i++) {
        if (m->rank == 0) {
            put(m, m->ping, &m->ping_number, &word, 8);
            take(m, m->pong, &m->pong_number, 8);
            give_back(m, m->pong, &m->pong_number);
        } else {
            take(m, m->ping, &m->ping_number, 8);
            put(m, m->pong, &m->pong_number, &word, 8);
            give_back(m, m->ping, &m->ping_number);
        }
    }
    messages_check(m->device_vt->stamp(m->stream, &times[1]));
    open_gate(m);
    return (double)(times[1] - times[0]) * 1e-9 / trips / 2;
}
