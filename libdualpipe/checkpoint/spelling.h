/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * spelling.h: how names, digests, numbers and dtypes are spelled in heads and indexes. */
#ifndef DP_CHECKPOINT_SPELLING_H
#define DP_CHECKPOINT_SPELLING_H

#include <dualpipe/types.h>
#include <stdbool.h>

enum {
    DP__NAME_MOST = 255, /* bytes of a tensor's name */
    DP__DIGEST_DIGITS = 16
};

/* Good for a tensor: 1 to DP__NAME_MOST bytes of UTF-8 without control characters. */
bool dp__name_is_good(const char *name);
void dp__digest_put(char digits[DP__DIGEST_DIGITS], uint64_t digest);
bool dp__digest_get(const char digits[DP__DIGEST_DIGITS], uint64_t *digest_out);
/* The same for a whole string. */
bool dp__digits(const char *text, uint64_t *number_out);
/* Of a number in a string: digits alone. */
bool dp__decimal(const char *text, uint64_t *number_out);
/* As safetensors has it; "" for one that it has not. */
const char *dp__dtype_spelling(dp_dtype_t dtype);
bool dp__dtype_spelled(const char *name, dp_dtype_t *dtype_out);

#endif
