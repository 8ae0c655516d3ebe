/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comm_p2p.c: comm_shm between two processes: bandwidth beside a plain memcpy, 8-byte latency
 * beside Open MPI.
 *
 *     bench/comm_p2p [ROUNDS]
 *
 * All in one run, in alternation, as other programs disturb all of them alike; medians. Work is
 * enqueued behind a gate first, so that the streams alone are measured. One-way latency is half a
 * round trip of send, receive, release. Each rank has a separate core, as mpirun gives to its
 * ranks. The peer (bench/peer_mpi_pingpong, built when mpicc is there) uses Open MPI's
 * shared-memory transport. Wanted: 4 MiB at 0.8 of memcpy or better, a latency no worse than Open
 * MPI's. */
#include "bench/messages.h"

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

enum { REPEATS = 5, ROUNDS_MAX = 9, BATCHES = 15, TRIPS = 2000 };
#define VOLUME ((size_t)256 << 20) /* bytes a repeat moves */

/* Of all rounds, in memory shared with the ranks. */
typedef struct figures {
    double copy[MESSAGES_SIZES][ROUNDS_MAX * REPEATS],
        comm[MESSAGES_SIZES][ROUNDS_MAX * REPEATS]; /* bytes per second */
    double latency[ROUNDS_MAX * BATCHES];           /* seconds, one way */
    int transfers, batches;
    int failed;
} figures_t;

/* The same bytes from the same place into as many buffers as there are slots. */
static double copy(const messages_t *m, int size, unsigned char *to, const void *from)
{
    size_t bytes = MESSAGES_SMALLEST << size, count = VOLUME / bytes;
    int64_t start = m->host->now_ns(m->host);

    for (size_t i = 0; i < count; i++) {
        memcpy(to + i % MESSAGES_SLOTS * bytes, from, bytes);
        __asm__ volatile("" ::"r"(to) : "memory");
    }
    return (double)(count * bytes) / ((double)(m->host->now_ns(m->host) - start) * 1e-9);
}

static void measure(messages_t *m, figures_t *f)
{
    size_t largest = MESSAGES_SMALLEST << (MESSAGES_SIZES - 1);
    unsigned char *from = malloc(largest), *to = malloc(MESSAGES_SLOTS * largest);

    memset(from, 1, largest);
    memset(to, 2, MESSAGES_SLOTS * largest);
    for (int i = 0; i < BATCHES + 2; i++) {
        double seconds = messages_trip(m, TRIPS);

        if (m->rank == 0 && i >= 2)
            f->latency[f->batches++] = seconds;
    }
    for (int k = 0; k < REPEATS; k++)
        for (int i = 0; i < MESSAGES_SIZES; i++) {
            double rate = messages_transfer(m, i, VOLUME, from);

            if (m->rank == 0) {
                f->comm[i][f->transfers + k] = rate;
                f->copy[i][f->transfers + k] = copy(m, i, to, from);
            }
            messages_check(dp_group_barrier(m->group));
        }
    if (m->rank == 0)
        f->transfers += REPEATS;
    free(from);
    free(to);
}

static void run_rank(int32_t rank, int listener, int port, figures_t *f)
{
    dp_group_options_t options = {.struct_size = sizeof(options), .rank = rank, .size = 2, .port = port};
    dp_group_t *group;
    messages_t m;
    char text[32];

    if (rank == 0) {
        snprintf(text, sizeof(text), "listen=%d", listener);
        setenv("DUALPIPE_LAUNCH", text, 1);
    } else {
        close(listener);
    }
    messages_check(dp_group_join(&options, &group));
    messages_open(&m, group, "comm_shm");
    measure(&m, f);
    messages_close(&m);
    dp_group_leave(group);
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
    for (int i = 0; i < MESSAGES_SIZES; i++) {
        double ours = messages_median(f->comm[i], f->transfers), plain = messages_median(f->copy[i], f->transfers);

        printf("%10zu %12.2f %12.2f %8.2f%s\n", MESSAGES_SMALLEST << i, ours * 1e-9, plain * 1e-9, ours / plain,
               MESSAGES_SMALLEST << i == (size_t)4 << 20 ? "   (wanted: 0.80)" : "");
    }
}

static void print_latency(figures_t *f, peer_t *p)
{
    double ours = messages_median(f->latency, f->batches);

    printf("\n8 bytes, one way: comm_shm %.3f us (best batch %.3f)", ours * 1e6, f->latency[0] * 1e6);
    if (p->batches > 0) {
        double theirs = messages_median(p->latency, p->batches);

        printf(", %s %.3f us (best batch %.3f): ratio %.2f (wanted: 1.00 or less)\n", p->version, theirs * 1e6,
               p->latency[0] * 1e6, ours / theirs);
    } else {
        printf("; no Open MPI to compare with\n");
    }
    if (p->rates > 0)
        printf("4 MiB with %s: %.2f GB/s\n", p->version, messages_median(p->rate, p->rates) * 1e-9);
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
