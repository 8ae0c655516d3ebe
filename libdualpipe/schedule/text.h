/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * text.h: slices of text for readers and writers of schedules: no copies, no NUL needed. */
#ifndef DP_SCHEDULE_TEXT_H
#define DP_SCHEDULE_TEXT_H

#include <dualpipe/schedule.h>
#include <stdbool.h>

typedef struct dp__slice {
    const char *text; /* NULL: nothing left */
    size_t bytes;
} dp__slice_t;

typedef struct dp__line {
    const char *name; /* of the file */
    int64_t number;   /* from 1 */
    const char *text; /* without the line end */
    size_t bytes;
} dp__line_t;

typedef struct dp__lines {
    const char *name;
    dp__slice_t rest;
    int64_t number;
} dp__lines_t;

/* The next line; false at the end. A line ends in \n or \r\n. */
bool dp__lines_next(dp__lines_t *lines, dp__line_t *line);

/* Cuts off what stands before the first separator; rest->text is NULL once there was none. */
dp__slice_t dp__slice_cut(dp__slice_t *rest, char separator);
bool dp__slice_is(dp__slice_t span, const char *text);
/* Bytes to show in a message ("%.*s"): not too many. */
int dp__slice_shown(dp__slice_t span);

/* A whole span as a decimal number from low to high; `what` names it in the message. */
dp_status_t dp__slice_number(const dp__line_t *line, dp__slice_t span, const char *what, int64_t low, int64_t high,
                             int64_t *value_out);

/* DP_ERR_INVALID with "NAME:LINE: ...". */
dp_status_t dp__line_fail(const dp__line_t *line, const char *fmt, ...) DP_PRINTF(2, 3);

#endif
