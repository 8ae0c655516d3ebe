/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * formula.h: published bubble formulas. */
#ifndef DP_SIMULATE_FORMULA_H
#define DP_SIMULATE_FORMULA_H

#include <dualpipe/simulate.h>

/* Idle time of a rank in one step by the formula its authors published; NaN when there is none. */
double dp__formula_bubble(const dp_schedule_t *schedule, const dp_costs_t *resolved);

#endif
