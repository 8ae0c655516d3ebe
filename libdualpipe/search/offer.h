/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * offer.h: proves what is offered, and keeps the best. */
#ifndef DP_SEARCH_OFFER_H
#define DP_SEARCH_OFFER_H

#include "search/state.h"

bool dp__search_is_better(double step, double than);
/* Takes over the schedule. *step_out is infinite when its proof or the memory rejects it. */
dp_status_t dp__search_offer(dp__search_t *search, dp_schedule_t *schedule, const dp__cut_t *cut, const char *from,
                             double *step_out);

#endif
