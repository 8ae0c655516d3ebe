/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * state.h: what a search has found so far, and the time and costs that it has. */
#ifndef DP_SEARCH_STATE_H
#define DP_SEARCH_STATE_H

#include <dualpipe/search.h>

#include "search/cut.h"
#include "search/limits.h"
#include "search/lists.h"
#include "search/moves.h"

enum {
    STARTS = 12,      /* lists that are kept to start from */
    MOST_GIVEN = 256, /* built-in schedules whose segments are planned */
    CANDIDATES = 16   /* that a result lists, most */
};

/* A list to start from, with its shape. */
typedef struct dp__start {
    char name[48];
    dp__shape_t shape;
    dp__cut_t cut;
    dp__lists_t lists;
    dp__timing_t timing;
} dp__start_t;

/* A built-in schedule whose segments are planned. */
typedef struct dp__given {
    char name[38];
    dp_schedule_t *schedule;
    dp__cut_t cut;
    double step; /* of the best plan of it so far, or its own */
    bool wanted; /* to be planned */
} dp__given_t;

typedef struct dp__search {
    dp_search_request_t request;
    dp_costs_t costs; /* of the request */
    dp__limits_t limits;
    bool in_bytes; /* they are */
    dp__layers_t layers;
    dp_search_result_t *result;
    dp_memory_peaks_t *memory; /* [ranks] of the schedule that was measured last */
    double *plan_caps;         /* [ranks] for the planner */
    /* least excess of those that do not fit, and what the message says of it */
    double nearest;
    char nearest_is[160];
    dp__start_t starts[STARTS + 1]; /* by score; one more is room for a newcomer */
    int32_t nstarts;
    dp__given_t given[MOST_GIVEN];
    int32_t ngiven;
    dp__search_random_t random;
    double began, shown;
    double cut_share; /* seconds for the cut of a shape */
    double cut_until; /* of the cut that is looked for */
    bool enough;      /* says the caller */
} dp__search_t;

/* Seconds since it began. */
double dp__search_elapsed(const dp__search_t *search);
bool dp__search_has_time(const dp__search_t *search, double until);
void dp__search_show(dp__search_t *search);

/* The costs of the request, with the scales of a cut. */
dp_costs_t dp__search_costs(const dp__search_t *search, const dp__cut_t *cut);
/* By which its stages have memory; NULL: they are alike, as micro-batches are counted. */
const double *dp__search_parts(const dp__search_t *search, const dp__cut_t *cut);

#endif
