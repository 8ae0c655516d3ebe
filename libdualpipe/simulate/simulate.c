/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * simulate.c: runs a program under a cost model and sums up. */
#include <dualpipe/simulate.h>

#include <math.h>
#include <stdbool.h>

#include "base/memory.h"
#include "base/sized.h"
#include "program/make.h"
#include "program/passes.h"
#include "schedule/passes.h"
#include "simulate/formula.h"
#include "simulate/machine.h"

/* What a rank has alive at once, chunks by their share. */
static void count_peaks(const dp__model_t *model, int32_t rank, dp_simulation_t *result)
{
    const dp_program_t *program = model->program;
    dp__alive_t alive = {.forward_only = program->schedule->forward_only != 0};

    for (int64_t i = program->first[rank]; i < program->first[rank + 1]; i++) {
        const dp_instr_t *instr = &program->instrs[i];
        bool ends = instr->kind == DP_INSTR_COMPUTE;
        dp__instr_pass_t pass[2];
        int n = ends || instr->kind == DP_INSTR_START ? dp__instr_passes(instr, pass) : 0;

        for (int k = 0; k < n; k++)
            dp__alive_count(&alive, pass[k].kind, dp__instr_begins(instr), ends,
                            dp__model_chunk(model, rank, pass[k].chunk)->share);
    }
    result->peak_activations[rank] = alive.most_inputs;
    result->peak_backward_buffers[rank] = alive.most_backwards;
}

/* From the first start to the last end of ranks a and b. */
static double window_length(const dp__rank_result_t *results, int32_t a, int32_t b)
{
    return fmax(results[a].last_end, results[b].last_end) - fmin(results[a].first_start, results[b].first_start);
}

static double step_time(const dp__model_t *model, const dp__rank_result_t *results)
{
    double start = results[0].first_start, end = 0.0, longest = 0.0;

    for (int32_t r = 0; r < model->program->ranks; r++) {
        dp_place_t place;

        dp_schedule_place(model->program->schedule, r, 0, &place);
        start = fmin(start, results[r].first_start);
        end = fmax(end, results[r].last_end);
        longest = fmax(longest, window_length(results, r, place.mirror_rank >= 0 ? place.mirror_rank : r));
    }
    return model->costs.barrier != 0.0 ? end - start : longest;
}

static dp_status_t keep_steps(const dp__model_t *model, const dp__rank_result_t *results, dp_timeline_t *timeline)
{
    double start = results[0].first_start, end = 0.0;

    for (int32_t r = 0; r < model->program->ranks; r++) {
        start = fmin(start, results[r].first_start);
        end = fmax(end, results[r].last_end);
    }
    if (end >= 9.2e12)
        return dp_fail(DP_ERR_INVALID, "simulate: %g units of time are too many milliseconds for a timeline", end);
    for (int32_t r = 0; r < model->program->ranks; r++) {
        bool together = model->costs.barrier != 0.0;
        dp_span_t span = {.start_ns = dp__model_ns(together ? start : results[r].first_start),
                          .end_ns = dp__model_ns(together ? end : results[r].last_end),
                          .microbatch = -1,
                          .chunk = -1,
                          .stage = -1,
                          .segment = -1,
                          .kind = DP_SPAN_STEP};
        dp_status_t status = dp_timeline_add(timeline, r, &span);

        if (status < 0)
            return status;
    }
    return DP_OK;
}

static dp_status_t sum_up_ranks(const dp__model_t *model, const dp__rank_result_t *results, dp_simulation_t *result)
{
    result->step_time = step_time(model, results);
    result->formula_bubble = dp__formula_bubble(model->program->schedule, &model->costs);
    for (int32_t r = 0; r < result->ranks; r++) {
        result->bubble[r] = result->step_time - results[r].busy;
        count_peaks(model, r, result);
    }
    return result->timeline != NULL ? keep_steps(model, results, result->timeline) : DP_OK;
}

static dp_status_t allocate_result(const dp_program_t *program, int64_t spans, dp_simulation_t *result)
{
    result->ranks = program->ranks;
    if (!dp__arrays(DP__ARRAY(result->bubble, program->ranks), DP__ARRAY(result->peak_activations, program->ranks),
                    DP__ARRAY(result->peak_backward_buffers, program->ranks)))
        return dp_fail(DP_ERR_NOMEM, "simulate: no memory for the figures of %d ranks", program->ranks);
    return spans > 0 ? dp_timeline_create(program->ranks, spans, &result->timeline) : DP_OK;
}

static dp_status_t run_model(const dp__model_t *model, int with_timeline, dp_simulation_t *result)
{
    dp__rank_result_t *results = dp__calloc((size_t)model->program->ranks, sizeof(*results));
    dp__machine_t machine;
    dp_status_t status = dp__machine_make(model, &machine);

    if (status >= 0 && results == NULL)
        status = dp_fail(DP_ERR_NOMEM, "simulate: no memory for %d ranks", model->program->ranks);
    if (status >= 0)
        status = allocate_result(model->program, with_timeline ? dp__machine_spans(&machine) : 0, result);
    if (status >= 0)
        status = dp__machine_run(&machine, results, result->timeline);
    if (status >= 0)
        status = sum_up_ranks(model, results, result);
    dp__machine_clear(&machine);
    dp__free(results);
    return status;
}

dp_status_t dp_simulate(const dp_program_t *program, const dp_costs_t *costs, int with_timeline,
                        dp_simulation_t *result)
{
    dp_simulation_t found = {.struct_size = sizeof(found)};
    dp_status_t status = dp__sized_check("simulate: the result", result, "dp_simulation_t", DP_SIMULATION_MIN);
    dp__model_t model;

    if (status < 0)
        return status;
    dp_sized_put(result, &found);
    if (program == NULL || program->ranks < 1)
        return dp_fail(DP_ERR_INVALID, "simulate: no program");
    if (program->transport != DP_TRANSPORT_CREDITS && program->transport != DP_TRANSPORT_BUNDLES)
        return dp_fail(DP_ERR_INVALID, "simulate: unknown transport %d", (int)program->transport);
    status = dp__model_make(program, costs, &model);
    if (status >= 0)
        status = run_model(&model, with_timeline, &found);
    dp__model_clear(&model);
    if (status >= 0)
        dp_sized_put(result, &found);
    else
        dp_simulation_clear(&found);
    return status;
}

dp_status_t dp_evaluate(const dp_schedule_t *schedule, const dp_lower_options_t *options, const dp_costs_t *costs,
                        int with_timeline, dp_simulation_t *result)
{
    dp_program_t *program = NULL;
    dp_status_t status = dp__program_make(schedule, options, &program);

    if (status >= 0)
        status = dp_simulate(program, costs, with_timeline, result);
    dp_program_free(program);
    return status;
}

void dp_simulation_clear(dp_simulation_t *result)
{
    dp_simulation_t empty = {.struct_size = sizeof(empty)};

    if (!DP_REACHES(result, dp_simulation_t, peak_backward_buffers))
        return;
    dp__free(result->bubble);
    dp_timeline_free(result->timeline);
    dp_sized_put(result, &empty);
}
