/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * json.h: reads strict JSON token by token, from a text that it may change. It does not know what
 * nobody here writes: fractions, true, false, null. After the first missing token all further calls
 * fail. */
#ifndef DP_CHECKPOINT_JSON_H
#define DP_CHECKPOINT_JSON_H

#include <dualpipe/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dp__json {
    char *start, *at, *end;
    const char *why; /* NULL: all is well so far; else what is wrong at `at` */
    bool no_memory;  /* why: and nothing is wrong with the text */
} dp__json_t;

static inline dp__json_t dp__json_begin(char *text, size_t bytes)
{
    return (dp__json_t){text, text, text + bytes, NULL, false};
}

/* The first thing that is wrong stays. Returns false. */
bool dp__json_fail(dp__json_t *json, const char *why);
bool dp__json_no_memory(dp__json_t *json, const char *why);
/* White space, then c. */
bool dp__json_take(dp__json_t *json, char c);
/* Before each member of an object or array (close: '}' or ']'): true: there is one, false: that was
 * the last, or an error. *first: true before the first call. */
bool dp__json_next(dp__json_t *json, char close, bool *first);
/* Without its quotes, unescaped in its place and ended by 0; UTF-8, nothing below a space in it. */
bool dp__json_string(dp__json_t *json, char **string_out);
/* The same for an object, from its '{' on, with the member's key. */
bool dp__json_member(dp__json_t *json, bool *first, char **key_out);
/* Digits alone, no more than UINT64_MAX. */
bool dp__json_number(dp__json_t *json, uint64_t *number_out);
/* Nothing but white space is left. */
bool dp__json_end(dp__json_t *json);

/* After a failure: DP_ERR_INVALID, "its head is broken: byte 17: ...", or DP_ERR_NOMEM. */
dp_status_t dp__json_status(const dp__json_t *json, const char *whose);

#endif
