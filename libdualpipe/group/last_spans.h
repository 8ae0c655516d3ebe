/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * last_spans.h: the trace file of a job that makes no progress: what each rank did last, from the
 * flight recorders. */
#ifndef DP_GROUP_LAST_SPANS_H
#define DP_GROUP_LAST_SPANS_H

#include "group/recorder.h"

#include <stdio.h>

#define DP__LAST_SPANS      64  /* of each rank */
#define DP__LAST_SPANS_TEXT 228 /* enough for dp__last_spans_name */

typedef struct dp__last_spans {
    dp_timeline_t *timeline; /* NULL: nothing is to be written */
    FILE *file;
    char path[200];      /* named in the report */
    char part[200 + 24]; /* where it is written, until it is whole */
} dp__last_spans_t;

/* Rows for `ranks` ranks. false: the user wants no file, or there is no memory, which was said. */
bool dp__last_spans_open(dp__last_spans_t *last, int32_t ranks);
/* The latest of what rank `rank` has recorded in these recorders, what it is in first, into a row
 * of a timeline with room for DP__LAST_SPANS. false: nothing is recorded there. */
bool dp__last_spans_take(const dp__recorder_t *recorders, int32_t rank, dp_timeline_t *timeline, int32_t row);
/* Makes the file, so that it can be named: "; last spans of all ranks: PATH", or "" (and why is
 * said). */
void dp__last_spans_name(dp__last_spans_t *last, char *text, size_t bytes);
/* Writes what was named, and forgets it. */
void dp__last_spans_write(dp__last_spans_t *last);
/* Without writing. */
void dp__last_spans_drop(dp__last_spans_t *last);

#endif
