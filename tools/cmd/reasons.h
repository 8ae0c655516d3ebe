/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * reasons.h: why a comparison came out as it did, in sentences. */
#ifndef DP_TOOLS_REASONS_H
#define DP_TOOLS_REASONS_H

#include "comparison.h"

enum { REASONS_MOST = 16, REASON_BYTES = 512 };

typedef struct reasons {
    int32_t count;
    char text[REASONS_MOST][REASON_BYTES];
} reasons_t;

/* Each follows from figures: of the table, or of a run with one cost changed that shows the cause.
 * Runs are left out where they take long. */
dp_status_t reasons_find(const comparison_t *table, reasons_t *reasons_out);

#endif
