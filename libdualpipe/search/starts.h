/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * starts.h: lists to start from. */
#ifndef DP_SEARCH_STARTS_H
#define DP_SEARCH_STARTS_H

#include "search/state.h"

/* Keeps as starts the lists of a schedule and others of its shape. Those of list scheduling are
 * looked for until then; grouped: later weight gradients are not tried. */
dp_status_t dp__starts_add(dp__search_t *search, const dp_schedule_t *schedule, const dp__cut_t *cut, const char *name,
                           bool grouped, double greedy_until);
/* Offers lists of the shape of a start. */
dp_status_t dp__start_offer(dp__search_t *search, const dp__start_t *start, const dp__lists_t *lists);
/* The shape as the start's cut has it. */
void dp__start_fit(const dp__search_t *search, const dp_schedule_t *schedule, dp__start_t *start);
void dp__start_clear(dp__start_t *start);
/* The step, and a little of the mean end of the ranks: of two lists with one step the denser one
 * has more to give. */
double dp__start_score(const dp__timing_t *timing);

#endif
