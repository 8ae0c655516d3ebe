/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * schedule_search.c: what `dualpipe search` gains over the best built-in schedule, under DualPipe's
 * memory (P + 1 micro-batches' activations), for several costs; and with those of DeepSeek-V3's
 * published profile, whose segments are planned, for 8 ranks and 64 micro-batches (one copy of the
 * weights, 16 micro-batches held).
 *
 *     bench/schedule_search [SECONDS [RANKS [MICROBATCHES]]]       default 10 4 12
 *
 * Exit status 1 when a search does not end better than the best built-in schedule. */
#include <dualpipe/search.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const struct {
    const char *name;
    dp_costs_t costs;
} sets[] = {
    {"F=1,I=1,W=1", {.struct_size = sizeof(dp_costs_t), .f = 1, .i = 1, .w = 1, .barrier = 1}},
    {"F=1,I=1,W=1,HOP=0.1", {.struct_size = sizeof(dp_costs_t), .f = 1, .i = 1, .w = 1, .hop = 0.1, .barrier = 1}},
    {"F=1,I=1,W=1,HOP=0.3", {.struct_size = sizeof(dp_costs_t), .f = 1, .i = 1, .w = 1, .hop = 0.3, .barrier = 1}},
    {"F=1,I=1.4,W=0.6", {.struct_size = sizeof(dp_costs_t), .f = 1, .i = 1.4, .w = 0.6, .barrier = 1}},
    {"F=1,I=0.8,W=1.2", {.struct_size = sizeof(dp_costs_t), .f = 1, .i = 0.8, .w = 1.2, .barrier = 1}},
    {"F=1,I=1,W=1,FB=2.4", {.struct_size = sizeof(dp_costs_t), .f = 1, .i = 1, .w = 1, .fb = 2.4, .barrier = 1}},
    {"F=1,I=1,W=1,FB=2.4,HOP=0.1",
     {.struct_size = sizeof(dp_costs_t), .f = 1, .i = 1, .w = 1, .fb = 2.4, .hop = 0.1, .barrier = 1}},
    {"F=1,I=1.4,W=0.6,FB=2.6,HOP=0.2",
     {.struct_size = sizeof(dp_costs_t), .f = 1, .i = 1.4, .w = 0.6, .fb = 2.6, .hop = 0.2, .barrier = 1}},
};

/* deepseek-ai/profile-data, train.json, by `dualpipe trace costs`: milliseconds of a layer and
 * micro-batch. */
static const dp_segment_costs_t layer = {.struct_size = sizeof(layer),
                                         .layers = 4,
                                         .f = {4.36975, 6.69025, 4.60375, 8.684},
                                         .i = {9.34075, 7.48675, 5.306, 5.76925},
                                         .w = {2.3885, 0, 5.06275, 0}};
static const dp_costs_t deepseek = {.struct_size = sizeof(deepseek), .barrier = 1, .segments = &layer};

static double processor_seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

/* 0: better than the best built-in schedule. */
static int search(const char *name, dp_search_request_t *request)
{
    dp_search_result_t result = {.struct_size = sizeof(result)};
    double began = processor_seconds();
    int worse;

    if (dp_search(request, &result) != DP_OK) {
        fprintf(stderr, "schedule_search: %s\n", dp_last_error());
        return 1;
    }
    printf("%-32s %-30s %8.4g %8.4g %6.2f %%  %6g %10lld %10.0f\n", name, result.built_in, result.built_in_step,
           result.step, (1.0 - result.step / result.built_in_step) * 100.0, result.peak, (long long)result.tried,
           (double)result.tried / (processor_seconds() - began));
    fflush(stdout);
    worse = result.step >= result.built_in_step * (1.0 - 1e-9);
    dp_search_clear(&result);
    return worse;
}

int main(int argc, char **argv)
{
    dp_search_request_t request = {.struct_size = sizeof(request),
                                   .ranks = argc > 2 ? atoi(argv[2]) : 4,
                                   .microbatches = argc > 3 ? atoi(argv[3]) : 12,
                                   .transport = DP_TRANSPORT_CREDITS,
                                   .slots = 2,
                                   .seconds = argc > 1 ? strtod(argv[1], NULL) : 10.0,
                                   .seed = 1};
    int worse = 0;

    request.memory_cap = request.ranks + 1.0;
    printf("%d ranks, %d micro-batches, at most %g held, %g s each\n", request.ranks, request.microbatches,
           request.memory_cap, request.seconds);
    printf("%-32s %-30s %8s %8s %8s  %6s %10s %10s\n", "costs", "best built-in", "step", "found", "shorter", "held",
           "tried", "a CPU s");
    for (size_t s = 0; s < sizeof(sets) / sizeof(sets[0]); s++) {
        request.costs = &sets[s].costs;
        worse |= search(sets[s].name, &request);
    }
    request.ranks = 8;
    request.microbatches = 64;
    request.costs = &deepseek;
    request.memory_cap = 16.0;
    request.weights = 1;
    return search("DeepSeek-V3, 8 ranks, 64", &request) | worse;
}
