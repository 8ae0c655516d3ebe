/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * partition.c: --partition: how many layers each stage has: as listed, or so that the step is short
 * with the costs of layers that a few steps show. The embedding goes with the first layer, the head
 * with the last. */
#include "train_moe.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* What rank 0 finds, as one struct: it is shared as it is. */
typedef struct found {
    double step, even_step;
    int32_t first[]; /* [stages + 1] */
} found_t;

/* ---- as listed ---- */

static dp_status_t read_list(const options_t *options, int32_t stages, int32_t *first)
{
    const char *text = options->partition, *at = text;
    int64_t layers = 0;
    int32_t n = 0;

    for (;; at++) {
        char *end;
        const long long here = strtoll(at, &end, 10);

        if (end == at || here < 1 || here > options->layers || (*end != ',' && *end != '\0'))
            return dp_fail(
                DP_ERR_INVALID,
                "--partition %s: at \"%s\": even, auto, or the layers of every stage as in 3,2,2,1 are expected", text,
                at);
        layers += here;
        if (n < stages)
            first[n + 1] = (int32_t)layers;
        n++;
        at = end;
        if (*at == '\0')
            break;
    }
    if (n != stages || layers != options->layers)
        return dp_fail(DP_ERR_INVALID,
                       "--partition %s: %lld layers on %d stages are listed; the model has %lld (--layers), %s on %d "
                       "ranks has %d stages",
                       text, (long long)layers, n, (long long)options->layers, options->schedule, (int)options->pp,
                       stages);
    return DP_OK;
}

/* ---- as measured ---- */

/* layers[n]: time of a forward and backward of each layer; what stands before the first counts to
 * it, what follows a layer to that one. False: other layers than the model's were seen. */
static bool cost_layers(const dp_segment_costs_t *lists, int64_t n, double *layers)
{
    int64_t layer = -1;

    for (int32_t k = 0; k < lists->first[lists->stages]; k++) {
        const dp_segment_cost_t *s = &lists->list[k];

        layer += s->role == DP_ROLE_ATTENTION;
        if (layer >= n)
            return false;
        layers[layer < 0 ? 0 : layer] += s->f + s->i + s->w + (lists->list_r != NULL ? lists->list_r[k] : 0);
    }
    return layer == n - 1;
}

static dp_status_t step_of(const dp_program_t *program, const dp_costs_t *costs, const double *layers, int32_t stages,
                           const int32_t *first, double *step_out)
{
    dp_simulation_t result = {.struct_size = sizeof(result)};
    dp_costs_t scaled = *costs;
    double *scale = calloc((size_t)stages, sizeof(*scale)), all = 0;
    dp_status_t status;

    if (scale == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the costs of %d stages", stages);
    for (int32_t i = 0; i < first[stages]; i++)
        all += layers[i];
    for (int32_t s = 0; s < stages; s++)
        for (int32_t i = first[s]; i < first[s + 1]; i++)
            scale[s] += layers[i] * stages / all;
    scaled.stage_scale = scale;
    status = dp_simulate(program, &scaled, 0, &result);
    *step_out = result.step_time;
    dp_simulation_clear(&result);
    free(scale);
    return status;
}

static dp_status_t cut_evenly(const options_t *options, const dp_program_t *program,
                              const dp_measured_costs_t *measured, double *layers, found_t *found)
{
    const int32_t stages = dp_schedule_stages(program->schedule);
    dp_costs_t costs = *measured->costs;
    const dp_partition_request_t request = {.struct_size = sizeof(request),
                                            .layers = (int32_t)options->layers,
                                            .layer_costs = layers,
                                            .program = program,
                                            .costs = &costs};
    dp_status_t status;

    costs.stage_scale = NULL;
    for (int32_t s = 0; s <= stages; s++)
        found->first[s] = (int32_t)(options->layers * s / stages);
    status = step_of(program, &costs, layers, stages, found->first, &found->even_step);
    return status == DP_OK ? dp_partition(&request, found->first, &found->step) : status;
}

/* Rank 0. */
static dp_status_t find_partition(const options_t *options, const dp_timeline_t *timeline,
                                  const dp_schedule_t *schedule, found_t *found)
{
    const dp_lower_options_t lower = {.struct_size = sizeof(lower),
                                      .slots = options->slots > 0 ? (int32_t)options->slots : DP_SLOTS_NEEDED};
    dp_measured_costs_t measured = {.struct_size = sizeof(measured)};
    double *layers = calloc((size_t)options->layers, sizeof(*layers));
    dp_program_t *program = NULL;
    dp_status_t status =
        layers != NULL ? DP_OK : dp_fail(DP_ERR_NOMEM, "no memory for the costs of %d layers", (int)options->layers);

    if (status == DP_OK)
        status = dp_costs_measure(timeline, schedule, &measured);
    if (status == DP_OK &&
        (measured.stage_segments == NULL || !cost_layers(measured.stage_segments, options->layers, layers)))
        status = dp_fail(DP_ERR_INVALID, "--partition auto: the steps taken do not show all layers of all stages");
    if (status == DP_OK)
        status = dp_program_lower(schedule, &lower, &program);
    if (status == DP_OK)
        status = cut_evenly(options, program, &measured, layers, found);
    dp_program_free(program);
    dp_measured_costs_clear(&measured);
    free(layers);
    return status;
}

static dp_status_t share(dp_group_t *group, found_t *found, size_t bytes)
{
    char *all = calloc((size_t)dp_group_size(group), bytes);
    dp_status_t status = all != NULL ? dp_group_all_gather(group, found, bytes, all)
                                     : dp_fail(DP_ERR_NOMEM, "no memory for the layers of all stages");

    if (status == DP_OK)
        memcpy(found, all, bytes);
    free(all);
    return status;
}

static dp_status_t find_together(const options_t *options, const text_t *text, dp_group_t *group,
                                 const dp_schedule_t *schedule, FILE *to, int32_t *first)
{
    const size_t count = (size_t)dp_schedule_stages(schedule) + 1, bytes = sizeof(found_t) + count * sizeof(*first);
    found_t *found = calloc(1, bytes);
    dp_timeline_t *timeline = NULL;
    dp_status_t status = found != NULL ? steps_record(options, text, group, &timeline)
                                       : dp_fail(DP_ERR_NOMEM, "no memory for the layers of %zu stages", count - 1);

    if (status == DP_OK && timeline != NULL)
        status = find_partition(options, timeline, schedule, found);
    if (status < 0)
        dp_group_abort(group, status, dp_last_error());
    else
        status = share(group, found, bytes);
    if (status == DP_OK) {
        memcpy(first, found->first, count * sizeof(*first));
        fprintf(to,
                "partition   by the costs of a few steps: %.1f ms a step with a device for each rank, %.1f if even\n",
                found->step, found->even_step);
    }
    dp_timeline_free(timeline);
    free(found);
    return status;
}

dp_status_t partition_layers(const options_t *options, const text_t *text, dp_group_t *group, FILE *to,
                             int32_t **first_out)
{
    dp_schedule_t *schedule;
    dp_status_t status;
    int32_t stages;

    *first_out = NULL;
    if (strcmp(options->partition, "even") == 0)
        return DP_OK;
    status = method_schedule(options, &schedule);
    if (status < 0)
        return status;
    stages = dp_schedule_stages(schedule);
    *first_out = calloc((size_t)stages + 1, sizeof(**first_out));
    if (*first_out == NULL)
        status = dp_fail(DP_ERR_NOMEM, "no memory for the layers of %d stages", stages);
    else if (strcmp(options->partition, "auto") == 0)
        status = find_together(options, text, group, schedule, to, *first_out);
    else
        status = read_list(options, stages, *first_out);
    dp_schedule_free(schedule);
    return status;
}
