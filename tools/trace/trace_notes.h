/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_notes.h: what a reader of a trace's figures must know besides: events that were left out,
 * records that stretch the span, computation that may be communication. */
#ifndef DP_TOOLS_TRACE_NOTES_H
#define DP_TOOLS_TRACE_NOTES_H

#include "trace/trace.h"

typedef struct trace_notes {
    char lines[8][320]; /* those that begin with a blank belong to the one before them */
    size_t count;
} trace_notes_t;

/* names: also what is said of kernels by their names, which costs do not ask. */
dp_status_t trace_notes_of(const dp_trace_t *trace, bool names, trace_notes_t *notes_out);

#endif
