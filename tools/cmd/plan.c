/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * plan.c: from a command line to a schedule, its program and its simulation. */
#include "plan.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dualpipe/overlap.h>

#include "commands.h"
#include "memory.h"
#include "tools/io/input.h"
#include "tools/io/output.h"

#define LONG_OPERATIONS 2e6
#define OPERATION_BYTES 360                 /* that lowering, proof and simulation take for one */
#define LARGEST_FILE    ((size_t)512 << 20) /* 4096 ranks of 12,000 operations */

bool plan_is_csv(const char *path)
{
    size_t length = strlen(path);

    return length > 4 && strcmp(path + length - 4, ".csv") == 0;
}

static dp_status_t parse(const args_t *args, const char *text, size_t bytes, plan_t *plan)
{
    dp_status_t status;

    plan->from_csv = plan_is_csv(args->file);
    if (!plan->from_csv)
        return dp_schedule_read_tsv(args->file, text, bytes, &plan->schedule);
    status = dp_schedule_read_csv(args->file, text, bytes, &plan->schedule);
    if (status >= 0)
        status = dp_schedule_check_csv_transfers(plan->schedule, args->file, text, bytes,
                                                 args->transport == DP_TRANSPORT_BUNDLES, &plan->transfers);
    return status;
}

/* Files are named in front of what is wrong with them. */
static int failed_in_file(const args_t *args, dp_status_t status)
{
    const char *message = dp_last_error();
    char text[1024];

    if (args->file != NULL && status == DP_ERR_REJECTED && strncmp(message, "verify: ", 8) == 0) {
        snprintf(text, sizeof(text), "%s", message + 8);
        status = dp_fail(status, "%s: %s", args->file, text);
    }
    return args_failed(args, status);
}

static int read_schedule(const args_t *args, plan_t *plan)
{
    char *text = NULL;
    size_t bytes = 0;
    dp_status_t status = input_read(args->file, LARGEST_FILE, &text, &bytes);

    if (status < 0)
        return args_failed(args, status);
    status = parse(args, text, bytes, plan);
    free(text);
    if (status >= 0)
        return args_check_ranks(args, plan->schedule->ranks);
    (void)args_failed(args, status);
    return status == DP_ERR_NOMEM ? CMD_FAILED : CMD_REJECTED;
}

static int make_schedule(const args_t *args, plan_t *plan)
{
    dp_schedule_request_t request = {.struct_size = sizeof(request),
                                     .method = args->method,
                                     .ranks = args->ranks,
                                     .microbatches = args->microbatches,
                                     .chunks = args->chunks,
                                     .forward_only = args->forward_only,
                                     .microbatch_group = args->microbatch_group};
    dp_status_t status = dp_schedule_generate(&request, &plan->schedule);

    return status >= 0 ? CMD_OK : args_failed(args, status);
}

/* Once; of the schedule that a plan begins with. */
static dp_status_t find_costs(plan_t *plan)
{
    dp_status_t status = DP_OK;

    if (plan->costs.struct_size == 0)
        status = plan_costs(plan->args, plan->schedule, &plan->costs);
    if (status >= 0 && plan->host_of == NULL)
        status = plan_place(plan, TOPOLOGY_AS_GIVEN, &plan->costs);
    return status;
}

static dp_status_t plan_braids(const args_t *args, const dp_schedule_t *schedule, const dp_costs_t *costs,
                               dp_schedule_t **braided_out)
{
    dp_overlap_request_t request = {.struct_size = sizeof(request),
                                    .schedule = schedule,
                                    .costs = costs,
                                    .memory_cap = args->memory_cap < 0.0 ? 0.0 : fmax(args->memory_cap, DBL_MIN),
                                    .slots = args->slots,
                                    .tries = args->seconds > 0.0 ? INT32_MAX : 0,
                                    .seconds = args->seconds,
                                    .seed = (uint64_t)args->seed};
    dp_overlap_result_t result = {.struct_size = sizeof(result)};
    dp_status_t status = dp_plan_overlap(&request, &result);

    *braided_out = result.schedule; /* ours from here on */
    return status;
}

dp_status_t plan_overlap(plan_t *plan, const dp_costs_t *costs)
{
    dp_schedule_t *given = plan->schedule;
    dp_status_t status;

    if (plan->args->overlap == OVERLAP_CANONICAL)
        return DP_OK;
    status = plan->args->overlap == OVERLAP_NONE ? dp_schedule_serial(given, &plan->schedule)
                                                 : plan_braids(plan->args, given, costs, &plan->schedule);
    dp_schedule_free(given);
    return status;
}

/* A step in the published order, which the planned one is compared with. */
static dp_status_t time_published(plan_t *plan)
{
    dp_lower_options_t options = {
        .struct_size = sizeof(options), .transport = plan->args->transport, .slots = plan->args->slots};
    dp_simulation_t simulation = {.struct_size = sizeof(simulation)};
    dp_status_t status = dp_evaluate(plan->schedule, &options, &plan->costs, 0, &simulation);

    plan->published = status >= 0 ? simulation.step_time : 0.0;
    dp_simulation_clear(&simulation);
    return status;
}

int plan_schedule(const args_t *args, plan_t *plan)
{
    dp_status_t status = DP_OK;
    int code;

    *plan = (plan_t){.args = args};
    code = args->file != NULL ? read_schedule(args, plan) : make_schedule(args, plan);
    if (code != CMD_OK)
        return code;
    if (args->inference != 0) {
        dp_schedule_t *given = plan->schedule;

        status = dp_schedule_forwards(given, args->inference + 1, &plan->schedule);
        dp_schedule_free(given);
    }
    if (args->overlap == OVERLAP_PLANNED)
        status = find_costs(plan);
    if (status >= 0 && args->overlap == OVERLAP_PLANNED && args->inference != 0)
        status = time_published(plan);
    if (status >= 0)
        status = plan_overlap(plan, &plan->costs);
    return status >= 0 ? CMD_OK : failed_in_file(args, status);
}

/* Before the time is taken. */
static void say_if_long(const args_t *args, const dp_schedule_t *schedule)
{
    double operations = (double)schedule->first[schedule->ranks];

    if (operations >= LONG_OPERATIONS)
        fprintf(stderr, "dualpipe %s: %.1f million operations: this takes some %.1f GiB of memory, and a while\n",
                args->command->name, operations * 1e-6, operations * OPERATION_BYTES / (1 << 30));
}

static dp_status_t lower(plan_t *plan)
{
    dp_lower_options_t options = {.struct_size = sizeof(options),
                                  .transport = plan->args->transport,
                                  .slots = plan->args->slots > 0 ? plan->args->slots : DP_SLOTS_NEEDED};
    dp_status_t status;

    dp_program_free(plan->program);
    status = dp_program_lower(plan->schedule, &options, &plan->program);
    plan->slots = PLAN_SLOTS;
    for (int32_t c = 0; status >= 0 && c < plan->program->nchannels; c++)
        if (plan->program->channels[c].src != plan->program->channels[c].dst)
            plan->slots = plan->program->channels[c].slots;
    return status;
}

dp_status_t plan_prove(plan_t *plan)
{
    dp_status_t status = lower(plan);

    plan->report = (dp_verify_report_t){.struct_size = sizeof(plan->report)};
    if (status >= 0)
        status = dp_program_verify(plan->program, &plan->report);
    free(plan->held);
    plan->held = NULL;
    return status < 0 ? status : memory_find(plan->args, plan->schedule, plan->slots, &plan->held);
}

int plan_program(const args_t *args, plan_t *plan)
{
    int code = plan_schedule(args, plan);
    dp_status_t status;

    if (code != CMD_OK)
        return code;
    say_if_long(args, plan->schedule);
    status = lower(plan);
    return status >= 0 ? CMD_OK : failed_in_file(args, status);
}

dp_status_t plan_costs(const args_t *args, const dp_schedule_t *schedule, dp_costs_t *costs_out)
{
    *costs_out = args->costs;
    costs_out->stage_scale = args->cost_keys.stage_scale;
    if (costs_out->stage_scale == NULL || args->cost_keys.nscales == dp_schedule_stages(schedule))
        return DP_OK;
    if (!args->scales_given) { /* those of a measured run are for its own number of stages */
        fprintf(stderr, "dualpipe %s: %s: the scales of %d stages are left out, %s on %d ranks has %d\n",
                args->command->name, args->costs_file, args->cost_keys.nscales, schedule->method, schedule->ranks,
                dp_schedule_stages(schedule));
        costs_out->stage_scale = NULL;
        return DP_OK;
    }
    return dp_fail(DP_ERR_INVALID, "--stage-scale has %d numbers, %s on %d ranks has %d stages",
                   args->cost_keys.nscales, schedule->method, schedule->ranks, dp_schedule_stages(schedule));
}

dp_status_t plan_place(plan_t *plan, topology_placing_t placing, dp_costs_t *costs)
{
    int32_t ranks = plan->schedule->ranks;
    dp_status_t status;

    if (!plan->args->on_hosts)
        return DP_OK;
    plan->host_of = calloc((size_t)ranks, sizeof(*plan->host_of));
    if (plan->host_of == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the hosts of %d ranks", ranks);
    status = topology_place(&plan->args->topology, placing, ranks, plan->host_of, &plan->topology);
    costs->topology = &plan->topology;
    return status;
}

void plan_layer_scales(const plan_t *plan, const int32_t *first, double *scale_out)
{
    const int32_t stages = dp_schedule_stages(plan->schedule);
    double all = 0.0;

    for (int32_t i = 0; i < plan->args->nlayers; i++)
        all += plan->args->layers[i];
    for (int32_t s = 0; s < stages; s++) {
        scale_out[s] = 0.0;
        for (int32_t i = first[s]; i < first[s + 1]; i++)
            scale_out[s] += plan->args->layers[i] * stages / all;
    }
}

dp_status_t plan_layers(plan_t *plan, dp_costs_t *costs)
{
    const size_t stages = (size_t)dp_schedule_stages(plan->schedule);
    dp_partition_request_t request = {.struct_size = sizeof(request),
                                      .layers = plan->args->nlayers,
                                      .layer_costs = plan->args->layers,
                                      .costs = costs};
    int32_t *first = calloc(stages + 1, sizeof(*first));
    dp_status_t status;

    plan->stage_scale = calloc(stages, sizeof(*plan->stage_scale));
    status = first != NULL && plan->stage_scale != NULL ? lower(plan)
                                                        : dp_fail(DP_ERR_NOMEM, "no memory for %zu stages", stages);
    request.program = plan->program;
    if (status >= 0)
        status = dp_partition(&request, first, NULL);
    if (status >= 0) {
        plan_layer_scales(plan, first, plan->stage_scale);
        costs->stage_scale = plan->stage_scale;
    }
    free(first);
    return status;
}

int plan_simulation(const args_t *args, plan_t *plan, bool with_timeline)
{
    int code = plan_schedule(args, plan);
    dp_status_t status;

    if (code != CMD_OK)
        return code;
    say_if_long(args, plan->schedule);
    plan->simulation.struct_size = sizeof(plan->simulation);
    status = find_costs(plan);
    if (status >= 0)
        status = plan_prove(plan);
    if (status >= 0)
        status = dp_simulate(plan->program, &plan->costs, with_timeline, &plan->simulation);
    return status >= 0 ? CMD_OK : failed_in_file(args, status);
}

void plan_leave_scales(const args_t *args)
{
    if (args->cost_keys.stage_scale != NULL)
        fprintf(stderr, "dualpipe %s: %s: the scales of %d stages are left out: schedules cut the model differently\n",
                args->command->name, args->costs_file, args->cost_keys.nscales);
}

void plan_clear(plan_t *plan)
{
    dp_simulation_clear(&plan->simulation);
    dp_program_free(plan->program);
    dp_schedule_free(plan->schedule);
    free(plan->held);
    free(plan->host_of);
    free(plan->stage_scale);
    *plan = (plan_t){.args = plan->args};
}

const char plan_by_segments[] = "run by segments on lanes, not by F to FB (--operations: by these, in turn)\n";

void plan_transport_text(const plan_t *plan, char *text, size_t bytes)
{
    if (plan->args->transport == DP_TRANSPORT_BUNDLES)
        snprintf(text, bytes, "group");
    else
        snprintf(text, bytes, "credits:%d", plan->slots);
}

void plan_json_costs(FILE *to, const dp_costs_t *costs)
{
    const struct {
        const char *name;
        double value;
    } all[] = {{"F", costs->f},
               {"I", costs->i},
               {"W", costs->w},
               {"B", dp_costs_backward(costs)},
               {"FB", dp_costs_pair(costs)},
               {"HOP", costs->hop},
               {"BYTES", costs->bytes},
               {"BANDWIDTH", costs->bandwidth},
               {"R", costs->r}};

    fputs("\"costs\":{", to);
    for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++) {
        fprintf(to, "%s\"%s\":", k > 0 ? "," : "", all[k].name);
        output_json_number(to, all[k].value);
    }
    fputc('}', to);
}
