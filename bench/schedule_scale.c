/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * schedule_scale.c: what it costs to generate, verify, lower, prove and simulate a schedule for all
 * ranks, from small to large: the time per operation should stay what it is.
 *
 *     bench/schedule_scale [METHOD [LARGEST_RANKS]]       default dualpipe 1024
 *
 * Micro-batches are 8 per rank, 4,096 at P = 1,024. Every size runs in a separate process, so
 * that its memory can be told. Times are processor time, which is that of a single thread; "wall"
 * is what the clock on the wall says of all. Exit status 1 when P = 64 takes 0.3 s or more, or P =
 * 1,024 20 s or 4 GiB or more. */
#include <dualpipe/simulate.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { GENERATE, VERIFY, LOWER, PROVE, SIMULATE, PHASES };

typedef struct measured {
    double seconds[PHASES];
    int64_t instructions;
    long peak_kib;
    double step, bubble, wall;
} measured_t;

static double clock_of(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(dp_status_t status)
{
    if (status >= 0)
        return;
    fprintf(stderr, "schedule_scale: %s\n", dp_last_error());
    exit(1);
}

static void lap(measured_t *m, int phase, double *since)
{
    double t = clock_of(CLOCK_PROCESS_CPUTIME_ID);

    m->seconds[phase] = t - *since;
    *since = t;
}

static measured_t measure(const char *method, int32_t ranks, int32_t microbatches)
{
    dp_schedule_request_t request = {
        .struct_size = sizeof(request), .method = method, .ranks = ranks, .microbatches = microbatches};
    dp_costs_t costs = {.struct_size = sizeof(costs), .f = 1, .i = 1, .w = 1, .barrier = 1};
    dp_simulation_t simulation = {.struct_size = sizeof(simulation)};
    dp_schedule_t *schedule;
    dp_program_t *program;
    measured_t m;
    struct rusage usage;
    double since = clock_of(CLOCK_PROCESS_CPUTIME_ID), start = clock_of(CLOCK_MONOTONIC);

    memset(&m, 0, sizeof(m));
    check(dp_schedule_generate(&request, &schedule));
    lap(&m, GENERATE, &since);
    check(dp_schedule_verify(schedule));
    lap(&m, VERIFY, &since);
    check(dp_program_lower(schedule, NULL, &program));
    lap(&m, LOWER, &since);
    check(dp_program_verify(program, NULL));
    lap(&m, PROVE, &since);
    check(dp_simulate(program, &costs, 0, &simulation));
    lap(&m, SIMULATE, &since);
    m.wall = clock_of(CLOCK_MONOTONIC) - start;
    m.instructions = program->first[ranks];
    m.step = simulation.step_time;
    m.bubble = simulation.bubble[0];
    dp_simulation_clear(&simulation);
    dp_program_free(program);
    dp_schedule_free(schedule);
    getrusage(RUSAGE_SELF, &usage);
    m.peak_kib = usage.ru_maxrss;
    return m;
}

static measured_t measure_apart(const char *method, int32_t ranks, int32_t microbatches)
{
    measured_t m;
    int ends[2], status;
    pid_t child;

    if (pipe(ends) != 0 || (child = fork()) < 0) {
        perror("schedule_scale");
        exit(1);
    }
    if (child == 0) {
        m = measure(method, ranks, microbatches);
        _exit(write(ends[1], &m, sizeof(m)) == sizeof(m) ? 0 : 1);
    }
    close(ends[1]);
    if (read(ends[0], &m, sizeof(m)) != sizeof(m) || waitpid(child, &status, 0) != child || status != 0)
        exit(1);
    close(ends[0]);
    return m;
}

/* Prints a row and returns 1 when a bound is broken. */
static int show(const char *method, int32_t ranks, int32_t microbatches)
{
    measured_t m = measure_apart(method, ranks, microbatches);
    double total = 0.0, gib = (double)m.peak_kib / (1024.0 * 1024.0);

    for (int p = 0; p < PHASES; p++)
        total += m.seconds[p];
    printf("%6d %7d %12lld %9.3f %9.3f %9.3f %9.3f %9.3f %9.3f %8.3f %8.0f %9.0f %10g %6g\n", ranks, microbatches,
           (long long)m.instructions, m.seconds[GENERATE], m.seconds[VERIFY], m.seconds[LOWER], m.seconds[PROVE],
           m.seconds[SIMULATE], total, m.wall, total / (double)m.instructions * 1e9, gib * 1024.0, m.step, m.bubble);
    fflush(stdout);
    return (ranks == 64 && total >= 0.3) || (ranks == 1024 && (total >= 20.0 || gib >= 4.0));
}

int main(int argc, char **argv)
{
    static const struct {
        int32_t ranks, microbatches;
    } sizes[] = {{4, 32},     {8, 64},     {16, 128},   {32, 256},   {64, 512},
                 {128, 1024}, {256, 2048}, {512, 4096}, {1024, 4096}};
    const char *method = argc > 1 ? argv[1] : "dualpipe";
    long largest = argc > 2 ? strtol(argv[2], NULL, 10) : 1024;
    int broken = 0;

    printf("%s, seconds for all ranks together\n", method);
    printf(" ranks   micro instructions  generate    verify     lower     prove  simulate     total ns/instr "
           " peak MiB       step     idle\n");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (sizes[i].ranks <= largest)
            broken |= show(method, sizes[i].ranks, sizes[i].microbatches);
    return broken;
}
