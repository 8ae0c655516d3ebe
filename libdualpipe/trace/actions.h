/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * actions.h: the operations that torch.distributed.pipelining names in a trace: "PP:0F3" is stage
 * 0, forward, micro-batch 3, likewise I, W and B (full backward), and "PP:(0F7;7B3)OVERLAP_F_B" a
 * pair. */
#ifndef DP_TRACE_ACTIONS_H
#define DP_TRACE_ACTIONS_H

#include "schedule/out.h"
#include "trace/trace.h"

/* The operation, DP_OP_F to DP_OP_FB, and stage of its (forward) side; -1: no operation's name. */
int dp__trace_action_of(const char *name, int32_t *stage_out);
/* Some forward is named so. */
bool dp__trace_has_actions(const dp_trace_t *trace);
/* Costs of a device from annotations on streams, or without any from those of the host. */
dp_status_t dp__trace_actions_put(const dp_trace_t *trace, const char *title, dp__out_t *to);

#endif
