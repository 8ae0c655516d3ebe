/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * out.h: text through a write callback, in bounded blocks. The first failure sticks. */
#ifndef DP_SCHEDULE_OUT_H
#define DP_SCHEDULE_OUT_H

#include <dualpipe/schedule.h>

typedef struct dp__out {
    dp_write_fn write;
    void *user;
    dp_status_t status;
    size_t used;
    char buffer[4096];
} dp__out_t;

void dp__out_open(dp__out_t *out, dp_write_fn write, void *user);
/* Appends formatted text, at most 1,023 bytes a call, as it is: numbers and punctuation. */
void dp__out_put(dp__out_t *out, const char *fmt, ...) DP_PRINTF(2, 3);
void dp__out_bytes(dp__out_t *out, const char *text, size_t bytes);
/* Appends the inside of a JSON string. What is not UTF-8 becomes U+FFFD. */
void dp__out_json(dp__out_t *out, const char *text);
/* Hands over what is left and returns the first failure. */
dp_status_t dp__out_close(dp__out_t *out);

#endif
