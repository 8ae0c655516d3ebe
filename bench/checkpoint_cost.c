/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * checkpoint_cost.c: what saving costs a run: DualPipe over 2 ranks whose parameters and optimizer
 * make a checkpoint of so many MiB, saved between two steps and written beside the next ones.
 *
 *     dualpipe run -n 2 -- bench/checkpoint_cost FOLDER [MIB [STEP_MS [ROUNDS [busy]]]]     1024,
 *                                                                                           2000, 5
 *
 * Segments sleep as long as kernels on a device take, or with "busy" compute on all cores as those
 * of CPU plugins do. A round takes plain steps, writes MIB to FOLDER as dd does (blocks of 4 MiB,
 * fsync), and saves.
 *
 *   stall     dp_pipeline_save and the next step, over a plain step: what is above 1 (wanted: <= 5
 *             %)
 *   behind    the step after that, beside which the thread writes, likewise
 *   rate      bytes over the time from the first file to the complete checkpoint
 *   of disk   that rate over the one of the plain writing in the same round (wanted: >= 0.7)
 *
 * Medians of the rounds. Exit status 1 when stall or rate miss what is wanted. */
#include <dualpipe/dualpipe.h>
#include <dualpipe/plan.h>
#include <dualpipe/run.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MICROBATCHES = 4, STAGES = 2, ROUNDS_MOST = 32, PLAIN = 3, BLOCK = 4 << 20, PASSES = 2 * MICROBATCHES };

static struct {
    const char *folder;
    size_t count; /* parameters of a stage */
    double bytes; /* of a checkpoint */
    int64_t pass_ns;
    int rounds;
    bool busy;
    dp_stage_t *stages[STAGES];
    int nstages;
} bench;

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static void nap(int64_t ns)
{
    nanosleep(&(struct timespec){ns / 1000000000, ns % 1000000000}, NULL);
}

/* ---- the stages ---- */

/* Busy: as much work as takes that long on an idle core, however long it takes here. */
static int64_t rounds_of_ns(int64_t ns)
{
    return ns / 4; /* a division and an addition behind one another */
}
static void work(void)
{
    volatile double x = 1;

    if (!bench.busy)
        nap(bench.pass_ns);
    else
        for (int64_t i = rounds_of_ns(bench.pass_ns); i > 0; i--)
            x = 1 / x + 1;
}
static dp_status_t forward(void *self, const dp_segment_call_t *call)
{
    (void)self;
    work();
    if (call->y != NULL)
        memset(call->y, 0, sizeof(float));
    return DP_OK;
}
static dp_status_t backward_input(void *self, const dp_segment_call_t *call)
{
    (void)self;
    work();
    if (call->dx != NULL)
        memset(call->dx, 0, sizeof(float));
    return DP_OK;
}
static dp_status_t backward_weight(void *self, const dp_segment_call_t *call)
{
    (void)self, (void)call;
    return DP_OK;
}

static dp_status_t build(void *user, const dp_build_context_t *context, int32_t stage, int32_t count,
                         dp_stage_t **stage_out)
{
    const dp_segment_t segment = {
        .struct_size = sizeof(segment),
        .name = "kernel",
        .host_forward = forward,
        .host_backward_input = backward_input,
        .host_backward_weight = backward_weight,
    };
    const dp_param_t weights = {.name = "W", .count = bench.count};
    const dp_block_sizes_t sizes = {
        .struct_size = sizeof(sizes), .saved_bytes = 64, .param_count = bench.count, .nparams = 1};
    const dp_part_t part = {
        .struct_size = sizeof(part), .nsegments = 1, .segments = &segment, .sizes = &sizes, .param_list = &weights};
    dp_status_t status = dp_stage_create(&part, 1, sizeof(float), DP_F32, stage_out);

    (void)user, (void)context, (void)stage, (void)count;
    if (status == DP_OK)
        bench.stages[bench.nstages++] = *stage_out;
    return status;
}

/* Two states of an optimizer for each parameter. */
static dp_status_t register_states(dp_pipeline_t *p, float *states[STAGES][2])
{
    static const char *const names[] = {"adam.mean", "adam.square"};
    dp_status_t status = DP_OK;

    for (int k = 0; k < 2; k++)
        for (int32_t c = 0; c < dp_pipeline_chunks(p) && status == DP_OK; c++) {
            states[c][k] = malloc(bench.count * sizeof(float));
            if (states[c][k] == NULL)
                return DP_ERR_NOMEM;
            for (size_t i = 0; i < bench.count; i++)
                states[c][k][i] = (float)i;
            status = dp_pipeline_register_state(p, &(dp_state_t){.struct_size = sizeof(dp_state_t),
                                                                 .name = names[k],
                                                                 .scope = DP_STATE_PARAMS,
                                                                 .chunk = c,
                                                                 .memory = states[c][k],
                                                                 .dtype = DP_F32});
        }
    return status;
}

/* ---- what is measured ---- */

/* Writes as many bytes as a checkpoint has, as dd does: the disk's rate in bytes/s. */
static double write_plainly(const void *data, size_t bytes)
{
    char path[4096];
    const int64_t begin = now_ns();
    bool well;
    int fd;

    snprintf(path, sizeof(path), "%s/plain", bench.folder);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    well = fd >= 0;
    for (double done = 0; done < bench.bytes && well; done += BLOCK)
        well = write(fd, (const char *)data + (size_t)done % (bytes - BLOCK) / 64 * 64, BLOCK) == BLOCK;
    well = well && fsync(fd) == 0;
    if (fd >= 0)
        close(fd);
    if (!well) {
        perror(path);
        exit(2);
    }
    const double seconds = 1e-9 * (double)(now_ns() - begin);
    unlink(path);
    return bench.bytes / seconds;
}

/* Watches a checkpoint appear. */
typedef struct watch {
    unsigned long long step;
    int64_t begin_ns, end_ns;
    atomic_bool stop;
} watch_t;

static void *watch_folder(void *user)
{
    watch_t *w = user;
    char partial[4096], whole[4096];
    struct stat about;

    snprintf(whole, sizeof(whole), "%s/step-%08llu", bench.folder, w->step);
    snprintf(partial, sizeof(partial), "%s/.step-%08llu.partial", bench.folder, w->step);
    while (!atomic_load(&w->stop) && w->end_ns == 0) {
        if (w->begin_ns == 0 && stat(partial, &about) == 0)
            w->begin_ns = now_ns();
        if (stat(whole, &about) == 0)
            w->end_ns = now_ns();
        nap(1000000);
    }
    return NULL;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}
static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof(values[0]), by_size);
    return values[n / 2];
}

typedef struct round {
    double plain_s, stall, behind, rate, disk;
} round_t;

static dp_status_t timed_step(dp_pipeline_t *p, double *seconds_out)
{
    static float x[MICROBATCHES];
    static const void *const inputs[MICROBATCHES] = {&x[0], &x[1], &x[2], &x[3]};
    dp_step_t step = {.struct_size = sizeof(step), .inputs = inputs, .targets = inputs};
    const int64_t begin = now_ns();
    const dp_status_t status = dp_pipeline_step(p, &step);

    *seconds_out = 1e-9 * (double)(now_ns() - begin);
    return status;
}

static dp_status_t take_round(dp_pipeline_t *p, unsigned long long step, const void *data, bool first, round_t *r)
{
    double plain[PLAIN], next = 0, behind = 0;
    watch_t watch = {.step = step};
    dp_status_t status = DP_OK;
    pthread_t thread;
    int64_t begin;

    r->disk = first ? write_plainly(data, bench.count * sizeof(float)) : 0;
    for (int i = 0; i < PLAIN && status == DP_OK; i++)
        status = timed_step(p, &plain[i]);
    if (status < 0)
        return status;
    if (first && pthread_create(&thread, NULL, watch_folder, &watch) != 0)
        return DP_ERR_NOMEM;
    begin = now_ns();
    status = dp_pipeline_save(p, step);
    r->stall = 1e-9 * (double)(now_ns() - begin);
    if (status == DP_OK)
        status = timed_step(p, &next);
    if (status == DP_OK)
        status = timed_step(p, &behind);
    if (status == DP_OK)
        status = dp_pipeline_save_wait(p);
    atomic_store(&watch.stop, status < 0);
    if (first)
        pthread_join(thread, NULL);
    r->plain_s = median(plain, PLAIN);
    r->stall = (r->stall + next) / r->plain_s - 1;
    r->behind = behind / r->plain_s - 1;
    r->rate = bench.bytes / (1e-9 * (double)(watch.end_ns - watch.begin_ns));
    return status;
}

static bool report(const round_t *rounds)
{
    double stall[ROUNDS_MOST], behind[ROUNDS_MOST], rate[ROUNDS_MOST], disk[ROUNDS_MOST], of[ROUNDS_MOST];

    printf("%5s %9s %8s %8s %11s %11s %8s\n", "round", "step", "stall", "behind", "rate", "disk", "of disk");
    for (int i = 0; i < bench.rounds; i++) {
        const round_t *r = &rounds[i];

        stall[i] = r->stall, behind[i] = r->behind, rate[i] = r->rate, disk[i] = r->disk, of[i] = r->rate / r->disk;
        printf("%5d %7.2f s %6.1f %% %6.1f %% %6.0f MB/s %6.0f MB/s %8.2f\n", i + 1, r->plain_s, 100 * r->stall,
               100 * r->behind, r->rate / 1e6, r->disk / 1e6, of[i]);
    }
    printf("median           %6.1f %% %6.1f %% %6.0f MB/s %6.0f MB/s %8.2f\n", 100 * median(stall, bench.rounds),
           100 * median(behind, bench.rounds), median(rate, bench.rounds) / 1e6, median(disk, bench.rounds) / 1e6,
           median(of, bench.rounds));
    return median(stall, bench.rounds) <= 0.05 && median(of, bench.rounds) >= 0.7;
}

static dp_status_t measure(dp_group_t *group, dp_pipeline_t *p, bool first, bool *well_out)
{
    /* other steps than those that another run has left in the folder */
    unsigned long long begin = (unsigned long long)time(NULL), steps[STAGES];
    float *states[STAGES][2];
    round_t rounds[ROUNDS_MOST + 1];
    dp_status_t status = register_states(p, states);

    if (status == DP_OK)
        status = dp_pipeline_save_open(
            p, &(dp_save_options_t){.struct_size = sizeof(dp_save_options_t), .folder = bench.folder, .keep = 1});
    if (status == DP_OK)
        status = dp_group_all_gather(group, &begin, sizeof(begin), steps);
    for (int i = 0; i <= bench.rounds && status == DP_OK; i++) /* the first one warms up */
        status = take_round(p, steps[0] + (unsigned long long)i, states[0][0], first, &rounds[i]);
    *well_out = status == DP_OK && (!first || report(rounds + 1));
    return status; /* the states live as long as the pipeline */
}

int main(int argc, char **argv)
{
    const double mib = argc > 2 ? atof(argv[2]) : 1024, step_ms = argc > 3 ? atof(argv[3]) : 2000;
    dp_pipeline_options_t options = {
        .struct_size = sizeof(options),
        .method = "dualpipe",
        .microbatches = MICROBATCHES,
        .boundary_bytes = sizeof(float),
        .dtype = DP_F32,
        .build = build,
    };
    dp_pipeline_t *pipeline = NULL;
    bool well = false;
    dp_status_t status;

    bench.folder = argc > 1 ? argv[1] : NULL;
    bench.rounds = argc > 4 ? atoi(argv[4]) : 5;
    bench.busy = argc > 5 && strcmp(argv[5], "busy") == 0;
    if (bench.folder == NULL || mib < 32 || step_ms <= 0 || bench.rounds < 1 || bench.rounds > ROUNDS_MOST) {
        fprintf(stderr,
                "usage: dualpipe run -n 2 -- checkpoint_cost FOLDER [MIB [STEP_MS [ROUNDS [busy]]]]\n"
                "MIB is 32 or more, ROUNDS 1 to %d\n",
                ROUNDS_MOST);
        return 2;
    }
    bench.bytes = mib * 1048576;
    bench.count = (size_t)(bench.bytes / (3 * STAGES * sizeof(float)));
    bench.pass_ns = (int64_t)(1e6 * step_ms / PASSES);
    status = dp_group_join(NULL, &options.group);
    if (status == DP_OK && dp_group_rank(options.group) == 0)
        printf("a checkpoint of %.0f MiB, 2 ranks, steps of %.0f ms, segments that %s\n", mib, step_ms,
               bench.busy ? "compute" : "sleep");
    if (status == DP_OK)
        status = dp_pipeline_open(&options, &pipeline);
    if (status == DP_OK)
        status = measure(options.group, pipeline, dp_group_rank(options.group) == 0, &well);
    if (status < 0)
        fprintf(stderr, "checkpoint_cost: %s\n", dp_last_error());
    dp_pipeline_close(pipeline);
    for (int i = 0; i < bench.nstages; i++)
        dp_stage_free(bench.stages[i]);
    dp_group_leave(options.group);
    return status < 0 ? 2 : !well;
}
