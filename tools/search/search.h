/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * search.h: looks for a better schedule than any built-in one, for given sizes, costs and memory.
 *
 * Built-in schedules and list scheduling give the starts; simulated annealing on the operation lists improves them.
 * Whatever is announced as better was lowered, proven and simulated like any schedule. */
#ifndef DP_TOOLS_SEARCH_H
#define DP_TOOLS_SEARCH_H

#include <dualpipe/simulate.h>

typedef struct search_state {
    double elapsed;       /* seconds */
    int64_t tried;        /* lists timed */
    double built_in_step; /* of the best built-in schedule; infinite: none fits */
    double step;          /* of the best so far; infinite: none yet */
    const char *from;     /* which start the best goes back to */
} search_state_t;

typedef struct search_request {
    int32_t ranks, microbatches;
    const dp_costs_t *costs;
    dp_transport_t transport;
    int32_t slots;
    double memory_cap; /* activations on a rank, in units of its stage inputs; negative: none */
    double seconds;
    uint64_t seed;
    void (*progress)(void *user, const search_state_t *state); /* now and then; NULL: not wanted */
    void *user;
} search_request_t;

typedef struct search_result {
    dp_schedule_t *schedule; /* the best; the caller frees it */
    char built_in[48];       /* the best built-in schedule's name; "" when none fits */
    char from[48];
    double built_in_step, step, peak;
    int64_t tried;
} search_result_t;

/* DP_ERR_REJECTED: nothing fits the memory. */
dp_status_t search_run(const search_request_t *request, search_result_t *result);

#endif
