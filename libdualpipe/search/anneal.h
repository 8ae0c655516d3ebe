/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * anneal.h: improves the starts by simulated annealing. */
#ifndef DP_SEARCH_ANNEAL_H
#define DP_SEARCH_ANNEAL_H

#include "search/state.h"

dp_status_t dp__search_anneal(dp__search_t *search);

#endif
