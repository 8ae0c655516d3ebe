/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * gpu_p2p.c: comm_cuda_ipc between ranks that are threads of one process and share one GPU:
 * messages beside a copy within the device, rows of an exchange beside the same copy.
 *
 *     bench/gpu_p2p [--comm-sms N] [--most BYTES] [--repeats N] [--ranks N]
 *
 * Everything in one run and in alternation; medians of N repeats (20) after 3 that do not count;
 * times are the device's own, between stamps on the receiving stream. Exit status 77: no CUDA
 * device. What it does not show: a link. Both ends are the same memory, so a message is read and
 * written where a link would carry it, and the copy engine competes with nothing.
 * DUALPIPE_DEBUG=ipc.link_bytes_per_us slows transfers down to a simulated link; the figures say
 * so. Wanted: 64 MiB messages at 0.95 of the copy or better. */
#include "tests/support/debug.h"

#include <dualpipe/advanced.h>
#include <dualpipe/dualpipe.h>

#include <getopt.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NO_DEVICE = 77, WARM_UP = 3, REPEATS_MAX = 200, MESSAGES = 16, SLOTS = 2, RANKS_MAX = 8 };
#define SMALLEST ((size_t)64 << 10)
#define SIZES    11              /* up to 64 MiB */
#define ROW      ((size_t)14336) /* 7168 elements of bf16 */
#define ROWS     2048

typedef struct settings {
    long comm_sms, repeats, ranks;
    size_t most;
} settings_t;

typedef struct bench {
    const settings_t *set;
    dp_group_t *group;
    const dp_host_t *host;
    const dp_device_vt_t *device_vt;
    const dp_comm_vt_t *vt;
    dp_device_t *device;
    dp_stream_t *stream;
    dp_comm_t *comm;
    dp_channel_end_t *data[SIZES], *back; /* from rank 0 to rank 1; the answer */
    uint32_t data_number[SIZES], back_number, swaps;
    dp_exchange_t *exchange;
    unsigned char *from, *to; /* device memory */
    float *barrier;           /* a sum of nothing, to meet at */
    int32_t *numbers;         /* offsets [ranks], counts [ranks] */
    int64_t *stamps;          /* [2] */
    int32_t rank;
    uint32_t capacity;
    int sizes, status;
} bench_t;

/* bytes per microsecond */
static double copied[SIZES][REPEATS_MAX], sent[SIZES][REPEATS_MAX], swapped[REPEATS_MAX];
static uint32_t sms[DP_LANE_COUNT];

#define DO(call)                                                                                                       \
    do {                                                                                                               \
        dp_status_t do_status = (call);                                                                                \
        if (do_status != DP_OK)                                                                                        \
            return do_status;                                                                                          \
    } while (0)

/* ---- set-up ---- */

static dp_status_t table(const char *name, const char *interface, size_t bytes, const void **out)
{
    const dp_plugin_t *plugin;

    DO(dp_plugin_load(name, &plugin));
    return dp_plugin_interface(plugin, interface, bytes, out);
}

static dp_status_t open_channel(bench_t *b, uint32_t id, int sender, size_t bytes, dp_channel_end_t **end_out)
{
    dp_channel_config_t config = {.struct_size = sizeof(config),
                                  .id = id,
                                  .peer = 1 - b->rank,
                                  .sender = sender,
                                  .slots = SLOTS,
                                  .slot_bytes = bytes,
                                  .label = "bench"};

    return b->vt->channel_open(b->comm, &config, end_out);
}

static dp_status_t open_device(bench_t *b)
{
    dp_device_config_t config = {.struct_size = sizeof(config),
                                 .comm_sms = (uint32_t)b->set->comm_sms,
                                 .shares = (uint32_t)b->set->ranks,
                                 .share = (uint32_t)b->rank};
    const void *found;

    b->host = dp_group_host(b->group);
    DO(table("device_cuda", DP_IFACE_DEVICE, DP_DEVICE_VT_MIN, &found));
    b->device_vt = found;
    DO(table("comm_cuda_ipc", DP_IFACE_COMM, sizeof(dp_comm_vt_t), &found));
    b->vt = found;
    DO(b->device_vt->open(b->host, &config, &b->device));
    DO(b->device_vt->stream_open(b->device, DP_LANE_P2P, &b->stream));
    return b->rank == 0 ? b->device_vt->partition(b->device, sms) : DP_OK;
}

static dp_status_t open_comm(bench_t *b)
{
    static const int32_t world[RANKS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7};
    dp_comm_config_t config = {.struct_size = sizeof(config),
                               .vt = b->vt,
                               .name = "bench",
                               .rank = b->rank,
                               .nranks = (int32_t)b->set->ranks,
                               .world_ranks = world,
                               .device_vt = b->device_vt,
                               .device = b->device};
    dp_exchange_config_t rows = {
        .struct_size = sizeof(rows), .row_bytes = ROW, .capacity_rows = b->capacity, .label = "dispatch"};

    DO(b->vt->open(b->host, &config, &b->comm));
    for (int i = 0; i < b->sizes && b->rank < 2; i++)
        DO(open_channel(b, (uint32_t)i, b->rank == 0, SMALLEST << i, &b->data[i]));
    if (b->rank < 2)
        DO(open_channel(b, 100, b->rank == 1, 16, &b->back));
    DO(b->vt->exchange_open(b->comm, &rows, &b->exchange));
    return b->vt->start(b->comm);
}

static dp_status_t open_memory(bench_t *b)
{
    size_t rows = (size_t)b->set->ranks * b->capacity * ROW, bytes = SMALLEST << (b->sizes - 1);
    int32_t numbers[2 * RANKS_MAX];

    bytes = bytes > rows ? bytes : rows;
    DO(b->device_vt->allocate(b->device, bytes, (void **)&b->from));
    DO(b->device_vt->allocate(b->device, bytes, (void **)&b->to));
    DO(b->device_vt->allocate(b->device, sizeof(numbers), (void **)&b->numbers));
    DO(b->device_vt->allocate(b->device, sizeof(*b->barrier), (void **)&b->barrier));
    for (int p = 0; p < RANKS_MAX; p++) {
        numbers[p] = p * (int32_t)b->capacity;
        numbers[RANKS_MAX + p] = (int32_t)b->capacity;
    }
    b->stamps = calloc(2, sizeof(*b->stamps));
    DO(b->device_vt->copy(b->stream, b->numbers, numbers, sizeof(numbers)));
    return b->device_vt->synchronize(b->stream, -1);
}

/* ---- measuring ---- */

static double rate(const bench_t *b, size_t bytes)
{
    int64_t ns = b->stamps[1] - b->stamps[0];

    return (double)bytes * 1e3 / (double)(ns > 0 ? ns : 1);
}

static dp_status_t copy_once(bench_t *b, int size, double *rate_out)
{
    size_t bytes = SMALLEST << size;

    if (b->rank == 0) {
        DO(b->device_vt->stamp(b->stream, &b->stamps[0]));
        for (int i = 0; i < MESSAGES; i++)
            DO(b->device_vt->copy(b->stream, b->to, b->from, bytes));
        DO(b->device_vt->stamp(b->stream, &b->stamps[1]));
    }
    DO(b->device_vt->synchronize(b->stream, -1));
    if (b->rank == 0)
        *rate_out = rate(b, MESSAGES * bytes);
    return dp_group_barrier(b->group);
}

/* Rank 0's stream: from its first wait for a credit to the answer, which rank 1 sends when it has
 * everything. */
static dp_status_t send_once(bench_t *b, int size, double *rate_out)
{
    dp_message_tag_t answer = {.number = b->back_number, .bytes = 16};
    size_t bytes = SMALLEST << size;
    const void *data;

    if (b->rank == 0)
        DO(b->device_vt->stamp(b->stream, &b->stamps[0]));
    for (int i = 0; i < MESSAGES && b->rank < 2; i++) {
        dp_message_tag_t tag = {.number = b->data_number[size], .bytes = (uint32_t)bytes};

        if (b->rank == 0) {
            DO(b->vt->send(b->data[size], b->from, &tag, b->stream));
        } else {
            DO(b->vt->recv(b->data[size], &tag, &data, b->stream));
            DO(b->vt->release(b->data[size], tag.number, b->stream));
        }
        b->data_number[size]++;
    }
    if (b->rank == 1)
        DO(b->vt->send(b->back, b->from, &answer, b->stream));
    if (b->rank == 0) {
        DO(b->vt->recv(b->back, &answer, &data, b->stream));
        DO(b->vt->release(b->back, answer.number, b->stream));
        DO(b->device_vt->stamp(b->stream, &b->stamps[1]));
    }
    b->back_number++;
    DO(b->device_vt->synchronize(b->stream, -1));
    if (b->rank == 0)
        *rate_out = rate(b, MESSAGES * bytes);
    return dp_group_barrier(b->group);
}

/* All ranks send `capacity` rows to all; the rate is that of all bytes which arrive. */
static dp_status_t swap_once(bench_t *b, double *rate_out)
{
    const int32_t *counts;
    const void *rows;

    DO(b->vt->all_reduce(b->comm, b->barrier, 1, DP_F32, b->stream)); /* all are here */
    DO(b->device_vt->stamp(b->stream, &b->stamps[0]));
    for (int i = 0; i < MESSAGES / 4; i++) {
        DO(b->vt->exchange(b->exchange, b->swaps, b->from, b->numbers, b->numbers + RANKS_MAX, &rows, &counts,
                           b->stream));
        DO(b->vt->exchange_release(b->exchange, b->swaps, b->stream));
        b->swaps++;
    }
    DO(b->vt->all_reduce(b->comm, b->barrier, 1, DP_F32, b->stream)); /* all are here */
    DO(b->device_vt->stamp(b->stream, &b->stamps[1]));
    DO(b->device_vt->synchronize(b->stream, -1));
    if (b->rank == 0)
        *rate_out = rate(b, (size_t)(MESSAGES / 4 * b->set->ranks * b->set->ranks) * b->capacity * ROW);
    return dp_group_barrier(b->group);
}

static dp_status_t measure(bench_t *b)
{
    for (int r = -WARM_UP; r < b->set->repeats; r++) {
        int at = r < 0 ? 0 : r;

        for (int i = 0; i < b->sizes; i++) {
            DO(copy_once(b, i, &copied[i][at]));
            DO(send_once(b, i, &sent[i][at]));
        }
        DO(swap_once(b, &swapped[at]));
    }
    return DP_OK;
}

/* ---- running ---- */

static dp_status_t run(bench_t *b)
{
    DO(open_device(b));
    DO(open_memory(b));
    DO(open_comm(b));
    return measure(b);
}

static void close_all(bench_t *b)
{
    if (b->comm != NULL)
        b->vt->close(b->comm);
    if (b->stream != NULL)
        b->device_vt->stream_close(b->stream);
    if (b->device != NULL) {
        void *const memory[] = {b->from, b->to, b->numbers, b->barrier};

        for (int i = 0; i < 4; i++)
            if (memory[i] != NULL)
                b->device_vt->release(b->device, memory[i]);
        b->device_vt->close(b->device);
    }
    free(b->stamps);
}

static void *rank_main(void *arg)
{
    bench_t *b = arg;
    dp_status_t status = run(b);

    if (status != DP_OK) {
        b->status = strstr(dp_last_error(), "no CUDA device") != NULL ? NO_DEVICE : 1;
        if (b->rank == 0)
            fprintf(stderr, "gpu_p2p: %s\n", dp_last_error());
        dp_group_abort(b->group, status, dp_last_error());
    }
    close_all(b);
    dp_group_leave(b->group);
    return NULL;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, long count)
{
    qsort(values, (size_t)count, sizeof(*values), compare);
    return values[count / 2];
}

static void report(const settings_t *set, int sizes, uint32_t capacity)
{
    const char *link = debug_entry("ipc.link_bytes_per_us");
    double copy = 0, rows;

    printf("%ld ranks as threads on one GPU, loop-back%s%s; SMs of compute %u, of communication %u (0: not "
           "confined); medians "
           "of %ld\n",
           set->ranks, link != NULL ? ", SIMULATED LINK of bytes/us " : "", link != NULL ? link : "",
           sms[DP_LANE_COMPUTE], sms[DP_LANE_P2P], set->repeats);
    printf("%10s %16s %16s %8s\n", "bytes", "copy, GB/s", "message, GB/s", "ratio");
    for (int i = 0; i < sizes; i++) {
        double message = median(sent[i], set->repeats);

        copy = median(copied[i], set->repeats);
        printf("%10zu %16.2f %16.2f %8.3f\n", SMALLEST << i, copy * 1e-3, message * 1e-3, message / copy);
    }
    rows = median(swapped, set->repeats);
    printf("exchange of %u rows of %zu bytes from each to each: %.2f GB/s arrive in all, %.3f of the largest "
           "copy\n",
           capacity, ROW, rows * 1e-3, rows / copy);
}

static bool parse(int argc, char **argv, settings_t *set)
{
    static const struct option options[] = {{"comm-sms", required_argument, NULL, 's'},
                                            {"most", required_argument, NULL, 'm'},
                                            {"repeats", required_argument, NULL, 'r'},
                                            {"ranks", required_argument, NULL, 'n'},
                                            {NULL, 0, NULL, 0}};
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        long value = optarg != NULL ? strtol(optarg, NULL, 10) : 0;

        if (option == 's')
            set->comm_sms = value;
        else if (option == 'm')
            set->most = (size_t)value;
        else if (option == 'r')
            set->repeats = value;
        else if (option == 'n')
            set->ranks = value;
        else
            return false;
    }
    return optind == argc && set->comm_sms >= 0 && set->repeats >= 1 && set->repeats <= REPEATS_MAX &&
           set->ranks >= 2 && set->ranks <= RANKS_MAX && set->most >= SMALLEST;
}

int main(int argc, char **argv)
{
    static bench_t ranks[RANKS_MAX];
    settings_t set = {20, 20, 2, SMALLEST << (SIZES - 1)};
    dp_group_options_t options = {.struct_size = sizeof(options)};
    dp_group_t *groups[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    int sizes = 1, status = 0;

    if (!parse(argc, argv, &set)) {
        fprintf(stderr, "usage: gpu_p2p [--comm-sms N] [--most BYTES] [--repeats N] [--ranks N]\n");
        return 2;
    }
    setenv("DUALPIPE_PLUGIN_PATH", DP_BENCH_PLUGINS, 0);
    while (sizes < SIZES && SMALLEST << sizes <= set.most)
        sizes++;
    if (dp_group_local((int32_t)set.ranks, &options, groups) != DP_OK) {
        fprintf(stderr, "gpu_p2p: %s\n", dp_last_error());
        return 1;
    }
    for (int32_t r = 0; r < set.ranks; r++) {
        ranks[r] = (bench_t){.set = &set, .group = groups[r], .rank = r, .sizes = sizes};
        ranks[r].capacity =
            set.most / ROW / (size_t)set.ranks < ROWS ? (uint32_t)(set.most / ROW / (size_t)set.ranks) : ROWS;
        ranks[r].capacity = ranks[r].capacity > 0 ? ranks[r].capacity : 1;
        if (pthread_create(&threads[r], NULL, rank_main, &ranks[r]) != 0)
            return 1;
    }
    for (int32_t r = 0; r < set.ranks; r++) {
        pthread_join(threads[r], NULL);
        status = status != 0 && status != 1 ? status : ranks[r].status != 0 ? ranks[r].status : status;
    }
    if (status == 0)
        report(&set, sizes, ranks[0].capacity);
    return status;
}
