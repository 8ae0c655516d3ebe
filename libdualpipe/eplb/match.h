/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * match.h: gives the nodes and GPUs of a plan the names under which most experts need not move. */
#ifndef DP_EPLB_MATCH_H
#define DP_EPLB_MATCH_H

#include "eplb/layer.h"

/* Permutes the GPUs of the plan, and nodes, so that it looks like `origin`: all are [replicas]. */
void dp__eplb_match(const dp__eplb_field_t *field, const int32_t *plan, const int32_t *origin, int32_t *out);

/* Orders the slots of each GPU so that experts keep theirs. slots may not be origin. */
void dp__eplb_settle(const dp__eplb_field_t *field, const int32_t *origin, int32_t *slots);

#endif
