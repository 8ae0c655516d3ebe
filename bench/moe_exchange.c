/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moe_exchange.c: bytes and time of the four all-to-all calls of moe_cpu over comm_shm, ranks as
 * threads.
 *
 *   bench/moe_exchange [RANKS TOKENS HIDDEN EXPERTS TOP_K [ROUNDS]]
 *
 * Routing is that of random tokens and a random router: nearly even. Bytes are those that ranks
 * send to others, of all ranks together; times from a barrier until the last rank's stream is done,
 * medians. On the way back there is a row for each (token, chosen expert): what the way out takes
 * of that is in the last column. */
#include <dualpipe/group.h>
#include <dualpipe/plugin.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/messages.h"
#include "tests/support/block_config.h"

enum { RANKS_MAX = 16, ROUNDS_MAX = 99, EXCHANGES = 4 };
enum { ROUTE, DISPATCH, EXPERTS, COMBINE, COMBINE_B, EXPERTS_I, DISPATCH_B, CALLS };

static const char *const names[CALLS] = {[DISPATCH] = "dispatch",
                                         [COMBINE] = "combine",
                                         [COMBINE_B] = "combine_backward",
                                         [DISPATCH_B] = "dispatch_backward"};

/* One exchange() of this rank: what it is given is looked at when the stream is done. */
typedef struct sent {
    const int32_t *counts;
    size_t row_bytes;
} sent_t;

typedef struct figures {
    double bytes[CALLS];               /* of all ranks, in one round */
    double seconds[CALLS][ROUNDS_MAX]; /* of the last rank */
} figures_t;

typedef struct rank {
    dp_group_t *group;
    moe_config_t config;
    int rounds;
    figures_t *figures; /* rank 0 writes it */
} rank_t;

static const dp_comm_vt_t *transport;
static _Thread_local struct {
    dp_exchange_t *exchange;
    size_t row_bytes;
} opened[EXCHANGES];
static _Thread_local sent_t sent;

static dp_status_t open_exchange(dp_comm_t *comm, const dp_exchange_config_t *config, dp_exchange_t **out)
{
    const dp_status_t status = transport->exchange_open(comm, config, out);
    int i = 0;

    while (opened[i].exchange != NULL)
        i++;
    opened[i].exchange = *out;
    opened[i].row_bytes = config->row_bytes;
    return status;
}

static dp_status_t exchange(dp_exchange_t *e, uint32_t number, const void *send, const int32_t *offsets,
                            const int32_t *counts, const void **rows_out, const int32_t **counts_out, dp_stream_t *s)
{
    for (int i = 0; i < EXCHANGES; i++)
        if (opened[i].exchange == e)
            sent = (sent_t){counts, opened[i].row_bytes};
    return transport->exchange(e, number, send, offsets, counts, rows_out, counts_out, s);
}

static const void *table_of(const char *plugin, const char *interface, size_t bytes)
{
    const dp_plugin_t *found = NULL;
    const void *table = NULL;

    messages_check(dp_plugin_load(plugin, &found));
    messages_check(dp_plugin_interface(found, interface, bytes, &table));
    return table;
}

static void *filled(size_t bytes, uint32_t seed, float size)
{
    float *memory = NULL;

    if (posix_memalign((void **)&memory, 256, bytes + 256) != 0) {
        fprintf(stderr, "moe_exchange: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    for (size_t i = 0; i < bytes / sizeof(*memory); i++) {
        seed = seed * 1664525U + 1013904223U;
        memory[i] = size * ((float)(seed >> 8) / (1 << 23) - 1);
    }
    return memory;
}

static void measure(const rank_t *r, const dp_moe_vt_t *vt, dp_moe_t *moe, moe_io_t io[2],
                    const dp_device_vt_t *device_vt, dp_stream_t *stream, const int32_t ranks)
{
    dp_status_t (*const calls[CALLS])(dp_moe_t *, const dp_moe_io_t *, dp_stream_t *) = {
        vt->route,
        vt->dispatch,
        vt->experts,
        vt->combine,
        vt->combine_backward,
        vt->experts_backward_input,
        vt->dispatch_backward,
    };
    const dp_host_t *host = dp_group_host(r->group);
    const int32_t me = dp_group_rank(r->group);

    for (int round = -1; round < r->rounds; round++) /* the first one touches memory */
        for (int i = 0; i < CALLS; i++) {
            struct {
                double seconds, bytes;
            } mine = {0}, all[RANKS_MAX];
            int64_t start;

            messages_check(dp_group_barrier(r->group));
            start = host->now_ns(host);
            messages_check(moe_call(calls[i], moe, &io[i >= COMBINE_B], stream));
            messages_check(device_vt->synchronize(stream, -1));
            mine.seconds = (double)(host->now_ns(host) - start) * 1e-9;
            for (int32_t p = 0; p < ranks && names[i] != NULL; p++)
                mine.bytes += p != me ? (double)sent.counts[p] * (double)sent.row_bytes : 0;
            messages_check(dp_group_all_gather(r->group, &mine, sizeof(mine), all));
            if (me != 0 || round < 0)
                continue;
            r->figures->bytes[i] = 0;
            for (int32_t p = 0; p < ranks; p++) {
                r->figures->bytes[i] += all[p].bytes;
                if (all[p].seconds > r->figures->seconds[i][round])
                    r->figures->seconds[i][round] = all[p].seconds;
            }
        }
}

static void *run_rank(void *arg)
{
    static const int32_t world[RANKS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    rank_t *r = arg;
    const dp_host_t *host = dp_group_host(r->group);
    const int32_t me = dp_group_rank(r->group), ranks = dp_group_size(r->group);
    const dp_device_vt_t *device_vt = table_of("device_cpu", DP_IFACE_DEVICE, DP_DEVICE_VT_MIN);
    const dp_moe_vt_t *vt = table_of("moe_cpu", DP_IFACE_MOE, DP_MOE_VT_MIN);
    const dp_device_config_t device_config = {.struct_size = sizeof(device_config)};
    const size_t boundary = (size_t)r->config.shape.sequence * r->config.shape.hidden * sizeof(float);
    const uint32_t seed = 77 * (uint32_t)(me + 1);
    dp_comm_config_t comm_config = {
        .struct_size = sizeof(comm_config), .name = "bench", .rank = me, .nranks = ranks, .world_ranks = world};
    dp_block_sizes_t sizes = {.struct_size = sizeof(sizes)};
    dp_comm_vt_t counting = *transport;
    dp_device_t *device;
    dp_stream_t *stream;
    dp_comm_t *comm;
    dp_moe_t *moe;
    moe_io_t io[2] = {0};
    void *memory[9];

    messages_check(device_vt->open(host, &device_config, &device));
    messages_check(device_vt->stream_open(device, DP_LANE_ALL_TO_ALL, &stream));
    comm_config.vt = transport;
    comm_config.device_vt = device_vt;
    comm_config.device = device;
    messages_check(transport->open(host, &comm_config, &comm));
    counting.exchange_open = open_exchange;
    counting.exchange = exchange;
    r->config.moe.device_vt = device_vt;
    r->config.moe.device = device;
    r->config.moe.comm_vt = &counting;
    r->config.moe.comm = comm;
    r->config.moe.comm_rank = me;
    r->config.moe.comm_size = ranks;
    messages_check(moe_open(vt, host, &r->config, &moe));
    messages_check(transport->start(comm));
    messages_check(vt->sizes(moe, &sizes));
    /* the same router on all ranks */
    memory[0] = filled(sizes.param_count * sizeof(float), 5, 0.05F);
    memory[1] = filled(sizes.saved_bytes, seed, 0);
    memory[2] = filled(sizes.scratch_bytes, seed, 0);
    memory[3] = filled(sizes.work_bytes, seed, 0);
    memory[4] = filled(sizes.work_bytes, seed, 0);
    memory[5] = filled(boundary, seed, 1); /* x, y, dy, dx */
    memory[6] = filled(boundary, seed, 1);
    memory[7] = filled(boundary, seed + 1, 1);
    memory[8] = filled(boundary, seed, 1);
    for (int i = 0; i < 2; i++) {
        io[i].io = (dp_io_t){.struct_size = sizeof(dp_io_t),
                             .params = memory[0],
                             .saved = memory[1],
                             .scratch = memory[2],
                             .work = memory[3 + i],
                             .x = memory[5],
                             .y = memory[6],
                             .dy = memory[7],
                             .dx = memory[8]};
        io[i].moe.struct_size = sizeof(io[i].moe);
    }
    measure(r, vt, moe, io, device_vt, stream, ranks);
    vt->close(moe);
    transport->close(comm);
    device_vt->stream_close(stream);
    device_vt->close(device);
    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++)
        free(memory[i]);
    dp_group_leave(r->group);
    return NULL;
}

int main(int argc, char **argv)
{
    static figures_t figures;
    static rank_t ranks[RANKS_MAX];
    long sizes[] = {4, 1024, 1024, 64, 8, 7};
    dp_group_t *groups[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    moe_config_t config = {0};

    for (int i = 1; i < argc && i <= 6; i++)
        sizes[i - 1] = strtol(argv[i], NULL, 10);
    if ((argc != 1 && argc != 6 && argc != 7) || sizes[0] < 1 || sizes[0] > RANKS_MAX || sizes[5] < 1 ||
        sizes[5] > ROUNDS_MAX) {
        fprintf(stderr, "usage: moe_exchange [RANKS TOKENS HIDDEN EXPERTS TOP_K [ROUNDS]]   1 to %d ranks\n",
                RANKS_MAX);
        return 2;
    }
    (void)setenv("DUALPIPE_PLUGIN_PATH", DP_BENCH_PLUGINS, 0);
    transport = table_of("comm_shm", DP_IFACE_COMM, DP_COMM_VT_MIN);
    messages_check(dp_group_local((int32_t)sizes[0], NULL, groups));
    config.shape = (dp_block_shape_t){.struct_size = sizeof(config.shape),
                                      .dtype = DP_F32,
                                      .batch = 1,
                                      .sequence = (uint32_t)sizes[1],
                                      .hidden = (uint32_t)sizes[2]};
    config.moe = (dp_moe_config_t){.struct_size = sizeof(config.moe),
                                   .experts = (uint32_t)sizes[3],
                                   .top_k = (uint32_t)sizes[4],
                                   .expert_hidden = 16,
                                   .normalize = 1};
    for (long i = 0; i < sizes[0]; i++) {
        ranks[i] = (rank_t){groups[i], config, (int)sizes[5], &figures};
        pthread_create(&threads[i], NULL, run_rank, &ranks[i]);
    }
    for (long i = 0; i < sizes[0]; i++)
        pthread_join(threads[i], NULL);
    printf("f32, %ld ranks of %ld tokens, hidden %ld, %ld experts, %ld chosen; medians of %ld\n", sizes[0], sizes[1],
           sizes[2], sizes[3], sizes[4], sizes[5]);
    printf("%-20s %10s %10s %10s %12s\n", "", "MB sent", "ms", "GB/s", "of back");
    for (int i = 0; i < CALLS; i++)
        if (names[i] != NULL) {
            const double seconds = messages_median(figures.seconds[i], (int)sizes[5]), bytes = figures.bytes[i];

            printf("%-20s %10.3f %10.3f %10.2f %12.3f\n", names[i], bytes * 1e-6, seconds * 1e3, bytes / seconds * 1e-9,
                   figures.bytes[COMBINE] > 0 ? bytes / figures.bytes[COMBINE] : 1);
        }
    return 0;
}
