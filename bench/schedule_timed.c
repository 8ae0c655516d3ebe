/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * schedule_timed.c: does the engine do what the simulator says? Every method runs with segments that sleep their cost,
 * ranks as threads; its bubble, measured on the timeline, stands beside the simulated one.
 *
 *     bench/schedule_timed [RANKS [MICROBATCHES [UNIT_MS]]]       default 4 20 5
 *
 * Costs: F = I = W = 1 unit per device. Exit status 1 when a method is off by more than 5 % of its step. */
#include <dualpipe/dualpipe.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_RANKS = 64, MOST_CHUNKS = 8, STEPS = 3, MOST_MICROBATCHES = 4096 };

typedef struct rank {
    dp_group_t *group;
    const dp_method_t *method;
    int ranks, microbatches;
    int64_t chunk_ns; /* one pass of one chunk */
    const dp_device_vt_t *device;
    dp_stage_t *stages[MOST_CHUNKS];
    int nstages;
    dp_timeline_t *timeline; /* rank 0 */
    pthread_t thread;
} rank_t;

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

static dp_status_t pass(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    rank_t *rank = self;

    (void)call;
    return rank->device->launch(s, sleep_cost, &rank->chunk_ns, sizeof(rank->chunk_ns));
}

static dp_status_t build(void *user, const dp_build_context_t *context, int32_t stage, int32_t stages,
                         dp_stage_t **stage_out)
{
    rank_t *rank = user;
    const dp_segment_t segment = {.struct_size = sizeof(segment),
                                  .name = "sleep",
                                  .self = rank,
                                  .forward = pass,
                                  .backward_input = pass,
                                  .backward_weight = pass};
    const dp_part_t part = {.struct_size = sizeof(part), .nsegments = 1, .segments = &segment};
    dp_status_t status = dp_stage_create(&part, 1, 8, DP_F32, stage_out);

    (void)stage, (void)stages;
    rank->device = context->device_vt;
    if (status >= 0)
        rank->stages[rank->nstages++] = *stage_out;
    return status;
}

static void *run_rank(void *arg)
{
    rank_t *rank = arg;
    dp_pipeline_options_t options = {
        .struct_size = sizeof(options),
        .group = rank->group,
        .method = rank->method->name,
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

/* First start and last end of computing on any rank, and every rank's busy time. */
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
                bubble[r] -= (double)(span[i].end_ns - span[i].start_ns) / unit_ns;
            }
    }
    for (int r = 0; r < ranks; r++)
        bubble[r] += (double)(end - start) / unit_ns;
    return (double)(end - start) / unit_ns;
}

/* 0: within 5 % of a step, 1: not. Methods that refuse these sizes are said so. */
static int compare(const dp_method_t *method, int ranks, int microbatches, double unit_ns)
{
    dp_schedule_request_t request = {
        .struct_size = sizeof(request), .method = method->name, .ranks = ranks, .microbatches = microbatches};
    dp_costs_t costs = {.struct_size = sizeof(costs), .f = 1, .i = 1, .w = 1, .barrier = 1};
    dp_simulation_t simulated = {.struct_size = sizeof(simulated)};
    double bubble[MOST_RANKS], step, worst = 0, mean = 0, expected = 0;
    dp_group_t *groups[MOST_RANKS];
    rank_t all[MOST_RANKS];
    dp_schedule_t *schedule;
    dp_program_t *program;
    double share;

    if (dp_schedule_generate(&request, &schedule) < 0) {
        printf("%-22s refused: %s\n", method->name, dp_last_error());
        return 0;
    }
    share = method->placement == DP_PLACE_BIDIRECTIONAL ? 1 : 1.0 / schedule->chunks;
    check(dp_program_lower(schedule, NULL, &program));
    check(dp_simulate(program, &costs, 0, &simulated));
    check(dp_group_local(ranks, NULL, groups));
    for (int r = 0; r < ranks; r++) {
        all[r] = (rank_t){.group = groups[r],
                          .method = method,
                          .ranks = ranks,
                          .microbatches = microbatches,
                          .chunk_ns = (int64_t)(unit_ns * share)};
        if (pthread_create(&all[r].thread, NULL, run_rank, &all[r]) != 0)
            exit(1);
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(all[r].thread, NULL);
    step = measure(all[0].timeline, ranks, unit_ns, bubble);
    for (int r = 0; r < ranks; r++) {
        double off = fabs(bubble[r] - simulated.bubble[r]) / simulated.step_time;

        worst = off > worst ? off : worst;
        mean += bubble[r] / ranks;
        expected += simulated.bubble[r] / ranks;
    }
    printf("%-22s %10.2f %10.2f %12.2f %12.2f %10.2f %%  %s\n", method->name, simulated.step_time, step, expected, mean,
           100 * worst, worst <= 0.05 ? "ok" : "OFF");
    dp_timeline_free(all[0].timeline);
    dp_simulation_clear(&simulated);
    dp_program_free(program);
    dp_schedule_free(schedule);
    return worst > 0.05;
}

int main(int argc, char **argv)
{
    int ranks = argc > 1 ? atoi(argv[1]) : 4, microbatches = argc > 2 ? atoi(argv[2]) : 20, off = 0;
    double unit_ms = argc > 3 ? atof(argv[3]) : 5;
    const dp_method_t *methods;
    size_t count;

    if (ranks < 1 || ranks > MOST_RANKS || microbatches < 1 || microbatches > MOST_MICROBATCHES || !(unit_ms > 0)) {
        fprintf(stderr, "usage: schedule_timed [RANKS (1 to %d) [MICROBATCHES [UNIT_MS]]]\n", MOST_RANKS);
        return 2;
    }
    printf("%d ranks as threads, %d micro-batches, 1 unit = %.1f ms, times in units\n", ranks, microbatches, unit_ms);
    printf("%-22s %10s %10s %12s %12s %12s\n", "method", "step sim.", "measured", "bubble sim.", "measured",
           "worst rank");
    methods = dp_schedule_methods(&count);
    for (size_t i = 0; i < count; i++)
        off |= compare(&methods[i], ranks, microbatches, unit_ms * 1e6);
    return off;
}
