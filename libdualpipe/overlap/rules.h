/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * rules.h: where rules and urgencies come from: chance, and small changes to good ones. */
#ifndef DP_OVERLAP_RULES_H
#define DP_OVERLAP_RULES_H

#include "overlap/list.h"

typedef struct dp__overlap_random {
    uint64_t state;
} dp__overlap_random_t;

double dp__overlap_unit(dp__overlap_random_t *random); /* [0, 1) */

void dp__overlap_rules_random(double period, dp__overlap_random_t *random, dp__overlap_rules_t *rules);
/* One of them. */
void dp__overlap_rules_change(double period, dp__overlap_random_t *random, dp__overlap_rules_t *rules);

/* urgency: [nodes]. By micro-batch and place on the path alone, with weights of these by chance. */
void dp__overlap_urgency_random(const dp__overlap_graph_t *graph, dp__overlap_random_t *random, double *urgency);
/* Lifts forwards of the first stages out of the steady state into the filling of the pipeline, and
 * as many backwards into its draining: the steady state gets shorter by so many. False: no
 * memory. */
bool dp__overlap_urgency_lift(const dp__overlap_graph_t *graph, double step, dp__overlap_random_t *random,
                              double *urgency);
/* Moves some of what happens in a stretch of a step of that length. */
void dp__overlap_urgency_change(const dp__overlap_graph_t *graph, double step, dp__overlap_random_t *random,
                                double *urgency);

#endif
