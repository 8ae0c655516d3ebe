/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * text.h: a text that grows. Without memory it stays as it is, and `failed` says so at the end. */
#ifndef DP_CHECKPOINT_TEXT_H
#define DP_CHECKPOINT_TEXT_H

#include <dualpipe/status.h>
#include <stdbool.h>

typedef struct dp__text {
    char *at;
    size_t bytes, room;
    bool failed;
} dp__text_t;

void dp__text_add(dp__text_t *text, const char *format, ...) DP_PRINTF(2, 3);
/* With quotes, as JSON has it; UTF-8 without control characters. */
void dp__text_add_string(dp__text_t *text, const char *string);
void dp__text_free(dp__text_t *text);

#endif
