/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * search.c: finds starts, improves them by simulated annealing, and proves what is offered.
 *
 *     for each built-in method and number of chunks: keep as starts its own lists, the same with
 *         later weight gradients, and those of list scheduling (greedy.c)
 *     for each of the STARTS best, best first, with an equal share of the time left:
 *         change the list of one rank (moves.c) and time all lists (lists.c)
 *         keep the change if the score is no worse, else with probability exp(-worse / heat)
 *         heat falls from 0.3 F to a hundredth of that
 *     with costs per segment, plan the built-in schedules instead (dp_plan_overlap)
 *
 * The score is the step, and a little of the mean end of the ranks: of two lists with one step the
 * denser one has more to give.
 *
 * Invariants: only offer_schedule() sets the result. It lowers, proves and simulates, and checks
 * the memory; the timing of lists.c decides acceptance and never what is reported. Between two
 * moves `trial` equals `now`.
 *
 * Example: 2 ranks, 2 micro-batches, F = 1, B = 2, started from GPipe. The list of rank 1 is
 * F0 F1 B0 B1. A move lets F1 and B0 trade places: F0 B0 F1 B1. Rank 0 gets the gradient of 0 at 4
 * instead of 5, and still ends at 9, so the score is no worse and the move is kept. Rank 1 then
 * holds one micro-batch instead of two, as in 1F1B. */
#include <dualpipe/overlap.h>
#include <dualpipe/search.h>

#include "base/clock.h"
#include "base/do.h"
#include "base/sized.h"
#include "overlap/bound.h"
#include "search/greedy.h"
#include "search/lists.h"
#include "search/moves.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    STARTS = 12,            /* lists that are kept to start from */
    GREEDY_TRIES = 400,     /* sets of rules tried on each shape, as far as time allows */
    GREEDY_LARGEST = 20000, /* operations; past that list scheduling takes too long */
    MOST_GIVEN = 32         /* built-in schedules whose segments are planned */
};

static const int32_t loop_chunks[] = {2, 4};

/* A list to start from, with its shape. */
typedef struct start {
    char name[48];
    dp__shape_t shape;
    double cap; /* of activations; negative: none */
    dp__lists_t lists;
    dp__timing_t timing;
} start_t;

/* A built-in schedule whose segments are planned. */
typedef struct given {
    char name[38];
    dp_schedule_t *schedule;
    double step; /* of the best plan of it so far, or its own */
    bool wanted; /* to be planned */
} given_t;

typedef struct search {
    dp_search_request_t request; /* memory_cap negative: none */
    dp_costs_t costs;            /* of the request */
    dp_search_result_t *result;
    start_t starts[STARTS + 1]; /* by score; one more is room for a newcomer */
    int32_t nstarts;
    given_t given[MOST_GIVEN];
    int32_t ngiven;
    dp__search_random_t random;
    double began, shown;
    bool enough; /* says the caller */
} search_t;

static double elapsed_seconds(const search_t *search)
{
    return dp__now_seconds() - search->began;
}

static bool has_time(const search_t *search, double until)
{
    return !search->enough && elapsed_seconds(search) < until;
}

static void show_progress(search_t *search)
{
    double now = elapsed_seconds(search);
    dp_search_state_t state = {.struct_size = sizeof(state),
                               .elapsed = now,
                               .tried = search->result->tried,
                               .built_in_step = search->result->built_in_step,
                               .step = search->result->step,
                               .from = search->result->from};

    if (search->request.progress == NULL || search->enough || now - search->shown < 0.2)
        return;
    search->shown = now;
    search->enough = search->request.progress(search->request.user, &state) != 0;
}

static bool is_better(double step, double than)
{
    return step < than - 1e-9 * (1.0 + fabs(than)) || (isinf(than) && !isinf(step));
}

/* ---- proof ---- */

/* Activations that a rank may hold beside its weights; negative: any number. */
static double cap_of(const dp_search_request_t *request, const dp_schedule_t *schedule)
{
    double weights = request->weight_bytes * dp_schedule_paths(schedule);

    if (request->memory_cap < 0.0 || request->activation_bytes == 0.0 || request->weight_bytes == 0.0)
        return request->memory_cap;
    return fmax(0.0, (request->memory_cap - weights) / request->activation_bytes);
}

static double most_held(const dp_simulation_t *simulation)
{
    double peak = 0.0;

    for (int32_t r = 0; r < simulation->ranks; r++)
        peak = fmax(peak, simulation->peak_activations[r]);
    return peak;
}

/* *step_out is infinite when that rejects it or the memory does. */
static dp_status_t prove_schedule(const dp_search_request_t *request, const dp_schedule_t *schedule, double *step_out,
                                  double *peak_out)
{
    dp_lower_options_t options = {.struct_size = sizeof(options),
                                  .transport = request->transport,
                                  .slots = request->slots > 0 ? request->slots : 2};
    dp_simulation_t simulation = {.struct_size = sizeof(simulation)};
    dp_status_t status = dp_evaluate(schedule, &options, request->costs, 0, &simulation);

    *step_out = INFINITY;
    if (status >= 0) {
        *peak_out = most_held(&simulation);
        if (cap_of(request, schedule) < 0.0 || *peak_out <= cap_of(request, schedule) + 1e-9)
            *step_out = simulation.step_time;
        dp_simulation_clear(&simulation);
    }
    return status == DP_ERR_REJECTED ? DP_OK : status;
}

/* Keeps the schedule when it is the best so far, and frees it otherwise. */
static dp_status_t offer_schedule(search_t *search, dp_schedule_t *schedule, const char *from, double *step_out)
{
    dp_search_result_t *result = search->result;
    double peak = 0.0;
    dp_status_t status = prove_schedule(&search->request, schedule, step_out, &peak);

    if (status < 0 || !is_better(*step_out, result->step)) {
        dp_schedule_free(schedule);
        return status;
    }
    dp_schedule_free(result->schedule);
    result->schedule = schedule;
    result->step = *step_out;
    result->peak = peak;
    snprintf(result->from, sizeof(result->from), "%s", from);
    return DP_OK;
}

static dp_status_t offer_lists(search_t *search, const start_t *start, const dp__lists_t *lists)
{
    dp_schedule_t *schedule;
    double step;
    dp_status_t status = dp__lists_give(&start->shape, lists, &schedule);

    return status >= 0 ? offer_schedule(search, schedule, start->name, &step) : status;
}

/* ---- starts ---- */

static void clear_start(start_t *start)
{
    dp__lists_clear(&start->lists);
    dp__shape_clear(&start->shape);
}

static double score_of(const dp__timing_t *timing)
{
    return timing->step + 0.05 * timing->tail;
}

/* Takes over `start` when it is among the best. */
static void keep_start(search_t *search, start_t *start)
{
    int32_t at = search->nstarts;

    for (int32_t s = 0; s < search->nstarts; s++) /* one of a kind is enough */
        if (strcmp(search->starts[s].name, start->name) == 0 &&
            fabs(score_of(&search->starts[s].timing) - score_of(&start->timing)) < 1e-9) {
            clear_start(start);
            return;
        }
    while (at > 0 && score_of(&search->starts[at - 1].timing) > score_of(&start->timing)) {
        search->starts[at] = search->starts[at - 1];
        at--;
    }
    search->starts[at] = *start;
    if (search->nstarts < STARTS)
        search->nstarts++;
    else
        clear_start(&search->starts[STARTS]);
}

static dp_status_t make_start(search_t *search, const dp_schedule_t *schedule, const char *name, start_t *start)
{
    dp_status_t status;

    memset(start, 0, sizeof(*start));
    snprintf(start->name, sizeof(start->name), "%s", name);
    start->cap = cap_of(&search->request, schedule);
    status = dp__shape_make(schedule, search->request.costs, &start->shape);
    if (status >= 0)
        status = dp__lists_make(&start->shape, &start->lists);
    if (status < 0)
        clear_start(start);
    return status;
}

/* List scheduling on the shape of a built-in schedule; the best of many rules becomes a start. */
static dp_status_t greedy_starts(search_t *search, const dp_schedule_t *schedule, const char *name, double until)
{
    start_t best, trial;
    dp__list_timer_t timer;
    dp_status_t status;
    char label[48];

    snprintf(label, sizeof(label), "list on %s", name);
    status = make_start(search, schedule, label, &best);
    if (status < 0)
        return status;
    best.timing.step = best.timing.tail = INFINITY;
    status = make_start(search, schedule, label, &trial);
    if (status >= 0)
        status = dp__timer_make(&best.shape, &timer);
    for (int k = 0; status >= 0 && k < GREEDY_TRIES && has_time(search, until); k++) {
        dp__rules_t rules = dp__rules_random(&best.shape, &search->random);
        bool done = dp__greedy_run(&best.shape, &rules, best.cap, &timer, &trial.lists);

        search->result->tried++;
        if (done)
            trial.timing = dp__timer_run(&timer, &trial.shape, &trial.lists, best.cap);
        if (done && trial.timing.step < INFINITY && score_of(&trial.timing) < score_of(&best.timing)) {
            dp__lists_copy(&best.shape, &trial.lists, &best.lists);
            best.timing = trial.timing;
        }
        show_progress(search);
    }
    if (status >= 0)
        dp__timer_clear(&timer);
    clear_start(&trial);
    if (status >= 0 && best.timing.step < INFINITY) {
        status = offer_lists(search, &best, &best.lists);
        keep_start(search, &best);
    } else {
        clear_start(&best);
    }
    return status;
}

static dp_status_t built_in_start(search_t *search, const dp_schedule_t *schedule, const char *name)
{
    start_t start;
    dp__list_timer_t timer;
    dp_status_t status = make_start(search, schedule, name, &start);

    if (status < 0)
        return status;
    status = dp__timer_make(&start.shape, &timer);
    if (status >= 0) {
        dp__lists_take(&start.shape, schedule, &start.lists);
        start.timing = dp__timer_run(&timer, &start.shape, &start.lists, start.cap);
        dp__timer_clear(&timer);
    }
    if (status >= 0 && start.timing.step < INFINITY)
        keep_start(search, &start);
    else
        clear_start(&start);
    return status;
}

/* The same with weight gradients later in the draining: the best lag becomes a start. */
static dp_status_t later_start(search_t *search, const dp_schedule_t *schedule, const char *name)
{
    start_t given, best;
    dp__list_timer_t timer;
    char label[48];
    int32_t found = 0;
    dp_status_t status = make_start(search, schedule, name, &given);

    if (status < 0)
        return status;
    snprintf(label, sizeof(label), "%.36s, W later", name);
    status = make_start(search, schedule, label, &best);
    if (status >= 0)
        status = dp__timer_make(&best.shape, &timer);
    if (status < 0) {
        clear_start(&given);
        clear_start(&best);
        return status;
    }
    best.timing.step = best.timing.tail = INFINITY;
    dp__lists_take(&given.shape, schedule, &given.lists);
    for (int32_t lag = 0; lag <= 2 * schedule->ranks; lag++) {
        dp__timing_t timing;

        dp__move_weights_later(&given.shape, &given.lists, lag, &best.lists);
        timing = dp__timer_run(&timer, &best.shape, &best.lists, best.cap);
        search->result->tried++;
        if (score_of(&timing) < score_of(&best.timing)) {
            best.timing = timing;
            found = lag;
        }
    }
    dp__move_weights_later(&given.shape, &given.lists, found, &best.lists);
    dp__timer_clear(&timer);
    clear_start(&given);
    if (best.timing.step < INFINITY) {
        status = offer_lists(search, &best, &best.lists);
        keep_start(search, &best);
    } else {
        clear_start(&best);
    }
    return status;
}

static bool is_wanted(const dp_search_request_t *request, const dp_schedule_t *schedule)
{
    return (request->placements == 0 || (request->placements >> schedule->placement & 1) != 0) &&
           (request->weights == 0 || dp_schedule_paths(schedule) <= request->weights) &&
           (request->costs->stage_scale == NULL || dp_schedule_stages(schedule) == request->stages);
}

static dp_status_t offer_built_in(search_t *search, dp_schedule_t *schedule, const char *name, double *step_out)
{
    dp_status_t status = offer_schedule(search, schedule, name, step_out);

    search->result->tried++;
    if (status >= 0 && is_better(*step_out, search->result->built_in_step)) {
        search->result->built_in_step = *step_out;
        snprintf(search->result->built_in, sizeof(search->result->built_in), "%s", name);
    }
    return status;
}

/* Keeps a schedule to plan its segments, and offers another like it. */
static dp_status_t give_start(search_t *search, const dp_schedule_request_t *request, dp_schedule_t *schedule,
                              const char *name)
{
    given_t *given = &search->given[search->ngiven];
    dp_schedule_t *other;
    dp_status_t status = search->ngiven < MOST_GIVEN ? dp_schedule_generate(request, &other)
                                                     : dp_fail(DP_ERR_OVERFLOW, "search: too many methods");

    if (status < 0) {
        dp_schedule_free(schedule);
        return status;
    }
    *given = (given_t){.schedule = schedule};
    snprintf(given->name, sizeof(given->name), "%s", name);
    search->ngiven++;
    status = offer_built_in(search, other, name, &given->step);
    show_progress(search);
    return status;
}

/* One method with one number of chunks, in groups of P or more: itself, and of those of P list
 * scheduling on its shape. */
static dp_status_t try_method(search_t *search, const dp_method_t *method, int32_t chunks, int32_t group, bool greedy,
                              double until)
{
    dp_schedule_request_t request = {.struct_size = sizeof(request),
                                     .method = method->name,
                                     .ranks = search->request.ranks,
                                     .microbatches = search->request.microbatches,
                                     .chunks = chunks,
                                     .microbatch_group = group};
    dp_schedule_t *schedule = NULL;
    char name[38], in_groups[16] = "";
    double step;
    dp_status_t status = dp_schedule_generate(&request, &schedule);

    if (status < 0)
        return status == DP_ERR_INVALID ? DP_OK : status;
    if (!is_wanted(&search->request, schedule)) {
        dp_schedule_free(schedule);
        return DP_OK;
    }
    if (group > 0)
        snprintf(in_groups, sizeof(in_groups), ", G %d", group);
    snprintf(name, sizeof(name), chunks > 0 ? "%s, %d chunks%s" : "%s", method->name, chunks, in_groups);
    if (search->request.costs->segments != NULL)
        return give_start(search, &request, schedule, name);
    status = built_in_start(search, schedule, name);
    if (status >= 0 && group == 0)
        status = later_start(search, schedule, name);
    if (status >= 0 && greedy && schedule->first[schedule->ranks] <= GREEDY_LARGEST)
        status = greedy_starts(search, schedule, name, until);
    if (status < 0) {
        dp_schedule_free(schedule);
        return status;
    }
    status = offer_built_in(search, schedule, name, &step);
    show_progress(search);
    return status;
}

/* ---- segments ---- */

static dp_overlap_request_t plan_of(const search_t *search, const given_t *given)
{
    double cap = cap_of(&search->request, given->schedule);

    return (dp_overlap_request_t){.struct_size = sizeof(dp_overlap_request_t),
                                  .schedule = given->schedule,
                                  .costs = search->request.costs,
                                  .memory_cap = cap == 0.0 ? DBL_MIN : cap,
                                  .slots = search->request.slots,
                                  .tries = INT32_MAX};
}

/* No order of its passes beats the best there is. */
static bool is_hopeless(const search_t *search, const given_t *given)
{
    dp_overlap_request_t request = plan_of(search, given);
    double bound;

    return dp__overlap_request_bound(&request, &bound) >= 0 && bound >= search->result->step;
}

static dp_status_t plan_given(search_t *search, given_t *given, double seconds, uint64_t seed)
{
    dp_overlap_request_t request = plan_of(search, given);
    double step;
    dp_overlap_result_t result = {.struct_size = sizeof(result)};
    dp_status_t status;
    char label[48];

    request.seconds = fmax(seconds, DBL_MIN);
    request.seed = seed;
    status = dp_plan_overlap(&request, &result);
    if (status < 0)
        return status == DP_ERR_REJECTED ? DP_OK : status;
    search->result->tried += result.tried;
    snprintf(label, sizeof(label), "%s, planned", given->name);
    status = offer_schedule(search, result.schedule, label, &step);
    given->step = fmin(given->step, step);
    show_progress(search);
    return status;
}

/* A third of the time for those near the best that can beat it, the rest for the best then. */
static dp_status_t plan_all(search_t *search)
{
    double far = 1.2 * search->result->step, share = search->request.seconds / 3.0;
    given_t *best = &search->given[0];
    int32_t near = 0;
    dp_status_t status = DP_OK;

    for (int32_t g = 0; g < search->ngiven; g++) {
        search->given[g].wanted = search->given[g].step <= far && !is_hopeless(search, &search->given[g]);
        near += search->given[g].wanted;
    }
    for (int32_t g = 0; g < search->ngiven && status >= 0 && has_time(search, search->request.seconds); g++) {
        if (search->given[g].wanted)
            status = plan_given(search, &search->given[g], share / near, search->request.seed);
        if (search->given[g].step < best->step)
            best = &search->given[g];
    }
    if (status >= 0 && search->ngiven > 0 && has_time(search, search->request.seconds))
        status = plan_given(search, best, search->request.seconds - elapsed_seconds(search), search->request.seed + 1);
    return status;
}

/* Groups of up to 2 P. Some that differ by little divide the micro-batches alike. */
static dp_status_t try_groups(search_t *search, const dp_method_t *method, int32_t chunks)
{
    const int32_t ranks = search->request.ranks, m = search->request.microbatches;
    int32_t before = m % ranks == 0 ? m / ranks : 0; /* groups of P were tried */
    dp_status_t status = DP_OK;

    for (int32_t quarters = 4; quarters <= 8 && status >= 0; quarters++) {
        const int32_t most = (ranks * quarters + 3) / 4, n = (m + most - 1) / most;

        if (n != before && m / n >= ranks)
            status = try_method(search, method, chunks, (m + n - 1) / n, false, 0.0);
        before = n;
    }
    return status;
}

/* List scheduling gets a third of the time, once for each placement. */
static dp_status_t find_starts(search_t *search)
{
    size_t count;
    const dp_method_t *methods = dp_schedule_methods(&count);
    bool seen[DP_PLACE_BIDIRECTIONAL + 1] = {false};
    dp_status_t status = DP_OK;

    for (size_t m = 0; m < count && status >= 0; m++) {
        bool loop = methods[m].placement == DP_PLACE_LOOP, greedy = !seen[methods[m].placement];
        double share = search->request.seconds / 3.0 / (loop ? 10.0 : 5.0);

        seen[methods[m].placement] = true;
        for (size_t k = 0; k < sizeof(loop_chunks) / sizeof(loop_chunks[0]) && status >= 0 && (loop || k == 0); k++) {
            status =
                try_method(search, &methods[m], loop ? loop_chunks[k] : 0, 0, greedy, elapsed_seconds(search) + share);
            if (status >= 0 && loop)
                status = try_groups(search, &methods[m], loop_chunks[k]);
        }
    }
    return status;
}

/* ---- annealing ---- */

typedef struct annealing {
    start_t *start;
    dp__lists_t now, trial;
    dp__list_timer_t timer;
    double score, best_step, from_heat, to_heat;
} annealing_t;

static bool is_accepted(search_t *search, const annealing_t *a, double score_of_trial, double heat)
{
    return score_of_trial <= a->score || dp__random_unit(&search->random) < exp((a->score - score_of_trial) / heat);
}

static dp_status_t anneal_step(search_t *search, annealing_t *a, double heat)
{
    const dp__shape_t *shape = &a->start->shape;
    int32_t rank = dp__move_random(shape, &a->trial, &search->random);
    dp__timing_t timing;
    dp_status_t status = DP_OK;

    if (rank < 0)
        return DP_OK;
    timing = dp__timer_run(&a->timer, shape, &a->trial, a->start->cap);
    search->result->tried++;
    if (timing.step == INFINITY || !is_accepted(search, a, score_of(&timing), heat)) {
        a->trial.count[rank] = a->now.count[rank];
        memcpy(a->trial.ops + (int64_t)rank * a->trial.room, a->now.ops + (int64_t)rank * a->now.room,
               (size_t)a->now.count[rank] * sizeof(*a->now.ops));
        return DP_OK;
    }
    a->score = score_of(&timing);
    a->now.count[rank] = a->trial.count[rank];
    memcpy(a->now.ops + (int64_t)rank * a->now.room, a->trial.ops + (int64_t)rank * a->trial.room,
           (size_t)a->trial.count[rank] * sizeof(*a->now.ops));
    if (is_better(timing.step, a->best_step)) {
        a->best_step = timing.step;
        if (is_better(timing.step, search->result->step))
            status = offer_lists(search, a->start, &a->now);
    }
    return status;
}

/* Cools from a heat at which a forward's time is often given away to one at which none is. */
static dp_status_t anneal_start(search_t *search, start_t *start, double until)
{
    annealing_t a = {.start = start, .score = score_of(&start->timing), .best_step = start->timing.step};
    double began = elapsed_seconds(search), hot = 0.3 * start->shape.cost[DP_OP_F] + 1e-6, cold = hot / 100.0,
           heat = hot;
    dp_status_t status = dp__lists_make(&start->shape, &a.now);

    if (status >= 0)
        status = dp__lists_make(&start->shape, &a.trial);
    if (status >= 0)
        status = dp__timer_make(&start->shape, &a.timer);
    if (status >= 0) {
        dp__lists_copy(&start->shape, &start->lists, &a.now);
        dp__lists_copy(&start->shape, &start->lists, &a.trial);
    }
    for (int64_t k = 0; status >= 0; k++) {
        if (k % 64 == 0) {
            double now = elapsed_seconds(search);

            if (!has_time(search, until))
                break;
            heat = hot * pow(cold / hot, (now - began) / fmax(until - began, 1e-9));
            show_progress(search);
        }
        status = anneal_step(search, &a, heat);
    }
    dp__timer_clear(&a.timer);
    dp__lists_clear(&a.trial);
    dp__lists_clear(&a.now);
    return status;
}

/* Each start in turn, the best first, with an equal share of the time that is left. */
static dp_status_t improve_starts(search_t *search)
{
    dp_status_t status = DP_OK;

    for (int32_t left = search->nstarts; status >= 0 && left > 0 && has_time(search, search->request.seconds); left--) {
        double now = elapsed_seconds(search);

        status =
            anneal_start(search, &search->starts[search->nstarts - left], now + (search->request.seconds - now) / left);
    }
    return status;
}

static void forget_starts(search_t *search)
{
    for (int32_t s = 0; s < search->nstarts; s++)
        clear_start(&search->starts[s]);
    for (int32_t g = 0; g < search->ngiven; g++)
        dp_schedule_free(search->given[g].schedule);
}

static dp_status_t take_request(const dp_search_request_t *from, search_t *search)
{
    dp_search_request_t *request = &search->request;

    DO(dp__take("dp_search: the request", dp_search_request_t, DP_SEARCH_REQUEST_MIN, request, from));
    if (request->ranks < 1 || request->microbatches < 1)
        return dp_fail(DP_ERR_INVALID, "search: %d ranks and %d micro-batches: both must be 1 or more", request->ranks,
                       request->microbatches);
    if (request->costs == NULL)
        return dp_fail(DP_ERR_INVALID, "search: no costs");
    DO(dp__take("dp_search: the costs", dp_costs_t, DP_COSTS_MIN, &search->costs, request->costs));
    request->costs = &search->costs;
    if (request->costs->stage_scale != NULL && request->stages < 1)
        return dp_fail(DP_ERR_INVALID, "search: costs with a stage_scale, and `stages` does not say of how many");
    if (request->weights < 0 || !(request->activation_bytes >= 0.0) || !(request->weight_bytes >= 0.0))
        return dp_fail(DP_ERR_INVALID, "search: weights %d, activation_bytes %g, weight_bytes %g: none may be negative",
                       request->weights, request->activation_bytes, request->weight_bytes);
    if (request->costs->topology != NULL && request->costs->topology->ranks != request->ranks)
        return dp_fail(DP_ERR_INVALID, "search: the topology has %d ranks, %d are wanted",
                       request->costs->topology->ranks, request->ranks);
    if (!(request->memory_cap >= 0.0) || !(request->seconds >= 0.0))
        return dp_fail(DP_ERR_INVALID, "search: memory_cap %g, seconds %g: neither may be negative",
                       request->memory_cap, request->seconds);
    if (request->seconds == 0.0)
        request->seconds = 10.0;
    if (request->memory_cap == 0.0)
        request->memory_cap = -1.0;
    return DP_OK;
}

dp_status_t dp_search(const dp_search_request_t *request, dp_search_result_t *result)
{
    dp_search_result_t found = {.struct_size = sizeof(found), .built_in_step = INFINITY, .step = INFINITY};
    search_t search = {.result = &found, .began = dp__now_seconds()};
    dp_status_t status = dp__sized_check("dp_search: the result", result, "dp_search_result_t", DP_SEARCH_RESULT_MIN);

    if (status < 0)
        return status;
    dp_sized_put(result, &found);
    status = take_request(request, &search);
    if (status < 0)
        return status;
    search.random.state = search.request.seed;
    status = find_starts(&search);
    if (status >= 0)
        status = improve_starts(&search);
    if (status >= 0)
        status = plan_all(&search);
    forget_starts(&search);
    if (status >= 0 && found.schedule == NULL)
        status = dp_fail(DP_ERR_REJECTED, "search: no schedule holds as few as %g micro-batches' activations on a rank",
                         search.request.memory_cap);
    if (status >= 0)
        dp_sized_put(result, &found);
    else
        dp_search_clear(&found);
    return status;
}

void dp_search_clear(dp_search_result_t *result)
{
    dp_search_result_t empty = {.struct_size = sizeof(empty)};

    if (!DP_REACHES(result, dp_search_result_t, tried))
        return;
    dp_schedule_free(result->schedule);
    dp_sized_put(result, &empty);
}
