/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm_p2p.c: comm_shm between two processes: bandwidth beside a plain memcpy, 8-byte latency beside Open MPI.
 *
 *     bench/comm_p2p [ROUNDS]
 *
 * All in one run, in alternation, as other programs disturb all of them alike; medians. Work is enqueued behind a gate
 * first, so that the streams alone are measured. One-way latency is half a round trip of send, receive, release. Each
 * rank has a core of its own, as mpirun gives to its ranks. The peer (bench/peer_mpi_pingpong, built when mpicc is
 * there) uses Open MPI's shared-memory transport.
 * Wanted: 4 MiB at 0.8 of memcpy or better, a latency no worse than Open MPI's. */
#include <dualpipe/dualpipe.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZES = 9, REPEATS = 5, ROUNDS_MAX = 9, SLOTS = 2, BATCHES = 15, TRIPS = 2000, QUEUE = 1 << 14 };
#define SMALLEST ((size_t)64 << 10)
#define VOLUME   ((size_t)256 << 20) /* bytes a repeat moves */

/* Of all rounds, in memory shared with the ranks. */
typedef struct figures {
    double copy[SIZES][ROUNDS_MAX * REPEATS], comm[SIZES][ROUNDS_MAX * REPEATS]; /* bytes per second */
    double latency[ROUNDS_MAX * BATCHES];                                        /* seconds, one way */
    int transfers, batches;
    int failed;
} figures_t;

typedef struct rank {
    int32_t rank;
    dp_group_t *group;
    const dp_host_t *host;
    const dp_device_vt_t *device_vt;
    const dp_comm_vt_t *vt;
    dp_device_t *device;
    dp_stream_t *stream;
    dp_comm_t *comm;
    dp_channel_end_t *data[SIZES], *ping, *pong; /* data and ping lead from rank 0 to rank 1, pong back */
    uint32_t data_number[SIZES], ping_number, pong_number;
    dp_signal_t gate;
    uint32_t gates;
} rank_t;

static void check(dp_status_t status)
{
    if (status >= 0)
        return;
    fprintf(stderr, "comm_p2p: %s\n", dp_last_error());
    _exit(1);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), compare);
    return values[count / 2];
}

/* ---- our side ---- */

static void open_channel(rank_t *r, uint32_t id, int sender, size_t bytes, dp_channel_end_t **end_out)
{
    dp_channel_config_t config = {.struct_size = sizeof(config),
                                  .id = id,
                                  .peer = 1 - r->rank,
                                  .sender = sender,
                                  .slots = SLOTS,
                                  .slot_bytes = bytes,
                                  .label = "bench"};

    check(r->vt->channel_open(r->comm, &config, end_out));
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

static void open_rank(rank_t *r)
{
    static const int32_t world[2] = {0, 1};
    dp_device_config_t device = {.struct_size = sizeof(device), .queue_length = QUEUE, .cores = core_of(r->rank)};
    dp_comm_config_t config = {.struct_size = sizeof(config), .name = "bench", .nranks = 2, .world_ranks = world};
    const dp_plugin_t *plugin;
    const void *table;

    r->host = dp_group_host(r->group);
    check(dp_plugin_load("device_cpu", &plugin));
    check(dp_plugin_interface(plugin, DP_IFACE_DEVICE, sizeof(dp_device_vt_t), &table));
    r->device_vt = table;
    check(dp_plugin_load("comm_shm", &plugin));
    check(dp_plugin_interface(plugin, DP_IFACE_COMM, sizeof(dp_comm_vt_t), &table));
    r->vt = table;
    check(r->device_vt->open(r->host, &device, &r->device));
    check(r->device_vt->stream_open(r->device, DP_LANE_P2P, &r->stream));
    config.rank = r->rank;
    config.device_vt = r->device_vt;
    config.device = r->device;
    check(r->vt->open(r->host, &config, &r->comm));
    for (uint32_t i = 0; i < SIZES; i++)
        open_channel(r, i, r->rank == 0, SMALLEST << i, &r->data[i]);
    open_channel(r, 100, r->rank == 0, 8, &r->ping);
    open_channel(r, 101, r->rank == 1, 8, &r->pong);
    check(r->vt->start(r->comm));
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

static void close_gate(rank_t *r)
{
    gate_t g = {r->host, &r->gate, ++r->gates};

    check(r->device_vt->launch(r->stream, hold, &g, sizeof(g)));
}

/* Both have enqueued all their work: go. */
static void open_gate(rank_t *r)
{
    check(dp_group_barrier(r->group));
    r->host->post(r->host, &r->gate, r->gates);
    check(r->device_vt->synchronize(r->stream, -1));
}

static void put(rank_t *r, dp_channel_end_t *end, uint32_t *number, const void *from, size_t bytes)
{
    dp_message_tag_t tag = {.number = (*number)++, .bytes = (uint32_t)bytes};

    check(r->vt->send(end, from, &tag, r->stream));
}

static void take(rank_t *r, dp_channel_end_t *end, const uint32_t *number, size_t bytes)
{
    dp_message_tag_t tag = {.number = *number, .bytes = (uint32_t)bytes};
    const void *data;

    check(r->vt->recv(end, &tag, &data, r->stream));
}

static void give_back(rank_t *r, dp_channel_end_t *end, uint32_t *number)
{
    check(r->vt->release(end, (*number)++, r->stream));
}

/* Rank 0 sends, rank 1 receives and says when it has the last one. */
static double transfer(rank_t *r, int size, const void *from)
{
    size_t bytes = SMALLEST << size, count = VOLUME / bytes;
    int64_t times[2] = {0, 0};

    close_gate(r);
    check(r->device_vt->stamp(r->stream, &times[0]));
    for (size_t i = 0; i < count; i++) {
        if (r->rank == 0) {
            put(r, r->data[size], &r->data_number[size], from, bytes);
        } else {
            take(r, r->data[size], &r->data_number[size], bytes);
            give_back(r, r->data[size], &r->data_number[size]);
        }
    }
    if (r->rank == 0) {
        take(r, r->pong, &r->pong_number, 8);
        give_back(r, r->pong, &r->pong_number);
    } else {
        put(r, r->pong, &r->pong_number, from, 8);
    }
    check(r->device_vt->stamp(r->stream, &times[1]));
    open_gate(r);
    return (double)(count * bytes) / ((double)(times[1] - times[0]) * 1e-9);
}

/* The same bytes from the same place into as many buffers as there are slots. */
static double copy(const rank_t *r, int size, unsigned char *to, const void *from)
{
    size_t bytes = SMALLEST << size, count = VOLUME / bytes;
    int64_t start = r->host->now_ns(r->host);

    for (size_t i = 0; i < count; i++) {
        memcpy(to + i % SLOTS * bytes, from, bytes);
        __asm__ volatile("" ::"r"(to) : "memory");
    }
    return (double)(count * bytes) / ((double)(r->host->now_ns(r->host) - start) * 1e-9);
}

static double trip(rank_t *r)
{
    uint64_t word = 0;
    int64_t times[2];

    close_gate(r);
    check(r->device_vt->stamp(r->stream, &times[0]));
    for (int i = 0; i < TRIPS; i++) {
        if (r->rank == 0) {
            put(r, r->ping, &r->ping_number, &word, 8);
            take(r, r->pong, &r->pong_number, 8);
            give_back(r, r->pong, &r->pong_number);
        } else {
            take(r, r->ping, &r->ping_number, 8);
            put(r, r->pong, &r->pong_number, &word, 8);
            give_back(r, r->ping, &r->ping_number);
        }
    }
    check(r->device_vt->stamp(r->stream, &times[1]));
    open_gate(r);
    return (double)(times[1] - times[0]) * 1e-9 / TRIPS / 2;
}

static void measure(rank_t *r, figures_t *f)
{
    size_t largest = SMALLEST << (SIZES - 1);
    unsigned char *from = malloc(largest), *to = malloc(SLOTS * largest);

    memset(from, 1, largest);
    memset(to, 2, SLOTS * largest);
    for (int i = 0; i < BATCHES + 2; i++) {
        double seconds = trip(r);

        if (r->rank == 0 && i >= 2)
            f->latency[f->batches++] = seconds;
    }
    for (int k = 0; k < REPEATS; k++)
        for (int i = 0; i < SIZES; i++) {
            double rate = transfer(r, i, from);

            if (r->rank == 0) {
                f->comm[i][f->transfers + k] = rate;
                f->copy[i][f->transfers + k] = copy(r, i, to, from);
            }
            check(dp_group_barrier(r->group));
        }
    if (r->rank == 0)
        f->transfers += REPEATS;
    free(from);
    free(to);
}

static void run_rank(int32_t rank, int listener, int port, figures_t *f)
{
    dp_group_options_t options = {.struct_size = sizeof(options), .rank = rank, .size = 2, .port = port};
    rank_t r = {.rank = rank};
    char text[16];

    if (rank == 0) {
        snprintf(text, sizeof(text), "%d", listener);
        setenv("DUALPIPE_LISTEN_FD", text, 1);
    } else {
        close(listener);
    }
    check(dp_group_join(&options, &r.group));
    open_rank(&r);
    measure(&r, f);
    r.vt->close(r.comm);
    r.device_vt->close(r.device);
    dp_group_leave(r.group);
    _exit(0);
}

static int run_ours(figures_t *f)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM, 0), status, bad = 0;
    pid_t pids[2];

    if (listener < 0 || bind(listener, (struct sockaddr *)&address, bytes) != 0 || listen(listener, 2) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &bytes) != 0)
        return 1;
    for (int32_t rank = 0; rank < 2; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0)
            run_rank(rank, listener, ntohs(address.sin_port), f);
    }
    close(listener);
    for (int rank = 0; rank < 2; rank++)
        bad |= waitpid(pids[rank], &status, 0) != pids[rank] || status != 0;
    return bad;
}

/* ---- the peer ---- */

typedef struct peer {
    double latency[ROUNDS_MAX * BATCHES], rate[ROUNDS_MAX];
    int batches, rates;
    char version[128];
} peer_t;

/* The peer's lines: "version TEXT", "latency SECONDS" by batch, "rate BYTES/S" at 4 MiB. */
static void run_peer(const char *program, peer_t *p)
{
    char command[4200], line[256];
    FILE *out;

    snprintf(command, sizeof(command),
             "timeout 60 mpirun -n 2 --oversubscribe --allow-run-as-root '%s' %d %d 2>/dev/null", program, BATCHES,
             TRIPS);
    out = access(program, X_OK) == 0 ? popen(command, "r") : NULL;
    while (out != NULL && fgets(line, sizeof(line), out) != NULL) {
        double value;

        if (sscanf(line, "latency %lf", &value) == 1 && p->batches < ROUNDS_MAX * BATCHES)
            p->latency[p->batches++] = value;
        else if (sscanf(line, "rate %lf", &value) == 1 && p->rates < ROUNDS_MAX)
            p->rate[p->rates++] = value;
        else if (strncmp(line, "version ", 8) == 0)
            sscanf(line + 8, "%127[^\n,]", p->version);
    }
    if (out != NULL)
        pclose(out);
}

/* ---- the report ---- */

static void print_machine(void)
{
    struct utsname system;
    FILE *cpuinfo = fopen("/proc/cpuinfo", "r");
    char line[256], model[200] = "?";
    double load = -1;

    while (cpuinfo != NULL && fgets(line, sizeof(line), cpuinfo) != NULL)
        if (sscanf(line, "model name : %199[^\n]", model) == 1)
            break;
    if (cpuinfo != NULL)
        fclose(cpuinfo);
    uname(&system);
    (void)getloadavg(&load, 1);
    printf("machine  %s, %ld cores, %s %s %s, load average %.1f\n", model, sysconf(_SC_NPROCESSORS_ONLN),
           system.sysname, system.release, system.machine, load);
}

static void print_bandwidth(figures_t *f)
{
    printf("\n%10s %12s %12s %8s\n", "bytes", "comm GB/s", "memcpy GB/s", "ratio");
    for (int i = 0; i < SIZES; i++) {
        double ours = median(f->comm[i], f->transfers), plain = median(f->copy[i], f->transfers);

        printf("%10zu %12.2f %12.2f %8.2f%s\n", SMALLEST << i, ours * 1e-9, plain * 1e-9, ours / plain,
               SMALLEST << i == (size_t)4 << 20 ? "   (wanted: 0.80)" : "");
    }
}

static void print_latency(figures_t *f, peer_t *p)
{
    double ours = median(f->latency, f->batches);

    printf("\n8 bytes, one way: comm_shm %.3f us (best batch %.3f)", ours * 1e6, f->latency[0] * 1e6);
    if (p->batches > 0) {
        double theirs = median(p->latency, p->batches);

        printf(", %s %.3f us (best batch %.3f): ratio %.2f (wanted: 1.00 or less)\n", p->version, theirs * 1e6,
               p->latency[0] * 1e6, ours / theirs);
    } else {
        printf("; no Open MPI to compare with\n");
    }
    if (p->rates > 0)
        printf("4 MiB with %s: %.2f GB/s\n", p->version, median(p->rate, p->rates) * 1e-9);
}

int main(int argc, char **argv)
{
    static peer_t peer;
    int rounds = argc > 1 ? atoi(argv[1]) : 3;
    figures_t *f = mmap(NULL, sizeof(*f), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const char *slash = strrchr(argv[0], '/');
    char program[4096];

    if (f == MAP_FAILED || rounds < 1 || rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: comm_p2p [ROUNDS]   1 to %d\n", ROUNDS_MAX);
        return 2;
    }
    setenv("DUALPIPE_PLUGIN_PATH", DP_BENCH_PLUGINS, 0);
    snprintf(program, sizeof(program), "%.*s/peer_mpi_pingpong", slash != NULL ? (int)(slash - argv[0]) : 1,
             slash != NULL ? argv[0] : ".");
    for (int i = 0; i < rounds; i++) {
        if (run_ours(f) != 0)
            return 1;
        run_peer(program, &peer);
    }
    print_machine();
    print_bandwidth(f);
    print_latency(f, &peer);
    return 0;
}
