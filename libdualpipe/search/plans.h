/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * plans.h: plans the segments of what methods gave. */
#ifndef DP_SEARCH_PLANS_H
#define DP_SEARCH_PLANS_H

#include "search/state.h"

dp_status_t dp__search_plan(dp__search_t *search);

#endif
