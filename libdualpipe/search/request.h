/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * request.h: checks what a search is asked for. */
#ifndef DP_SEARCH_REQUEST_H
#define DP_SEARCH_REQUEST_H

#include "search/state.h"

/* Into the request, costs, layers and limits of the search. */
dp_status_t dp__search_take(const dp_search_request_t *from, dp__search_t *search);

#endif
