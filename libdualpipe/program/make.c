/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * make.c: a schedule lowered, with the slots that it needs where that is asked for. */
#include "program/make.h"

#include "base/do.h"
#include "base/sized.h"
#include "program/lower.h"

static dp_status_t take_options(const dp_lower_options_t *given, dp_lower_options_t *taken)
{
    *taken = (dp_lower_options_t){.struct_size = sizeof(*taken)};
    return given != NULL ? dp__take("program: the options", dp_lower_options_t, DP_LOWER_OPTIONS_MIN, taken, given)
                         : DP_OK;
}

static dp_status_t lower_proven(const dp_schedule_t *schedule, const dp_lower_options_t *options,
                                dp_verify_report_t *report, dp_program_t **program_out)
{
    dp_status_t status = dp__program_lower(schedule, options, program_out);

    if (status >= 0)
        status = dp_program_verify(*program_out, report);
    if (status < 0) {
        dp_program_free(*program_out);
        *program_out = NULL;
    }
    return status;
}

static dp_status_t lower_as_needed(const dp_schedule_t *schedule, dp_lower_options_t options,
                                   dp_program_t **program_out)
{
    dp_verify_report_t report = {.struct_size = sizeof(report)};
    dp_status_t status;

    options.slots = DP__USUAL_SLOTS;
    status = lower_proven(schedule, &options, &report, program_out);
    if (status != DP_ERR_REJECTED || report.safe_slots <= options.slots)
        return status;
    options.slots = report.safe_slots;
    return lower_proven(schedule, &options, NULL, program_out);
}

dp_status_t dp_program_lower(const dp_schedule_t *schedule, const dp_lower_options_t *options,
                             dp_program_t **program_out)
{
    dp_lower_options_t o;

    *program_out = NULL;
    DO(take_options(options, &o));
    return o.slots == DP_SLOTS_NEEDED ? lower_as_needed(schedule, o, program_out)
                                      : dp__program_lower(schedule, &o, program_out);
}

dp_status_t dp__program_make(const dp_schedule_t *schedule, const dp_lower_options_t *options,
                             dp_program_t **program_out)
{
    dp_lower_options_t o;

    *program_out = NULL;
    DO(take_options(options, &o));
    return o.slots == DP_SLOTS_NEEDED || o.slots == 0 ? lower_as_needed(schedule, o, program_out)
                                                      : lower_proven(schedule, &o, NULL, program_out);
}

int32_t dp__program_slots(const dp_program_t *program)
{
    for (int32_t c = 0; c < program->nchannels; c++)
        if (program->channels[c].src != program->channels[c].dst)
            return program->channels[c].slots;
    return DP__USUAL_SLOTS;
}
