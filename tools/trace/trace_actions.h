/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_actions.h: the operations that torch.distributed.pipelining names in a trace: "PP:0F3" is stage 0, forward,
 * micro-batch 3, likewise I, W and B (full backward), and "PP:(0F7;7B3)OVERLAP_F_B" a pair. */
#ifndef DP_TOOLS_TRACE_ACTIONS_H
#define DP_TOOLS_TRACE_ACTIONS_H

#include "tools/io/output.h"
#include "trace.h"

/* The operation, DP_OP_F to DP_OP_FB, and the stage of its (forward) side; -1: the name of none, or of a transfer. */
int trace_action_of(const char *name, int32_t *stage_out);
/* Some forward is named so. */
bool trace_has_actions(const trace_t *trace);
/* Costs of a device, from annotations on streams where there are any, else from those of the host. */
dp_status_t trace_actions_put(const trace_t *trace, const char *path, output_t *output);

#endif
