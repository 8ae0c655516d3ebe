/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * spelling.c: names, digests, numbers and dtypes, as heads and indexes have them. */
#include "checkpoint/spelling.h"

#include "checkpoint/json.h"

#include <string.h>

static const struct {
    dp_dtype_t dtype;
    const char *name;
} dtypes[] = {{DP_F32, "F32"}, {DP_F64, "F64"}, {DP_BF16, "BF16"}, {DP_I64, "I64"}, {DP_U8, "U8"}};
enum { DTYPES = sizeof(dtypes) / sizeof(dtypes[0]) };

const char *dp__dtype_spelling(dp_dtype_t dtype)
{
    for (int i = 0; i < DTYPES; i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].name;
    return "";
}

bool dp__dtype_spelled(const char *name, dp_dtype_t *dtype_out)
{
    for (int i = 0; i < DTYPES; i++)
        if (strcmp(name, dtypes[i].name) == 0) {
            *dtype_out = dtypes[i].dtype;
            return true;
        }
    return false;
}

bool dp__name_is_good(const char *name)
{
    const size_t length = strlen(name);

    for (const unsigned char *c = (const unsigned char *)name; *c != '\0'; c++)
        if (*c < 0x20 || *c > 0x7e)
            return false;
    return length > 0 && length <= DP__NAME_MOST;
}

static const char hex[] = "0123456789abcdef";

void dp__digest_put(char digits[DP__DIGEST_DIGITS], uint64_t digest)
{
    for (int i = DP__DIGEST_DIGITS - 1; i >= 0; i--, digest >>= 4)
        digits[i] = hex[digest & 15];
}

bool dp__digest_get(const char digits[DP__DIGEST_DIGITS], uint64_t *digest_out)
{
    *digest_out = 0;
    for (int i = 0; i < DP__DIGEST_DIGITS; i++) {
        const char *digit = memchr(hex, digits[i], 16);

        if (digit == NULL)
            return false;
        *digest_out = *digest_out << 4 | (uint64_t)(digit - hex);
    }
    return true;
}

bool dp__digits(const char *text, uint64_t *number_out)
{
    return strlen(text) == DP__DIGEST_DIGITS && dp__digest_get(text, number_out);
}

bool dp__decimal(const char *text, uint64_t *number_out)
{
    char copy[24];
    dp__json_t json;
    const size_t length = strlen(text);

    if (length >= sizeof(copy))
        return false;
    memcpy(copy, text, length + 1);
    json = dp__json_begin(copy, length);
    return dp__json_number(&json, number_out) && json.at == json.end;
}
