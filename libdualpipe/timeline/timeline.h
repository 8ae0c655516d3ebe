/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * timeline.h: what a timeline is made of, for the files of this room. */
#ifndef DP_TIMELINE_TIMELINE_H
#define DP_TIMELINE_TIMELINE_H

#include <dualpipe/timeline.h>
#include <stdbool.h>

#define DP__TIMELINE_NAMES      255
#define DP__TIMELINE_NAME_BYTES 255

/* Threads of one process append to different rows at once: no two rows share a cache line. */
typedef struct dp__row {
    _Alignas(64) dp_span_t *spans;
    int64_t count, room, lost;
    dp_row_clock_t clock;
} dp__row_t;

struct dp_timeline {
    int32_t ranks;
    int32_t nnames; /* names[1] ... names[nnames] */
    char *names[DP__TIMELINE_NAMES + 1];
    dp__row_t *rows;
};

/* NULL when the span may stand in a timeline with nnames names, else what is wrong with it. */
const char *dp__span_fault(const dp_span_t *span, int32_t nnames);

#endif
