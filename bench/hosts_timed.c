/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * hosts_timed.c: does the engine do what the simulator says, with ranks on several hosts? Each rank
 * is a process, its segments sleep their cost; the step, measured on the timeline, stands beside
 * the simulated one, for which the topology is the file that dualpipe bench-links has written.
 * bench/hosts_timed.sh starts it on hosts that it makes.
 *
 *     bench/hosts_timed TOPOLOGY [METHOD [MICROBATCHES [UNIT_MS [BYTES]]]]       dualpipe 20 20
 *                                                                                125000
 *
 * Costs: F = I = W = 1 unit per device, messages of BYTES. Exit status 1 when the shortest step is
 * off by more than 5 %: the others show what else the machine had to do. */
#include "tools/io/topology.h"

#include <dualpipe/advanced.h>
#include <dualpipe/dualpipe.h>
#include <dualpipe/plan.h>
#include <dualpipe/run.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_STAGES = 16, STEPS = 11, MOST_RANKS = 64, MOST_MICROBATCHES = 4096 };

typedef struct rank {
    int64_t pass_ns; /* of one chunk */
    size_t bytes;    /* of a message */
    const dp_device_vt_t *device;
    dp_stage_t *stages[MOST_STAGES];
    int nstages;
} rank_t;

static void check(dp_status_t status)
{
    if (status >= 0)
        return;
    fprintf(stderr, "hosts_timed: %s\n", dp_last_error());
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
    return rank->device->launch(s, sleep_cost, &rank->pass_ns, sizeof(rank->pass_ns));
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
    dp_status_t status = dp_stage_create(&part, 1, rank->bytes, DP_F32, stage_out);

    (void)stage, (void)stages;
    rank->device = context->device_vt;
    if (status >= 0)
        rank->stages[rank->nstages++] = *stage_out;
    return status;
}

/* First start to last end of computing on any rank, in ms, of one step. */
static double length_of(const dp_timeline_t *timeline, int32_t step)
{
    int64_t start = INT64_MAX, end = 0, n;

    for (int32_t r = 0; r < dp_timeline_ranks(timeline); r++) {
        const dp_span_t *span = dp_timeline_spans(timeline, r, &n);

        for (int64_t i = 0; i < n; i++)
            if (span[i].kind == DP_SPAN_COMPUTE && span[i].step == step) {
                start = span[i].start_ns < start ? span[i].start_ns : start;
                end = span[i].end_ns > end ? span[i].end_ns : end;
            }
    }
    return (double)(end - start) / 1e6;
}

static int compare_doubles(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

static double simulate(const char *file, const dp_schedule_t *schedule, double unit_ms, double bytes)
{
    int32_t host_of[MOST_RANKS], first[2 * MOST_RANKS + 1], stages = dp_schedule_stages(schedule);
    double part = unit_ms / dp_schedule_split(schedule);
    dp_segment_cost_t list[2 * MOST_RANKS];
    /* a stage of one segment: I, W, and in a pair F behind them */
    dp_segment_costs_t segments = {.struct_size = sizeof(segments), .stages = stages, .first = first, .list = list};
    topology_t read = {.nhosts = 0};
    dp_topology_t topology;
    dp_costs_t costs = {
        .struct_size = sizeof(costs), .barrier = 1, .bytes = bytes, .segments = &segments, .topology = &topology};
    dp_simulation_t result = {.struct_size = sizeof(result)};
    dp_program_t *program;
    double step;

    for (int32_t s = 0; s <= stages; s++) {
        first[s] = s;
        if (s < stages)
            list[s] = (dp_segment_cost_t){
                .lane = DP_LANE_COMPUTE, .has_weight = 1, .begins_part = 1, .f = part, .i = part, .w = part};
    }
    check(topology_read(file, &read));
    check(topology_place(&read, TOPOLOGY_AS_GIVEN, schedule->ranks, host_of, &topology));
    check(dp_program_lower(schedule, NULL, &program));
    check(dp_simulate(program, &costs, 0, &result));
    step = result.step_time;
    dp_simulation_clear(&result);
    dp_program_free(program);
    topology_clear(&read);
    return step;
}

static int report(const dp_timeline_t *timeline, const char *file, const dp_schedule_t *schedule, double unit_ms,
                  double bytes)
{
    double steps[STEPS - 1], simulated = simulate(file, schedule, unit_ms, bytes), off;

    for (int i = 1; i < STEPS; i++) /* the first finds everything cold */
        steps[i - 1] = length_of(timeline, i);
    qsort(steps, STEPS - 1, sizeof(steps[0]), compare_doubles);
    off = steps[0] / simulated - 1; /* the one that other work on the machine has disturbed least */
    printf("%-12s %d ranks, %d micro-batches of %.1f ms, messages of %.0f bytes: simulated %.2f ms, executed %.2f ms "
           "(best of %d; median %.2f, worst %.2f): %+.2f %%  %s\n",
           schedule->method, schedule->ranks, schedule->microbatches, unit_ms, bytes, simulated, steps[0], STEPS - 1,
           steps[(STEPS - 1) / 2], steps[STEPS - 2], 100 * off, fabs(off) <= 0.05 ? "ok" : "OFF");
    return fabs(off) > 0.05;
}

int main(int argc, char **argv)
{
    const char *method = argc > 2 ? argv[2] : "dualpipe";
    int microbatches = argc > 3 ? atoi(argv[3]) : 20, off = 0;
    double unit_ms = argc > 4 ? atof(argv[4]) : 20, bytes = argc > 5 ? atof(argv[5]) : 125000;
    rank_t rank = {.nstages = 0};
    dp_pipeline_options_t options = {.struct_size = sizeof(options),
                                     .method = method,
                                     .microbatches = microbatches,
                                     .boundary_bytes = (size_t)bytes,
                                     .trace_steps = STEPS,
                                     .build = build,
                                     .user = &rank};
    dp_schedule_request_t request = {.struct_size = sizeof(request), .method = method, .microbatches = microbatches};
    const void *lent[MOST_MICROBATCHES]; /* nobody looks at what is there */
    dp_step_t step = {.struct_size = sizeof(step), .inputs = lent, .targets = lent};
    dp_timeline_t *timeline;
    dp_schedule_t *schedule;
    dp_pipeline_t *pipeline;
    double share;

    if (argc < 2 || microbatches < 1 || microbatches > MOST_MICROBATCHES || !(unit_ms > 0) || !(bytes >= 8)) {
        fprintf(stderr, "usage: hosts_timed TOPOLOGY [METHOD [MICROBATCHES [UNIT_MS [BYTES]]]]\n");
        return 2;
    }
    rank.bytes = (size_t)bytes;
    for (int m = 0; m < microbatches; m++)
        lent[m] = &rank;
    check(dp_group_join(NULL, &options.group));
    request.ranks = dp_group_size(options.group);
    if (request.ranks > MOST_RANKS)
        return 2;
    check(dp_schedule_generate(&request, &schedule));
    share = schedule->placement == DP_PLACE_BIDIRECTIONAL ? 1 : 1.0 / schedule->chunks;
    rank.pass_ns = (int64_t)(unit_ms * 1e6 * share);
    check(dp_pipeline_open(&options, &pipeline));
    for (int i = 0; i < STEPS; i++) {
        check(dp_group_barrier(options.group));
        check(dp_pipeline_step(pipeline, &step));
    }
    check(dp_pipeline_timeline(pipeline, &timeline));
    if (timeline != NULL)
        off = report(timeline, argv[1], schedule, unit_ms, bytes);
    dp_timeline_free(timeline);
    dp_pipeline_close(pipeline);
    for (int i = 0; i < rank.nstages; i++)
        dp_stage_free(rank.stages[i]);
    dp_group_leave(options.group);
    dp_schedule_free(schedule);
    return off;
}
