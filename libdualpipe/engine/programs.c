/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * programs.c: the schedule of a pipeline, and the programs that it runs: for training and for
 * forward only. */
#include "engine/engine.h"
#include "program/make.h"

#include <string.h>

static dp_status_t lower(dp_pipeline_t *p, const dp_schedule_t *schedule, dp_program_t **program_out)
{
    dp_lower_options_t options = {.struct_size = sizeof(options),
                                  .transport = p->programs.bundled ? DP_TRANSPORT_BUNDLES : DP_TRANSPORT_CREDITS,
                                  .slots = p->programs.slots,
                                  .replayable = p->options.graph != 0};

    return dp__program_make(schedule, &options, program_out);
}

/* With as many slots as the schedule needs, where the trainer leaves it open. */
static dp_status_t lower_training(dp_pipeline_t *p)
{
    dp_status_t status;

    p->programs.slots = p->options.slots;
    status = lower(p, p->schedule, &p->programs.training);
    if (status >= 0)
        p->programs.slots = dp__program_slots(p->programs.training);
    return status;
}

/* Two micro-batches beside each other, where channels have the slots for it; else one by one. */
static dp_status_t lower_forwards(dp_pipeline_t *p)
{
    dp_status_t status = DP_ERR_REJECTED;

    for (int overlap = 1; overlap >= 0 && status == DP_ERR_REJECTED; overlap--) {
        dp_program_free(p->programs.forward);
        dp_schedule_free(p->programs.forward_schedule);
        p->programs.forward = NULL;
        status = dp_schedule_forwards(p->schedule, overlap, &p->programs.forward_schedule);
        if (status >= 0)
            status = lower(p, p->programs.forward_schedule, &p->programs.forward);
    }
    return status;
}

/* Whoever forgot the launcher has one rank, for which many schedules are none. */
static dp_status_t name_launcher(const dp_pipeline_t *p, dp_status_t status)
{
    dp_group_environment_t told = {.struct_size = sizeof(told)};

    return dp_group_size(p->group) == 1 && dp_group_environment(&told) >= 0 && strcmp(told.launcher, "none") == 0
               ? dp_fail(status, "%s (no launcher: dualpipe run -n 2 -- PROGRAM starts two ranks)", dp_last_error())
               : status;
}

dp_status_t dp__schedule_make(dp_pipeline_t *p)
{
    dp_status_t status = DP_OK;

    p->schedule = p->options.schedule;
    if (p->schedule == NULL && p->programs.own_schedule == NULL) {
        dp_schedule_request_t request = {
            .struct_size = sizeof(request),
            .method = p->method,
            .ranks = p->grid.pp,
            .microbatches = p->options.microbatches,
            .chunks = p->options.chunks,
            .microbatch_group = p->options.microbatch_group,
        };

        status = dp_schedule_generate(&request, &p->programs.own_schedule);
    }
    if (p->schedule == NULL)
        p->schedule = p->programs.own_schedule;
    if (status < 0)
        return name_launcher(p, status);
    if (p->schedule->ranks != p->grid.pp)
        return dp_fail(DP_ERR_INVALID, "the schedule is for %d ranks, the pipeline has %d", p->schedule->ranks,
                       p->grid.pp);
    return DP_OK;
}

dp_status_t dp__programs_make(dp_pipeline_t *p)
{
    dp_status_t status;

    if (p->programs.training != NULL)
        return DP_OK; /* of the epoch before */
    status = lower_training(p);
    if (status < 0 || p->schedule->forward_only)
        return status;
    return lower_forwards(p);
}

void dp__programs_free(dp_pipeline_t *p)
{
    dp_program_free(p->programs.training);
    dp_program_free(p->programs.forward);
    p->programs.training = p->programs.forward = NULL;
}
