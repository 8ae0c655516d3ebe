/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * bound.h: what no order can beat. */
#ifndef DP_OVERLAP_BOUND_H
#define DP_OVERLAP_BOUND_H

#include "overlap/problem.h"

double dp__overlap_bound(const dp__overlap_problem_t *problem);

#endif
