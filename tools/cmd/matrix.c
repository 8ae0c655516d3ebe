/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * matrix.c: rows of numbers as text. */
#include "matrix.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/io/input.h"

/* Bytes of a file: more than any table of the largest size that makes sense needs. */
#define MOST_BYTES ((size_t)512 << 20)

void matrix_clear(matrix_t *matrix)
{
    free(matrix->values);
    *matrix = (matrix_t){0, 0, NULL};
}

typedef struct reader {
    const char *name, *at, *end, *line_start;
    int32_t line;
    matrix_t matrix;
    size_t count, room;
} reader_t;

static dp_status_t complain(const reader_t *r, const char *what)
{
    return dp_fail(DP_ERR_INVALID, "%s:%d:%td: %s", r->name, r->line, r->at - r->line_start + 1, what);
}

static dp_status_t add_number(reader_t *r, double value)
{
    if (r->count == r->room) {
        size_t room = r->room == 0 ? 256 : 2 * r->room;
        double *values = realloc(r->matrix.values, room * sizeof(*values));

        if (values == NULL)
            return dp_fail(DP_ERR_NOMEM, "%s: no memory for %zu numbers", r->name, room);
        r->matrix.values = values;
        r->room = room;
    }
    r->matrix.values[r->count++] = value;
    return DP_OK;
}

static bool is_gap(char c)
{
    return c == ' ' || c == '\t' || c == ',' || c == '\r';
}

static bool ends_line(const reader_t *r)
{
    return r->at == r->end || *r->at == '\n' || *r->at == '#';
}

/* strtod also takes words, hexadecimal and other spellings that no table of loads has. */
static dp_status_t read_number(reader_t *r, double *value_out)
{
    size_t length = 0;
    char *end;

    while (r->at + length < r->end && strchr("+-.eE0123456789", r->at[length]) != NULL && r->at[length] != 0)
        length++;
    if (length == 0)
        return complain(r, "a number is expected");
    *value_out = strtod(r->at, &end);
    if (end != r->at + length || !isfinite(*value_out))
        return complain(r, "this is not a number");
    r->at = end;
    if (!ends_line(r) && !is_gap(*r->at))
        return complain(r, "a gap is expected after a number");
    return DP_OK;
}

static dp_status_t read_line(reader_t *r)
{
    int32_t columns = 0;
    dp_status_t status = DP_OK;
    double value = 0.0;

    for (;;) {
        while (r->at < r->end && is_gap(*r->at))
            r->at++;
        if (ends_line(r))
            break;
        if (columns == MATRIX_LIMIT)
            return complain(r, "more than 65536 numbers in a row");
        if ((status = read_number(r, &value)) != DP_OK || (status = add_number(r, value)) != DP_OK)
            return status;
        columns++;
    }
    if (columns == 0)
        return DP_OK;
    if (r->matrix.rows > 0 && columns != r->matrix.columns)
        return dp_fail(DP_ERR_INVALID, "%s:%d: %d numbers, the first row has %d", r->name, r->line, columns,
                       r->matrix.columns);
    if (r->matrix.rows == MATRIX_LIMIT)
        return complain(r, "more than 65536 rows");
    r->matrix.columns = columns;
    r->matrix.rows++;
    return DP_OK;
}

static dp_status_t read_rows(reader_t *r)
{
    while (r->at < r->end) {
        dp_status_t status = read_line(r);

        if (status != DP_OK)
            return status;
        while (r->at < r->end && *r->at != '\n')
            r->at++;
        if (r->at < r->end)
            r->at++;
        r->line++;
        r->line_start = r->at;
    }
    return r->matrix.rows > 0 ? DP_OK : dp_fail(DP_ERR_INVALID, "%s: there is no row of numbers", r->name);
}

dp_status_t matrix_parse(const char *name, const char *text, size_t bytes, const char *const *keys,
                         matrix_t *matrix_out)
{
    reader_t reader = {.name = name, .at = text, .end = text + bytes, .line_start = text, .line = 1};
    size_t start = 0;
    dp_status_t status;

    while (start < bytes && strchr(" \t\r\n", text[start]) != NULL && text[start] != 0)
        start++;
    if (start < bytes && (text[start] == '{' || text[start] == '['))
        return matrix_parse_json(name, text, bytes, keys, matrix_out);
    status = read_rows(&reader);
    if (status != DP_OK) {
        matrix_clear(&reader.matrix);
        return status;
    }
    *matrix_out = reader.matrix;
    return DP_OK;
}

dp_status_t matrix_read(const char *path, const char *const *keys, matrix_t *matrix_out)
{
    const char *name = strcmp(path, "-") == 0 ? "standard input" : path;
    char *text;
    size_t bytes;
    dp_status_t status = input_read(path, MOST_BYTES, &text, &bytes);

    if (status == DP_OK)
        status = matrix_parse(name, text, bytes, keys, matrix_out);
    free(text);
    return status;
}
