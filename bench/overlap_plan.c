/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * overlap_plan.c: what a planned overlap gains over published pairs, with the costs of
 * DeepSeek-V3's published profile: the useful share of a step (computation of a rank / step),
 * beside the bound that no order can beat.
 *
 *     bench/overlap_plan [SECONDS [MICROBATCHES [ROW]]]       of planning, each; default 10 64, all
 *                                                             rows, with three seeds each
 *
 * group: micro-batches that pass the chunks of a rank together, 0: as many as ranks; slots: of a
 * channel; messages: for which the slots of a rank have room, each as large as a stage's input.
 * Both schedules are simulated by segments on lanes, as the engine enqueues them. The memory is
 * what the schedule itself holds (`dualpipe compare`), or what stands there; `cap` 0 is the former.
 * A last line says how long planning takes without a time given, for 16 ranks and 128
 * micro-batches. Exit status 1 when a plan is worse than its schedule. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <dualpipe/overlap.h>

/* deepseek-ai/profile-data, train.json, by `dualpipe trace costs`: milliseconds of a layer and
 * micro-batch. */
static const dp_segment_costs_t segments = {.struct_size = sizeof(segments),
                                            .layers = 4,
                                            .f = {4.36975, 6.69025, 4.60375, 8.684},
                                            .i = {9.34075, 7.48675, 5.306, 5.76925},
                                            .w = {2.3885, 0, 5.06275, 0}};

enum { SEEDS = 3 };

static const struct {
    const char *method;
    int32_t ranks, chunks, group, slots;
    double memory_cap;
} cases[] = {
    {"interleaved_overlap", 8, 4, 0, 2, 0},
    {"interleaved_overlap", 8, 4, 10, 2, 0},
    {"interleaved_overlap", 8, 4, 0, 6, 12},
    {"interleaved_overlap", 8, 4, 0, 6, 16},
    {"interleaved_overlap", 16, 4, 0, 8, 24},
    {"interleaved_overlap", 16, 4, 0, 8, 32},
    {"dualpipev", 8, 0, 0, 6, 12},
    {"dualpipev", 8, 0, 0, 2, 0},
    {"dualpipe", 8, 0, 0, 2, 0},
    {"interleaved_overlap", 16, 4, 0, 2, 0},
    {"interleaved_overlap", 16, 4, 22, 6, 0},
    {"dualpipev", 16, 0, 0, 2, 0},
    {"dualpipe", 16, 0, 0, 2, 0},
};

static double processor_seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static dp_status_t simulate(const dp_schedule_t *schedule, int32_t slots, const dp_costs_t *costs, double *step,
                            double *peak)
{
    dp_simulation_t simulation = {.struct_size = sizeof(simulation)};
    dp_lower_options_t options = {.struct_size = sizeof(options), .slots = slots};
    dp_status_t status = dp_evaluate(schedule, &options, costs, 0, &simulation);

    if (status >= 0) {
        *step = simulation.step_time;
        *peak = 0.0;
        for (int32_t r = 0; r < simulation.ranks; r++)
            *peak = simulation.peak_activations[r] > *peak ? simulation.peak_activations[r] : *peak;
        dp_simulation_clear(&simulation);
    }
    return status;
}

static int run_case(size_t k, double seconds, int32_t microbatches, uint64_t seed)
{
    dp_costs_t costs = {.struct_size = sizeof(costs), .barrier = 1, .segments = &segments};
    dp_schedule_request_t request = {.struct_size = sizeof(request),
                                     .method = cases[k].method,
                                     .ranks = cases[k].ranks,
                                     .microbatches = microbatches,
                                     .chunks = cases[k].chunks,
                                     .microbatch_group = cases[k].group};
    dp_overlap_request_t plan = {.struct_size = sizeof(plan),
                                 .costs = &costs,
                                 .memory_cap = cases[k].memory_cap,
                                 .slots = cases[k].slots,
                                 .tries = 1 << 20,
                                 .seconds = seconds,
                                 .seed = seed};
    dp_overlap_result_t result = {.struct_size = sizeof(result)};
    double useful = 0.0, given = 0.0, planned = 0.0, peak, planned_peak = 0.0, began;
    dp_schedule_t *schedule;
    dp_status_t status = dp_schedule_generate(&request, &schedule);

    for (int s = 0; s < DP_SEGMENT_COSTS; s += 2)
        useful += segments.layers * microbatches * (segments.f[s] + segments.i[s] + segments.w[s]);
    if (status >= 0)
        status = simulate(schedule, cases[k].slots, &costs, &given, &peak);
    plan.schedule = schedule;
    began = processor_seconds();
    if (status >= 0)
        status = dp_plan_overlap(&plan, &result);
    began = processor_seconds() - began;
    if (status >= 0)
        status = simulate(result.schedule, cases[k].slots, &costs, &planned, &planned_peak);
    if (status < 0)
        printf("%-20s %s\n", cases[k].method, dp_last_error());
    else
        printf("%-20s %5d %6d %5d %5d %8d %4g %7g %4d  %8.1f %6.2f %%  %8.1f %6.2f %%  %8.1f %6.2f %%  %6g %8.1f\n",
               cases[k].method, cases[k].ranks, schedule->chunks, cases[k].group, cases[k].slots,
               2 * schedule->chunks * cases[k].slots, cases[k].memory_cap, planned_peak, (int)seed, given,
               100 * useful / given, planned, 100 * useful / planned, result.bound, 100 * useful / result.bound,
               (double)result.tried, result.tried / began);
    fflush(stdout);
    dp_overlap_clear(&result);
    dp_schedule_free(schedule);
    return status < 0 || planned > given * (1 + 1e-9);
}

/* Without a time or a number of tries. */
static int time_default(void)
{
    dp_costs_t costs = {.struct_size = sizeof(costs), .barrier = 1, .segments = &segments};
    dp_schedule_request_t request = {
        .struct_size = sizeof(request), .method = "dualpipe", .ranks = 16, .microbatches = 128};
    dp_overlap_request_t plan = {.struct_size = sizeof(plan), .costs = &costs, .seed = 1};
    dp_overlap_result_t result = {.struct_size = sizeof(result)};
    dp_schedule_t *schedule;
    dp_status_t status = dp_schedule_generate(&request, &schedule);
    double began = processor_seconds();

    plan.schedule = schedule;
    if (status >= 0)
        status = dp_plan_overlap(&plan, &result);
    if (status < 0)
        printf("dualpipe: %s\n", dp_last_error());
    else
        printf("dualpipe, 16 ranks, 128 micro-batches: %d sets of rules in %.2f s of processor time\n", result.tried,
               processor_seconds() - began);
    dp_overlap_clear(&result);
    dp_schedule_free(schedule);
    return status < 0;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 10.0;
    int32_t microbatches = argc > 2 ? atoi(argv[2]) : 64;
    int worse = 0;

    printf("%d micro-batches, %g s of planning each; a step in ms and its useful share\n", microbatches, seconds);
    printf("%-20s %5s %6s %5s %5s %8s %4s %7s %4s  %8s %8s  %8s %8s  %8s %8s  %6s %8s\n", "schedule", "ranks", "chunks",
           "group", "slots", "messages", "cap", "held", "seed", "pairs", "", "planned", "", "bound", "", "tried",
           "a CPU s");
    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++)
        if (argc <= 3 || (size_t)atoi(argv[3]) == k)
            for (uint64_t seed = 1; seed <= SEEDS; seed++)
                worse += run_case(k, seconds, microbatches, seed);
    return time_default() + worse > 0;
}
