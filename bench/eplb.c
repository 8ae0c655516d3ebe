/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * eplb.c: how long a placement takes, on one core.
 *
 *     bench/eplb [SECONDS]       default 2 for each row
 *
 * The first two rows are shapes for which the time of the published code is on record: the best of
 * several runs of its rebalance_experts() on one core (PyTorch 1.13.1, CPU, one thread), 291 ms and
 * 2,434 ms. "ratio" is that time over the best time here; bench/peer_eplb.py times PyTorch on this
 * machine. Loads are lognormal, drawn anew for each run. Exit status 1 when one of the two is not a
 * thousand times as fast. */
#include <dualpipe/eplb.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct row {
    const char *name;
    int32_t layers, experts, replicas, groups, nodes, gpus, policy;
    double published_ms; /* 0: not on record */
} row_t;

static const row_t rows[] = {
    {"hierarchical", 58, 256, 288, 8, 4, 32, DP_EPLB_HIERARCHICAL, 291.0},
    {"global", 58, 256, 320, 8, 4, 160, DP_EPLB_GLOBAL, 2434.0},
    {"hierarchical", 58, 256, 320, 8, 4, 64, DP_EPLB_HIERARCHICAL, 0.0},
    {"global", 58, 256, 320, 8, 40, 320, DP_EPLB_GLOBAL, 0.0},
    {"global", 1, 256, 288, 8, 4, 32, DP_EPLB_GLOBAL, 0.0},
    {"global", 61, 1024, 4096, 8, 64, 512, DP_EPLB_GLOBAL, 0.0},
};

static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static void check(dp_status_t status)
{
    if (status >= 0)
        return;
    fprintf(stderr, "eplb: %s\n", dp_last_error());
    exit(1);
}

static double uniform(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)((*state >> 11) + 1) / 9007199254740993.0;
}

static void draw(float *weights, size_t count, uint64_t *state)
{
    for (size_t i = 0; i < count; i++) {
        double normal = sqrt(-2.0 * log(uniform(state))) * cos(2.0 * 3.14159265358979323846 * uniform(state));
        weights[i] = (float)floor(1000.0 * exp(normal));
    }
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int run(const row_t *row, double seconds)
{
    dp_eplb_shape_t shape = {sizeof(shape), row->layers, row->experts, row->replicas,
                             row->groups,   row->nodes,  row->gpus};
    dp_eplb_options_t options = {.struct_size = sizeof(options), .policy = row->policy};
    dp_eplb_placement_t placement = {.struct_size = sizeof(placement)};
    size_t experts = (size_t)row->layers * (size_t)row->experts, bytes, runs = 0;
    double times[4096], start = now_ms();
    float *weights = malloc(experts * sizeof(*weights));
    uint64_t state = 1;
    void *workspace;

    check(dp_eplb_workspace_bytes(&shape, &bytes));
    workspace = malloc(bytes);
    placement.physical_to_logical = malloc((size_t)row->layers * (size_t)row->replicas * sizeof(int32_t));
    placement.expert_count = malloc(experts * sizeof(int32_t));
    placement.logical_to_physical = malloc(experts * (size_t)dp_eplb_most_replicas(&shape) * sizeof(int32_t));
    while (runs < 5 || (runs < 4096 && now_ms() - start < 1e3 * seconds)) {
        double before;

        draw(weights, experts, &state);
        before = now_ms();
        check(dp_eplb_rebalance(&shape, &options, weights, &placement, workspace, bytes));
        times[runs++] = now_ms() - before;
    }
    qsort(times, runs, sizeof(*times), compare_doubles);
    printf("%-12s %6d %7d %8d %6d %5d %4d %9.3f %9.3f %8zu", row->name, row->layers, row->experts, row->replicas,
           row->groups, row->nodes, row->gpus, times[0], times[runs / 2], bytes / 1024);
    if (row->published_ms > 0.0)
        printf(" %9.0f %7.0f", row->published_ms, row->published_ms / times[0]);
    printf("\n");
    free(placement.physical_to_logical);
    free(placement.expert_count);
    free(placement.logical_to_physical);
    free(workspace);
    free(weights);
    return row->published_ms > 0.0 && times[0] * 1000.0 > row->published_ms;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 2.0;
    int slow = 0;

    printf("%-12s %6s %7s %8s %6s %5s %4s %9s %9s %8s %9s %7s\n", "policy", "layers", "experts", "replicas", "groups",
           "nodes", "gpus", "best ms", "median ms", "work KiB", "recorded", "ratio");
    for (size_t k = 0; k < sizeof(rows) / sizeof(rows[0]); k++)
        slow |= run(&rows[k], seconds);
    printf("recorded: best time of the published code on one core in ms, not measured in this run\n");
    return slow;
}
