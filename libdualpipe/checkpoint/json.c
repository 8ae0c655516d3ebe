/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * json.c: strict JSON (RFC 8259), as far as safetensors files and their index need it. */
#include "checkpoint/json.h"

#include <string.h>

bool dp__json_fail(dp__json_t *json, const char *why)
{
    if (json->why == NULL)
        json->why = why;
    return false;
}

bool dp__json_no_memory(dp__json_t *json, const char *why)
{
    json->no_memory = json->why == NULL;
    return dp__json_fail(json, why);
}

static void skip_space(dp__json_t *json)
{
    while (json->at < json->end && memchr(" \t\r\n", *json->at, 4) != NULL)
        json->at++;
}

static bool see_character(dp__json_t *json, char c)
{
    if (json->why != NULL)
        return false;
    skip_space(json);
    return json->at < json->end && *json->at == c;
}

bool dp__json_take(dp__json_t *json, char c)
{
    static const struct {
        char c;
        const char *why;
    } missing[] = {{'{', "an object is missing"},
                   {'[', "an array is missing"},
                   {':', "a colon is missing"},
                   {'"', "a string is missing"},
                   {',', "a comma is missing"}};

    if (see_character(json, c)) {
        json->at++;
        return true;
    }
    for (size_t i = 0; i < sizeof(missing) / sizeof(missing[0]); i++)
        if (missing[i].c == c)
            return dp__json_fail(json, missing[i].why);
    return dp__json_fail(json, "something else was expected");
}

bool dp__json_next(dp__json_t *json, char close, bool *first)
{
    const bool begins = *first;

    *first = false;
    if (see_character(json, close)) {
        json->at++;
        return false;
    }
    return begins ? json->why == NULL : dp__json_take(json, ',');
}

/* Four hexadecimal digits; -1: they are none. */
static long hex4(const dp__json_t *json)
{
    long value = 0;

    if (json->end - json->at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        static const char digits[] = "0123456789abcdef0123456789ABCDEF";
        const char *digit = memchr(digits, json->at[i], 32);

        if (digit == NULL)
            return -1;
        value = value * 16 + (digit - digits) % 16;
    }
    return value;
}

static char *put_utf8(char *to, long code)
{
    if (code < 0x80) {
        *to++ = (char)code;
        return to;
    }
    if (code < 0x800) {
        *to++ = (char)(0xc0 | code >> 6);
    } else {
        if (code < 0x10000) {
            *to++ = (char)(0xe0 | code >> 12);
        } else {
            *to++ = (char)(0xf0 | code >> 18);
            *to++ = (char)(0x80 | (code >> 12 & 0x3f));
        }
        *to++ = (char)(0x80 | (code >> 6 & 0x3f));
    }
    *to++ = (char)(0x80 | (code & 0x3f));
    return to;
}

/* Behind "\u"; a pair of surrogates is one character. */
static bool read_unicode(dp__json_t *json, char **to)
{
    long code = hex4(json), low;

    if (code < 0x20 || (code >= 0xdc00 && code < 0xe000))
        return dp__json_fail(json, "an escape that is no character");
    json->at += 4;
    if (code >= 0xd800 && code < 0xdc00) {
        if (json->end - json->at < 6 || json->at[0] != '\\' || json->at[1] != 'u')
            return dp__json_fail(json, "half of a surrogate pair");
        json->at += 2;
        low = hex4(json);
        if (low < 0xdc00 || low >= 0xe000)
            return dp__json_fail(json, "half of a surrogate pair");
        json->at += 4;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    *to = put_utf8(*to, code);
    return true;
}

static bool read_escape(dp__json_t *json, char **to)
{
    const char c = json->at < json->end ? *json->at : '\0';

    if (c == 'u') {
        json->at++;
        return read_unicode(json, to);
    }
    if (c != '"' && c != '\\' && c != '/')
        return dp__json_fail(json, "an escape that no string here may have");
    *(*to)++ = c;
    json->at++;
    return true;
}

/* Bytes of the UTF-8 character at `at`; 0: it is none. */
static int utf8_length(const unsigned char *at, const unsigned char *end)
{
    const int n = at[0] < 0x80 ? 1 : at[0] < 0xc2 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : at[0] < 0xf5 ? 4 : 0;

    if (n == 0 || end - at < n)
        return 0;
    for (int i = 1; i < n; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) || (at[0] == 0xf0 && at[1] < 0x90) ||
        (at[0] == 0xf4 && at[1] > 0x8f))
        return 0;
    return n;
}

bool dp__json_string(dp__json_t *json, char **string_out)
{
    char *to;

    if (!dp__json_take(json, '"'))
        return false;
    *string_out = to = json->at;
    while (json->at < json->end && *json->at != '"') {
        const int n = utf8_length((const unsigned char *)json->at, (const unsigned char *)json->end);

        if ((unsigned char)*json->at < 0x20 || n == 0)
            return dp__json_fail(json, "a byte that no string may have");
        if (*json->at == '\\') {
            json->at++;
            if (!read_escape(json, &to))
                return false;
            continue;
        }
        memmove(to, json->at, (size_t)n);
        to += n, json->at += n;
    }
    if (json->at == json->end)
        return dp__json_fail(json, "a string does not end");
    json->at++;
    *to = '\0'; /* over the quote or before it */
    return true;
}

bool dp__json_member(dp__json_t *json, bool *first, char **key_out)
{
    if (*first && !dp__json_take(json, '{'))
        return false;
    return dp__json_next(json, '}', first) && dp__json_string(json, key_out) && dp__json_take(json, ':');
}

bool dp__json_number(dp__json_t *json, uint64_t *number_out)
{
    const char *first;

    if (json->why != NULL)
        return false;
    skip_space(json);
    first = json->at;
    for (*number_out = 0; json->at < json->end && *json->at >= '0' && *json->at <= '9'; json->at++)
        if (__builtin_mul_overflow(*number_out, 10u, number_out) ||
            __builtin_add_overflow(*number_out, (uint64_t)(*json->at - '0'), number_out))
            return dp__json_fail(json, "a number is too large");
    if (json->at == first)
        return dp__json_fail(json, "a whole number is missing");
    return *first == '0' && json->at - first > 1 ? dp__json_fail(json, "a number begins with 0") : true;
}

bool dp__json_end(dp__json_t *json)
{
    if (json->why != NULL)
        return false;
    skip_space(json);
    return json->at == json->end ? true : dp__json_fail(json, "something is behind the end");
}

dp_status_t dp__json_status(const dp__json_t *json, const char *whose)
{
    if (json->no_memory)
        return dp_fail(DP_ERR_NOMEM, "%s", json->why);
    return dp_fail(DP_ERR_INVALID, "%s is broken: byte %zu: %s", whose, (size_t)(json->at - json->start), json->why);
}
