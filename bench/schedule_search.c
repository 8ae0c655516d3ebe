/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * schedule_search.c: what `dualpipe search` gains over the best built-in schedule, under DualPipe's memory (P + 1
 * micro-batches' activations), for several costs.
 *
 *     bench/schedule_search [SECONDS [RANKS [MICROBATCHES]]]       default 10 4 12
 *
 * Exit status 1 when a search ends worse than a built-in schedule, or none ends better. */
#include <dualpipe/search.h>
#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *name;
    dp_costs_t costs;
} sets[] = {
    {"F=1,I=1,W=1", {sizeof(dp_costs_t), 1, 1, 1, 0, 0, 0, 1, NULL, 0, 0, NULL, 0, 0, 0, 0, NULL}},
    {"F=1,I=1,W=1,HOP=0.1", {sizeof(dp_costs_t), 1, 1, 1, 0, 0, 0.1, 1, NULL, 0, 0, NULL, 0, 0, 0, 0, NULL}},
    {"F=1,I=1,W=1,HOP=0.3", {sizeof(dp_costs_t), 1, 1, 1, 0, 0, 0.3, 1, NULL, 0, 0, NULL, 0, 0, 0, 0, NULL}},
    {"F=1,I=1.4,W=0.6", {sizeof(dp_costs_t), 1, 1.4, 0.6, 0, 0, 0, 1, NULL, 0, 0, NULL, 0, 0, 0, 0, NULL}},
    {"F=1,I=0.8,W=1.2", {sizeof(dp_costs_t), 1, 0.8, 1.2, 0, 0, 0, 1, NULL, 0, 0, NULL, 0, 0, 0, 0, NULL}},
    {"F=1,I=1,W=1,FB=2.4", {sizeof(dp_costs_t), 1, 1, 1, 0, 2.4, 0, 1, NULL, 0, 0, NULL, 0, 0, 0, 0, NULL}},
    {"F=1,I=1,W=1,FB=2.4,HOP=0.1", {sizeof(dp_costs_t), 1, 1, 1, 0, 2.4, 0.1, 1, NULL, 0, 0, NULL, 0, 0, 0, 0, NULL}},
    {"F=1,I=1.4,W=0.6,FB=2.6,HOP=0.2",
     {sizeof(dp_costs_t), 1, 1.4, 0.6, 0, 2.6, 0.2, 1, NULL, 0, 0, NULL, 0, 0, 0, 0, NULL}},
};

int main(int argc, char **argv)
{
    dp_search_request_t request = {.struct_size = sizeof(request),
                                   .ranks = argc > 2 ? atoi(argv[2]) : 4,
                                   .microbatches = argc > 3 ? atoi(argv[3]) : 12,
                                   .transport = DP_TRANSPORT_CREDITS,
                                   .slots = 2,
                                   .seconds = argc > 1 ? strtod(argv[1], NULL) : 10.0,
                                   .seed = 1};
    int worse = 0, better = 0;

    request.memory_cap = request.ranks + 1.0;
    printf("%d ranks, %d micro-batches, at most %g held, %g s each\n", request.ranks, request.microbatches,
           request.memory_cap, request.seconds);
    printf("%-32s %-30s %8s %8s %8s  %6s %10s\n", "costs", "best built-in", "step", "found", "shorter", "held",
           "tried");
    for (size_t s = 0; s < sizeof(sets) / sizeof(sets[0]); s++) {
        dp_search_result_t result = {.struct_size = sizeof(result)};

        request.costs = &sets[s].costs;
        if (dp_search(&request, &result) != DP_OK) {
            fprintf(stderr, "schedule_search: %s\n", dp_last_error());
            return 1;
        }
        printf("%-32s %-30s %8.4g %8.4g %6.2f %%  %6g %10lld\n", sets[s].name, result.built_in, result.built_in_step,
               result.step, (1.0 - result.step / result.built_in_step) * 100.0, result.peak, (long long)result.tried);
        fflush(stdout);
        worse += result.step > result.built_in_step + 1e-9;
        better += result.step < result.built_in_step - 1e-9;
        dp_search_clear(&result);
    }
    return worse > 0 || better == 0;
}
