/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * anneal.c: improves lists by simulated annealing.
 *
 *     for each start, best first, with an equal share of the time left:
 *         change the list of one rank (moves.c) and time all lists (lists.c)
 *         keep the change if the score is no worse, else with probability exp(-worse / heat)
 *         heat falls from 0.3 F to a hundredth of that
 *
 * Invariant: between two moves `trial` equals `now`.
 *
 * Example: 2 ranks, 2 micro-batches, F = 1, B = 2, started from GPipe. The list of rank 1 is
 * F0 F1 B0 B1. A move lets F1 and B0 trade places: F0 B0 F1 B1. Rank 0 gets the gradient of 0 at 4
 * instead of 5, and still ends at 9, so the score is no worse and the move is kept. Rank 1 then
 * holds one micro-batch instead of two, as in 1F1B. */
#include "search/anneal.h"

#include "search/offer.h"
#include "search/starts.h"

#include <math.h>
#include <string.h>

enum { CUT_EVERY = 8 }; /* moves, one of which is of the cut */

typedef struct annealing {
    dp__start_t *start;
    dp_schedule_t *given; /* of its shape, whatever its lists */
    dp__lists_t now, trial;
    dp__list_timer_t timer;
    double score, best_step, from_heat, to_heat;
} annealing_t;

static bool is_accepted(dp__search_t *search, const annealing_t *a, double score_of_trial, double heat)
{
    return score_of_trial <= a->score || dp__random_unit(&search->random) < exp((a->score - score_of_trial) / heat);
}

/* Of what was accepted. */
static dp_status_t note_step(dp__search_t *search, annealing_t *a, const dp__timing_t *timing)
{
    a->score = dp__start_score(timing);
    if (!dp__search_is_better(timing->step, a->best_step))
        return DP_OK;
    a->best_step = timing->step;
    return dp__search_is_better(timing->step, search->result->step) ? dp__start_offer(search, a->start, &a->now)
                                                                    : DP_OK;
}

/* Moves one cut by a layer, under the same lists. */
static dp_status_t anneal_cut(dp__search_t *search, annealing_t *a, double heat)
{
    dp__cut_t *cut = &a->start->cut;
    const int32_t at = 1 + dp__random_below(&search->random, cut->stages - 1),
                  by = dp__random_below(&search->random, 2) == 0 ? -1 : 1;
    dp__timing_t timing;

    if (cut->first[at] + by <= cut->first[at - 1] || cut->first[at] + by >= cut->first[at + 1])
        return DP_OK;
    cut->first[at] += by;
    dp__cut_weigh(&search->layers, cut);
    dp__start_fit(search, a->given, a->start);
    timing = dp__timer_run(&a->timer, &a->start->shape, &a->now, 1.0);
    search->result->tried++;
    if (timing.step < INFINITY && is_accepted(search, a, dp__start_score(&timing), heat))
        return note_step(search, a, &timing);
    cut->first[at] -= by;
    dp__cut_weigh(&search->layers, cut);
    dp__start_fit(search, a->given, a->start);
    return DP_OK;
}

static dp_status_t anneal_step(dp__search_t *search, annealing_t *a, double heat)
{
    const dp__shape_t *shape = &a->start->shape;
    int32_t rank = dp__move_random(shape, &a->trial, &search->random);
    dp__timing_t timing;

    if (rank < 0)
        return DP_OK;
    timing = dp__timer_run(&a->timer, shape, &a->trial, 1.0);
    search->result->tried++;
    if (timing.step == INFINITY || !is_accepted(search, a, dp__start_score(&timing), heat)) {
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
static dp_status_t anneal_start(dp__search_t *search, dp__start_t *start, double until)
{
    annealing_t a = {.start = start, .score = dp__start_score(&start->timing), .best_step = start->timing.step};
    double began = dp__search_elapsed(search), hot = 0.3 * start->shape.cost[DP_OP_F] + 1e-6, cold = hot / 100.0,
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
            double now = dp__search_elapsed(search);

            if (!dp__search_has_time(search, until))
                break;
            heat = hot * pow(cold / hot, (now - began) / fmax(until - began, 1e-9));
            dp__search_show(search);
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
dp_status_t dp__search_anneal(dp__search_t *search)
{
    dp_status_t status = DP_OK;

    for (int32_t left = search->nstarts;
         status >= 0 && left > 0 && dp__search_has_time(search, search->request.seconds); left--) {
        double now = dp__search_elapsed(search);

        status =
            anneal_start(search, &search->starts[search->nstarts - left], now + (search->request.seconds - now) / left);
    }
    return status;
}
