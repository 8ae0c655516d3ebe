/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * schedule_timed.c: does the engine do what the simulator says? Every method runs with segments that sleep their cost,
 * ranks as threads, attention and MLP on one lane, dispatch and combine on the other, once in its canonical order and
 * once planned (dp_plan_overlap); step and idle time of the compute lane, measured on the timeline, stand beside the
 * simulated ones, and what the plan gains beside what it was to gain. Where the user may, sleepers take a real-time
 * priority, so that other work on the machine does not show.
 *
 *     bench/schedule_timed [RANKS [MICROBATCHES [UNIT_MS [METHOD]]]]       default 4 20 5, all methods
 *
 * Costs per device: see `units`. Exit status 1 when a step is off by more than 2 %. */
#include <dualpipe/dualpipe.h>
#include <dualpipe/overlap.h>

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

enum { MOST_RANKS = 64, MOST_CHUNKS = 8, STEPS = 3, MOST_MICROBATCHES = 4096 };

typedef struct rank {
    dp_group_t *group;
    const dp_schedule_t *schedule;
    int microbatches;
    int64_t segment_ns[3][DP_SEGMENT_COSTS]; /* F, I, W of a chunk */
    dp_stage_t *stages[MOST_CHUNKS];
    int nstages;
    dp_timeline_t *timeline; /* rank 0 */
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
    static _Thread_local bool asked;
    int64_t ns = *(const int64_t *)arg;
    struct timespec t;

    if (!asked)
        (void)pthread_setschedparam(pthread_self(), SCHED_FIFO, &(struct sched_param){.sched_priority = 1});
    asked = true;

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

/* From the first start to the last end of a segment on any rank, and how long each rank's compute lane was idle. */
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

/* Runs the engine: its last step, in units, and each rank's idle time. */
static double execute(const dp_schedule_t *schedule, const dp_segment_costs_t *layer, double unit_ns, double *bubble)
{
    dp_group_t *groups[MOST_RANKS];
    rank_t all[MOST_RANKS];
    double step;

    check(dp_group_local(schedule->ranks, NULL, groups));
    for (int r = 0; r < schedule->ranks; r++) {
        all[r] = (rank_t){.group = groups[r], .schedule = schedule, .microbatches = schedule->microbatches};
        for (int k = 0; k < DP_SEGMENT_COSTS; k++) {
            all[r].segment_ns[0][k] = (int64_t)(unit_ns * layer->f[k]);
            all[r].segment_ns[1][k] = (int64_t)(unit_ns * layer->i[k]);
            all[r].segment_ns[2][k] = (int64_t)(unit_ns * layer->w[k]);
        }
        if (pthread_create(&all[r].thread, NULL, run_rank, &all[r]) != 0)
            exit(1);
    }
    for (int r = 0; r < schedule->ranks; r++)
        pthread_join(all[r].thread, NULL);
    step = measure(all[0].timeline, schedule->ranks, unit_ns, bubble);
    dp_timeline_free(all[0].timeline);
    return step;
}

typedef struct steps {
    double simulated, measured;
} steps_t;

static steps_t compare(const char *name, const dp_schedule_t *schedule, const dp_costs_t *costs, double unit_ns)
{
    dp_simulation_t simulated = {.struct_size = sizeof(simulated)};
    double bubble[MOST_RANKS], worst = 0, mean = 0, expected = 0, off;
    dp_program_t *program;
    steps_t steps;

    check(dp_program_lower(schedule, NULL, &program));
    check(dp_simulate(program, costs, 0, &simulated));
    steps.simulated = simulated.step_time;
    steps.measured = execute(schedule, costs->segments, unit_ns, bubble);
    for (int r = 0; r < schedule->ranks; r++) {
        worst = fmax(worst, fabs(bubble[r] - simulated.bubble[r]) / simulated.step_time);
        mean += bubble[r] / schedule->ranks;
        expected += simulated.bubble[r] / schedule->ranks;
    }
    off = steps.measured / steps.simulated - 1;
    printf("%-22s %10.2f %10.2f %8.2f %% %10.2f %10.2f %10.2f %%  %s\n", name, steps.simulated, steps.measured,
           100 * off, expected, mean, 100 * worst, fabs(off) <= 0.02 ? "ok" : "OFF");
    fflush(stdout);
    dp_simulation_clear(&simulated);
    dp_program_free(program);
    return steps;
}

static bool is_off(double measured, double simulated, double step)
{
    return fabs(measured - simulated) > 0.02 * step;
}

/* 0: within 2 % of a step, 1: not. Methods that refuse these sizes are said so. */
static int run_method(const dp_method_t *method, int ranks, int microbatches, double unit_ns)
{
    dp_schedule_request_t request = {
        .struct_size = sizeof(request), .method = method->name, .ranks = ranks, .microbatches = microbatches};
    dp_segment_costs_t layers = units; /* one layer a chunk */
    dp_costs_t costs = {.struct_size = sizeof(costs), .segments = &layers, .barrier = 1};
    dp_overlap_request_t plan = {.struct_size = sizeof(plan), .costs = &costs, .tries = 400, .seed = 1};
    dp_overlap_result_t planned = {.struct_size = sizeof(planned)};
    dp_schedule_t *schedule;
    steps_t given, better;
    double gain, measured;
    int off;

    if (dp_schedule_generate(&request, &schedule) < 0) {
        printf("%-22s refused: %s\n", method->name, dp_last_error());
        return 0;
    }
    layers.layers = dp_schedule_split(schedule);
    for (int k = 0; k < DP_SEGMENT_COSTS; k++) {
        layers.f[k] /= layers.layers;
        layers.i[k] /= layers.layers;
        layers.w[k] /= layers.layers;
    }
    given = compare(method->name, schedule, &costs, unit_ns);
    plan.schedule = schedule;
    check(dp_plan_overlap(&plan, &planned));
    better = compare("  planned", planned.schedule, &costs, unit_ns);
    gain = given.simulated - better.simulated;
    measured = given.measured - better.measured;
    off = is_off(given.measured, given.simulated, given.simulated) ||
          is_off(better.measured, better.simulated, better.simulated) || is_off(measured, gain, given.simulated);
    printf("%-22s %10.2f %10.2f  %s\n", "  gain", gain, measured,
           is_off(measured, gain, given.simulated) ? "OFF" : "ok");
    dp_overlap_clear(&planned);
    dp_schedule_free(schedule);
    return off;
}

int main(int argc, char **argv)
{
    int ranks = argc > 1 ? atoi(argv[1]) : 4, microbatches = argc > 2 ? atoi(argv[2]) : 20, off = 0;
    double unit_ms = argc > 3 ? atof(argv[3]) : 5;
    const dp_method_t *methods;
    size_t count;

    if (ranks < 1 || ranks > MOST_RANKS || microbatches < 1 || microbatches > MOST_MICROBATCHES || !(unit_ms > 0)) {
        fprintf(stderr, "usage: schedule_timed [RANKS (1 to %d) [MICROBATCHES [UNIT_MS [METHOD]]]]\n", MOST_RANKS);
        return 2;
    }
    printf("%d ranks as threads, %d micro-batches, 1 unit = %.1f ms, times in units\n", ranks, microbatches, unit_ms);
    printf("%-22s %10s %10s %10s %10s %10s %12s\n", "method", "step sim.", "measured", "off", "idle sim.", "measured",
           "worst rank");
    methods = dp_schedule_methods(&count);
    for (size_t i = 0; i < count; i++)
        if (argc <= 4 || strcmp(argv[4], methods[i].name) == 0)
            off |= run_method(&methods[i], ranks, microbatches, unit_ms * 1e6);
    return off;
}
