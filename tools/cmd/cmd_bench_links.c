/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cmd_bench_links.c: dualpipe bench-links: how long messages take between ranks of a host and
 * between hosts, over the transports that a pipeline would use; written as a file for simulate and
 * compare. */
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dualpipe/advanced.h>
#include <dualpipe/dualpipe.h>

#include "commands.h"
#include "tools/io/output.h"

enum { SMALL = 8, ROUNDS = 8, BATCHES = 24, WARM = 3, MOST_PAIRS = 256 };

typedef struct settings {
    const char *near, *far, *output;
    size_t bytes;
} settings_t;

static void list_comms(FILE *to)
{
    plugin_names("comm_", to);
}

static const option_row_t bench_links_options[] = {
    {.name = "near",
     .value = "NAME",
     .kind = OPTION_TEXT,
     .at = offsetof(settings_t, near),
     .list = list_comms,
     .help = "comm plugin within a host (comm_shm)"},
    {.name = "far",
     .value = "NAME",
     .kind = OPTION_TEXT,
     .at = offsetof(settings_t, far),
     .list = list_comms,
     .help = "comm plugin between hosts (comm_ofi)"},
    {.name = "bytes",
     .value = "N",
     .kind = OPTION_INT64,
     .at = offsetof(settings_t, bytes),
     .least = 2 * SMALL,
     .most = 1u << 30,
     .help = "size of the larger messages: that of the tensors between stages (1048576)"},
    {.name = "output",
     .value = "FILE",
     .kind = OPTION_TEXT,
     .at = offsetof(settings_t, output),
     .help = "the topology goes there instead of to standard output"},
    {.kind = OPTION_END}};
static const option_row_t *const bench_links_tables[] = {bench_links_options, NULL};

const command_t command_bench_links = {
    .name = "bench-links",
    .usage =
        "usage: dualpipe run -n N -- dualpipe bench-links [OPTIONS]\n"
        "       srun, mpirun or torchrun with as many ranks on each host as the job will have: dualpipe bench-links [OPTIONS]\n"
        "Measures what a message takes from one rank to another, over the comm plugins that a pipeline would use: one pair of ranks on each host, and one pair for every two hosts, one after the other. Rank 0 prints every pair and a topology for dualpipe simulate and compare, in milliseconds: HOP from messages of 8 bytes, BANDWIDTH from what larger ones take beyond that; the medians of all pairs of a kind.\n"
        "\n",
    .tables = bench_links_tables,
    .needs = 0,
    .notes = "\n"
             "examples:\n"
             "  dualpipe run -n 4 -- dualpipe bench-links --output links.txt\n"
             "      one host\n"
             "  srun -n 16 dualpipe bench-links --bytes 4194304 --output links.txt\n"
             "      several\n"
             "  dualpipe compare --ranks 16 --microbatches 64 --costs run/costs.txt --topology links.txt\n"
             "\n"
             "exit status: 0 done, 1 a plugin, a rank or the output failed, 2 wrong usage\n"};

/* Two ranks, and what lies between them, in milliseconds. */
typedef struct pair {
    int32_t a, b;
    bool near;
    double hop, bandwidth;
} pair_t;

typedef struct bench {
    const settings_t *settings;
    dp_group_t *group;
    const dp_host_t *host;
    const dp_host_places_t *places;
    int32_t rank;
    const dp_device_vt_t *device_vt;
    dp_device_t *device;
    dp_stream_t *stream;
    void *buffer;
    pair_t *pairs; /* [npairs] */
    int32_t npairs;
} bench_t;

/* ---- which pairs ---- */

static void add_pair(bench_t *b, int32_t first, int32_t second, bool near)
{
    if (b->npairs < MOST_PAIRS)
        b->pairs[b->npairs++] = (pair_t){.a = first, .b = second, .near = near};
}

static dp_status_t choose_pairs(bench_t *b)
{
    const dp_host_places_t *p = b->places;
    int32_t *first = calloc((size_t)p->hosts, sizeof(*first)), *members = calloc((size_t)p->hosts, sizeof(*members));

    b->pairs = calloc(MOST_PAIRS, sizeof(*b->pairs));
    if (first == NULL || members == NULL || b->pairs == NULL) {
        free(first);
        free(members);
        return dp_fail(DP_ERR_NOMEM, "no memory for the pairs of %d hosts", p->hosts);
    }
    for (int32_t r = 0; r < p->ranks; r++) {
        int32_t h = p->host_of[r];

        if (members[h] == 0)
            first[h] = r;
        if (++members[h] == 2)
            add_pair(b, first[h], r, true);
    }
    for (int32_t h = 0; h < p->hosts; h++)
        for (int32_t g = h + 1; g < p->hosts; g++)
            add_pair(b, first[h], first[g], false);
    free(first);
    free(members);
    return b->npairs > 0 ? DP_OK : dp_fail(DP_ERR_INVALID, "a job of one rank has no links: start two or more ranks");
}

/* ---- one pair ---- */

typedef struct line {
    const dp_comm_vt_t *vt;
    dp_comm_t *comm;
    dp_channel_end_t *to, *from;
    uint32_t count; /* messages each way so far */
    bool first;     /* we begin */
} line_t;

static dp_status_t find_comm(const char *name, const dp_comm_vt_t **vt_out)
{
    const dp_plugin_t *plugin;
    const void *table;
    char full[256];
    dp_status_t status;

    snprintf(full, sizeof(full), "%s%s", strchr(name, '/') == NULL && strncmp(name, "comm_", 5) != 0 ? "comm_" : "",
             name);
    status = dp_plugin_load(full, &plugin);
    if (status >= 0)
        status = dp_plugin_interface(plugin, DP_IFACE_COMM, DP_COMM_VT_MIN, &table);
    if (status >= 0)
        *vt_out = table;
    return status;
}

static dp_status_t open_line(bench_t *b, int32_t index, line_t *line)
{
    const pair_t *pair = &b->pairs[index];
    const int32_t world[] = {pair->a, pair->b};
    char name[32];
    dp_comm_config_t config = {.struct_size = sizeof(config),
                               .name = name,
                               .rank = b->rank == pair->b,
                               .nranks = 2,
                               .world_ranks = world,
                               .device_vt = b->device_vt,
                               .device = b->device,
                               .reduce_bytes = 1};
    dp_channel_config_t channel = {.struct_size = sizeof(channel),
                                   .peer = b->rank == pair->a,
                                   .sender = 1,
                                   .slots = 2,
                                   .slot_bytes = b->settings->bytes,
                                   .label = "there and back"};
    dp_status_t status = find_comm(pair->near ? b->settings->near : b->settings->far, &line->vt);

    snprintf(name, sizeof(name), "links.%d", index);
    line->first = b->rank == pair->a;
    config.vt = line->vt;
    if (status >= 0)
        status = line->vt->open(b->host, &config, &line->comm);
    if (status >= 0)
        status = line->vt->channel_open(line->comm, &channel, &line->to);
    channel.sender = 0;
    if (status >= 0)
        status = line->vt->channel_open(line->comm, &channel, &line->from);
    return status < 0 ? status : line->vt->start(line->comm);
}

static dp_status_t hand_over_links(bench_t *b, line_t *line, size_t bytes)
{
    dp_message_tag_t tag = {.number = line->count, .bytes = (uint32_t)bytes};

    return line->vt->send(line->to, b->buffer, &tag, b->stream);
}

static dp_status_t take_over(bench_t *b, line_t *line, size_t bytes)
{
    dp_message_tag_t tag = {.number = line->count, .bytes = (uint32_t)bytes};
    const void *data;
    dp_status_t status = line->vt->recv(line->from, &tag, &data, b->stream);

    return status < 0 ? status : line->vt->release(line->from, line->count, b->stream);
}

/* The shortest of some batches of messages there and back, for one message, one way. */
static dp_status_t ping(bench_t *b, line_t *line, size_t bytes, double *ms_out)
{
    double best = 0;
    dp_status_t status = DP_OK;

    for (int batch = 0; batch < WARM + BATCHES && status >= 0; batch++) {
        int64_t start = b->host->now_ns(b->host);
        double ms;

        for (int i = 0; i < ROUNDS && status >= 0; i++) {
            status = (line->first ? hand_over_links : take_over)(b, line, bytes);
            if (status >= 0)
                status = (line->first ? take_over : hand_over_links)(b, line, bytes);
            line->count++;
        }
        if (status >= 0)
            status = b->device_vt->synchronize(b->stream, -1);
        ms = (double)(b->host->now_ns(b->host) - start) / 1e6 / (2 * ROUNDS);
        if (batch == WARM || (batch > WARM && ms < best))
            best = ms;
    }
    *ms_out = best;
    return status;
}

static dp_status_t measure_links(bench_t *b, int32_t index)
{
    line_t line = {0};
    double small = 0, large = 0;
    dp_status_t status = open_line(b, index, &line);

    if (status >= 0)
        status = ping(b, &line, SMALL, &small);
    if (status >= 0)
        status = ping(b, &line, b->settings->bytes, &large);
    b->pairs[index].hop = small;
    b->pairs[index].bandwidth = large > small ? (double)b->settings->bytes / (large - small) : 0;
    if (status < 0) /* closing meets the other rank: it must know first */
        dp_group_abort(b->group, status, dp_last_error());
    if (line.comm != NULL)
        line.vt->close(line.comm);
    return status;
}

/* All ranks wait for the two, so that nothing else is on the way. */
static dp_status_t measure_all(bench_t *b)
{
    pair_t *all = calloc((size_t)b->places->ranks, sizeof(*all));
    dp_status_t status = all != NULL ? DP_OK : dp_fail(DP_ERR_NOMEM, "no memory for %d results", b->places->ranks);

    for (int32_t i = 0; i < b->npairs && status >= 0; i++) {
        pair_t *pair = &b->pairs[i];

        if (b->rank == pair->a || b->rank == pair->b)
            status = measure_links(b, i);
        if (status >= 0)
            status = dp_group_all_gather(b->group, pair, sizeof(*pair), all);
        if (status >= 0)
            *pair = all[pair->a];
    }
    free(all);
    return status;
}

/* ---- telling ---- */

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

static double median(const bench_t *b, bool near, bool hop)
{
    double values[MOST_PAIRS];
    int32_t n = 0;

    for (int32_t i = 0; i < b->npairs; i++)
        if (b->pairs[i].near == near)
            values[n++] = hop ? b->pairs[i].hop : b->pairs[i].bandwidth;
    qsort(values, (size_t)n, sizeof(*values), by_value);
    return n > 0 ? values[n / 2] : 0;
}

static void put_kind(const bench_t *b, FILE *to, bool near)
{
    const char *name = near ? "NEAR" : "FAR";

    if (median(b, near, true) > 0)
        fprintf(to, "%s.HOP=%.6g\n%s.BANDWIDTH=%.6g\n", name, median(b, near, true), name, median(b, near, false));
}

static dp_status_t put_links(const bench_t *b, output_t *output)
{
    FILE *to = output->file;

    fprintf(
        to,
        "# dualpipe bench-links: %d ranks on %d hosts, messages of %zu bytes; milliseconds, bytes in a millisecond\n",
        b->places->ranks, b->places->hosts, b->settings->bytes);
    for (int32_t i = 0; i < b->npairs; i++)
        fprintf(to, "# ranks %d and %d, %s: 8 bytes in %.4f ms, %.1f MB/s\n", b->pairs[i].a, b->pairs[i].b,
                b->pairs[i].near ? b->settings->near : b->settings->far, b->pairs[i].hop, b->pairs[i].bandwidth / 1e3);
    fputs("HOSTS=", to);
    for (int32_t r = 0; r < b->places->ranks; r++)
        fprintf(to, "%s%d", r > 0 ? "," : "", b->places->host_of[r]);
    fputc('\n', to);
    put_kind(b, to, true);
    put_kind(b, to, false);
    return DP_OK;
}

/* ---- the whole ---- */

static dp_status_t open_device(bench_t *b)
{
    dp_device_config_t config = {.struct_size = sizeof(config)};
    const dp_plugin_t *plugin;
    const void *table;
    dp_status_t status = dp_plugin_load("device_cpu", &plugin);

    if (status >= 0)
        status = dp_plugin_interface(plugin, DP_IFACE_DEVICE, DP_DEVICE_VT_MIN, &table);
    if (status < 0)
        return status;
    b->device_vt = table;
    status = b->device_vt->open(b->host, &config, &b->device);
    if (status >= 0)
        status = b->device_vt->stream_open(b->device, DP_LANE_P2P, &b->stream);
    return status < 0 ? status : b->device_vt->allocate(b->device, b->settings->bytes, &b->buffer);
}

static void close_device(bench_t *b)
{
    if (b->buffer != NULL)
        b->device_vt->release(b->device, b->buffer);
    if (b->stream != NULL)
        b->device_vt->stream_close(b->stream);
    if (b->device != NULL)
        b->device_vt->close(b->device);
}

static dp_status_t run_bench(const settings_t *settings)
{
    bench_t b = {.settings = settings};
    output_t output;
    dp_status_t status = dp_group_join(NULL, &b.group);

    if (status < 0)
        return status;
    b.host = dp_group_host(b.group);
    b.places = b.host->get_service(b.host, DP_HOST_PLACES);
    b.rank = dp_group_rank(b.group);
    status = b.places != NULL ? choose_pairs(&b) : DP_ERR_NOMEM;
    if (status >= 0)
        status = open_device(&b);
    if (status >= 0)
        status = measure_all(&b);
    if (status >= 0 && b.rank == 0) {
        status = output_open(&output, settings->output);
        if (status >= 0)
            status = output_close(&output, put_links(&b, &output));
    }
    if (status < 0)
        dp_group_abort(b.group, status, dp_last_error());
    close_device(&b);
    free(b.pairs);
    dp_group_leave(b.group);
    return status;
}

int cmd_bench_links(int argc, char **argv)
{
    settings_t settings = {.near = "comm_shm", .far = "comm_ofi", .bytes = 1 << 20};
    int code;

    if (!options_read(&command_bench_links, NULL, argc, argv, &settings, &code))
        return code;
    if (optind < argc)
        return command_usage(&command_bench_links, "%s: one operand too many", argv[optind]);
    return run_bench(&settings) == DP_OK ? CMD_OK : command_failed(&command_bench_links, DP_ERR_IO);
}
