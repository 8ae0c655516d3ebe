/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cmd_partition.c: dualpipe partition: which layers go onto which stage. */
#include <stdio.h>
#include <stdlib.h>

#include "args.h"
#include "commands.h"
#include "plan.h"

static const option_row_t *const partition_tables[] = {args_layers, args_method,    args_sizes, args_cost,
                                                       args_ranks,  args_transport, NULL};

const command_t command_partition = {
    .name = "partition",
    .usage =
        "usage: dualpipe partition --layers LIST --method NAME --ranks P --microbatches M [OPTIONS]\n"
        "       dualpipe partition --layers LIST FILE [OPTIONS]\n"
        "Cuts a model whose layers do not all cost the same into the stages of a schedule, so that the simulated step is short: beginning with the cut whose dearest stage is the cheapest, and with equal numbers of layers, cuts are moved while the step gets shorter. Costs say what a device takes if all stages cost the same.\n"
        "\n",
    .tables = partition_tables,
    .lists_methods = true,
    .needs = ARG_METHOD | ARG_SIZES | ARG_FILE,
    .notes = "\n"
             "examples:\n"
             "  dualpipe partition --layers 0.3,1x61,2.5 --method dualpipe --ranks 8 --microbatches 32\n"
             "  dualpipe partition --layers 1x24,4 --method zb1p --ranks 4 --microbatches 16 --cost F=1,I=1.2,W=0.8\n"
             "\n"
             "exit status: 0 done, 1 a file could not be read, 2 wrong usage, 20 the schedule is rejected\n"};

static dp_status_t simulate_partition(const plan_t *plan, const int32_t *first, double *scale, double *step_out)
{
    dp_costs_t costs = plan->args->costs;
    dp_simulation_t result = {.struct_size = sizeof(result)};
    dp_status_t status;

    plan_layer_scales(plan, first, scale);
    costs.stage_scale = scale;
    status = dp_simulate(plan->program, &costs, 0, &result);
    *step_out = result.step_time;
    dp_simulation_clear(&result);
    return status;
}

static void say(const int32_t *first, const double *scale, int32_t stages, double step, double even)
{
    printf("step       %.6g\n", step);
    printf("           %.6g when every stage gets the same number of layers, give or take one\n\n", even);
    printf("stage   layers        cost (mean stage 1)\n");
    for (int32_t s = 0; s < stages; s++)
        printf("%5d   %4d to %-4d  %.4g\n", s, first[s], first[s + 1] - 1, scale[s]);
    printf("\n--stage-scale ");
    for (int32_t s = 0; s < stages; s++)
        printf("%s%.6g", s > 0 ? "," : "", scale[s]);
    printf("\n--partition ");
    for (int32_t s = 0; s < stages; s++)
        printf("%s%d", s > 0 ? "," : "", first[s + 1] - first[s]);
    printf("\n");
}

static dp_status_t partition(const plan_t *plan)
{
    int32_t stages = dp_schedule_stages(plan->schedule);
    int32_t *first = calloc(2 * ((size_t)stages + 1), sizeof(*first)), *even = first + stages + 1;
    double *scale = calloc((size_t)stages, sizeof(*scale)), step = 0, even_step = 0;
    dp_partition_request_t request = {.struct_size = sizeof(request),
                                      .layers = plan->args->nlayers,
                                      .layer_costs = plan->args->layers,
                                      .program = plan->program,
                                      .costs = &plan->args->costs};
    dp_status_t status = first != NULL && scale != NULL ? dp_partition(&request, first, &step)
                                                        : dp_fail(DP_ERR_NOMEM, "no memory for %d stages", stages);

    for (int32_t s = 0; s <= stages && status >= 0; s++)
        even[s] = (int32_t)((int64_t)plan->args->nlayers * s / stages);
    if (status >= 0)
        status = simulate_partition(plan, even, scale, &even_step);
    if (status >= 0)
        status = simulate_partition(plan, first, scale, &step);
    if (status >= 0)
        say(first, scale, stages, step, even_step);
    free(first);
    free(scale);
    return status;
}

static int run_partition(const args_t *args)
{
    plan_t plan = {.args = args};
    int code;

    if (args->layers == NULL)
        return args_usage(args, "--layers LIST is required");
    plan_leave_scales(args);
    code = plan_program(args, &plan);
    if (code == CMD_OK) {
        dp_status_t status = partition(&plan);

        code = status >= 0 ? CMD_OK : args_failed(args, status);
    }
    plan_clear(&plan);
    return code;
}

int cmd_partition(int argc, char **argv)
{
    args_t args;
    int code;

    if (args_parse(&command_partition, argc, argv, &args, &code))
        code = run_partition(&args);
    args_clear(&args);
    return code;
}
