/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * engine_overhead.c: what the engine itself costs per operation: empty segments, 8-byte messages.
 *
 *     bench/engine_overhead                                 one rank: CPU time per operation
 *     dualpipe run -n 4 --no-prefix -- bench/engine_overhead   four ranks as processes: wall time
 *                                                              per operation
 *
 * An operation is one entry of the schedule's list of a rank (an F&B pair counts once). Limits to
 * compare with: 1 us of CPU for one rank, 30 us of wall time for four ranks on two cores; the
 * published PyTorch code needs 170 us and 1.5 ms. */
#include <dualpipe/dualpipe.h>
#include <dualpipe/plan.h>
#include <dualpipe/run.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { STEPS = 400, WARM_UP = 20, MICROBATCHES = 20 };

static dp_stage_t *stages[2];
static int nstages;

static dp_status_t nothing(void *self, const dp_segment_call_t *call, dp_stream_t *s)
{
    (void)self, (void)call, (void)s;
    return DP_OK;
}

static dp_status_t build(void *user, const dp_build_context_t *context, int32_t stage, int32_t count,
                         dp_stage_t **stage_out)
{
    const dp_segment_t segment = {.struct_size = sizeof(segment),
                                  .name = "empty",
                                  .forward = nothing,
                                  .backward_input = nothing,
                                  .backward_weight = nothing};
    const dp_part_t part = {.struct_size = sizeof(part), .nsegments = 1, .segments = &segment};
    dp_status_t status = dp_stage_create(&part, 1, 8, DP_F32, stage_out);

    (void)user, (void)context, (void)stage, (void)count;
    if (status >= 0)
        stages[nstages++] = *stage_out;
    return status;
}

static double seconds(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(dp_status_t status)
{
    if (status >= 0)
        return;
    fprintf(stderr, "engine_overhead: %s\n", dp_last_error());
    exit(1);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

int main(void)
{
    dp_group_t *group;
    dp_pipeline_t *pipeline;
    const double tensor = 0;
    const void *tensors[MICROBATCHES]; /* nobody reads them */
    dp_step_t step = {.struct_size = sizeof(step), .inputs = tensors, .targets = tensors};
    const dp_schedule_t *schedule;
    double wall[STEPS], cpu;
    int64_t ops;
    int size;

    for (int i = 0; i < MICROBATCHES; i++)
        tensors[i] = &tensor;
    check(dp_group_join(NULL, &group));
    size = dp_group_size(group);
    check(dp_pipeline_open(&(dp_pipeline_options_t){.struct_size = sizeof(dp_pipeline_options_t),
                                                    .group = group,
                                                    .method = size == 1 ? "1f1b" : "dualpipe",
                                                    .microbatches = MICROBATCHES,
                                                    .boundary_bytes = 8,
                                                    .build = build},
                           &pipeline));
    schedule = dp_pipeline_program(pipeline)->schedule;
    ops = schedule->first[1] - schedule->first[0];
    for (int i = 0; i < WARM_UP; i++)
        check(dp_pipeline_step(pipeline, &step));
    cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < STEPS; i++) {
        double start = seconds(CLOCK_MONOTONIC);

        check(dp_pipeline_step(pipeline, &step));
        wall[i] = seconds(CLOCK_MONOTONIC) - start;
    }
    cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    qsort(wall, STEPS, sizeof(wall[0]), compare);
    if (dp_group_rank(group) == 0) {
        printf("%d rank%s, %s, %lld operations a step on rank 0, %d steps\n", size, size > 1 ? "s as processes" : "",
               schedule->method, (long long)ops, STEPS);
        printf("CPU time per operation   %8.3f us (this rank, all its threads)\n", 1e6 * cpu / STEPS / (double)ops);
        printf("wall time per operation  %8.3f us median, %.3f us best\n", 1e6 * wall[STEPS / 2] / (double)ops,
               1e6 * wall[0] / (double)ops);
        if (size == 1)
            printf("ratio to the published code's 170 us: %.4f\n", 1e6 * cpu / STEPS / (double)ops / 170);
        else
            printf("ratio to the published code's 1500 us: %.4f\n", 1e6 * wall[STEPS / 2] / (double)ops / 1500);
    }
    dp_pipeline_close(pipeline);
    for (int i = 0; i < nstages; i++)
        dp_stage_free(stages[i]);
    dp_group_leave(group);
    return 0;
}
