/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_costs.h: what a trace shows of costs, as a file for `dualpipe simulate --costs`. */
#ifndef DP_TOOLS_TRACE_COSTS_H
#define DP_TOOLS_TRACE_COSTS_H

#include "tools/io/output.h"
#include "trace.h"
#include "trace_args.h"

/* Of a trace with annotated segments, of one with the operations of torch.distributed.pipelining, and of one of ours.
 * DP_ERR_REJECTED: no annotation is a segment's, or no forward is there. */
dp_status_t trace_costs_put(const trace_t *trace, const trace_args_t *args, const char *path, output_t *output);

#endif
