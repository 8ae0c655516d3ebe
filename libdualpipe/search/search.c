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
 * Where the layers of the model are given, each start has a cut of them (dp_partition(), within the
 * memory), annealing moves it by a layer at times, and it is looked for once more behind a plan.
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
#include "base/memory.h"
#include "base/sized.h"
#include "overlap/bound.h"
#include "search/cut.h"
#include "search/greedy.h"
#include "search/limits.h"
#include "search/lists.h"
#include "search/moves.h"
#include "simulate/partition.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    STARTS = 12,            /* lists that are kept to start from */
    GREEDY_TRIES = 400,     /* sets of rules tried on each shape, as far as time allows */
    GREEDY_LARGEST = 20000, /* operations; past that list scheduling takes too long */
    MOST_GIVEN = 256,       /* built-in schedules whose segments are planned */
    CANDIDATES = 16,        /* that a result lists, most */
    CUT_EVERY = 8           /* moves of annealing, one of which is of the cut */
};

/* A list to start from, with its shape. */
typedef struct start {
    char name[48];
    dp__shape_t shape;
    dp__cut_t cut;
    dp__lists_t lists;
    dp__timing_t timing;
} start_t;

/* A built-in schedule whose segments are planned. */
typedef struct given {
    char name[38];
    dp_schedule_t *schedule;
    dp__cut_t cut;
    double step; /* of the best plan of it so far, or its own */
    bool wanted; /* to be planned */
} given_t;

typedef struct search {
    dp_search_request_t request;
    dp_costs_t costs; /* of the request */
    dp__limits_t limits;
    bool in_bytes; /* they are */
    dp__layers_t layers;
    dp_search_result_t *result;
    double *memory; /* [ranks] of the schedule that was proven last */
    double nearest; /* least excess of those that do not fit; the message says what that was */
    char nearest_is[160];
    start_t starts[STARTS + 1]; /* by score; one more is room for a newcomer */
    int32_t nstarts;
    given_t given[MOST_GIVEN];
    int32_t ngiven;
    dp__search_random_t random;
    double began, shown;
    double cut_share; /* seconds for the cut of a shape */
    double cut_until; /* of the cut that is looked for */
    bool enough;      /* says the caller */
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

/* The costs of the request, with the scales of a cut. */
static dp_costs_t costs_with(const search_t *search, const dp__cut_t *cut)
{
    dp_costs_t costs = search->costs;

    if (cut->stages > 0)
        costs.stage_scale = cut->scale;
    return costs;
}

/* By which its stages have memory; NULL: they are alike, as micro-batches are counted. */
static const double *parts_of(const search_t *search, const dp__cut_t *cut)
{
    return search->in_bytes ? cut->parts : NULL;
}

static double most_of(const double *all, int32_t count)
{
    double most = 0.0;

    for (int32_t r = 0; r < count; r++)
        most = fmax(most, all[r]);
    return most;
}

static void note_nearest(search_t *search, const char *name, double excess)
{
    int32_t worst = 0;

    if (excess >= search->nearest)
        return;
    for (int32_t r = 0; r < search->request.ranks; r++)
        if (search->memory[r] / search->limits.caps[r] > search->memory[worst] / search->limits.caps[worst])
            worst = r;
    search->nearest = excess;
    snprintf(search->nearest_is, sizeof(search->nearest_is), "%s comes nearest: rank %d holds %.6g of %.6g", name,
             worst, search->memory[worst], search->limits.caps[worst]);
}

/* *step_out is infinite when that rejects it or the memory does. */
static dp_status_t prove_schedule(search_t *search, const dp_schedule_t *schedule, const dp__cut_t *cut,
                                  const char *name, double *step_out, double *peak_out)
{
    const dp_search_request_t *request = &search->request;
    dp_lower_options_t options = {
        .struct_size = sizeof(options), .transport = request->transport, .slots = request->slots};
    dp_simulation_t simulation = {.struct_size = sizeof(simulation)};
    dp_costs_t costs = costs_with(search, cut);
    dp_status_t status = dp_evaluate(schedule, &options, &costs, 0, &simulation);
    double excess;

    *step_out = INFINITY;
    if (status < 0)
        return status == DP_ERR_REJECTED ? DP_OK : status;
    status = dp__limits_measure(&search->limits, schedule, parts_of(search, cut), search->memory);
    if (status >= 0) {
        excess = dp__limits_excess(&search->limits, search->memory, schedule->ranks);
        *peak_out = most_of(simulation.peak_activations, simulation.ranks);
        if (excess == 0.0)
            *step_out = simulation.step_time;
        else
            note_nearest(search, name, excess);
    }
    dp_simulation_clear(&simulation);
    return status;
}

/* Lists what was found from a start, the shortest step first. */
static void note_candidate(search_t *search, const char *name, double step, double memory)
{
    dp_search_candidate_t *all = search->result->candidates;
    int32_t count = search->result->ncandidates, at = 0;

    while (at < count && strcmp(all[at].from, name) != 0)
        at++;
    if (at < count ? step >= all[at].step : count == CANDIDATES && step >= all[count - 1].step)
        return;
    if (at == count && count < CANDIDATES)
        search->result->ncandidates++;
    at = at < CANDIDATES ? at : CANDIDATES - 1;
    for (; at > 0 && all[at - 1].step > step; at--)
        all[at] = all[at - 1];
    all[at] = (dp_search_candidate_t){.step = step, .memory = memory};
    snprintf(all[at].from, sizeof(all[at].from), "%s", name);
}

/* Keeps the schedule when it is the best so far, and frees it otherwise. */
static dp_status_t offer_schedule(search_t *search, dp_schedule_t *schedule, const dp__cut_t *cut, const char *from,
                                  double *step_out)
{
    dp_search_result_t *result = search->result;
    double peak = 0.0, memory;
    dp__cut_t kept = {.stages = 0};
    dp_status_t status = prove_schedule(search, schedule, cut, from, step_out, &peak);

    memory = most_of(search->memory, schedule->ranks);
    if (status >= 0 && *step_out < INFINITY)
        note_candidate(search, from, *step_out, memory);
    if (status >= 0 && is_better(*step_out, result->step))
        status = dp__cut_copy(cut, &kept);
    if (status < 0 || !is_better(*step_out, result->step)) {
        dp_schedule_free(schedule);
        return status;
    }
    dp_schedule_free(result->schedule);
    dp__free(result->first);
    result->schedule = schedule;
    result->first = kept.first;
    result->step = *step_out;
    result->peak = peak;
    result->memory = memory;
    snprintf(result->from, sizeof(result->from), "%s", from);
    return DP_OK;
}

static dp_status_t offer_lists(search_t *search, const start_t *start, const dp__lists_t *lists)
{
    dp_schedule_t *schedule;
    double step;
    dp_status_t status = dp__lists_give(&start->shape, lists, &schedule);

    return status >= 0 ? offer_schedule(search, schedule, &start->cut, start->name, &step) : status;
}

/* ---- cuts ---- */

/* A cut of one schedule that is looked for. */
typedef struct cutting {
    search_t *search;
    const dp_schedule_t *schedule;
    dp__cut_t *cut;
    int32_t *most; /* [stages] layers with which a stage has its part of its rank's memory */
} cutting_t;

static double excess_of_cut(void *user, const int32_t *first)
{
    cutting_t *x = user;
    search_t *search = x->search;

    memcpy(x->cut->first, first, ((size_t)x->cut->stages + 1) * sizeof(*first));
    dp__cut_weigh(&search->layers, x->cut);
    if (dp__limits_measure(&search->limits, x->schedule, parts_of(search, x->cut), search->memory) < 0)
        return INFINITY;
    return dp__limits_excess(&search->limits, search->memory, x->schedule->ranks);
}

static bool may_cut_on(void *user)
{
    search_t *search = ((cutting_t *)user)->search;

    search->result->tried++;
    return has_time(search, search->cut_until);
}

/* Memory is in proportion to the layers of a rank. */
static dp_status_t fill_most(cutting_t *x)
{
    search_t *search = x->search;
    const int32_t layers = search->layers.count, stages = x->cut->stages;
    dp_status_t status = dp__limits_measure(&search->limits, x->schedule, NULL, search->memory);

    for (int32_t s = 0; s < stages; s++)
        x->most[s] = layers;
    for (int32_t r = 0; r < x->schedule->ranks && status >= 0; r++)
        for (int32_t c = 0; c < x->schedule->chunks; c++) {
            const double fit = search->limits.caps[r] / search->memory[r] * layers / stages + 1e-9;
            dp_place_t place;

            dp_schedule_place(x->schedule, r, c, &place);
            x->most[place.stage] = (int32_t)fmin(x->most[place.stage], fit);
        }
    return status;
}

/* Moves a cut, until nothing gets better or until then. It may begin with others instead. */
static dp_status_t improve_cut(search_t *search, const dp_schedule_t *schedule, bool begins_there, double until,
                               dp__cut_t *cut)
{
    dp_lower_options_t options = {
        .struct_size = sizeof(options), .transport = search->request.transport, .slots = search->request.slots};
    dp_partition_request_t request = {.struct_size = sizeof(request),
                                      .layers = search->layers.count,
                                      .layer_costs = search->request.layer_costs,
                                      .costs = &search->costs};
    cutting_t x = {.search = search, .schedule = schedule, .cut = cut};
    dp__cut_rules_t rules = {.excess = excess_of_cut, .has_time = may_cut_on, .user = &x};
    dp_program_t *program = NULL;
    int32_t *first;
    dp_status_t status;

    if (!dp__arrays(DP__ARRAY(first, cut->stages + 1), DP__ARRAY(x.most, cut->stages)))
        return dp_fail(DP_ERR_NOMEM, "search: no memory for %d stages", cut->stages);
    memcpy(first, cut->first, ((size_t)cut->stages + 1) * sizeof(*first));
    search->cut_until = until;
    rules.most = search->in_bytes ? x.most : NULL;
    rules.begin = begins_there ? first : NULL;
    status = fill_most(&x);
    if (status >= 0)
        status = dp_program_lower(schedule, &options, &program);
    request.program = program;
    if (status >= 0)
        status = dp__partition(&request, &rules, first, NULL);
    (void)excess_of_cut(&x, first); /* into the cut */
    dp_program_free(program);
    dp__free(first);
    return status == DP_ERR_REJECTED ? DP_OK : status; /* with more slots it may complete */
}

/* The cut that a built-in schedule begins with. */
static dp_status_t cut_layers(search_t *search, const dp_schedule_t *schedule, double until, dp__cut_t *cut)
{
    dp_status_t status = dp__cut_make(&search->layers, dp_schedule_stages(schedule), cut);

    return status < 0 || cut->stages < 2 ? status : improve_cut(search, schedule, false, until, cut);
}

/* ---- starts ---- */

static void clear_start(start_t *start)
{
    dp__lists_clear(&start->lists);
    dp__cut_clear(&start->cut);
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

/* The shape of a start as its cut has it. */
static void fit_shape(const search_t *search, const dp_schedule_t *schedule, start_t *start)
{
    if (start->cut.stages > 0)
        start->shape.scale = start->cut.scale;
    dp__limits_shares(&search->limits, schedule, parts_of(search, &start->cut), start->shape.share);
}

static dp_status_t make_start(search_t *search, const dp_schedule_t *schedule, const dp__cut_t *cut, const char *name,
                              start_t *start)
{
    dp_status_t status;

    memset(start, 0, sizeof(*start));
    snprintf(start->name, sizeof(start->name), "%s", name);
    status = dp__shape_make(schedule, search->request.costs, &start->shape);
    if (status >= 0)
        status = dp__cut_copy(cut, &start->cut);
    if (status >= 0)
        status = dp__lists_make(&start->shape, &start->lists);
    if (status >= 0)
        fit_shape(search, schedule, start);
    if (status < 0)
        clear_start(start);
    return status;
}

/* List scheduling on the shape of a built-in schedule; the best of many rules becomes a start. */
static dp_status_t greedy_starts(search_t *search, const dp_schedule_t *schedule, const dp__cut_t *cut,
                                 const char *name, double until)
{
    start_t best, trial;
    dp__list_timer_t timer;
    dp_status_t status;
    char label[48];

    snprintf(label, sizeof(label), "list on %s", name);
    status = make_start(search, schedule, cut, label, &best);
    if (status < 0)
        return status;
    best.timing.step = best.timing.tail = INFINITY;
    status = make_start(search, schedule, cut, label, &trial);
    if (status >= 0)
        status = dp__timer_make(&best.shape, &timer);
    for (int k = 0; status >= 0 && k < GREEDY_TRIES && has_time(search, until); k++) {
        dp__rules_t rules = dp__rules_random(&best.shape, &search->random);
        bool done = dp__greedy_run(&best.shape, &rules, 1.0, &timer, &trial.lists);

        search->result->tried++;
        if (done)
            trial.timing = dp__timer_run(&timer, &trial.shape, &trial.lists, 1.0);
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

static dp_status_t built_in_start(search_t *search, const dp_schedule_t *schedule, const dp__cut_t *cut,
                                  const char *name)
{
    start_t start;
    dp__list_timer_t timer;
    dp_status_t status = make_start(search, schedule, cut, name, &start);

    if (status < 0)
        return status;
    status = dp__timer_make(&start.shape, &timer);
    if (status >= 0) {
        dp__lists_take(&start.shape, schedule, &start.lists);
        start.timing = dp__timer_run(&timer, &start.shape, &start.lists, 1.0);
        dp__timer_clear(&timer);
    }
    if (status >= 0 && start.timing.step < INFINITY)
        keep_start(search, &start);
    else
        clear_start(&start);
    return status;
}

/* The same with weight gradients later in the draining: the best lag becomes a start. */
static dp_status_t later_start(search_t *search, const dp_schedule_t *schedule, const dp__cut_t *cut, const char *name)
{
    start_t given, best;
    dp__list_timer_t timer;
    char label[48];
    int32_t found = 0;
    dp_status_t status = make_start(search, schedule, cut, name, &given);

    if (status < 0)
        return status;
    snprintf(label, sizeof(label), "%.36s, W later", name);
    status = make_start(search, schedule, cut, label, &best);
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
        timing = dp__timer_run(&timer, &best.shape, &best.lists, 1.0);
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
           (request->costs->stage_scale == NULL || dp_schedule_stages(schedule) == request->stages) &&
           (request->layers == 0 || dp_schedule_stages(schedule) <= request->layers);
}

static dp_status_t offer_built_in(search_t *search, dp_schedule_t *schedule, const dp__cut_t *cut, const char *name,
                                  double *step_out)
{
    dp_status_t status = offer_schedule(search, schedule, cut, name, step_out);

    search->result->tried++;
    if (status >= 0 && is_better(*step_out, search->result->built_in_step)) {
        search->result->built_in_step = *step_out;
        snprintf(search->result->built_in, sizeof(search->result->built_in), "%s", name);
    }
    return status;
}

/* Keeps a schedule and its cut to plan its segments, and offers another like it. */
static dp_status_t give_start(search_t *search, const dp_schedule_request_t *request, dp_schedule_t *schedule,
                              dp__cut_t *cut, const char *name)
{
    given_t *given = &search->given[search->ngiven];
    dp_schedule_t *other;
    dp_status_t status = search->ngiven < MOST_GIVEN ? dp_schedule_generate(request, &other)
                                                     : dp_fail(DP_ERR_OVERFLOW, "search: too many methods");

    if (status < 0) {
        dp_schedule_free(schedule);
        dp__cut_clear(cut);
        return status;
    }
    *given = (given_t){.schedule = schedule, .cut = *cut};
    snprintf(given->name, sizeof(given->name), "%s", name);
    search->ngiven++;
    status = offer_built_in(search, other, &given->cut, name, &given->step);
    show_progress(search);
    return status;
}

/* Takes over the schedule of a shape, and its cut: itself, and lists like it, as starts. */
static dp_status_t try_lists(search_t *search, dp_schedule_t *schedule, dp__cut_t *cut, const char *name, bool grouped,
                             double greedy_until)
{
    double step;
    dp_status_t status = built_in_start(search, schedule, cut, name);

    if (status >= 0 && !grouped)
        status = later_start(search, schedule, cut, name);
    if (status >= 0 && greedy_until > 0.0 && schedule->first[schedule->ranks] <= GREEDY_LARGEST)
        status = greedy_starts(search, schedule, cut, name, greedy_until);
    if (status >= 0)
        status = offer_built_in(search, schedule, cut, name, &step);
    else
        dp_schedule_free(schedule);
    dp__cut_clear(cut);
    show_progress(search);
    return status;
}

/* One method with one number of chunks, in groups of P or more: itself, and of those of P list
 * scheduling on its shape, for so many seconds. */
static dp_status_t try_method(search_t *search, const dp_method_t *method, int32_t chunks, int32_t group, double greedy)
{
    dp_schedule_request_t request = {.struct_size = sizeof(request),
                                     .method = method->name,
                                     .ranks = search->request.ranks,
                                     .microbatches = search->request.microbatches,
                                     .chunks = chunks,
                                     .microbatch_group = group};
    dp_schedule_t *schedule = NULL;
    dp__cut_t cut;
    char name[38], in_groups[16] = "";
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
    status = cut_layers(search, schedule, elapsed_seconds(search) + search->cut_share, &cut);
    if (status < 0) {
        dp_schedule_free(schedule);
        dp__cut_clear(&cut);
        return status;
    }
    if (search->request.costs->segments != NULL)
        return give_start(search, &request, schedule, &cut, name);
    return try_lists(search, schedule, &cut, name, group > 0, greedy > 0.0 ? elapsed_seconds(search) + greedy : 0.0);
}

/* ---- segments ---- */

/* The planner knows one limit for all ranks: with as many micro-batches of a device none is beyond
 * its own. Negative: none. */
static dp_status_t planner_cap(const search_t *search, const given_t *given, double *cap_out)
{
    const dp_schedule_t *schedule = given->schedule;
    const size_t cells = (size_t)schedule->ranks * (size_t)schedule->chunks;
    double *share = dp__calloc(cells, sizeof(*share)), most = 0.0;

    if (share == NULL)
        return dp_fail(DP_ERR_NOMEM, "search: no memory for %d ranks", schedule->ranks);
    dp__limits_shares(&search->limits, schedule, parts_of(search, &given->cut), share);
    most = most_of(share, (int32_t)cells) * dp_schedule_split(schedule);
    *cap_out = most > 0.0 ? fmax(1.0 / most, DBL_MIN) : -1.0;
    dp__free(share);
    return DP_OK;
}

/* costs are those with its cut. */
static dp_status_t request_plan(const search_t *search, const given_t *given, dp_costs_t *costs,
                                dp_overlap_request_t *request)
{
    *costs = costs_with(search, &given->cut);
    *request = (dp_overlap_request_t){.struct_size = sizeof(*request),
                                      .schedule = given->schedule,
                                      .costs = costs,
                                      .slots = search->request.slots,
                                      .tries = INT32_MAX};
    return planner_cap(search, given, &request->memory_cap);
}

/* No order of its passes beats the best there is. */
static bool is_hopeless(const search_t *search, const given_t *given)
{
    dp_overlap_request_t request;
    dp_costs_t costs;
    double bound;

    /* the bound is of one cut */
    return given->cut.stages == 0 && request_plan(search, given, &costs, &request) >= 0 &&
           dp__overlap_request_bound(&request, &bound) >= 0 && bound >= search->result->step;
}

/* Moves the cut to suit the plan, and offers both. */
static dp_status_t offer_plan(search_t *search, given_t *given, dp_schedule_t *plan, double until)
{
    dp__cut_t moved;
    double step = INFINITY;
    char label[48];
    dp_status_t status = dp__cut_copy(&given->cut, &moved);

    snprintf(label, sizeof(label), "%s, planned", given->name);
    if (status >= 0 && moved.stages > 1)
        status = improve_cut(search, plan, true, until, &moved);
    if (status >= 0)
        status = offer_schedule(search, plan, &moved, label, &step);
    else
        dp_schedule_free(plan);
    if (status >= 0 && is_better(step, given->step)) { /* the next plan begins with it */
        dp__cut_t before = given->cut;

        given->step = step;
        given->cut = moved;
        moved = before;
    }
    dp__cut_clear(&moved);
    return status;
}

static dp_status_t plan_given(search_t *search, given_t *given, double seconds, uint64_t seed)
{
    const double until = elapsed_seconds(search) + seconds;
    dp_costs_t costs;
    dp_overlap_request_t request;
    dp_overlap_result_t result = {.struct_size = sizeof(result)};
    dp_status_t status = request_plan(search, given, &costs, &request);

    request.seconds = fmax(given->cut.stages > 1 ? 0.7 * seconds : seconds, DBL_MIN);
    request.seed = seed;
    if (status >= 0)
        status = dp_plan_overlap(&request, &result);
    if (status < 0)
        return status == DP_ERR_REJECTED ? DP_OK : status;
    search->result->tried += result.tried;
    status = offer_plan(search, given, result.schedule, until);
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
            status = try_method(search, method, chunks, (m + n - 1) / n, 0.0);
        before = n;
    }
    return status;
}

/* List scheduling gets a third of the time, once for each placement, and cuts another. */
static dp_status_t find_starts(search_t *search)
{
    static const int32_t usual_chunks[] = {2, 4};
    const int32_t nchunks = search->request.nchunks > 0 ? search->request.nchunks : 2,
                  *loop_chunks = search->request.nchunks > 0 ? search->request.chunks : usual_chunks;
    size_t count;
    const dp_method_t *methods = dp_schedule_methods(&count);
    bool seen[DP_PLACE_BIDIRECTIONAL + 1] = {false};
    const double third = search->request.seconds / 3.0;
    int32_t shapes = 0;
    dp_status_t status = DP_OK;

    for (size_t m = 0; m < count; m++)
        shapes += methods[m].placement == DP_PLACE_LOOP ? 2 * nchunks : 1; /* some in groups */
    search->cut_share = third / shapes;
    for (size_t m = 0; m < count && status >= 0; m++) {
        bool loop = methods[m].placement == DP_PLACE_LOOP, greedy = !seen[methods[m].placement];

        seen[methods[m].placement] = true;
        for (int32_t k = 0; k < nchunks && status >= 0 && (loop || k == 0); k++) {
            status = try_method(search, &methods[m], loop ? loop_chunks[k] : 0, 0,
                                greedy ? third / (loop ? 5.0 * nchunks : 5.0) : 0.0);
            if (status >= 0 && loop)
                status = try_groups(search, &methods[m], loop_chunks[k]);
        }
    }
    return status;
}

/* ---- annealing ---- */

typedef struct annealing {
    start_t *start;
    dp_schedule_t *given; /* of its shape, whatever its lists */
    dp__lists_t now, trial;
    dp__list_timer_t timer;
    double score, best_step, from_heat, to_heat;
} annealing_t;

static bool is_accepted(search_t *search, const annealing_t *a, double score_of_trial, double heat)
{
    return score_of_trial <= a->score || dp__random_unit(&search->random) < exp((a->score - score_of_trial) / heat);
}

/* Of what was accepted. */
static dp_status_t note_step(search_t *search, annealing_t *a, const dp__timing_t *timing)
{
    a->score = score_of(timing);
    if (!is_better(timing->step, a->best_step))
        return DP_OK;
    a->best_step = timing->step;
    return is_better(timing->step, search->result->step) ? offer_lists(search, a->start, &a->now) : DP_OK;
}

/* Moves one cut by a layer, under the same lists. */
static dp_status_t anneal_cut(search_t *search, annealing_t *a, double heat)
{
    dp__cut_t *cut = &a->start->cut;
    const int32_t at = 1 + dp__random_below(&search->random, cut->stages - 1),
                  by = dp__random_below(&search->random, 2) == 0 ? -1 : 1;
    dp__timing_t timing;

    if (cut->first[at] + by <= cut->first[at - 1] || cut->first[at] + by >= cut->first[at + 1])
        return DP_OK;
    cut->first[at] += by;
    dp__cut_weigh(&search->layers, cut);
    fit_shape(search, a->given, a->start);
    timing = dp__timer_run(&a->timer, &a->start->shape, &a->now, 1.0);
    search->result->tried++;
    if (timing.step < INFINITY && is_accepted(search, a, score_of(&timing), heat))
        return note_step(search, a, &timing);
    cut->first[at] -= by;
    dp__cut_weigh(&search->layers, cut);
    fit_shape(search, a->given, a->start);
    return DP_OK;
}

static dp_status_t anneal_step(search_t *search, annealing_t *a, double heat)
{
    const dp__shape_t *shape = &a->start->shape;
    int32_t rank = dp__move_random(shape, &a->trial, &search->random);
    dp__timing_t timing;

    if (rank < 0)
        return DP_OK;
    timing = dp__timer_run(&a->timer, shape, &a->trial, 1.0);
    search->result->tried++;
    if (timing.step == INFINITY || !is_accepted(search, a, score_of(&timing), heat)) {
        a->trial.count[rank] = a->now.count[rank];
        memcpy(a->trial.ops + (int64_t)rank * a->trial.room, a->now.ops + (int64_t)rank * a->now.room,
               (size_t)a->now.count[rank] * sizeof(*a->now.ops));
        return DP_OK;
    }
    a->now.count[rank] = a->trial.count[rank];
    memcpy(a->now.ops + (int64_t)rank * a->now.room, a->trial.ops + (int64_t)rank * a->trial.room,
           (size_t)a->trial.count[rank] * sizeof(*a->now.ops));
    return note_step(search, a, &timing);
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
    if (status >= 0)
        status = dp__lists_give(&start->shape, &start->lists, &a.given);
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
        status =
            start->cut.stages > 1 && k % CUT_EVERY == 0 ? anneal_cut(search, &a, heat) : anneal_step(search, &a, heat);
    }
    dp_schedule_free(a.given);
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
    for (int32_t g = 0; g < search->ngiven; g++) {
        dp_schedule_free(search->given[g].schedule);
        dp__cut_clear(&search->given[g].cut);
    }
    dp__free(search->limits.caps);
    dp__layers_clear(&search->layers);
}

static dp_status_t take_limits(search_t *search)
{
    const dp_search_request_t *request = &search->request;

    if (!dp__arrays(DP__ARRAY(search->limits.caps, request->ranks), DP__ARRAY(search->memory, request->ranks)))
        return dp_fail(DP_ERR_NOMEM, "search: no memory for %d ranks", request->ranks);
    search->in_bytes = request->activation_bytes > 0.0 && request->weight_bytes > 0.0;
    search->limits.activations = search->in_bytes ? request->activation_bytes : 1.0;
    search->limits.weights = search->in_bytes ? request->weight_bytes : 0.0;
    for (int32_t r = 0; r < request->ranks; r++) {
        const double cap = request->rank_caps != NULL ? request->rank_caps[r] : request->memory_cap;

        if (!(cap >= 0.0))
            return dp_fail(DP_ERR_INVALID, "search: the memory of rank %d is %g: it may not be negative", r, cap);
        search->limits.caps[r] = cap == 0.0 ? INFINITY : cap;
    }
    return DP_OK;
}

static dp_status_t take_layers(search_t *search)
{
    const dp_search_request_t *request = &search->request;

    if (request->layers < 0 || request->nchunks < 0 || (request->layers > 0) != (request->layer_costs != NULL) ||
        (request->nchunks > 0) != (request->chunks != NULL))
        return dp_fail(DP_ERR_INVALID,
                       "search: %d layers, %d numbers of chunks: neither is negative, and layer_costs "
                       "and chunks have as many numbers",
                       request->layers, request->nchunks);
    if (request->layers > 0 && request->costs->stage_scale != NULL)
        return dp_fail(DP_ERR_INVALID, "search: either layers or costs with a stage_scale");
    if (request->layers > 0 && request->layers < request->ranks)
        return dp_fail(DP_ERR_INVALID, "search: %d layers on %d ranks: every stage holds at least one", request->layers,
                       request->ranks);
    for (int32_t k = 0; k < request->nchunks; k++)
        if (request->chunks[k] < 1 || request->chunks[k] > DP_MAX_CHUNKS)
            return dp_fail(DP_ERR_INVALID, "search: %d chunks: 1 to %d are possible", request->chunks[k],
                           DP_MAX_CHUNKS);
    return dp__layers_make(request->layer_costs, request->layers, &search->layers);
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
    request->slots = request->slots == 0 ? 2 : request->slots; /* what needs more is not sought */
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
    DO(take_layers(search));
    return take_limits(search);
}

static void free_result(dp_search_result_t *result)
{
    dp_schedule_free(result->schedule);
    dp__free(result->first);
    dp__free(result->candidates);
}

static dp_status_t run_search(search_t *search)
{
    dp_search_result_t *found = search->result;

    found->candidates = dp__calloc(CANDIDATES, sizeof(*found->candidates));
    if (found->candidates == NULL)
        return dp_fail(DP_ERR_NOMEM, "search: no memory for its candidates");
    search->random.state = search->request.seed;
    search->nearest = INFINITY;
    DO(find_starts(search));
    DO(improve_starts(search));
    DO(plan_all(search));
    if (found->schedule != NULL)
        return DP_OK;
    return dp_fail(DP_ERR_REJECTED, "search: no schedule fits the memory%s%s", search->nearest_is[0] != 0 ? "; " : "",
                   search->nearest_is);
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
    if (status >= 0)
        status = run_search(&search);
    forget_starts(&search);
    if (status < 0) {
        free_result(&found);
        return status;
    }
    dp_sized_put(result, &found);
    if (!DP_REACHES(result, dp_search_result_t, first))
        dp__free(found.first);
    if (!DP_REACHES(result, dp_search_result_t, candidates))
        dp__free(found.candidates);
    return DP_OK;
}

void dp_search_clear(dp_search_result_t *result)
{
    dp_search_result_t empty = {.struct_size = sizeof(empty)}, full = empty;

    if (!DP_REACHES(result, dp_search_result_t, tried))
        return;
    dp_sized_take(&full, sizeof(full), result);
    free_result(&full);
    dp_sized_put(result, &empty);
}
