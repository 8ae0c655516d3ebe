/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * few_moves.h: plans near another one. */
#ifndef DP_EPLB_FEW_MOVES_H
#define DP_EPLB_FEW_MOVES_H

#include "eplb/layer.h"

/* Changes the layer, which starts out as origin, until no GPU has more than `limit` and all that
 * was asked holds, each time by the change that relieves most per replica moved. false: it came to
 * an end before. */
bool dp__eplb_relieve(const dp__eplb_field_t *field, const int32_t *origin, double limit, dp__eplb_layer_t *layer);

/* Undoes moves one by one as long as no GPU gets more than `limit`. */
void dp__eplb_undo(const dp__eplb_field_t *field, const int32_t *origin, double limit, dp__eplb_layer_t *layer);

#endif
