/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * describe.h: one sentence on a span, for messages. */
#ifndef DP_GROUP_DESCRIBE_H
#define DP_GROUP_DESCRIBE_H

#include <dualpipe/timeline.h>

/* "step 3: mlp(B) of stage 2, chunk 1, micro-batch 5". name: of its segment, "" for none. bytes: at
 * least 1. */
void dp__span_describe(const dp_span_t *span, const char *name, char *text, size_t bytes);

#endif
