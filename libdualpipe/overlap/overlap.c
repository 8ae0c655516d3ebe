/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * overlap.c: searches for the plan with the shortest step, and writes its run as a schedule.
 *
 * A plan is a set of rules and an urgency for every node. Its step is that of a run (list.c). The
 * starts of a run are urgencies as well, so plans can be changed by what they led to:
 *
 *     a round: now = the run in the order of the given schedule; then tries, first mostly random
 *              ones, later mostly changes of `now`:
 *         random    rules by chance, urgencies of `now` or by chance, lanes that never wait
 *         lift      passes move from the steady state to where the pipeline fills and empties
 *         rules     one rule is changed
 *         urgency   some nodes in a stretch of the step are moved
 *         reverse   a run from the end: nodes begin as late as they can, which are new urgencies
 *       a try becomes `now` if it is at most `worse` longer, and `worse` falls to 0
 *     timetables: now = the best of some by chance (timetable.c); then changes of it and its rules
 *     with many tries: timetables for 40 % of them, rounds of Luby's lengths for 10 %. Then on with
 *       what was better, and at last changes of the best plan
 *
 * Invariant: `best` has passed dp_program_verify() as a program of its braids (is_sound). An order
 * that is only short in the run is dropped. In the end dp_simulate() gives the step, and the given
 * schedule is returned where no plan is shorter.
 *
 * Example: the two forwards of list.c, given one after the other, take 10. A try with `ahead` 2 and
 * no patience runs them in 8. It is sound, becomes `best`, and its calls a0 a1 d0 m0 d1 m1 are
 * written as one braid of both passes in the order "abaabb". */
#include <dualpipe/overlap.h>

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/do.h"
#include "base/memory.h"
#include "base/sized.h"
#include "overlap/bound.h"
#include "overlap/braids.h"
#include "overlap/timetable.h"
#include "program/make.h"
#include "simulate/costs.h"

/* NODES: of all tries, where no number is given */
enum { TRIES = 96, ROUND = 64, FEWEST = 16, NODES = 3000000, DRAWN = 64, STALE = 200 };

/* Rules with the urgencies of all nodes, and what they came to. */
typedef struct plan {
    dp__overlap_rules_t rules;
    dp__overlap_timetable_t times; /* where the urgencies are from one */
    double *urgency, *starts;
    double step;
} plan_t;

typedef struct timed {
    dp__overlap_timetable_t times;
    dp__overlap_rules_t rules;
    double step;
} timed_t;

typedef struct planning {
    dp_overlap_request_t request;
    dp__overlap_problem_t problem;
    dp__overlap_graph_t graph;
    dp__overlap_run_t *run;
    plan_t best, now, trial;
    timed_t timed;             /* the best of timetables */
    double *given;             /* urgencies: when each node began in the given schedule */
    dp__overlap_call_t *calls; /* of all ranks, */
    int64_t *counts;           /* and how many of each */
    dp_overlap_result_t *found;
    dp_memory_peaks_t *held; /* [ranks] by a schedule */
    dp_schedule_t *first;    /* where the search begins: the given one, or one by name */
    double first_step;
    int32_t tried;
} planning_t;

/* As urgency says, nothing overtaken. */
static const dp__overlap_rules_t in_order = {.alive = {2, 2, 2}};

/* ---- the request ---- */

/* Where none are asked for: those that the schedule needs. */
static dp_status_t find_slots(dp_overlap_request_t *request)
{
    dp_program_t *program;

    DO(dp__program_make(request->schedule, NULL, &program));
    request->slots = dp__program_slots(program);
    dp_program_free(program);
    return DP_OK;
}

static dp_status_t check_request(const dp_overlap_request_t *given, dp_overlap_request_t *request)
{
    DO(dp__take("plan: the request", dp_overlap_request_t, DP_OVERLAP_REQUEST_MIN, request, given));
    if (request->schedule == NULL || request->costs == NULL)
        return dp_fail(DP_ERR_INVALID, "plan: no schedule, or no costs");
    if (request->schedule->nbraids > 0 && !request->schedule->forward_only)
        return dp_fail(DP_ERR_INVALID, "plan: the schedule has braids; a plan begins with one without");
    if (isnan(request->memory_cap) || request->slots < 0 || request->tries < 0 || !(request->seconds >= 0.0))
        return dp_fail(DP_ERR_INVALID,
                       "plan: memory cap %g, %d slots, %d tries, %g s: none may be negative but the "
                       "memory cap",
                       request->memory_cap, request->slots, request->tries, request->seconds);
    DO(dp_schedule_verify(request->schedule));
    return request->slots > 0 ? DP_OK : find_slots(request);
}

/* Into x->held, and the most of all ranks. */
static dp_status_t find_held(planning_t *x, const dp_schedule_t *schedule, double *most_out)
{
    *most_out = 0.0;
    DO(dp_schedule_memory(schedule, NULL, x->held));
    for (int32_t r = 0; r < schedule->ranks; r++)
        *most_out = fmax(*most_out, x->held[r].activations);
    return DP_OK;
}

static dp_status_t fill_caps(planning_t *x)
{
    const dp_overlap_request_t *request = &x->request;
    const dp_schedule_t *schedule = request->schedule;
    double most;

    if (!dp__arrays(DP__ARRAY(x->held, schedule->ranks)))
        return dp_fail(DP_ERR_NOMEM, "plan: no memory for %d ranks", schedule->ranks);
    DO(find_held(x, schedule, &most));
    for (int32_t r = 0; r < schedule->ranks; r++) {
        const double cap = request->rank_caps != NULL ? request->rank_caps[r] : request->memory_cap;

        if (isnan(cap))
            return dp_fail(DP_ERR_INVALID, "plan: the memory cap of rank %d is no number", r);
        x->problem.cap[r] = cap < 0.0 || (cap == 0.0 && schedule->forward_only) ? INFINITY : cap == 0.0 ? most : cap;
    }
    return DP_OK;
}

static bool fits_caps(const planning_t *x)
{
    for (int32_t r = 0; r < x->problem.ranks; r++)
        if (x->held[r].activations > x->problem.cap[r] + 1e-9)
            return false;
    return true;
}

static dp_status_t open_problem(const dp_overlap_request_t *given, planning_t *x)
{
    dp_costs_t costs;
    dp_status_t status = check_request(given, &x->request);

    if (status >= 0)
        status = dp__costs_resolve(x->request.costs, x->request.schedule, &costs);
    if (status >= 0 && costs.segments == NULL)
        status = dp_fail(DP_ERR_INVALID, "plan: the costs have no segments: what runs beside what is a matter of "
                                         "attention, dispatch, mlp and combine");
    if (status >= 0)
        status = dp__overlap_problem_make(x->request.schedule, &costs, x->request.slots, &x->problem);
    return status >= 0 ? fill_caps(x) : status;
}

static int64_t all_calls(const dp__overlap_problem_t *p)
{
    int64_t sum = 0;

    for (int32_t c = 0; c < p->ranks * p->chunks; c++)
        sum += dp__overlap_calls(p, c);
    return sum;
}

/* ---- tries ---- */

static void copy_plan(const planning_t *x, const plan_t *from, plan_t *to)
{
    to->rules = from->rules;
    to->times = from->times;
    to->step = from->step;
    memcpy(to->urgency, from->urgency, (size_t)x->graph.nodes * sizeof(*to->urgency));
    memcpy(to->starts, from->starts, (size_t)x->graph.nodes * sizeof(*to->starts));
}

/* Whether the order of a plan can be run by ranks that do one thing after the other. If so, its
 * schedule is the best one. */
static bool is_sound(planning_t *x, const plan_t *plan)
{
    dp_lower_options_t options = {.struct_size = sizeof(options), .slots = x->request.slots};
    dp_schedule_t *schedule = NULL;
    dp_program_t *program = NULL;
    dp_status_t status;

    (void)dp__overlap_run(x->run, &plan->rules, plan->urgency, false, INFINITY, x->calls, x->counts);
    status = dp__overlap_braids(&x->problem, x->request.schedule, x->calls, x->counts, &schedule);
    if (status >= 0)
        status = dp__program_make(schedule, &options, &program);
    dp_program_free(program);
    if (status < 0) {
        dp_schedule_free(schedule);
        return false;
    }
    dp_schedule_free(x->found->schedule);
    x->found->schedule = schedule;
    x->found->peak = dp__overlap_run_peak(x->run);
    return true;
}

/* Keeps the best, and goes on from what is little worse. */
static void run_forward(planning_t *x, double worse)
{
    plan_t *t = &x->trial;

    t->step = dp__overlap_run(x->run, &t->rules, t->urgency, false, x->now.step + worse, NULL, NULL);
    if (t->step > x->now.step + worse || t->step == INFINITY)
        return;
    memcpy(t->starts, dp__overlap_run_starts(x->run), (size_t)x->graph.nodes * sizeof(*t->starts));
    if (t->step < x->best.step && !is_sound(x, t))
        return;
    copy_plan(x, t, &x->now);
    if (t->step < x->best.step)
        copy_plan(x, t, &x->best);
}

/* From the end of the step, what ended last goes first: all begins as late as it can. What then
 * begins first is what the step waits for. False: no order was found. */
static bool run_reverse(planning_t *x, double worse)
{
    const double *starts = dp__overlap_run_starts(x->run);
    plan_t *t = &x->trial;
    double step;

    for (int32_t n = 0; n < x->graph.nodes; n++)
        t->urgency[n] = -t->starts[n] - x->graph.node[n].cost;
    step = dp__overlap_run(x->run, &t->rules, t->urgency, true, x->now.step + worse, NULL, NULL);
    for (int32_t n = 0; n < x->graph.nodes; n++)
        t->urgency[n] = step - starts[n] - x->graph.node[n].cost;
    return step < INFINITY;
}

/* 0 to 1. */
static double share_of_time(const planning_t *x, double began)
{
    double share = x->request.seconds > 0.0 ? (dp__now_seconds() - began) / x->request.seconds : 0.0;

    return fmax(share, (double)x->tried / x->request.tries);
}

/* Passes go from the steady state to the ramps, under random rules that fill gaps. */
static bool try_lift(planning_t *x, dp__overlap_random_t *random)
{
    plan_t *t = &x->trial;

    dp__overlap_rules_random(x->problem.period, random, &t->rules);
    if (!dp__overlap_urgency_lift(&x->graph, t->step, random, t->urgency))
        return false;
    if (dp__overlap_unit(random) < 0.5)
        return true;
    t->step = dp__overlap_run(x->run, &t->rules, t->urgency, false, 1.02 * x->now.step, NULL, NULL);
    memcpy(t->starts, dp__overlap_run_starts(x->run), (size_t)x->graph.nodes * sizeof(*t->starts));
    return t->step < INFINITY && run_reverse(x, 5e-3 * x->now.step);
}

/* Changes a plan: lifted passes, other rules, other urgencies, or a run backwards and forwards. */
static void try_change(planning_t *x, dp__overlap_random_t *random, double worse)
{
    double lift = x->problem.kinds == PASS_KINDS ? 0.3 : 0.0, what = dp__overlap_unit(random);
    plan_t *t = &x->trial;

    copy_plan(x, &x->now, t);
    memcpy(t->urgency, t->starts, (size_t)x->graph.nodes * sizeof(*t->urgency));
    if (what < lift && !try_lift(x, random))
        return;
    if (what >= lift && what < 0.6)
        dp__overlap_rules_change(x->problem.period, random, &t->rules);
    else if (what >= 0.6 && what < 0.8)
        dp__overlap_urgency_change(&x->graph, t->step, random, t->urgency);
    if ((what >= 0.45 && what < 0.6) || what >= 0.8) {
        if (!run_reverse(x, 5e-3 * x->now.step))
            return;
        if (dp__overlap_unit(random) < 0.5)
            t->rules = in_order;
    }
    run_forward(x, worse);
}

/* Lanes that never wait for a more urgent segment in some of the phases. */
static void set_busy(dp__overlap_random_t *random, dp__overlap_rules_t *rules)
{
    double what = dp__overlap_unit(random);

    if (what < 0.8)
        rules->ahead[PHASE_STEADY] = rules->ahead[PHASE_DRAIN] = INFINITY;
    if (what < 0.4)
        rules->ahead[PHASE_FILL] = INFINITY;
}

static void draw_times(planning_t *x, dp__overlap_random_t *random)
{
    plan_t *t = &x->trial;

    dp__overlap_timetable_random(&x->problem, random, &t->times);
    dp__overlap_rules_random(x->problem.period, random, &t->rules);
    set_busy(random, &t->rules);
}

static void change_times(planning_t *x, dp__overlap_random_t *random)
{
    plan_t *t = &x->trial;

    t->times = x->now.times;
    t->rules = x->now.rules;
    for (int k = 1 + (int)(3.0 * dp__overlap_unit(random)); k > 0; k--)
        if (dp__overlap_unit(random) < 0.35)
            dp__overlap_rules_change(x->problem.period, random, &t->rules);
        else
            dp__overlap_timetable_change(&x->problem, random, &t->times);
    if (dp__overlap_unit(random) < 0.01)
        set_busy(random, &t->rules);
}

/* On from the best timetable so far, or from the best of some by chance; anew where none of `stale`
 * is better. */
static void try_times(planning_t *x, dp__overlap_random_t *random, int32_t stale, double until, double began)
{
    plan_t *t = &x->trial;
    int32_t drawn = x->timed.step < INFINITY ? DRAWN : 0, since = 0;
    double done;

    x->now.step = INFINITY;
    for (; (done = share_of_time(x, began) / until) < 1.0; x->tried++) {
        double step = x->now.step, worse = 0.0;

        if (drawn == 2 * DRAWN && x->timed.step == INFINITY)
            return; /* they do not fit the schedule */
        if (drawn < DRAWN || x->timed.step == INFINITY) {
            drawn++;
            draw_times(x, random);
        } else if (step == INFINITY) {
            t->times = x->timed.times;
            t->rules = x->timed.rules;
        } else {
            worse = 1e-3 * step * (1.0 - done) * dp__overlap_unit(random);
            change_times(x, random);
        }
        if (!dp__overlap_timetable_write(&x->graph, &t->times, t->urgency))
            return;
        run_forward(x, worse);
        if (x->now.step < x->timed.step)
            x->timed = (timed_t){x->now.times, x->now.rules, x->now.step};
        since = x->now.step < step ? 0 : since + 1;
        if (since > stale) {
            x->now.step = INFINITY;
            drawn = since = 0;
        }
    }
}

/* Urgencies by chance, and lanes that never wait for a more urgent segment. */
static void try_random(planning_t *x, dp__overlap_random_t *random, double worse)
{
    plan_t *t = &x->trial;

    if (dp__overlap_unit(random) < 0.5 && x->now.step < INFINITY)
        memcpy(t->urgency, x->now.starts, (size_t)x->graph.nodes * sizeof(*t->urgency));
    else
        dp__overlap_urgency_random(&x->graph, random, t->urgency);
    dp__overlap_rules_random(x->problem.period, random, &t->rules);
    for (int phase = 0; phase < PHASES; phase++)
        t->rules.ahead[phase] = INFINITY;
    run_forward(x, worse);
}

/* From the given order; then chance, and more and more often changes of what is good. Ends after so
 * many tries, or with the whole `until` done. */
static void try_round(planning_t *x, dp__overlap_random_t *random, int32_t tries, double until, double began)
{
    double done;

    x->now.step = INFINITY;
    x->trial.rules = in_order;
    memcpy(x->trial.urgency, x->given, (size_t)x->graph.nodes * sizeof(*x->given));
    run_forward(x, 0.0);
    x->tried++;
    for (int32_t k = 1; (done = fmax((double)k / tries, share_of_time(x, began) / until)) < 1.0; k++, x->tried++) {
        double worse = x->now.step < INFINITY ? 1e-3 * x->best.step * (1.0 - done) * dp__overlap_unit(random) : 0.0;

        if (x->now.step == INFINITY || dp__overlap_unit(random) > 4.0 * done)
            try_random(x, random, worse);
        else
            try_change(x, random, worse);
    }
}

/* 1, 1, 2, 1, 1, 2, 4, ... (Luby, Sinclair, Zuckerman 1993). */
static int32_t round_length(int32_t number)
{
    int32_t k = 1;

    while ((1 << k) - 1 < number)
        k++;
    return (1 << k) - 1 == number ? 1 << (k - 1) : round_length(number - (1 << (k - 1)) + 1);
}

static void try_rounds(planning_t *x, dp__overlap_random_t *random, double until, double began)
{
    for (int32_t round = 1; share_of_time(x, began) < until; round++)
        try_round(x, random, ROUND * round_length(round), until, began);
}

/* Short rounds from several starts find more than a long one, and timetables more than rounds
 * where they fit the schedule. Then on from the best of them. */
static void try_all(planning_t *x)
{
    dp__overlap_random_t random = {x->request.seed};
    double began = dp__now_seconds(), times = x->problem.kinds == PASS_KINDS ? 0.4 : 0.0, done;

    x->timed.step = INFINITY;
    if (x->request.tries <= TRIES) {
        try_round(x, &random, x->request.tries, 1.0, began);
    } else {
        try_times(x, &random, STALE, times, began);
        try_rounds(x, &random, times + 0.1, began);
        if (x->timed.step <= 1.02 * x->best.step)
            try_times(x, &random, INT32_MAX, 0.9, began);
        else
            try_rounds(x, &random, 0.75, began);
    }
    copy_plan(x, &x->best, &x->now);
    for (; (done = share_of_time(x, began)) < 1.0 && x->now.step < INFINITY; x->tried++)
        try_change(x, &random, 1e-3 * x->best.step * (1.0 - done) * dp__overlap_unit(&random));
}

/* ---- where it begins ---- */

/* The step of a run like that of any schedule. */
static dp_status_t simulate_plan(const planning_t *x, const dp_schedule_t *schedule, double *step_out)
{
    dp_lower_options_t options = {.struct_size = sizeof(options), .slots = x->request.slots};
    dp_simulation_t simulation = {.struct_size = sizeof(simulation)};
    dp_status_t status = dp_evaluate(schedule, &options, x->request.costs, 0, &simulation);

    if (status >= 0)
        *step_out = simulation.step_time;
    dp_simulation_clear(&simulation);
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

/* Of forwards alone the shortest of all orders by name; the given schedule otherwise. */
static dp_status_t find_first(planning_t *x)
{
    const dp_schedule_t *given = x->request.schedule;
    dp_status_t status = DP_OK;

    x->first_step = INFINITY;
    for (int order = DP_FORWARDS_SERIAL; order <= (given->forward_only ? DP_FORWARDS_DECODE : 0) && status >= 0;
         order++) {
        dp_schedule_t *schedule = NULL;
        double step = 0.0, most;

        status = given->forward_only ? dp_schedule_forwards(given, order, &schedule) : copy_schedule(given, &schedule);
        if (status >= 0)
            status = simulate_plan(x, schedule, &step);
        if (status >= 0)
            status = find_held(x, schedule, &most);
        if (status >= 0 && step < x->first_step && fits_caps(x)) {
            dp_schedule_t *worse = x->first;

            x->first = schedule;
            x->first_step = step;
            schedule = worse;
        }
        dp_schedule_free(schedule);
        if (status == DP_ERR_REJECTED && order > DP_FORWARDS_SERIAL)
            status = DP_OK; /* two by two they wait for each other */
    }
    return status;
}

static dp_status_t take_spans(const planning_t *x, const dp_timeline_t *timeline, int32_t rank, double *starts)
{
    const dp__overlap_problem_t *p = &x->problem;
    int64_t count;
    const dp_span_t *spans = dp_timeline_spans(timeline, rank, &count);

    for (int64_t k = 0; k < count; k++) {
        const dp_span_t *span = &spans[k];
        int kind = span->pass == DP_OP_F ? PASS_F : span->pass == DP_OP_I ? PASS_I : PASS_W;
        const dp__overlap_walk_t *walk;

        if (span->kind != DP_SPAN_COMPUTE || span->segment < 0)
            continue;
        walk = &x->graph.walk[dp__overlap_walk_at(p, kind, rank * p->chunks + span->chunk, span->microbatch)];
        for (int32_t n = walk->first; n < walk->first + walk->count; n++)
            if (x->graph.node[n].segment == span->segment)
                starts[n] = 1e-6 * (double)span->start_ns;
    }
    return DP_OK;
}

/* When each node began in the given schedule. */
static dp_status_t take_given(planning_t *x, double *starts)
{
    dp_lower_options_t options = {.struct_size = sizeof(options), .slots = x->request.slots};
    dp_simulation_t simulation = {.struct_size = sizeof(simulation)};
    dp_status_t status =
        dp_evaluate(x->first != NULL ? x->first : x->request.schedule, &options, x->request.costs, 1, &simulation);

    for (int32_t r = 0; status >= 0 && r < x->problem.ranks; r++)
        status = take_spans(x, simulation.timeline, r, starts);
    dp_simulation_clear(&simulation);
    return status;
}

static bool plan_step(const planning_t *x, plan_t *plan)
{
    plan->step = INFINITY;
    return dp__arrays(DP__ARRAY(plan->urgency, x->graph.nodes), DP__ARRAY(plan->starts, x->graph.nodes));
}

static int32_t tightest_rank(const planning_t *x)
{
    int32_t tightest = 0;

    for (int32_t r = 1; r < x->problem.ranks; r++)
        tightest = x->problem.cap[r] < x->problem.cap[tightest] ? r : tightest;
    return tightest;
}

static dp_status_t search_plan(planning_t *x)
{
    dp_status_t status = dp__overlap_graph_make(&x->problem, &x->graph);

    if (status >= 0 && x->request.tries == 0)
        x->request.tries = (int32_t)fmax(FEWEST, fmin(TRIES, (double)NODES / x->graph.nodes));
    if (status >= 0)
        x->run = dp__overlap_run_open(&x->graph);
    if (status >= 0 && (x->run == NULL ||
                        !dp__arrays(DP__ARRAY(x->calls, all_calls(&x->problem)), DP__ARRAY(x->counts, x->problem.ranks),
                                    DP__ARRAY(x->given, x->graph.nodes)) ||
                        !plan_step(x, &x->best) || !plan_step(x, &x->now) || !plan_step(x, &x->trial)))
        status = dp_fail(DP_ERR_NOMEM, "plan: no memory for %d ranks", x->problem.ranks);
    if (status >= 0)
        status = find_first(x);
    if (status >= 0)
        status = take_given(x, x->given);
    if (status < 0)
        return status;
    try_all(x);
    return x->best.step < INFINITY || x->first != NULL
               ? DP_OK
               : dp_fail(DP_ERR_REJECTED, "plan: with %g activations on rank %d no order was found",
                         x->problem.cap[tightest_rank(x)], tightest_rank(x));
}

/* ---- the end ---- */

/* The first schedule stays where no plan is shorter. */
static dp_status_t keep_shorter(planning_t *x, dp_overlap_result_t *found)
{
    dp_status_t status = found->schedule != NULL ? simulate_plan(x, found->schedule, &found->step) : DP_ERR_REJECTED;

    if (status != DP_ERR_REJECTED && (status < 0 || found->step < x->first_step))
        return status;
    if (x->first == NULL)
        return status;
    dp_schedule_free(found->schedule);
    found->schedule = x->first;
    found->step = x->first_step;
    x->first = NULL;
    return find_held(x, found->schedule, &found->peak);
}

static void close_planning(planning_t *x)
{
    dp__overlap_run_close(x->run);
    dp_schedule_free(x->first);
    dp__free(x->held);
    dp__free(x->calls);
    dp__free(x->best.urgency);
    dp__free(x->now.urgency);
    dp__free(x->trial.urgency);
    dp__overlap_graph_clear(&x->graph);
    dp__overlap_problem_clear(&x->problem);
}

dp_status_t dp_plan_overlap(const dp_overlap_request_t *request, dp_overlap_result_t *result)
{
    dp_overlap_result_t found = {.struct_size = sizeof(found)};
    planning_t x = {.found = &found};
    dp_status_t status = dp__sized_check("plan: the result", result, "dp_overlap_result_t", DP_OVERLAP_RESULT_MIN);

    if (status < 0)
        return status;
    dp_sized_put(result, &found);
    status = open_problem(request, &x);
    if (status >= 0)
        status = search_plan(&x);
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

dp_status_t dp__overlap_request_bound(const dp_overlap_request_t *request, double *bound_out)
{
    planning_t x = {.tried = 0};
    dp_status_t status =
        bound_out == NULL ? dp_fail(DP_ERR_INVALID, "plan: bound_out is NULL") : open_problem(request, &x);

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
