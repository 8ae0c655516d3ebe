/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * json_out.h: JSON text through a write callback, in bounded blocks. The first failure sticks. */
#ifndef DP_TIMELINE_JSON_OUT_H
#define DP_TIMELINE_JSON_OUT_H

#include <dualpipe/schedule.h>

typedef struct dp__json_out {
    dp_write_fn write;
    void *user;
    dp_status_t status;
    size_t used;
    char buffer[16384];
} dp__json_out_t;

void dp__json_open(dp__json_out_t *out, dp_write_fn write, void *user);
/* Appends formatted text, at most 1,023 bytes a call, as it is: numbers and punctuation. */
void dp__json_put(dp__json_out_t *out, const char *fmt, ...) DP_PRINTF(2, 3);
/* Appends the inside of a string. What is not UTF-8 becomes U+FFFD. */
void dp__json_text(dp__json_out_t *out, const char *text);
/* Hands over what is left and returns the first failure. */
dp_status_t dp__json_close(dp__json_out_t *out);

#endif
