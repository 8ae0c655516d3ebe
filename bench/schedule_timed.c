/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * schedule_timed.c: does the engine do what the simulator says? Every method runs with segments
 * that sleep their cost, ranks as threads, attention and MLP on one lane, dispatch and combine on
 * the other, once in its canonical order and once planned (dp_plan_overlap); step and idle time of
 * the compute lane, measured on the timeline, stand beside the simulated ones, and what the plan
 * gains beside what it was to gain. Where the user may, threads take a real-time priority, those
 * that carry messages as well as those that sleep, so that other work on the machine does not show;
 * of several rounds through all methods the one in which a step had its median length counts.
 *
 *     bench/schedule_timed [RANKS [MICROBATCHES [UNIT_MS [METHOD]]]]       default 4 20 5, all
 *                                                                          methods
 *
 * Costs per device: see `units`. Exit status 1 when a step is off by more than 2 %. */
#include <dualpipe/advanced.h>
#include <dualpipe/dualpipe.h>
#include <dualpipe/overlap.h>
#include <dualpipe/plan.h>
#include <dualpipe/run.h>

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* One layer a chunk, a device costs these: passes of 1 on each lane, unevenly cut. */
static const dp_segment_costs_t units = {.struct_size = sizeof(units),
                                         .layers = 1,
                                         .f = {0.5, 0.4, 0.5, 0.6},
                                         .i = {0.6, 0.5, 0.4, 0.4},
                                         .w = {0.3, 0, 0.4, 0},
                                         .inline_messages = 1};

enum { MOST_RANKS = 64, MOST_CHUNKS = 8, STEPS = 2, ROUNDS = 5, MOST_METHODS = 32, MOST_MICROBATCHES = 4096 };

typedef struct rank {
    dp_group_t *group;
    const dp_schedule_t *schedule;
    int microbatches;
    int64_t segment_ns[3][DP_SEGMENT_COSTS]; /* F, I, W of a chunk */
    dp_stage_t *stages[MOST_CHUNKS];
    int nstages;
    dp_timeline_t *timeline; /* rank 0: of the last step */
    pthread_t thread;
} rank_t;

static const dp_device_vt_t *device; /* the same for all ranks */

static void check(dp_status_t status)
{
    if (status >= 0)
        return;
    fprintf(stderr, "schedule_timed: %s\n", dp_last_error());
    exit(1);
}

static dp_status_t sleep_cost(void *arg)
{
    int64_t ns = *(const int64_t *)arg;
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    ns += t.tv_nsec;
    t.tv_sec += ns / 1000000000;
    t.tv_nsec = ns % 1000000000;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0)
        ;
    return DP_OK;
}

/* `self` points into segment_ns[0]; rows follow one another. */
static dp_status_t forward(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    (void)call;
    return device->launch(s, sleep_cost, self, sizeof(int64_t));
}

static dp_status_t backward_input(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    return forward((int64_t *)self + DP_SEGMENT_COSTS, call, s);
}

static dp_status_t backward_weight(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    return forward((int64_t *)self + 2 * DP_SEGMENT_COSTS, call, s);
}

static dp_status_t build(void *user, const dp_build_context_t *context, int32_t stage, int32_t stages,
                         dp_stage_t **stage_out)
{
    static const char *const names[] = {"attention", "dispatch", "mlp", "combine"};
    rank_t *rank = user;
    dp_segment_t segment[DP_SEGMENT_COSTS];
    const dp_part_t part = {.struct_size = sizeof(part), .nsegments = DP_SEGMENT_COSTS, .segments = segment};
    dp_status_t status;

    (void)stage, (void)stages;
    for (int k = 0; k < DP_SEGMENT_COSTS; k++)
        segment[k] = (dp_segment_t){.struct_size = sizeof(segment[k]),
                                    .name = names[k],
                                    .role = (dp_segment_role_t)(k + 1),
                                    .lane = k % 2 == 0 ? DP_LANE_COMPUTE : DP_LANE_ALL_TO_ALL,
                                    .self = &rank->segment_ns[0][k],
                                    .forward = forward,
                                    .backward_input = backward_input,
                                    .backward_weight = k % 2 == 0 ? backward_weight : NULL};
    device = context->device_vt;
    status = dp_stage_create(&part, 1, 8, DP_F32, stage_out);
    if (status >= 0)
        rank->stages[rank->nstages++] = *stage_out;
    return status;
}

/* From the first start to the last end of a segment on any rank, and how long each rank's compute
 * lane was idle. */
static double measure(const dp_timeline_t *timeline, int ranks, double unit_ns, double *bubble)
{
    int64_t start = INT64_MAX, end = 0, n;

    for (int r = 0; r < ranks; r++) {
        const dp_span_t *span = dp_timeline_spans(timeline, r, &n);

        bubble[r] = 0;
        for (int64_t i = 0; i < n; i++)
            if (span[i].kind == DP_SPAN_COMPUTE) {
                start = span[i].start_ns < start ? span[i].start_ns : start;
                end = span[i].end_ns > end ? span[i].end_ns : end;
                if (span[i].lane == DP_LANE_COMPUTE)
                    bubble[r] -= (double)(span[i].end_ns - span[i].start_ns) / unit_ns;
            }
    }
    for (int r = 0; r < ranks; r++)
        bubble[r] += (double)(end - start) / unit_ns;
    return (double)(end - start) / unit_ns;
}

static void *run_rank(void *arg)
{
    rank_t *rank = arg;
    dp_pipeline_options_t options = {
        .struct_size = sizeof(options),
        .group = rank->group,
        .schedule = rank->schedule,
        .microbatches = rank->microbatches,
        .boundary_bytes = 8,
        .build = build,
        .user = rank,
    };
    const void *lent[MOST_MICROBATCHES]; /* nobody looks at what is there */
    dp_step_t step = {.struct_size = sizeof(step), .inputs = lent, .targets = lent};
    dp_pipeline_t *pipeline;

    for (int m = 0; m < rank->microbatches; m++)
        lent[m] = rank;
    /* Threads that are made here inherit it: those that carry messages as well as those that
     * sleep. */
    (void)pthread_setschedparam(pthread_self(), SCHED_FIFO, &(struct sched_param){.sched_priority = 1});
    check(dp_pipeline_open(&options, &pipeline));
    for (int i = 0; i < STEPS; i++) {
        check(dp_group_barrier(rank->group));
        check(dp_pipeline_step(pipeline, &step));
    }
    check(dp_pipeline_timeline(pipeline, &rank->timeline));
    dp_pipeline_close(pipeline);
    for (int i = 0; i < rank->nstages; i++)
        dp_stage_free(rank->stages[i]);
    dp_group_leave(rank->group);
    return NULL;
}

/* A schedule, how it is to run, and how it did. */
typedef struct job {
    char name[32];
    dp_schedule_t *schedule;
    dp_segment_costs_t layer;
    dp_simulation_t simulated;
    double step[ROUNDS], bubble[ROUNDS][MOST_RANKS];
    int median; /* the round in which the step had its median length */
} job_t;

/* Runs the engine: its last step, in units, and each rank's idle time. */
static void execute(job_t *job, int round, double unit_ns)
{
    dp_group_t *groups[MOST_RANKS];
    rank_t all[MOST_RANKS];
    int ranks = job->schedule->ranks;

    check(dp_group_local(ranks, NULL, groups));
    for (int r = 0; r < ranks; r++) {
        all[r] = (rank_t){.group = groups[r], .schedule = job->schedule, .microbatches = job->schedule->microbatches};
        for (int k = 0; k < DP_SEGMENT_COSTS; k++) {
            all[r].segment_ns[0][k] = (int64_t)(unit_ns * job->layer.f[k]);
            all[r].segment_ns[1][k] = (int64_t)(unit_ns * job->layer.i[k]);
            all[r].segment_ns[2][k] = (int64_t)(unit_ns * job->layer.w[k]);
        }
        if (pthread_create(&all[r].thread, NULL, run_rank, &all[r]) != 0)
            exit(1);
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(all[r].thread, NULL);
    job->step[round] = measure(all[0].timeline, ranks, unit_ns, job->bubble[round]);
    dp_timeline_free(all[0].timeline);
}

static void find_median(job_t *job)
{
    for (int i = 0; i < ROUNDS; i++) {
        int shorter = 0;

        for (int k = 0; k < ROUNDS; k++)
            shorter += job->step[k] < job->step[i] || (job->step[k] == job->step[i] && k < i);
        job->median = shorter == ROUNDS / 2 ? i : job->median;
    }
}

static void simulate(job_t *job, const dp_costs_t *costs)
{
    dp_program_t *program;

    job->simulated = (dp_simulation_t){.struct_size = sizeof(job->simulated)};
    job->layer = *costs->segments;
    check(dp_program_lower(job->schedule, NULL, &program));
    check(dp_simulate(program, costs, 0, &job->simulated));
    dp_program_free(program);
}

/* As published, and planned. False: the method refuses these sizes. */
static bool open_jobs(const dp_method_t *method, int ranks, int microbatches, job_t jobs[2])
{
    dp_schedule_request_t request = {
        .struct_size = sizeof(request), .method = method->name, .ranks = ranks, .microbatches = microbatches};
    dp_segment_costs_t layers = units; /* one layer a chunk */
    dp_costs_t costs = {.struct_size = sizeof(costs), .segments = &layers, .barrier = 1};
    dp_overlap_request_t plan = {.struct_size = sizeof(plan), .costs = &costs, .tries = 400, .seed = 1};
    dp_overlap_result_t planned = {.struct_size = sizeof(planned)};

    if (dp_schedule_generate(&request, &jobs[0].schedule) < 0) {
        printf("%-22s refused: %s\n", method->name, dp_last_error());
        return false;
    }
    layers.layers = dp_schedule_split(jobs[0].schedule);
    for (int k = 0; k < DP_SEGMENT_COSTS; k++) {
        layers.f[k] /= layers.layers;
        layers.i[k] /= layers.layers;
        layers.w[k] /= layers.layers;
    }
    plan.schedule = jobs[0].schedule;
    check(dp_plan_overlap(&plan, &planned));
    jobs[1].schedule = planned.schedule;
    snprintf(jobs[0].name, sizeof(jobs[0].name), "%s", method->name);
    snprintf(jobs[1].name, sizeof(jobs[1].name), "  planned");
    simulate(&jobs[0], &costs);
    simulate(&jobs[1], &costs);
    return true;
}

static bool is_off(double measured, double simulated, double step)
{
    return fabs(measured - simulated) > 0.02 * step;
}

static bool print_job(job_t *job)
{
    const dp_simulation_t *s = &job->simulated;
    double worst = 0, mean = 0, expected = 0, off, *bubble;
    int ranks = job->schedule->ranks;

    find_median(job);
    bubble = job->bubble[job->median];
    for (int r = 0; r < ranks; r++) {
        worst = fmax(worst, fabs(bubble[r] - s->bubble[r]) / s->step_time);
        mean += bubble[r] / ranks;
        expected += s->bubble[r] / ranks;
    }
    off = job->step[job->median] / s->step_time - 1;
    printf("%-22s %10.2f %10.2f %8.2f %% %10.2f %10.2f %10.2f %%  %s\n", job->name, s->step_time,
           job->step[job->median], 100 * off, expected, mean, 100 * worst, fabs(off) <= 0.02 ? "ok" : "OFF");
    return fabs(off) > 0.02;
}

/* 0: within 2 % of a step, 1: not. */
static int print_jobs(job_t jobs[2])
{
    int off = (int)print_job(&jobs[0]) | (int)print_job(&jobs[1]);
    double step = jobs[0].simulated.step_time, gain = step - jobs[1].simulated.step_time;
    double measured = jobs[0].step[jobs[0].median] - jobs[1].step[jobs[1].median];

    printf("%-22s %10.2f %10.2f  %s\n", "  gain", gain, measured, is_off(measured, gain, step) ? "OFF" : "ok");
    for (int k = 0; k < 2; k++) {
        dp_simulation_clear(&jobs[k].simulated);
        dp_schedule_free(jobs[k].schedule);
    }
    return off || is_off(measured, gain, step);
}

int main(int argc, char **argv)
{
    int ranks = argc > 1 ? atoi(argv[1]) : 4, microbatches = argc > 2 ? atoi(argv[2]) : 20, off = 0;
    double unit_ms = argc > 3 ? atof(argv[3]) : 5;
    static job_t jobs[2 * MOST_METHODS];
    const dp_method_t *methods;
    size_t count, njobs = 0;

    if (ranks < 1 || ranks > MOST_RANKS || microbatches < 1 || microbatches > MOST_MICROBATCHES || !(unit_ms > 0)) {
        fprintf(stderr, "usage: schedule_timed [RANKS (1 to %d) [MICROBATCHES [UNIT_MS [METHOD]]]]\n", MOST_RANKS);
        return 2;
    }
    methods = dp_schedule_methods(&count);
    for (size_t i = 0; i < count && njobs < 2 * MOST_METHODS; i++)
        if ((argc <= 4 || strcmp(argv[4], methods[i].name) == 0) &&
            open_jobs(&methods[i], ranks, microbatches, &jobs[njobs]))
            njobs += 2;
    for (int round = 0; round < ROUNDS; round++)
        for (size_t k = 0; k < njobs; k++)
            execute(&jobs[k], round, unit_ms * 1e6);
    printf("%d ranks as threads, %d micro-batches, 1 unit = %.1f ms, times in units, medians of %d rounds\n", ranks,
           microbatches, unit_ms, ROUNDS);
    printf("%-22s %10s %10s %10s %10s %10s %12s\n", "method", "step sim.", "measured", "off", "idle sim.", "measured",
           "worst rank");
    for (size_t k = 0; k < njobs; k += 2)
        off |= print_jobs(&jobs[k]);
    return off;
}
