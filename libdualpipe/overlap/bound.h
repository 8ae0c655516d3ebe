/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * bound.h: what no order can beat. */
#ifndef DP_OVERLAP_BOUND_H
#define DP_OVERLAP_BOUND_H

#include "overlap/problem.h"

#include <dualpipe/overlap.h>

double dp__overlap_bound(const dp__overlap_problem_t *problem);
/* The same of a request: for each rank, computation, and what must be idle before its first
 * backward and after its last forward, for want of memory and for the longest chain of passes; or
 * the busiest lane. */
dp_status_t dp__overlap_request_bound(const dp_overlap_request_t *request, double *bound_out);

#endif
