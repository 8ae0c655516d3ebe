/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * control_plane.c: what the control plane costs: joining, collectives, and hearing of a death, with
 * up to 1,024 ranks on one machine over loopback TCP.
 *
 *     bench/control_plane [LARGEST_RANKS]       default 1024
 *
 * Rank 0 is a separate process, so that its processor time can be told; the last rank is another,
 * to be killed; all others are threads of a third. "far": that one has a separate PID namespace
 * (as root), so that rank 0 takes it for another host and beats go to and fro; else none do. Bytes
 * are what the library holds for a rank, counted by its memory hooks, mean of the threads;
 * "resident" is what the process of the threads has grown by for each, with two stacks. Exit status
 * 1 when joining takes rank 0 10 s of processor time, the last rank to know of a death knows it
 * later than after 1 s, or a rank takes 1 KiB more, itself or at rank 0, than with the
 * fewest. */
#include <dualpipe/group.h>
#include <dualpipe/plugin.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GATHERS      20
#define IDLE_SECONDS 2
#define MOST_RANKS   1024

/* What the processes tell each other. */
typedef struct shared {
    int waiting; /* atomic: ranks that are where the death finds them */
    int failed;  /* atomic: ranks that heard something else */
    double join_cpu, join_wall, gather_cpu, gather_wall, idle_cpu;
    long hub_bytes, rank_bytes, rank_resident;
    double knew[MOST_RANKS]; /* when */
    char message[256];
} shared_t;

static shared_t *shared;
static int size, port;
static long held; /* atomic: bytes of the library */

/* ---- measuring ---- */

static double clock_of(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static long resident(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long pages = 0;

    if (file == NULL || fscanf(file, "%*s %ld", &pages) != 1)
        pages = 0;
    if (file != NULL)
        fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

/* The size stands in front of each block, at its own alignment. */
static void *count_allocate(void *user, size_t bytes, size_t alignment)
{
    size_t front = alignment < 32 ? 32 : alignment;
    char *memory = NULL;

    (void)user;
    if (posix_memalign((void **)&memory, front, front + bytes) != 0)
        return NULL;
    memcpy(memory + front - 16, &(size_t[2]){bytes, front}, 16);
    __atomic_add_fetch(&held, (long)bytes, __ATOMIC_RELAXED);
    return memory + front;
}

static void count_release(void *user, void *memory)
{
    size_t head[2];

    (void)user;
    if (memory == NULL)
        return;
    memcpy(head, (char *)memory - 16, 16);
    __atomic_sub_fetch(&held, (long)head[0], __ATOMIC_RELAXED);
    free((char *)memory - head[1]);
}

/* ---- a rank ---- */

static void give_up(int rank)
{
    fprintf(stderr, "control_plane: rank %d: %s\n", rank, dp_last_error());
    __atomic_add_fetch(&shared->failed, 1, __ATOMIC_RELAXED);
}

static dp_status_t meet(dp_group_t *group, int rank)
{
    double cpu = clock_of(CLOCK_PROCESS_CPUTIME_ID), wall = clock_of(CLOCK_MONOTONIC);
    dp_status_t status = DP_OK;

    for (int i = 0; i < GATHERS && status == DP_OK; i++)
        status = dp_group_barrier(group);
    if (rank == 0) {
        shared->gather_cpu = (clock_of(CLOCK_PROCESS_CPUTIME_ID) - cpu) / GATHERS;
        shared->gather_wall = (clock_of(CLOCK_MONOTONIC) - wall) / GATHERS;
    }
    return status;
}

static dp_status_t stand_idle(dp_group_t *group, int rank)
{
    double cpu = clock_of(CLOCK_PROCESS_CPUTIME_ID);

    nanosleep(&(struct timespec){IDLE_SECONDS, 0}, NULL);
    if (rank == 0)
        shared->idle_cpu = (clock_of(CLOCK_PROCESS_CPUTIME_ID) - cpu) / IDLE_SECONDS;
    return dp_group_barrier(group);
}

static void await_death(dp_group_t *group, int rank)
{
    const dp_host_t *host = dp_group_host(group);
    dp_signal_t never = {0, 0};
    char victim[32];
    dp_status_t status;

    __atomic_add_fetch(&shared->waiting, 1, __ATOMIC_RELEASE);
    status = host->wait(host, &never, 1, INT64_MAX, "a death");
    shared->knew[rank] = clock_of(CLOCK_MONOTONIC);
    snprintf(victim, sizeof(victim), "rank %d (pid", size - 1);
    if (status != DP_ERR_PEER || strstr(dp_last_error(), victim) == NULL)
        give_up(rank);
    if (rank == 0)
        snprintf(shared->message, sizeof(shared->message), "%s", dp_last_error());
}

static void run_rank(int rank)
{
    dp_group_options_t options = {
        .struct_size = sizeof(options), .rank = rank, .size = size, .address = "127.0.0.1", .port = port};
    double cpu = clock_of(CLOCK_PROCESS_CPUTIME_ID), wall = clock_of(CLOCK_MONOTONIC);
    dp_group_t *group;
    dp_status_t status = dp_group_join(&options, &group);

    if (status != DP_OK) {
        give_up(rank);
        return;
    }
    if (rank == 0) {
        shared->join_cpu = clock_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
        shared->join_wall = clock_of(CLOCK_MONOTONIC) - wall;
    }
    status = meet(group, rank);
    if (status == DP_OK)
        status = stand_idle(group, rank);
    if (rank == 0)
        shared->hub_bytes = __atomic_load_n(&held, __ATOMIC_RELAXED);
    if (status == DP_OK)
        await_death(group, rank);
    else
        give_up(rank);
    dp_group_leave(group);
}

static void *thread_main(void *rank)
{
    run_rank((int)(intptr_t)rank);
    return NULL;
}

/* ---- processes ---- */

static void run_threads(void)
{
    static pthread_t threads[MOST_RANKS];
    long before = resident();
    pthread_attr_t small;

    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 * 1024);
    for (int r = 1; r < size - 1; r++)
        if (pthread_create(&threads[r], &small, thread_main, (void *)(intptr_t)r) != 0) {
            fprintf(stderr, "control_plane: no thread for rank %d\n", r);
            _exit(1);
        }
    while (__atomic_load_n(&shared->waiting, __ATOMIC_ACQUIRE) < size &&
           __atomic_load_n(&shared->failed, __ATOMIC_RELAXED) == 0)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    shared->rank_bytes = __atomic_load_n(&held, __ATOMIC_RELAXED) / (size - 2);
    shared->rank_resident = (resident() - before) / (size - 2);
    __atomic_add_fetch(&shared->waiting, 1, __ATOMIC_RELEASE);
    for (int r = 1; r < size - 1; r++)
        pthread_join(threads[r], NULL);
}

static pid_t start(void (*body)(void))
{
    pid_t pid = fork();

    if (pid != 0)
        return pid;
    body();
    _exit(0);
}

static void run_hub(void)
{
    run_rank(0);
}
static void run_victim(void)
{
    run_rank(size - 1);
}
/* What this process starts lives in a separate name space. */
static void run_threads_apart(void)
{
    int status;
    pid_t pid = unshare(CLONE_NEWPID) == 0 ? start(run_threads) : -1;

    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        _exit(1);
}

/* false: it did not work out. */
static int measure(int ranks, int far)
{
    pid_t hub, threads, victim;
    double killed, last = 0;
    int status = 0, bad = 0;

    memset(shared, 0, sizeof(*shared));
    size = ranks;
    port++;
    hub = start(run_hub);
    threads = start(far ? run_threads_apart : run_threads);
    victim = start(run_victim);
    while (__atomic_load_n(&shared->waiting, __ATOMIC_ACQUIRE) < size + 1 && shared->failed == 0)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    killed = clock_of(CLOCK_MONOTONIC);
    kill(victim, SIGKILL);
    waitpid(victim, NULL, 0);
    bad |= waitpid(hub, &status, 0) != hub || status != 0;
    bad |= waitpid(threads, &status, 0) != threads || status != 0;
    for (int r = 0; r < size - 1; r++)
        last = shared->knew[r] > last ? shared->knew[r] : last;
    if (bad || shared->failed != 0)
        return 0;
    printf("%5d  %-4s  %8.3f  %7.2f  %9.3f  %9.2f  %8.4f  %8.3f  %7ld  %7ld  %9ld\n", size, far ? "far" : "near",
           shared->join_cpu, shared->join_wall, 1e3 * shared->gather_cpu, 1e3 * shared->gather_wall, shared->idle_cpu,
           last - killed, shared->hub_bytes / size, shared->rank_bytes, shared->rank_resident);
    fflush(stdout);
    shared->knew[0] = last - killed;
    return 1;
}

int main(int argc, char **argv)
{
    static const int sizes[] = {64, 256, 1024};
    static const dp_allocator_t counting = {.allocate = count_allocate, .release = count_release};
    int most = argc > 1 ? atoi(argv[1]) : MOST_RANKS, bad = 0;
    long own = 0, at_hub = 0;
    struct rlimit files;

    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || getrlimit(RLIMIT_NOFILE, &files) != 0)
        return 1;
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_cur < 4 * MOST_RANKS)
        fprintf(stderr, "control_plane: %ld open files are allowed; 1,024 ranks take 4,096\n", (long)files.rlim_cur);
    unsetenv("DUALPIPE_LAUNCH");
    dp_set_allocator(&counting);
    port = 20000 + (int)(getpid() % 3000);
    printf("               join of all        a barrier (ms)       idle     death      bytes for a rank\n"
           "ranks  hosts  hub CPU s   wall s   hub CPU       wall   hub CPU  known, s  at hub     its own  resident\n");
    for (int far = 0; far < 2; far++)
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && sizes[i] <= most; i++) {
            if (far && geteuid() != 0)
                continue;
            if (!measure(sizes[i], far)) {
                printf("%5d  %-4s  failed\n", sizes[i], far ? "far" : "near");
                bad = 1;
                continue;
            }
            own = i == 0 ? shared->rank_bytes : own;
            at_hub = i == 0 ? shared->hub_bytes / size : at_hub;
            bad |= shared->join_cpu >= 10 || shared->knew[0] >= 1 || shared->rank_bytes - own >= 1024 ||
                   shared->hub_bytes / size - at_hub >= 1024;
        }
    printf("said: %s\n", shared->message);
    return bad;
}
