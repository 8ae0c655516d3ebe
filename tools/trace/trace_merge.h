/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_merge.h: the traces of several ranks as one. */
#ifndef DP_TOOLS_TRACE_MERGE_H
#define DP_TOOLS_TRACE_MERGE_H

#include "tools/io/output.h"
#include "trace_args.h"

/* Reads every file twice, first for what has to be known before the first event is written; an
 * event is held at a time. Events are written as they are but for the process, which gets its own
 * number in every file, ids of arrows, and times where clocks start differently. Processes are
 * named after their rank. DP_ERR_REJECTED: a file is not a trace; DP_ERR_INVALID: two are of the
 * same rank, standard input, the output is one of the files. */
dp_status_t trace_merge_put(const trace_args_t *args, output_t *output);
/* What can be known before the output is opened. */
dp_status_t trace_merge_check(const trace_args_t *args);

#endif
