/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * json.c: JSON token by token. */
#include "trace/json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "trace/table.h"

#define BUFFER_BYTES (64 << 10)
#define NUMBER_BYTES 128

/* What may come next. */
typedef enum expect {
    EXPECT_VALUE,
    EXPECT_VALUE_OR_END, /* behind [ */
    EXPECT_KEY,
    EXPECT_KEY_OR_END, /* behind { */
    EXPECT_COLON,
    EXPECT_COMMA_OR_END,
    EXPECT_NOTHING
} expect_t;

struct dp__trace_json_reader {
    dp_read_fn read;
    void *user;
    uint64_t base; /* offset of buffer[0] */
    size_t at, end;
    bool ended, unclosed, skipping;
    dp_status_t failure; /* of reading */
    expect_t expect;
    int depth;
    char nesting[DP__JSON_DEPTH];
    size_t text_used;
    char text[DP__JSON_TEXT_BYTES];
    bool keeping, too_long;
    size_t keep_from; /* in buffer */
    char *kept;
    size_t kept_bytes, kept_room;
    char buffer[BUFFER_BYTES];
};

dp_status_t dp__trace_json_open(dp_read_fn read, void *user, dp__trace_json_reader_t **reader_out)
{
    dp__trace_json_reader_t *reader = dp__allocate(sizeof(*reader), 16);

    *reader_out = reader;
    if (reader == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory to read a trace");
    memset(reader, 0, offsetof(dp__trace_json_reader_t, buffer));
    reader->read = read;
    reader->user = user;
    return DP_OK;
}

void dp__trace_json_close(dp__trace_json_reader_t *reader)
{
    if (reader == NULL)
        return;
    dp__free(reader->kept);
    dp__free(reader);
}

uint64_t dp__trace_json_offset(const dp__trace_json_reader_t *reader)
{
    return reader->base + reader->at;
}

bool dp__trace_json_unclosed(const dp__trace_json_reader_t *reader)
{
    return reader->unclosed;
}

/* ---- bytes ---- */

static dp_status_t keep_bytes(dp__trace_json_reader_t *reader)
{
    size_t bytes = reader->at - reader->keep_from, wanted = reader->kept_bytes + bytes;

    if (wanted > DP__JSON_EVENT_BYTES)
        reader->too_long = true;
    if (reader->too_long || bytes == 0)
        return DP_OK;
    if (wanted > reader->kept_room) {
        size_t room = wanted > 4096 ? 2 * wanted : 4096;
        char *kept = dp__enlarge(reader->kept, reader->kept_bytes, room);

        if (kept == NULL)
            return dp_fail(DP_ERR_NOMEM, "no memory for an event of %zu bytes", wanted);
        reader->kept = kept;
        reader->kept_room = room;
    }
    memcpy(reader->kept + reader->kept_bytes, reader->buffer + reader->keep_from, bytes);
    reader->kept_bytes = wanted;
    return DP_OK;
}

static dp_status_t refill_buffer(dp__trace_json_reader_t *reader)
{
    dp_status_t status = reader->keeping ? keep_bytes(reader) : DP_OK;
    size_t bytes = 0;

    if (status != DP_OK || reader->ended)
        return status;
    reader->base += reader->end;
    reader->at = reader->end = reader->keep_from = 0;
    status = reader->read(reader->user, reader->buffer, sizeof(reader->buffer), &bytes);
    reader->end = bytes;
    reader->ended = bytes == 0;
    return status;
}

/* The byte that comes, -1 at the end, -2 when reading failed. */
static inline int peek_byte(dp__trace_json_reader_t *reader)
{
    if (reader->at == reader->end) {
        if (reader->ended)
            return -1;
        reader->failure = refill_buffer(reader);
        if (reader->failure != DP_OK)
            return -2;
        if (reader->at == reader->end)
            return -1;
    }
    return (unsigned char)reader->buffer[reader->at];
}

static int peek_behind_blanks(dp__trace_json_reader_t *reader)
{
    int byte;

    while ((byte = peek_byte(reader)) == ' ' || byte == '\n' || byte == '\t' || byte == '\r')
        reader->at++;
    return byte;
}

/* Another byte than the expected one. */
static dp_status_t refuse_byte(dp__trace_json_reader_t *reader, int byte, const char *expected)
{
    uint64_t offset = dp__trace_json_offset(reader);

    if (byte == -2)
        return reader->failure; /* the message is there */
    if (byte == -1)
        return dp_fail(DP_ERR_REJECTED, "byte %" PRIu64 ": the file ends where %s is required: it was cut off", offset,
                       expected);
    if (byte > ' ' && byte < 0x7f)
        return dp_fail(DP_ERR_REJECTED, "byte %" PRIu64 ": '%c' where %s is required", offset, byte, expected);
    return dp_fail(DP_ERR_REJECTED, "byte %" PRIu64 ": 0x%02x where %s is required", offset, (unsigned)byte, expected);
}

void dp__trace_json_keep(dp__trace_json_reader_t *reader, const dp__trace_json_token_t *token)
{
    reader->keeping = true;
    reader->too_long = false;
    reader->kept_bytes = 0;
    reader->keep_from = (size_t)(token->offset - reader->base);
}

dp_status_t dp__trace_json_kept(dp__trace_json_reader_t *reader, const char **text_out, size_t *bytes_out)
{
    dp_status_t status = keep_bytes(reader);

    reader->keeping = false;
    *text_out = reader->kept;
    *bytes_out = reader->kept_bytes;
    if (status == DP_OK && reader->too_long)
        return dp_fail(DP_ERR_REJECTED, "byte %" PRIu64 ": one event of more than %d bytes ends here",
                       dp__trace_json_offset(reader), DP__JSON_EVENT_BYTES);
    return status;
}

/* ---- strings ---- */

static void add_text(dp__trace_json_reader_t *reader, const char *bytes, size_t count)
{
    size_t room = sizeof(reader->text) - 1 - reader->text_used;

    if (reader->skipping)
        return;
    count = count < room ? count : room;
    memcpy(reader->text + reader->text_used, bytes, count);
    reader->text_used += count;
}

static void add_code(dp__trace_json_reader_t *reader, uint32_t code)
{
    char utf8[4];
    size_t n;

    if (code < 0x80) {
        utf8[0] = (char)code;
        n = 1;
    } else if (code < 0x800) {
        utf8[0] = (char)(0xc0 | code >> 6);
        utf8[1] = (char)(0x80 | (code & 0x3f));
        n = 2;
    } else if (code < 0x10000) {
        utf8[0] = (char)(0xe0 | code >> 12);
        utf8[1] = (char)(0x80 | (code >> 6 & 0x3f));
        utf8[2] = (char)(0x80 | (code & 0x3f));
        n = 3;
    } else {
        utf8[0] = (char)(0xf0 | code >> 18);
        utf8[1] = (char)(0x80 | (code >> 12 & 0x3f));
        utf8[2] = (char)(0x80 | (code >> 6 & 0x3f));
        utf8[3] = (char)(0x80 | (code & 0x3f));
        n = 4;
    }
    add_text(reader, utf8, n);
}

static dp_status_t read_hex(dp__trace_json_reader_t *reader, uint32_t *code_out)
{
    *code_out = 0;
    for (int i = 0; i < 4; i++) {
        int byte = peek_byte(reader), digit;

        if (byte >= '0' && byte <= '9')
            digit = byte - '0';
        else if (byte >= 'a' && byte <= 'f')
            digit = byte - 'a' + 10;
        else if (byte >= 'A' && byte <= 'F')
            digit = byte - 'A' + 10;
        else
            return refuse_byte(reader, byte, "a digit of \\uXXXX");
        *code_out = *code_out << 4 | (uint32_t)digit;
        reader->at++;
    }
    return DP_OK;
}

/* Behind \u. Halves of pairs that stand alone, and 0, which would end a text, become U+FFFD. */
static dp_status_t read_code(dp__trace_json_reader_t *reader)
{
    uint32_t code, low;
    dp_status_t status = read_hex(reader, &code);

    while (status == DP_OK && code >= 0xd800 && code < 0xdc00) {
        if (peek_byte(reader) != '\\')
            break;
        reader->at++;
        if (peek_byte(reader) != 'u') {
            add_code(reader, 0xfffd);
            return DP_ERR_ABORTED; /* some other escape: the caller's */
        }
        reader->at++;
        status = read_hex(reader, &low);
        if (status == DP_OK && low >= 0xdc00 && low < 0xe000) {
            add_code(reader, 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00));
            return DP_OK;
        }
        add_code(reader, 0xfffd);
        code = low;
    }
    if (status == DP_OK)
        add_code(reader, code == 0 || (code >= 0xd800 && code < 0xe000) ? 0xfffd : code);
    return status;
}

/* Behind the backslash. */
static dp_status_t read_escape(dp__trace_json_reader_t *reader)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    dp_status_t status = DP_ERR_ABORTED;

    while (status == DP_ERR_ABORTED) {
        int byte = peek_byte(reader);
        const char *letter = byte > 0 ? strchr(letters, byte) : NULL;

        if (byte != 'u' && letter == NULL)
            return refuse_byte(reader, byte, "one of \"\\/bfnrtu behind a backslash");
        reader->at++;
        if (letter != NULL) {
            add_text(reader, &meanings[letter - letters], 1);
            return DP_OK;
        }
        status = read_code(reader);
    }
    return status;
}

static dp_status_t read_string(dp__trace_json_reader_t *reader)
{
    reader->text_used = 0;
    reader->at++;
    for (;;) {
        size_t from = reader->at;
        int byte;
        dp_status_t status;

        while (reader->at < reader->end) {
            unsigned char c = (unsigned char)reader->buffer[reader->at];

            if (c == '"' || c == '\\' || c < 0x20)
                break;
            reader->at++;
        }
        add_text(reader, reader->buffer + from, reader->at - from);
        byte = peek_byte(reader);
        if (byte == '"')
            break;
        if (byte >= 0x20 && byte != '\\')
            continue;
        if (byte != '\\')
            return refuse_byte(reader, byte, "the rest of a string");
        reader->at++;
        status = read_escape(reader);
        if (status != DP_OK)
            return status;
    }
    reader->at++;
    reader->text[reader->text_used] = 0;
    return DP_OK;
}

/* ---- numbers and words ---- */

static bool continues_number(int byte)
{
    return (byte >= '0' && byte <= '9') || byte == '.' || byte == '-' || byte == '+' || byte == 'e' || byte == 'E';
}

static const char *skip_digits(const char *at)
{
    while (*at >= '0' && *at <= '9')
        at++;
    return at;
}

static bool is_number(const char *text)
{
    const char *at = text + (*text == '-'), *digits = at;

    at = skip_digits(at);
    if (at == digits || (*digits == '0' && at > digits + 1))
        return false;
    if (*at == '.') {
        digits = ++at;
        at = skip_digits(at);
        if (at == digits)
            return false;
    }
    if (*at == 'e' || *at == 'E') {
        at++;
        at += *at == '-' || *at == '+';
        digits = at;
        at = skip_digits(at);
        if (at == digits)
            return false;
    }
    return *at == 0;
}

static dp_status_t read_word(dp__trace_json_reader_t *reader, const char *word)
{
    for (; *word != 0; word++) {
        int byte = peek_byte(reader);

        if (byte != *word)
            return refuse_byte(reader, byte, "a value");
        reader->at++;
    }
    return DP_OK;
}

static dp_status_t read_number(dp__trace_json_reader_t *reader, uint64_t offset)
{
    size_t used = 0;
    int byte;

    while (continues_number(byte = peek_byte(reader)) && used < NUMBER_BYTES) {
        reader->text[used++] = (char)byte;
        reader->at++;
    }
    if (byte == -2)
        return reader->failure;
    reader->text[used] = 0;
    if (used == 1 && reader->text[0] == '-' && byte == 'I') {
        memcpy(reader->text, "-Infinity", 10);
        return read_word(reader, "Infinity");
    }
    if (byte == -1)
        return refuse_byte(reader, byte, "the rest of a number, or what follows it");
    if (used == NUMBER_BYTES || !is_number(reader->text))
        return dp_fail(DP_ERR_REJECTED, "byte %" PRIu64 ": \"%.40s\" is not a number", offset, reader->text);
    return DP_OK;
}

static dp_status_t read_constant(dp__trace_json_reader_t *reader, int byte, dp__trace_json_kind_t *kind_out)
{
    static const struct {
        const char *word;
        dp__trace_json_kind_t kind;
    } known[] = {{"true", DP__JSON_TRUE},
                 {"false", DP__JSON_FALSE},
                 {"null", DP__JSON_NULL},
                 {"NaN", DP__JSON_NUMBER},
                 {"Infinity", DP__JSON_NUMBER}};

    for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++) {
        if (byte != known[k].word[0])
            continue;
        *kind_out = known[k].kind;
        snprintf(reader->text, sizeof(reader->text), "%s", known[k].kind == DP__JSON_NUMBER ? known[k].word : "");
        return read_word(reader, known[k].word);
    }
    return refuse_byte(reader, byte, "a value");
}

/* ---- structure ---- */

static void value_is_over(dp__trace_json_reader_t *reader)
{
    reader->expect = reader->depth == 0 ? EXPECT_NOTHING : EXPECT_COMMA_OR_END;
}

static dp_status_t open_level(dp__trace_json_reader_t *reader, int byte)
{
    if (reader->depth == DP__JSON_DEPTH)
        return dp_fail(DP_ERR_REJECTED, "byte %" PRIu64 ": nested more than %d deep, which no trace is",
                       dp__trace_json_offset(reader), DP__JSON_DEPTH);
    reader->nesting[reader->depth++] = (char)byte;
    reader->expect = byte == '{' ? EXPECT_KEY_OR_END : EXPECT_VALUE_OR_END;
    reader->at++;
    return DP_OK;
}

static void close_level(dp__trace_json_reader_t *reader)
{
    reader->depth--;
    reader->at++;
    value_is_over(reader);
}

static dp_status_t read_value(dp__trace_json_reader_t *reader, int byte, dp__trace_json_token_t *token)
{
    dp_status_t status;

    if (byte == '{' || byte == '[') {
        token->kind = byte == '{' ? DP__JSON_OBJECT : DP__JSON_ARRAY;
        return open_level(reader, byte);
    }
    if (byte == '"') {
        token->kind = DP__JSON_STRING;
        status = read_string(reader);
    } else if (byte == '-' || (byte >= '0' && byte <= '9')) {
        token->kind = DP__JSON_NUMBER;
        status = read_number(reader, token->offset);
    } else {
        status = read_constant(reader, byte, &token->kind);
    }
    value_is_over(reader);
    return status;
}

static dp_status_t read_key(dp__trace_json_reader_t *reader, int byte, dp__trace_json_token_t *token)
{
    dp_status_t status;

    if (byte != '"')
        return refuse_byte(reader, byte, "a name in quotes");
    token->kind = DP__JSON_KEY;
    status = read_string(reader);
    if (status != DP_OK)
        return status;
    byte = peek_behind_blanks(reader);
    if (byte != ':')
        return refuse_byte(reader, byte, "a colon");
    reader->at++;
    reader->expect = EXPECT_VALUE;
    return DP_OK;
}

/* In the array at the top, where the file may end. */
static bool may_end(const dp__trace_json_reader_t *reader, int byte)
{
    return byte == -1 && reader->depth == 1 && reader->nesting[0] == '[';
}

static dp_status_t end_unclosed(dp__trace_json_reader_t *reader, dp__trace_json_token_t *token)
{
    reader->unclosed = true;
    reader->depth = 0;
    reader->expect = EXPECT_NOTHING;
    token->kind = DP__JSON_ARRAY_END;
    return DP_OK;
}

static dp_status_t behind_value(dp__trace_json_reader_t *reader, int byte, dp__trace_json_token_t *token)
{
    bool in_object = reader->nesting[reader->depth - 1] == '{';

    if (may_end(reader, byte))
        return end_unclosed(reader, token);
    if (byte == (in_object ? '}' : ']')) {
        token->kind = in_object ? DP__JSON_OBJECT_END : DP__JSON_ARRAY_END;
        close_level(reader);
        return DP_OK;
    }
    if (byte != ',')
        return refuse_byte(reader, byte, in_object ? "a comma or }" : "a comma or ]");
    reader->at++;
    byte = peek_behind_blanks(reader);
    token->offset = dp__trace_json_offset(reader);
    if (may_end(reader, byte))
        return end_unclosed(reader, token);
    return in_object ? read_key(reader, byte, token) : read_value(reader, byte, token);
}

dp_status_t dp__trace_json_next(dp__trace_json_reader_t *reader, dp__trace_json_token_t *token)
{
    int byte = peek_behind_blanks(reader);

    reader->text[0] = 0;
    *token =
        (dp__trace_json_token_t){.kind = DP__JSON_END, .offset = dp__trace_json_offset(reader), .text = reader->text};
    switch (reader->expect) {
    case EXPECT_VALUE_OR_END:
        if (may_end(reader, byte))
            return end_unclosed(reader, token);
        if (byte != ']')
            return read_value(reader, byte, token);
        token->kind = DP__JSON_ARRAY_END;
        close_level(reader);
        return DP_OK;
    case EXPECT_VALUE:
        return read_value(reader, byte, token);
    case EXPECT_KEY_OR_END:
        if (byte != '}')
            return read_key(reader, byte, token);
        token->kind = DP__JSON_OBJECT_END;
        close_level(reader);
        return DP_OK;
    case EXPECT_COMMA_OR_END:
        return behind_value(reader, byte, token);
    default:
        return byte == -1 ? DP_OK : refuse_byte(reader, byte, "the end of the file");
    }
}

dp_status_t dp__trace_json_skip(dp__trace_json_reader_t *reader, const dp__trace_json_token_t *token)
{
    int depth = reader->depth;
    dp__trace_json_token_t inner = *token;
    dp_status_t status = DP_OK;

    if (token->kind != DP__JSON_OBJECT && token->kind != DP__JSON_ARRAY)
        return DP_OK;
    reader->skipping = true;
    while (status == DP_OK && reader->depth >= depth && !reader->unclosed)
        status = dp__trace_json_next(reader, &inner);
    reader->skipping = false;
    return status;
}

/* ---- numbers ---- */

bool dp__trace_json_integer(const char *text, int64_t *value_out)
{
    char *end;

    errno = 0;
    *value_out = strtoll(text, &end, 10);
    return end != text && *end == 0 && errno == 0;
}

static bool from_double(const char *text, int64_t *ns_out)
{
    char *end;
    double ns = strtod(text, &end) * 1e3;

    if (end == text || *end != 0 || !(fabs(ns) < (double)DP__JSON_MOST_NS))
        return false;
    *ns_out = llround(ns);
    return true;
}

bool dp__trace_json_nanoseconds(const char *text, int64_t *ns_out)
{
    const char *at = text + (*text == '-');
    uint64_t ns = 0;
    int decimals = -1; /* before the point */

    if (strpbrk(text, "eE") != NULL)
        return from_double(text, ns_out);
    if (strpbrk(text, "0123456789") == NULL)
        return false;
    for (; *at != 0; at++) {
        if (*at == '.' && decimals < 0) {
            decimals = 0;
            continue;
        }
        if (*at < '0' || *at > '9')
            return false;
        if (decimals == 3) {
            ns += *at >= '5';
            decimals = 4;
        }
        if (decimals > 3)
            continue;
        if (ns > (uint64_t)INT64_MAX / 10 - 10)
            return false;
        ns = ns * 10 + (uint64_t)(*at - '0');
        decimals += decimals >= 0;
    }
    for (decimals = decimals < 0 ? 0 : decimals; decimals < 3; decimals++) {
        if (ns > (uint64_t)INT64_MAX / 10 - 10)
            return false;
        ns *= 10;
    }
    *ns_out = *text == '-' ? -(int64_t)ns : (int64_t)ns;
    return ns <= (uint64_t)DP__JSON_MOST_NS;
}
