/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * match.h: gives the nodes and GPUs of a plan the names under which most experts need not move. */
#ifndef DP_EPLB_MATCH_H
#define DP_EPLB_MATCH_H

#include "eplb/layer.h"

/* Permutes the plan's GPUs, nodes with their GPUs, so that it looks like `origin`: plan, origin,
 * out [replicas]. */
void dp__eplb_match(const dp__eplb_field_t *field, const int32_t *plan, const int32_t *origin, int32_t *out);

/* Orders the slots of each GPU so that experts which were there keep their slot. slots may not be
 * origin. */
void dp__eplb_settle(const dp__eplb_field_t *field, const int32_t *origin, int32_t *slots);

#endif
