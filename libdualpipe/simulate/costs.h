/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * costs.h: a cost model with its defaults filled in. */
#ifndef DP_SIMULATE_COSTS_H
#define DP_SIMULATE_COSTS_H

#include <dualpipe/simulate.h>
#include <stdbool.h>

/* By role: that of role r is number r - 1. */
extern const char *const dp__segment_names[DP_ROLE_SUM];

/* Largest cost or scale: sums over the largest program stay far from the end of a double. */
#define DP__COST_MAX 1e15
static inline bool dp__cost_in_bounds(double cost)
{
    return cost >= 0.0 && cost <= DP__COST_MAX; /* which a NaN is not */
}

/* Copies costs of a schedule with b and fb replaced by what they stand for. */
dp_status_t dp__costs_resolve(const dp_costs_t *costs, const dp_schedule_t *schedule, dp_costs_t *resolved_out);

static inline double dp__rank_scale(const dp_costs_t *costs, int32_t rank)
{
    return costs->rank_scale != NULL ? costs->rank_scale[rank] : 1.0;
}

/* What a message takes from one rank to another: its bytes the link, and then its latency. */
typedef struct dp__message_time {
    double link, hop;
} dp__message_time_t;
dp__message_time_t dp__costs_message(const dp_costs_t *costs, int32_t from, int32_t to);

/* Time of an operation of that scale; scale2 is of the backward side. parts[1]: 0 but for FB. */
void dp__costs_of(const dp_costs_t *resolved, int op, double scale, double scale2, double parts[2]);

#endif
