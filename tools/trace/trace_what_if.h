/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_what_if.h: what a measured run would take if a rank, a link or the cut of the layers were
 * another. */
#ifndef DP_TOOLS_TRACE_WHAT_IF_H
#define DP_TOOLS_TRACE_WHAT_IF_H

#include "tools/io/output.h"
#include "trace_args.h"

/* title: what the trace is called. DP_ERR_INVALID: a change that the run cannot have. */
dp_status_t trace_what_if_put(const trace_args_t *args, const dp_trace_t *trace, const char *title, output_t *output);

#endif
