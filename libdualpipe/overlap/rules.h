/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * rules.h: where rules come from: chance, and small changes to good ones. */
#ifndef DP_OVERLAP_RULES_H
#define DP_OVERLAP_RULES_H

#include "overlap/list.h"

typedef struct dp__overlap_random {
    uint64_t state;
} dp__overlap_random_t;

double dp__overlap_unit(dp__overlap_random_t *random); /* [0, 1) */

/* The schedule's own order, nothing overtaken. */
void dp__overlap_rules_plain(const dp__overlap_problem_t *problem, dp__overlap_rules_t *rules);
void dp__overlap_rules_random(const dp__overlap_problem_t *problem, dp__overlap_random_t *random,
                              dp__overlap_rules_t *rules);
void dp__overlap_rules_change(const dp__overlap_problem_t *problem, dp__overlap_random_t *random,
                              dp__overlap_rules_t *rules);
/* shift has room of its own in both. */
void dp__overlap_rules_copy(const dp__overlap_problem_t *problem, const dp__overlap_rules_t *from,
                            dp__overlap_rules_t *to);

#endif
