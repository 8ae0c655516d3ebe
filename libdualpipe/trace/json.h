/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * json.h: JSON token by token, in memory that does not depend on the size of the document.
 *
 * Strict RFC 8259 with what traces in the wild need besides: NaN and Infinity as numbers, and an
 * array at the top that ends with the file (the Trace Event Format allows it, so that a program
 * that crashed leaves a trace). Errors name the byte. */
#ifndef DP_TRACE_JSON_H
#define DP_TRACE_JSON_H

#include <dualpipe/trace.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DP__JSON_DEPTH       128       /* deepest nesting that is read */
#define DP__JSON_TEXT_BYTES  4096      /* what is kept of a string, its ending 0 included */
#define DP__JSON_EVENT_BYTES (8 << 20) /* the longest text that dp__trace_json_keep() holds */

/* times lie within plus and minus this, so that differences can be taken */
#define DP__JSON_MOST_NS (1ll << 61)

typedef enum dp__trace_json_kind {
    DP__JSON_END, /* of the document */
    DP__JSON_OBJECT,
    DP__JSON_OBJECT_END,
    DP__JSON_ARRAY,
    DP__JSON_ARRAY_END,
    DP__JSON_KEY,
    DP__JSON_STRING,
    DP__JSON_NUMBER,
    DP__JSON_TRUE,
    DP__JSON_FALSE,
    DP__JSON_NULL
} dp__trace_json_kind_t;

typedef struct dp__trace_json_token {
    dp__trace_json_kind_t kind;
    uint64_t offset; /* of its first byte */
    /* KEY, STRING: unescaped UTF-8; NUMBER: as written; else "". Valid until the next token */
    const char *text;
} dp__trace_json_token_t;

typedef struct dp__trace_json_reader dp__trace_json_reader_t;

dp_status_t dp__trace_json_open(dp_read_fn read, void *user, dp__trace_json_reader_t **reader_out);
void dp__trace_json_close(dp__trace_json_reader_t *reader);
/* DP_ERR_REJECTED: not JSON, cut off, or nested too deeply. A failure ends the reading. */
dp_status_t dp__trace_json_next(dp__trace_json_reader_t *reader, dp__trace_json_token_t *token);
/* The rest of the value that `token` begins; nothing to do for one that is a single token. */
dp_status_t dp__trace_json_skip(dp__trace_json_reader_t *reader, const dp__trace_json_token_t *token);
/* Bytes behind the last token's end. */
uint64_t dp__trace_json_offset(const dp__trace_json_reader_t *reader);
/* The array at the top was not closed: the file may be a part of what was meant. */
bool dp__trace_json_unclosed(const dp__trace_json_reader_t *reader);

/* Keeps the bytes from the last token's first one on, until dp__trace_json_kept(), which gives
 * them: DP_ERR_REJECTED when they are more than DP__JSON_EVENT_BYTES. They stay until the next
 * dp__trace_json_keep(). */
void dp__trace_json_keep(dp__trace_json_reader_t *reader, const dp__trace_json_token_t *token);
dp_status_t dp__trace_json_kept(dp__trace_json_reader_t *reader, const char **text_out, size_t *bytes_out);

/* The text of a JSON number of microseconds in nanoseconds, rounded to the nearest; false when it
 * is out of range or not a number of digits. Decimals are not passed through a double: timestamps
 * since 1970 need more than its 53 bits. */
bool dp__trace_json_nanoseconds(const char *text, int64_t *ns_out);
/* A whole number; false otherwise. */
bool dp__trace_json_integer(const char *text, int64_t *value_out);

#endif
