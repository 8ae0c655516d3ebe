/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_json.h: JSON token by token, in memory that does not depend on the size of the document.
 *
 * Strict RFC 8259 with what traces in the wild need besides: NaN and Infinity as numbers, and an array at the top that
 * ends with the file (the Trace Event Format allows it, so that a program that crashed leaves a trace). Errors name the
 * byte. */
#ifndef DP_TOOLS_TRACE_JSON_H
#define DP_TOOLS_TRACE_JSON_H

#include <dualpipe/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSON_DEPTH       128       /* deepest nesting that is read */
#define JSON_TEXT_BYTES  4096      /* what is kept of a string, its ending 0 included */
#define JSON_EVENT_BYTES (8 << 20) /* the longest piece that json_keep() holds */

#define JSON_MOST_NS (1ll << 61) /* times lie within plus and minus this, so that differences can be taken */

typedef enum json_kind {
    JSON_END, /* of the document */
    JSON_OBJECT,
    JSON_OBJECT_END,
    JSON_ARRAY,
    JSON_ARRAY_END,
    JSON_KEY,
    JSON_STRING,
    JSON_NUMBER,
    JSON_TRUE,
    JSON_FALSE,
    JSON_NULL
} json_kind_t;

typedef struct json_token {
    json_kind_t kind;
    uint64_t offset; /* of its first byte */
    /* KEY, STRING: without escapes, as UTF-8; NUMBER: as written. "" for others. Until the next token */
    const char *text;
} json_token_t;

/* Fills the buffer with up to `room` bytes; 0 in *bytes_out: the end. */
typedef dp_status_t (*json_read_fn)(void *user, void *buffer, size_t room, size_t *bytes_out);
typedef struct json_reader json_reader_t;

dp_status_t json_open(json_read_fn read, void *user, json_reader_t **reader_out);
void json_close(json_reader_t *reader);
/* DP_ERR_REJECTED: not JSON, cut off, or nested too deeply. The reader cannot go on after a failure. */
dp_status_t json_next(json_reader_t *reader, json_token_t *token);
/* The rest of the value that `token` begins; nothing to do for one that is a token of its own. */
dp_status_t json_skip(json_reader_t *reader, const json_token_t *token);
/* Bytes behind the last token's end. */
uint64_t json_offset(const json_reader_t *reader);
/* The array at the top was not closed: the file may be a part of what was meant. */
bool json_unclosed(const json_reader_t *reader);

/* Keeps the bytes from the last token's first one on, until json_kept(), which gives them: DP_ERR_REJECTED when they
 * are more than JSON_EVENT_BYTES. They stay until the next json_keep(). */
void json_keep(json_reader_t *reader, const json_token_t *token);
dp_status_t json_kept(json_reader_t *reader, const char **text_out, size_t *bytes_out);

/* The text of a JSON number of microseconds in nanoseconds, rounded to the nearest; false when it is out of range or
 * not a number of digits. Decimals are not passed through a double: timestamps since 1970 need more than its 53
 * bits. */
bool json_nanoseconds(const char *text, int64_t *ns_out);
/* A whole number; false otherwise. */
bool json_integer(const char *text, int64_t *value_out);

#endif
