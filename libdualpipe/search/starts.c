/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * starts.c: lists to start from: built-in ones, those with later weight gradients, those of list
 * scheduling. */
#include "search/starts.h"

#include "search/greedy.h"
#include "search/offer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    GREEDY_TRIES = 400,    /* sets of rules tried on each shape, as far as time allows */
    GREEDY_LARGEST = 20000 /* operations; past that list scheduling takes too long */
};

void dp__start_clear(dp__start_t *start)
{
    dp__lists_clear(&start->lists);
    dp__cut_clear(&start->cut);
    dp__shape_clear(&start->shape);
}

double dp__start_score(const dp__timing_t *timing)
{
    return timing->step + 0.05 * timing->tail;
}

dp_status_t dp__start_offer(dp__search_t *search, const dp__start_t *start, const dp__lists_t *lists)
{
    dp_schedule_t *schedule;
    double step;
    dp_status_t status = dp__lists_give(&start->shape, lists, &schedule);

    return status >= 0 ? dp__search_offer(search, schedule, &start->cut, start->name, &step) : status;
}

/* Takes over `start` when it is among the best. */
static void keep_start(dp__search_t *search, dp__start_t *start)
{
    int32_t at = search->nstarts;

    for (int32_t s = 0; s < search->nstarts; s++) /* one of a kind is enough */
        if (strcmp(search->starts[s].name, start->name) == 0 &&
            fabs(dp__start_score(&search->starts[s].timing) - dp__start_score(&start->timing)) < 1e-9) {
            dp__start_clear(start);
            return;
        }
    while (at > 0 && dp__start_score(&search->starts[at - 1].timing) > dp__start_score(&start->timing)) {
        search->starts[at] = search->starts[at - 1];
        at--;
    }
    search->starts[at] = *start;
    if (search->nstarts < STARTS)
        search->nstarts++;
    else
        dp__start_clear(&search->starts[STARTS]);
}

void dp__start_fit(const dp__search_t *search, const dp_schedule_t *schedule, dp__start_t *start)
{
    if (start->cut.stages > 0)
        start->shape.scale = start->cut.scale;
    dp__limits_shares(&search->limits, schedule, dp__search_parts(search, &start->cut), start->shape.share);
}

static dp_status_t make_start(dp__search_t *search, const dp_schedule_t *schedule, const dp__cut_t *cut,
                              const char *name, dp__start_t *start)
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
        dp__start_fit(search, schedule, start);
    if (status < 0)
        dp__start_clear(start);
    return status;
}

/* List scheduling on the shape of a built-in schedule; the best of many rules becomes a start. */
static dp_status_t greedy_starts(dp__search_t *search, const dp_schedule_t *schedule, const dp__cut_t *cut,
                                 const char *name, double until)
{
    dp__start_t best, trial;
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
    for (int k = 0; status >= 0 && k < GREEDY_TRIES && dp__search_has_time(search, until); k++) {
        dp__rules_t rules = dp__rules_random(&best.shape, &search->random);
        bool done = dp__greedy_run(&best.shape, &rules, 1.0, &timer, &trial.lists);

        search->result->tried++;
        if (done)
            trial.timing = dp__timer_run(&timer, &trial.shape, &trial.lists, 1.0);
        if (done && trial.timing.step < INFINITY && dp__start_score(&trial.timing) < dp__start_score(&best.timing)) {
            dp__lists_copy(&best.shape, &trial.lists, &best.lists);
            best.timing = trial.timing;
        }
        dp__search_show(search);
    }
    if (status >= 0)
        dp__timer_clear(&timer);
    dp__start_clear(&trial);
    if (status >= 0 && best.timing.step < INFINITY) {
        status = dp__start_offer(search, &best, &best.lists);
        keep_start(search, &best);
    } else {
        dp__start_clear(&best);
    }
    return status;
}

static dp_status_t built_in_start(dp__search_t *search, const dp_schedule_t *schedule, const dp__cut_t *cut,
                                  const char *name)
{
    dp__start_t start;
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
        dp__start_clear(&start);
    return status;
}

/* The same with weight gradients later in the draining: the best lag becomes a start. */
static dp_status_t later_start(dp__search_t *search, const dp_schedule_t *schedule, const dp__cut_t *cut,
                               const char *name)
{
    dp__start_t given, best;
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
        dp__start_clear(&given);
        dp__start_clear(&best);
        return status;
    }
    best.timing.step = best.timing.tail = INFINITY;
    dp__lists_take(&given.shape, schedule, &given.lists);
    for (int32_t lag = 0; lag <= 2 * schedule->ranks; lag++) {
        dp__timing_t timing;

        dp__move_weights_later(&given.shape, &given.lists, lag, &best.lists);
        timing = dp__timer_run(&timer, &best.shape, &best.lists, 1.0);
        search->result->tried++;
        if (dp__start_score(&timing) < dp__start_score(&best.timing)) {
            best.timing = timing;
            found = lag;
        }
    }
    dp__move_weights_later(&given.shape, &given.lists, found, &best.lists);
    dp__timer_clear(&timer);
    dp__start_clear(&given);
    if (best.timing.step < INFINITY) {
        status = dp__start_offer(search, &best, &best.lists);
        keep_start(search, &best);
    } else {
        dp__start_clear(&best);
    }
    return status;
}

dp_status_t dp__starts_add(dp__search_t *search, const dp_schedule_t *schedule, const dp__cut_t *cut, const char *name,
                           bool grouped, double greedy_until)
{
    dp_status_t status = built_in_start(search, schedule, cut, name);

    if (status >= 0 && !grouped)
        status = later_start(search, schedule, cut, name);
    if (status >= 0 && greedy_until > 0.0 && schedule->first[schedule->ranks] <= GREEDY_LARGEST)
        status = greedy_starts(search, schedule, cut, name, greedy_until);
    return status;
}
