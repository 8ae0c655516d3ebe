/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * braid.h: the order in which the segments of an operation are enqueued. */
#ifndef DP_PROGRAM_BRAID_H
#define DP_PROGRAM_BRAID_H

#include "program/pair.h"
#include "schedule/passes.h"

/* One entry of a merged order: run F, I or W of segment `segment` of pass number `pass`. */
typedef struct dp__braid_step {
    uint8_t pass, op;
    int16_t segment;
} dp__braid_step_t;

/* Merges the passes of an operation, each on its stage. steps_out has room for 2 * the segments of
 * all passes; W of segments without weights may be among them, and is nothing. `scratch` has room
 * for 3 * those of the longest stage. Returns how many; -1: a written order has not as many letters
 * for a pass as its stage has segments. */
int32_t dp__braid_order(const char *order, const dp_pass_t *passes, int npasses, const dp__stage_shape_t *const *stages,
                        dp__braid_step_t *steps_out, dp__pair_step_t *scratch);

#endif
