/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * eight_phases.h: the order shared by DualPipe and DualPipeV, seen from one rank. */
#ifndef DP_SCHEDULE_EIGHT_PHASES_H
#define DP_SCHEDULE_EIGHT_PHASES_H

#include "schedule/emit.h"

/* depth: ranks between the entry and the turning point; place: ours among them, 0 at the entry.
 * near is the chunk whose micro-batches enter on our side, far the other; each has `microbatches`
 * of them, at least 2 * depth. */
void dp__emit_eight_phases(dp__emit_t *e, int32_t depth, int32_t place, int32_t microbatches, int near, int far);

#endif
