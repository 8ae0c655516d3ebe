/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * overlap.c: --overlap: the schedule with its pairs taken apart, or planned with costs that a few
 * steps show. */
#include "tools/io/output.h"
#include "train_moe.h"

#include <dualpipe/overlap.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP = 1, MEASURED = 3, PART_BYTES = 32 << 10 };

/* What rank 0 plans, as text, for the others. */
typedef struct plan_text {
    char *at;
    size_t bytes;
} plan_text_t;

dp_status_t steps_record(const options_t *options, const text_t *text, dp_group_t *group, dp_timeline_t **timeline_out)
{
    options_t few = *options;
    int64_t begin = 0;
    trainer_t trainer;
    dp_status_t status;

    *timeline_out = NULL;
    few.trace_steps = MEASURED;
    status = trainer_open(&few, text, group, &trainer);
    if (status < 0)
        return status;
    status = trainer_recover(&trainer, DP_OK, &begin);
    for (int step = 0; step < WARM_UP + MEASURED && status == DP_OK; step++) {
        step_result_t result;

        status = trainer_step(&trainer, step, &result);
    }
    if (status == DP_OK)
        status = dp_pipeline_timeline(trainer.pipeline, timeline_out);
    if (status < 0)
        dp_group_abort(group, status, dp_last_error());
    trainer_close(&trainer);
    return status;
}

static dp_status_t put_plan(const dp_schedule_t *schedule, plan_text_t *text)
{
    FILE *to = open_memstream(&text->at, &text->bytes);
    output_t output = {.file = to, .path = "a planned schedule"};
    dp_status_t status;

    if (to == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a planned schedule");
    status = dp_schedule_write_tsv(schedule, -1, output_write, &output);
    return fclose(to) == 0 ? status : dp_fail(DP_ERR_NOMEM, "no memory for a planned schedule");
}

static dp_status_t plan(const options_t *options, const dp_timeline_t *timeline, const dp_schedule_t *given, FILE *to,
                        plan_text_t *text)
{
    dp_measured_costs_t measured = {.struct_size = sizeof(measured)};
    dp_overlap_result_t result = {.struct_size = sizeof(result)};
    dp_overlap_request_t request = {.struct_size = sizeof(request),
                                    .schedule = given,
                                    .slots = (int32_t)options->slots,
                                    .seed = (uint64_t)options->seed};
    dp_costs_t costs;
    dp_status_t status = dp_costs_measure(timeline, given, &measured);

    if (status == DP_OK && measured.stage_segments == NULL)
        status = dp_fail(DP_ERR_INVALID, "--overlap planned: the steps taken do not show all segments of all stages");
    if (status == DP_OK) {
        costs = (dp_costs_t){.struct_size = sizeof(costs),
                             .hop = measured.costs->hop,
                             .barrier = 1,
                             .segments = measured.stage_segments};
        request.costs = &costs;
        status = dp_plan_overlap(&request, &result);
    }
    if (status == DP_OK) {
        fprintf(
            to,
            "overlap     planned with the costs of %d steps: %d braids, %.1f ms a step with a device for each rank\n",
            MEASURED, result.schedule->nbraids, result.step);
        status = put_plan(result.schedule, text);
    }
    dp_overlap_clear(&result);
    dp_measured_costs_clear(&measured);
    return status;
}

/* Rank 0's text, part by part. */
static dp_status_t share(dp_group_t *group, plan_text_t *text)
{
    const size_t size = (size_t)dp_group_size(group);
    char *part = calloc(size + 1, PART_BYTES), *own = part + size * PART_BYTES, *got = NULL;
    uint64_t bytes = text->bytes;
    dp_status_t status = DP_OK;

    if (part == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for the plan of %zu ranks", size);
    memcpy(own, &bytes, sizeof(bytes));
    status = dp_group_all_gather(group, own, sizeof(bytes), part);
    if (status == DP_OK) {
        memcpy(&bytes, part, sizeof(bytes));
        got = calloc(bytes / PART_BYTES + 1, PART_BYTES);
        if (got == NULL)
            status = dp_fail(DP_ERR_NOMEM, "no memory for a planned schedule");
    }
    for (size_t at = 0; at < bytes && status == DP_OK; at += PART_BYTES) {
        if (text->at != NULL)
            memcpy(own, text->at + at, text->bytes - at < PART_BYTES ? text->bytes - at : PART_BYTES);
        status = dp_group_all_gather(group, own, PART_BYTES, part);
        if (status == DP_OK)
            memcpy(got + at, part, PART_BYTES);
    }
    free(text->at);
    free(part);
    *text = (plan_text_t){got, (size_t)bytes};
    return status;
}

static dp_status_t make_plan(const options_t *options, const text_t *text, dp_group_t *group,
                             const dp_schedule_t *given, FILE *to, dp_schedule_t **schedule_out)
{
    dp_timeline_t *timeline;
    plan_text_t found = {NULL, 0};
    dp_status_t status = steps_record(options, text, group, &timeline);

    if (status == DP_OK && timeline != NULL)
        status = plan(options, timeline, given, to, &found);
    if (status < 0)
        dp_group_abort(group, status, dp_last_error());
    else
        status = share(group, &found);
    if (status == DP_OK)
        status = dp_schedule_read_tsv("the plan of rank 0", found.at, found.bytes, schedule_out);
    dp_timeline_free(timeline);
    free(found.at);
    return status;
}

dp_status_t method_schedule(const options_t *options, dp_schedule_t **schedule_out)
{
    const dp_schedule_request_t request = {.struct_size = sizeof(request),
                                           .method = options->schedule,
                                           .ranks = (int32_t)options->pp,
                                           .microbatches = (int32_t)options->microbatches,
                                           .chunks = (int32_t)options->chunks,
                                           .microbatch_group = (int32_t)options->microbatch_group};

    return dp_schedule_generate(&request, schedule_out);
}

dp_status_t overlap_schedule(const options_t *options, const text_t *text, dp_group_t *group, FILE *to,
                             dp_schedule_t **schedule_out)
{
    dp_schedule_t *given;
    dp_status_t status;

    *schedule_out = NULL;
    if (strcmp(options->overlap, "canonical") == 0)
        return DP_OK;
    status = method_schedule(options, &given);
    if (status < 0)
        return status;
    status = strcmp(options->overlap, "none") == 0 ? dp_schedule_serial(given, schedule_out)
                                                   : make_plan(options, text, group, given, to, schedule_out);
    dp_schedule_free(given);
    return status;
}
