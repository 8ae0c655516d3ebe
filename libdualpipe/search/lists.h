/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * lists.h: a schedule that can be changed in place and timed quickly, for the search. */
#ifndef DP_SEARCH_LISTS_H
#define DP_SEARCH_LISTS_H

#include <dualpipe/simulate.h>
#include <stdbool.h>

/* What all schedules of one shape share. */
typedef struct dp__shape {
    dp_placement_t placement;
    int32_t ranks, microbatches, chunks;
    int32_t path_microbatches;
    double cost[5];          /* of a chunk, by dp_op_kind_t, */
    const double *scale;     /* times these, by stage; borrowed from the costs; NULL: 1 */
    double forward_share;    /* of a pair's time, by its forward's scale */
    const dp_costs_t *costs; /* borrowed */
    bool barrier;
    dp_place_t *places; /* [ranks * chunks] */
    /* [ranks * chunks] what a chunk holds of a micro-batch: part of its rank's stage inputs, or in
     * another unit, which is that of the cap then */
    double *share;
} dp__shape_t;

/* Ordered operations of every rank, ops[rank * room] on. */
typedef struct dp__lists {
    int32_t room;
    int32_t *count; /* [ranks] */
    dp_op_t *ops;
} dp__lists_t;

/* The result of a timing. step is infinite when the lists cannot finish or exceed the cap. */
typedef struct dp__timing {
    double step;
    /* mean end of the ranks: of two lists with one step, the denser one has more to give */
    double tail;
    double peak;
} dp__timing_t;

/* Room for timing lists of a shape, reused from call to call. */
typedef struct dp__list_timer {
    /* [rank, chunk, micro-batch]: end; negative: not yet */
    double *forward, *backward;
    /* [rank, chunk, micro-batch]: how many of its chunk went before it */
    int32_t *forward_place, *backward_place;
    int32_t *forwards, *backwards; /* [rank, chunk]: so far */
    double *free, *start, *held;
    int32_t *at, *queue;
    bool *queued;
} dp__list_timer_t;

dp_status_t dp__shape_make(const dp_schedule_t *schedule, const dp_costs_t *costs, dp__shape_t *shape);
double dp__shape_cost(const dp__shape_t *shape, int32_t rank, const dp_op_t *op);
double dp__shape_hop(const dp__shape_t *shape, int32_t from, int32_t to);
void dp__shape_clear(dp__shape_t *shape);

dp_status_t dp__lists_make(const dp__shape_t *shape, dp__lists_t *lists);
void dp__lists_clear(dp__lists_t *lists);
void dp__lists_copy(const dp__shape_t *shape, const dp__lists_t *from, dp__lists_t *to);
void dp__lists_take(const dp__shape_t *shape, const dp_schedule_t *schedule, dp__lists_t *lists);
/* A schedule of method "search" that the caller frees. */
dp_status_t dp__lists_give(const dp__shape_t *shape, const dp__lists_t *lists, dp_schedule_t **schedule_out);

dp_status_t dp__timer_make(const dp__shape_t *shape, dp__list_timer_t *timer);
void dp__timer_clear(dp__list_timer_t *timer);
/* When the data of a pass are there; negative: not yet. */
double dp__timer_ready(const dp__list_timer_t *timer, const dp__shape_t *shape, int32_t rank, int kind, int32_t chunk,
                       int32_t microbatch);
/* Every operation as early as its data allow, transfers without limit but in order: what a rank
 * makes first its neighbour has to use first. cap: of what a rank holds, negative: none. */
dp__timing_t dp__timer_run(dp__list_timer_t *timer, const dp__shape_t *shape, const dp__lists_t *lists, double cap);

#endif
