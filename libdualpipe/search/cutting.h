/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * cutting.h: looks for the cut of the layers that suits a schedule. */
#ifndef DP_SEARCH_CUTTING_H
#define DP_SEARCH_CUTTING_H

#include "search/state.h"

/* The cut that a built-in schedule begins with. */
dp_status_t dp__search_cut(dp__search_t *search, const dp_schedule_t *schedule, double until, dp__cut_t *cut);
/* Moves a cut, until nothing gets better or until then. It may begin with others instead. */
dp_status_t dp__search_improve_cut(dp__search_t *search, const dp_schedule_t *schedule, bool begins_there, double until,
                                   dp__cut_t *cut);

#endif
