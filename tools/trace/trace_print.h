/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_print.h: the figures of a trace as text, for people and for programs. */
#ifndef DP_TOOLS_TRACE_PRINT_H
#define DP_TOOLS_TRACE_PRINT_H

#include "tools/io/output.h"
#include "trace_detail.h"

/* path: what the trace is called. */
dp_status_t trace_print_text(const trace_detail_t *overlap, const char *path, output_t *output);
/* Times in microseconds, with nanoseconds as decimals. docs/traces.md lists the keys. */
dp_status_t trace_print_json(const trace_detail_t *overlap, const char *path, output_t *output);

/* part / whole in percent, 0 when there is no whole. */
double trace_percent(int64_t part, int64_t whole);

#endif
