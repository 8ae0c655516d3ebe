/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * methods.h: tries the built-in methods. */
#ifndef DP_SEARCH_METHODS_H
#define DP_SEARCH_METHODS_H

#include "search/state.h"

/* Offers all of them, and fills starts; where costs have segments, what is given to the planner. */
dp_status_t dp__search_methods(dp__search_t *search);

#endif
