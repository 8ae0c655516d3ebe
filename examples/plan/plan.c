/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * plan.c: plans without a run, with libdualplan alone. `plan` simulates a step of each built-in
 * method and places experts on GPUs. `plan METHOD` writes the step of that method as a Chrome
 * trace. */
#include <dualpipe/plan.h>

#include <stdio.h>
#include <stdlib.h>

enum { RANKS = 8, MICROBATCHES = 20 };
enum { EXPERTS = 64, SLOTS = 72, GROUPS = 8, NODES = 2, GPUS = 8 };

/* ---- schedules ---- */

/* dp_evaluate() also proves that the step ends, whatever the transport's timing. */
static dp_status_t simulate_method(const char *method, int with_timeline, dp_simulation_t *result)
{
    const dp_schedule_request_t request = {
        .struct_size = sizeof(request), .method = method, .ranks = RANKS, .microbatches = MICROBATCHES};
    const dp_costs_t costs = {.struct_size = sizeof(costs), .f = 1, .i = 1, .w = 1, .fb = 2.3, .hop = 0.05};
    dp_schedule_t *schedule = NULL;
    dp_status_t status = dp_schedule_generate(&request, &schedule);

    if (status >= 0)
        status = dp_evaluate(schedule, NULL, &costs, with_timeline, result);
    dp_schedule_free(schedule);
    return status;
}

static void print_step(const char *method)
{
    dp_simulation_t result = {.struct_size = sizeof(result)};
    double idle = 0, held = 0;

    if (simulate_method(method, 0, &result) < 0) {
        printf("%-20s %s\n", method, dp_last_error());
        return;
    }
    for (int32_t r = 0; r < result.ranks; r++) {
        idle += result.bubble[r] / result.ranks;
        held = result.peak_activations[r] > held ? result.peak_activations[r] : held;
    }
    printf("%-20s step %.9f, idle %.9f, micro-batches held %.9f\n", method, result.step_time, idle, held);
    dp_simulation_clear(&result);
}

static int32_t print_text(void *user, const char *text, size_t bytes)
{
    (void)user;
    return fwrite(text, 1, bytes, stdout) == bytes ? 0 : -1;
}

static dp_status_t write_trace(const char *method)
{
    dp_simulation_t result = {.struct_size = sizeof(result)};
    dp_status_t status = simulate_method(method, 1, &result);

    if (status >= 0)
        status = dp_timeline_write_chrome(result.timeline, print_text, NULL);
    dp_simulation_clear(&result);
    return status;
}

/* ---- experts ---- */

static void print_experts(const dp_eplb_shape_t *shape, const int32_t *slots, const double *gpu_loads)
{
    for (int32_t gpu = 0; gpu < GPUS; gpu++) {
        int32_t first, count;

        dp_eplb_gpu_slots(shape, gpu, &first, &count);
        printf("GPU %d, load %.9f:", gpu, gpu_loads[gpu]);
        for (int32_t slot = first; slot < first + count; slot++)
            printf(" %d", slots[slot]);
        printf("\n");
    }
}

static dp_status_t place_experts(void)
{
    const dp_eplb_shape_t shape = {.struct_size = sizeof(shape),
                                   .layers = 1,
                                   .experts = EXPERTS,
                                   .replicas = SLOTS,
                                   .groups = GROUPS,
                                   .nodes = NODES,
                                   .gpus = GPUS};
    int32_t slots[SLOTS];
    float loads[EXPERTS];
    double gpu_loads[GPUS];
    dp_eplb_placement_t placement = {.struct_size = sizeof(placement), .physical_to_logical = slots};
    dp_eplb_balance_t balance = {.struct_size = sizeof(balance)};
    size_t bytes = 0;
    dp_status_t status = dp_eplb_workspace_bytes(&shape, &bytes);
    void *workspace = malloc(bytes);

    for (int32_t e = 0; e < EXPERTS; e++)
        loads[e] = 1000.0f / (float)(1 + 37 * e % EXPERTS); /* a few experts get most tokens */
    if (status >= 0 && workspace == NULL)
        status = dp_fail(DP_ERR_NOMEM, "no memory for %zu bytes", bytes);
    if (status >= 0)
        status = dp_eplb_rebalance(&shape, NULL, loads, &placement, workspace, bytes);
    if (status >= 0)
        status = dp_eplb_measure(&shape, loads, slots, &balance, gpu_loads, NULL, workspace, bytes);
    if (status >= 0)
        print_experts(&shape, slots, gpu_loads);
    free(workspace);
    return status;
}

int main(int argc, char **argv)
{
    dp_status_t status;

    if (argc > 1) {
        status = write_trace(argv[1]);
    } else {
        size_t count;
        const dp_method_t *methods = dp_schedule_methods(&count);

        for (size_t m = 0; m < count; m++)
            print_step(methods[m].name);
        status = place_experts();
    }
    if (status < 0)
        fprintf(stderr, "%s\n", dp_last_error());
    return status < 0;
}
