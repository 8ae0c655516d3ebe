/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * overlap.c: tries sets of rules, keeps the best, and makes its run a schedule. */
#include <dualpipe/overlap.h>

#include <math.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/sized.h"
#include "overlap/bound.h"
#include "overlap/braids.h"
#include "overlap/rules.h"
#include "simulate/costs.h"

enum { TRIES = 96, SLOTS = 2 };

typedef struct planning {
    dp_overlap_request_t request;
    dp__overlap_problem_t problem;
    dp__overlap_run_t *run;
    dp__overlap_rules_t best, now, trial;
    double step, now_step; /* of best and now */
    int32_t tried;
} planning_t;

static double seconds_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the request ---- */

static dp_status_t check(const dp_overlap_request_t *given, dp_overlap_request_t *request)
{
    dp_status_t status = dp__sized_check("plan: the request", given, "dp_overlap_request_t", DP_OVERLAP_REQUEST_MIN);

    if (status < 0)
        return status;
    *request = (dp_overlap_request_t){.struct_size = sizeof(*request)};
    dp_sized_take(request, sizeof(*request), given);
    if (request->schedule == NULL || request->costs == NULL)
        return dp_fail(DP_ERR_INVALID, "plan: no schedule, or no costs");
    if (request->schedule->nbraids > 0 || request->schedule->forward_only)
        return dp_fail(DP_ERR_INVALID,
                       "plan: the schedule %s; a plan begins with one of forwards and backwards "
                       "without braids",
                       request->schedule->nbraids > 0 ? "has braids" : "is forward-only");
    if (isnan(request->memory_cap) || request->slots < 0 || request->tries < 0 || !(request->seconds >= 0.0))
        return dp_fail(DP_ERR_INVALID,
                       "plan: memory cap %g, %d slots, %d tries, %g s: none may be negative but the "
                       "memory cap",
                       request->memory_cap, request->slots, request->tries, request->seconds);
    request->slots = request->slots > 0 ? request->slots : SLOTS;
    request->tries = request->tries > 0 ? request->tries : TRIES;
    return dp_schedule_verify(request->schedule);
}

/* What the schedule itself holds at most, its operations done one after the other. */
static double held_by(const dp_schedule_t *schedule)
{
    double most = 0.0, share = 1.0 / dp_schedule_split(schedule);

    for (int32_t r = 0; r < schedule->ranks; r++) {
        double held = 0.0;

        for (int64_t k = schedule->first[r]; k < schedule->first[r + 1]; k++) {
            int kind = schedule->ops[k].kind;

            held += kind == DP_OP_F || kind == DP_OP_FB ? share : 0.0;
            most = fmax(most, held);
            held -= kind == DP_OP_B || kind == DP_OP_W || kind == DP_OP_FB ? share : 0.0;
        }
    }
    return most;
}

static dp_status_t open_problem(const dp_overlap_request_t *given, planning_t *x)
{
    dp_costs_t costs;
    dp_status_t status = check(given, &x->request);

    if (status >= 0)
        status = dp__costs_resolve(x->request.costs, dp_schedule_stages(x->request.schedule), &costs);
    if (status >= 0 && costs.segments == NULL)
        status = dp_fail(DP_ERR_INVALID, "plan: the costs have no segments: what runs beside what is a matter of "
                                         "attention, dispatch, mlp and combine");
    if (status >= 0)
        status = dp__overlap_problem_make(x->request.schedule, &costs, x->request.slots, &x->problem);
    if (status >= 0)
        x->problem.cap = x->request.memory_cap == 0.0  ? held_by(x->request.schedule)
                         : x->request.memory_cap < 0.0 ? INFINITY
                                                       : x->request.memory_cap;
    return status;
}

/* ---- tries ---- */

/* Keeps the best, and goes on from what is little worse. */
static void try_rules(planning_t *x, double worse)
{
    double step = dp__overlap_run(x->run, &x->trial, NULL, NULL);

    x->tried++;
    if (step < INFINITY && step <= x->now_step + worse) {
        x->now_step = step;
        dp__overlap_rules_copy(&x->problem, &x->trial, &x->now);
    }
    if (step < x->step) {
        x->step = step;
        dp__overlap_rules_copy(&x->problem, &x->trial, &x->best);
    }
}

/* 0 to 1. */
static double progress(const planning_t *x, double began)
{
    double share = x->request.seconds > 0.0 ? (seconds_now() - began) / x->request.seconds : 0.0;

    return fmax(share, (double)x->tried / x->request.tries);
}

/* First rules by chance, then more and more often changes of good ones. */
static void try_all(planning_t *x)
{
    dp__overlap_random_t random = {x->request.seed};
    double began = seconds_now(), done;

    dp__overlap_rules_plain(&x->problem, &x->trial);
    try_rules(x, 0.0);
    if (x->step < INFINITY) /* from here on, places are times */
        dp__overlap_run_places(x->run, &x->problem);
    while ((done = progress(x, began)) < 1.0) {
        double worse = 0.0;

        if (x->step == INFINITY || dp__overlap_unit(&random) > 2.5 * done) {
            dp__overlap_rules_random(&x->problem, &random, &x->trial);
        } else {
            dp__overlap_rules_copy(&x->problem, &x->now, &x->trial);
            dp__overlap_rules_change(&x->problem, &random, &x->trial);
            worse = 1e-3 * x->step * (1.0 - done) * dp__overlap_unit(&random);
        }
        try_rules(x, worse);
    }
}

static dp_status_t search(planning_t *x)
{
    size_t shifts = PASS_KINDS * (size_t)x->problem.ranks * (size_t)x->problem.chunks;

    x->step = x->now_step = INFINITY;
    x->run = dp__overlap_run_open(&x->problem);
    x->best.shift = dp__calloc(shifts, sizeof(*x->best.shift));
    x->now.shift = dp__calloc(shifts, sizeof(*x->now.shift));
    x->trial.shift = dp__calloc(shifts, sizeof(*x->trial.shift));
    if (x->run == NULL || x->best.shift == NULL || x->now.shift == NULL || x->trial.shift == NULL)
        return dp_fail(DP_ERR_NOMEM, "plan: no memory for %d ranks", x->problem.ranks);
    try_all(x);
    return x->step < INFINITY
               ? DP_OK
               : dp_fail(DP_ERR_REJECTED, "plan: with %g activations on a rank no order was found", x->problem.cap);
}

static int64_t all_calls(const dp__overlap_problem_t *p)
{
    int64_t sum = 0;

    for (int32_t c = 0; c < p->ranks * p->chunks; c++)
        sum += (int64_t)(2 * p->chunk[c].count + p->chunk[c].weights) * p->microbatches;
    return sum;
}

static dp_status_t write_schedule(planning_t *x, dp_overlap_result_t *found)
{
    dp__overlap_call_t *calls = dp__calloc((size_t)all_calls(&x->problem), sizeof(*calls));
    int64_t *counts = dp__calloc((size_t)x->problem.ranks, sizeof(*counts));
    dp_status_t status = DP_OK;

    if (calls == NULL || counts == NULL)
        status = dp_fail(DP_ERR_NOMEM, "plan: no memory for the order of %d ranks", x->problem.ranks);
    if (status >= 0) {
        (void)dp__overlap_run(x->run, &x->best, calls, counts);
        found->peak = dp__overlap_run_peak(x->run);
        status = dp__overlap_braids(&x->problem, x->request.schedule, calls, counts, &found->schedule);
    }
    dp__free(calls);
    dp__free(counts);
    return status;
}

/* ---- the proof ---- */

/* Lowered, proven and simulated like any schedule. */
static dp_status_t simulate(const planning_t *x, const dp_schedule_t *schedule, double *step_out)
{
    dp_lower_options_t options = {.struct_size = sizeof(options), .slots = x->request.slots};
    dp_simulation_t simulation = {.struct_size = sizeof(simulation)};
    dp_program_t *program = NULL;
    dp_status_t status = dp_program_lower(schedule, &options, &program);

    if (status >= 0)
        status = dp_program_verify(program, NULL);
    if (status >= 0)
        status = dp_simulate(program, x->request.costs, 0, &simulation);
    if (status >= 0) {
        *step_out = simulation.step_time;
        dp_simulation_clear(&simulation);
    }
    dp_program_free(program);
    return status;
}

static dp_status_t copy_schedule(const dp_schedule_t *from, dp_schedule_t **copy_out)
{
    int64_t *nops = dp__calloc((size_t)from->ranks, sizeof(*nops));
    dp_status_t status;

    if (nops == NULL)
        return dp_fail(DP_ERR_NOMEM, "plan: no memory for %d ranks", from->ranks);
    for (int32_t r = 0; r < from->ranks; r++)
        nops[r] = from->first[r + 1] - from->first[r];
    status = dp_schedule_create(from->method, from->placement, from->ranks, from->microbatches, from->chunks, nops,
                                copy_out);
    if (status >= 0)
        memcpy((*copy_out)->ops, from->ops, (size_t)from->first[from->ranks] * sizeof(*from->ops));
    dp__free(nops);
    return status;
}

/* What was given stays where no plan is shorter. */
static dp_status_t keep_shorter(const planning_t *x, dp_overlap_result_t *found)
{
    double given = 0.0, held = held_by(x->request.schedule);
    dp_status_t status = simulate(x, found->schedule, &found->step);

    if (status == DP_ERR_REJECTED) /* no more than what was given, then */
        found->step = INFINITY;
    if ((status >= 0 || status == DP_ERR_REJECTED) && held <= x->problem.cap + 1e-9)
        status = simulate(x, x->request.schedule, &given);
    if (status < 0 || held > x->problem.cap + 1e-9 || found->step < given)
        return status;
    dp_schedule_free(found->schedule);
    found->schedule = NULL;
    found->step = given;
    found->peak = held;
    return copy_schedule(x->request.schedule, &found->schedule);
}

static void close_planning(planning_t *x)
{
    dp__overlap_run_close(x->run);
    dp__free(x->best.shift);
    dp__free(x->now.shift);
    dp__free(x->trial.shift);
    dp__overlap_problem_clear(&x->problem);
}

dp_status_t dp_plan_overlap(const dp_overlap_request_t *request, dp_overlap_result_t *result)
{
    planning_t x = {.tried = 0};
    dp_overlap_result_t found = {.struct_size = sizeof(found)};
    dp_status_t status = dp__sized_check("plan: the result", result, "dp_overlap_result_t", DP_OVERLAP_RESULT_MIN);

    if (status < 0)
        return status;
    dp_sized_put(result, &found);
    status = open_problem(request, &x);
    if (status >= 0)
        status = search(&x);
    if (status >= 0)
        status = write_schedule(&x, &found);
    if (status >= 0)
        status = keep_shorter(&x, &found);
    if (status >= 0) {
        found.bound = dp__overlap_bound(&x.problem);
        found.tried = x.tried;
        dp_sized_put(result, &found);
    } else {
        dp_schedule_free(found.schedule);
    }
    close_planning(&x);
    return status;
}

dp_status_t dp_overlap_bound(const dp_overlap_request_t *request, double *bound_out)
{
    planning_t x = {.tried = 0};
    dp_status_t status =
        bound_out == NULL ? dp_fail(DP_ERR_INVALID, "plan: nowhere to put the bound") : open_problem(request, &x);

    if (status >= 0)
        *bound_out = dp__overlap_bound(&x.problem);
    close_planning(&x);
    return status;
}

void dp_overlap_clear(dp_overlap_result_t *result)
{
    dp_overlap_result_t empty = {.struct_size = sizeof(empty)};

    if (!DP_REACHES(result, dp_overlap_result_t, schedule))
        return;
    dp_schedule_free(result->schedule);
    dp_sized_put(result, &empty);
}
