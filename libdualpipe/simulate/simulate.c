/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * simulate.c: runs a program under a cost model and sums up. */
#include <dualpipe/simulate.h>

#include <math.h>
#include <stdbool.h>

#include "base/memory.h"
#include "base/sized.h"
#include "program/passes.h"
#include "simulate/formula.h"
#include "simulate/lanes.h"
#include "simulate/run.h"

/* Spans of the fullest rank: two for an FB, one for anything else, one for the step. */
static int64_t spans_per_rank(const dp_program_t *program)
{
    int64_t most = 0;

    for (int32_t r = 0; r < program->ranks; r++) {
        int64_t spans = 1;

        for (int64_t i = program->first[r]; i < program->first[r + 1]; i++)
            spans += program->instrs[i].kind == DP_INSTR_COMPUTE && program->instrs[i].op == DP_OP_FB ? 2 : 1;
        most = spans > most ? spans : most;
    }
    return most;
}

/* Most backwards alive at once (dp__commands_t.backward_buffers), chunks by their share. */
static double peak_backward_buffers(const dp__model_t *model, int32_t rank)
{
    const dp_program_t *program = model->program;
    double alive = 0.0, peak = 0.0;

    for (int64_t i = program->first[rank]; i < program->first[rank + 1]; i++) {
        const dp_instr_t *instr = &program->instrs[i];
        dp__instr_pass_t pass[2];
        int n = instr->kind == DP_INSTR_COMPUTE || instr->kind == DP_INSTR_START ? dp__instr_passes(instr, pass) : 0;

        for (int k = 0; k < n; k++) {
            double share = dp__model_chunk(model, rank, pass[k].chunk)->share;

            if (dp__instr_begins(instr) && (pass[k].kind == DP_OP_I || pass[k].kind == DP_OP_B))
                alive += share;
            peak = fmax(peak, alive);
            if (instr->kind == DP_INSTR_COMPUTE && (pass[k].kind == DP_OP_W || pass[k].kind == DP_OP_B))
                alive -= share;
        }
    }
    return peak;
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
        result->peak_activations[r] = results[r].peak_activations;
        result->peak_backward_buffers[r] = peak_backward_buffers(model, r);
    }
    return result->timeline != NULL ? keep_steps(model, results, result->timeline) : DP_OK;
}

static dp_status_t allocate_result(const dp_program_t *program, int64_t spans, dp_simulation_t *result)
{
    result->ranks = program->ranks;
    result->bubble = dp__calloc((size_t)program->ranks, sizeof(*result->bubble));
    result->peak_activations = dp__calloc((size_t)program->ranks, sizeof(*result->peak_activations));
    result->peak_backward_buffers = dp__calloc((size_t)program->ranks, sizeof(*result->peak_backward_buffers));
    if (result->bubble == NULL || result->peak_activations == NULL || result->peak_backward_buffers == NULL)
        return dp_fail(DP_ERR_NOMEM, "simulate: no memory for the figures of %d ranks", program->ranks);
    return spans > 0 ? dp_timeline_create(program->ranks, spans, &result->timeline) : DP_OK;
}

/* lanes: NULL for a run by operations. */
static dp_status_t run_model(const dp__model_t *model, const dp__lanes_model_t *lanes, int with_timeline,
                             dp_simulation_t *result)
{
    int64_t spans = !with_timeline ? 0 : lanes != NULL ? dp__lanes_spans(lanes) : spans_per_rank(model->program);
    dp_status_t status = allocate_result(model->program, spans, result);
    dp__rank_result_t *results = dp__calloc((size_t)model->program->ranks, sizeof(*results));

    if (status >= 0 && results == NULL)
        status = dp_fail(DP_ERR_NOMEM, "simulate: no memory for %d ranks", result->ranks);
    if (status >= 0)
        status =
            lanes != NULL ? dp__lanes_run(lanes, results, result->timeline) : dp__run(model, results, result->timeline);
    if (status >= 0)
        status = sum_up_ranks(model, results, result);
    dp__free(results);
    return status;
}

static dp_status_t run_lanes(const dp__model_t *model, int with_timeline, dp_simulation_t *result)
{
    dp__lanes_model_t lanes;
    dp_status_t status = dp__lanes_make(model, &lanes);

    if (status >= 0)
        status = run_model(model, &lanes, with_timeline, result);
    dp__lanes_clear(&lanes);
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
        status = model.costs.segments != NULL ? run_lanes(&model, with_timeline, &found)
                                              : run_model(&model, NULL, with_timeline, &found);
    dp__model_clear(&model);
    if (status >= 0)
        dp_sized_put(result, &found);
    else
        dp_simulation_clear(&found);
    return status;
}

void dp_simulation_clear(dp_simulation_t *result)
{
    dp_simulation_t empty = {.struct_size = sizeof(empty)};

    if (!DP_REACHES(result, dp_simulation_t, peak_backward_buffers))
        return;
    dp__free(result->peak_backward_buffers);
    dp__free(result->bubble);
    dp__free(result->peak_activations);
    dp_timeline_free(result->timeline);
    dp_sized_put(result, &empty);
}
