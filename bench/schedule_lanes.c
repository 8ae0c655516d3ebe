/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * schedule_lanes.c: schedules run by segments on lanes, with the costs of DeepSeek-V3's published
 * profile (`dualpipe trace costs` of it; docs/traces.md): how much of a step is computing, and how
 * fast the simulation is; then how near forward-only steps, two micro-batches beside each other,
 * come to their busiest lane.
 *
 *     bench/schedule_lanes [MICROBATCHES]       default 64
 *
 * Exit status 1 when fewer than 10 million segments are simulated in a second of processor time
 * (best of 5), or when a method's forward-only steady state is more than 3 % off the busiest
 * lane. */
#include <dualpipe/simulate.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const dp_segment_costs_t layer = {.struct_size = sizeof(layer),
                                         .layers = 4,
                                         .f = {4.36975, 6.69025, 4.60375, 8.684},
                                         .i = {9.34075, 7.48675, 5.306, 5.76925},
                                         .w = {2.3885, 0, 5.06275, 0}};

static void check(dp_status_t status)
{
    if (status >= 0)
        return;
    fprintf(stderr, "schedule_lanes: %s\n", dp_last_error());
    exit(1);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One device, one micro-batch: time on the compute lane and on the all-to-all lane. */
static void lanes_of(int backward, double busy[2])
{
    busy[0] = busy[1] = 0;
    for (int s = 0; s < DP_SEGMENT_COSTS; s++) {
        busy[s % 2] += layer.layers * (layer.f[s] + (backward ? layer.i[s] : 0));
        busy[0] += backward ? layer.layers * layer.w[s] : 0;
    }
}

static double step_of(const dp_schedule_t *schedule, double *seconds)
{
    dp_costs_t costs = {.struct_size = sizeof(costs), .segments = &layer};
    dp_program_t *program;
    double step = 0;

    check(dp_program_lower(schedule, NULL, &program));
    for (int k = 0; k < (seconds != NULL ? 5 : 1); k++) {
        dp_simulation_t result = {.struct_size = sizeof(result)};
        double start = now(), took;

        check(dp_simulate(program, &costs, 0, &result));
        took = now() - start;
        if (seconds != NULL && (k == 0 || took < *seconds))
            *seconds = took;
        step = result.step_time;
        dp_simulation_clear(&result);
    }
    dp_program_free(program);
    return step;
}

static dp_schedule_t *generate(const dp_method_t *method, int32_t ranks, int32_t microbatches, int32_t chunks)
{
    dp_schedule_request_t request = {.struct_size = sizeof(request),
                                     .method = method->name,
                                     .ranks = ranks,
                                     .microbatches = microbatches,
                                     .chunks = chunks};
    dp_schedule_t *schedule;

    return dp_schedule_generate(&request, &schedule) >= 0 ? schedule : NULL;
}

/* Segments of all passes of a step. */
static double segments_in(int32_t ranks, int32_t microbatches)
{
    return (double)ranks * microbatches * layer.layers * (2 * DP_SEGMENT_COSTS + 2);
}

static double train(const dp_method_t *method, int32_t ranks, int32_t microbatches, int32_t chunks)
{
    dp_schedule_t *schedule = generate(method, ranks, microbatches, chunks);
    double busy[2], seconds = 0, step, speed;

    if (schedule == NULL)
        return INFINITY;
    step = step_of(schedule, &seconds);
    speed = segments_in(ranks, microbatches) / seconds / 1e6;
    lanes_of(1, busy);
    printf("%-20s %5d %6d %10.1f ms %9.2f %% %9.2f %% %14.1f\n", method->name, ranks, schedule->chunks, step,
           100 * microbatches * busy[0] / step, 100 * microbatches * fmax(busy[0], busy[1]) / step, speed);
    dp_schedule_free(schedule);
    return speed;
}

/* What one more micro-batch takes, when there are many. */
static int infer(const dp_method_t *method, int32_t ranks, int32_t microbatches)
{
    double step[2][2], busy[2], off;

    for (int overlap = 0; overlap < 2; overlap++)
        for (int twice = 0; twice < 2; twice++) {
            dp_schedule_t *schedule = generate(method, ranks, microbatches << twice, 0), *only;

            if (schedule == NULL)
                return 0;
            check(dp_schedule_forwards(schedule, overlap, &only));
            step[overlap][twice] = step_of(only, NULL);
            dp_schedule_free(only);
            dp_schedule_free(schedule);
        }
    lanes_of(0, busy);
    off = (step[1][1] - step[1][0]) / microbatches / fmax(busy[0], busy[1]) - 1;
    printf("%-20s %5d %12.2f ms %12.2f ms %12.2f ms %9.2f %%  %s\n", method->name, ranks,
           (step[0][1] - step[0][0]) / microbatches, (step[1][1] - step[1][0]) / microbatches, fmax(busy[0], busy[1]),
           100 * off, off <= 0.03 ? "ok" : "OFF");
    return off > 0.03;
}

int main(int argc, char **argv)
{
    int32_t microbatches = argc > 1 ? atoi(argv[1]) : 64;
    double slowest = INFINITY;
    int off = 0;
    size_t count;
    const dp_method_t *methods = dp_schedule_methods(&count);

    if (microbatches < 1 || microbatches > DP_MAX_MICROBATCHES / 2) {
        fprintf(stderr, "usage: schedule_lanes [MICROBATCHES]\n");
        return 2;
    }
    printf("training, %d micro-batches; bound: the busier lane never waits\n", microbatches);
    printf("%-20s %5s %6s %13s %11s %11s %14s\n", "method", "ranks", "chunks", "step", "computing", "bound",
           "M segments/s");
    for (int32_t ranks = 8; ranks <= 16; ranks *= 2)
        for (size_t m = 0; m < count; m++) {
            slowest = fmin(slowest, train(&methods[m], ranks, microbatches, 0));
            if (methods[m].placement == DP_PLACE_LOOP)
                slowest = fmin(slowest, train(&methods[m], ranks, microbatches, 4));
        }
    printf("\nforward only, one more micro-batch:\n%-20s %5s %15s %15s %15s %11s\n", "method", "ranks", "one by one",
           "two by two", "busiest lane", "off");
    for (int32_t ranks = 8; ranks <= 16; ranks *= 2)
        for (size_t m = 0; m < count; m++)
            off |= infer(&methods[m], ranks, microbatches);
    printf("\nslowest: %.1f million segments a second\n", slowest);
    return off || slowest < 10;
}
