/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * moves.h: what must be moved when a placement is changed. */
#ifndef DP_EPLB_MOVES_H
#define DP_EPLB_MOVES_H

#include "eplb/layer.h"

/* Replicas of `slots` that are new on their GPU; of these, those that are new on their node. */
int64_t dp__eplb_count_moves(const dp__eplb_field_t *field, const int32_t *origin, const int32_t *slots,
                             int64_t *between_nodes_out);

/* Adds bytes to a sum of moves and hands it out; out may be NULL. */
void dp__eplb_report(const dp_eplb_moves_t *sum, int64_t expert_bytes, dp_eplb_moves_t *out);
/* Bytes of an expert, of which all moves there can be must add up to a number. */
dp_status_t dp__eplb_check_bytes(const dp__eplb_sizes_t *sizes, int64_t expert_bytes);
dp_status_t dp__eplb_check_moves(const dp_eplb_moves_t *moves);

#endif
