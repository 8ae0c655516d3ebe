/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * matrix_json.c: tables of numbers from JSON. */
#include "matrix.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trace/json.h"

typedef struct reading {
    const char *name, *text;
    size_t bytes, used; /* of the text */
    dp__trace_json_reader_t *json;
    matrix_t matrix;
    size_t count, room;
} reading_t;

static dp_status_t hand_over_matrix(void *user, void *buffer, size_t room, size_t *bytes_out)
{
    reading_t *r = user;

    *bytes_out = r->bytes - r->used < room ? r->bytes - r->used : room;
    memcpy(buffer, r->text + r->used, *bytes_out);
    r->used += *bytes_out;
    return DP_OK;
}

/* What the reader says of bytes, with the name of the file in front. */
static dp_status_t named(const reading_t *r, dp_status_t status)
{
    char message[256];

    if (status == DP_OK)
        return DP_OK;
    snprintf(message, sizeof(message), "%s", dp_last_error());
    return dp_fail(status == DP_ERR_REJECTED ? DP_ERR_INVALID : status, "%s: %s", r->name, message);
}

static dp_status_t next_token(const reading_t *r, dp__trace_json_token_t *token)
{
    return named(r, dp__trace_json_next(r->json, token));
}

static dp_status_t add_element(reading_t *r, const char *text, int32_t column)
{
    double value = strtod(text, NULL);

    if (!isfinite(value))
        return dp_fail(DP_ERR_INVALID, "%s: row %d, column %d is not a number", r->name, r->matrix.rows, column);
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

/* Behind the [ of a row. */
static dp_status_t read_array(reading_t *r)
{
    dp__trace_json_token_t token;
    dp_status_t status;
    int32_t columns = 0;

    while ((status = next_token(r, &token)) == DP_OK && token.kind == DP__JSON_NUMBER && columns < MATRIX_LIMIT) {
        status = add_element(r, token.text, columns++);
        if (status != DP_OK)
            return status;
    }
    if (status != DP_OK)
        return status;
    if (columns == MATRIX_LIMIT && token.kind == DP__JSON_NUMBER)
        return dp_fail(DP_ERR_INVALID, "%s: row %d has more than %d numbers", r->name, r->matrix.rows, MATRIX_LIMIT);
    if (token.kind != DP__JSON_ARRAY_END)
        return dp_fail(DP_ERR_INVALID, "%s: row %d, column %d is not a number", r->name, r->matrix.rows, columns);
    if (columns == 0 || (r->matrix.rows > 0 && columns != r->matrix.columns))
        return dp_fail(DP_ERR_INVALID, "%s: row %d has %d numbers, the first row %d", r->name, r->matrix.rows, columns,
                       r->matrix.columns);
    r->matrix.columns = columns;
    r->matrix.rows++;
    return DP_OK;
}

/* Behind the [ of the table. */
static dp_status_t read_table(reading_t *r)
{
    dp__trace_json_token_t token;
    dp_status_t status;

    while ((status = next_token(r, &token)) == DP_OK && token.kind == DP__JSON_ARRAY) {
        if (r->matrix.rows == MATRIX_LIMIT)
            return dp_fail(DP_ERR_INVALID, "%s: more than %d rows", r->name, MATRIX_LIMIT);
        status = read_array(r);
        if (status != DP_OK)
            return status;
    }
    if (status == DP_OK && token.kind != DP__JSON_ARRAY_END)
        return dp_fail(DP_ERR_INVALID, "%s: row %d is not an array of numbers", r->name, r->matrix.rows);
    if (status == DP_OK && r->matrix.rows == 0)
        return dp_fail(DP_ERR_INVALID, "%s: there is no row of numbers", r->name);
    return status;
}

/* Behind the { of the document. The first of the keys that is there is the one that counts. */
static dp_status_t read_object(reading_t *r, const char *key, bool *found)
{
    dp__trace_json_token_t token;
    dp_status_t status;

    while ((status = next_token(r, &token)) == DP_OK && token.kind == DP__JSON_KEY) {
        const bool wanted = strcmp(token.text, key) == 0;

        if (wanted && *found)
            return dp_fail(DP_ERR_INVALID, "%s: the key %s is there twice", r->name, key);
        status = next_token(r, &token);
        if (status == DP_OK && wanted) {
            *found = true;
            status = token.kind == DP__JSON_ARRAY
                         ? read_table(r)
                         : dp_fail(DP_ERR_INVALID, "%s: there is no array of arrays under the key %s", r->name, key);
        } else if (status == DP_OK) {
            status = named(r, dp__trace_json_skip(r->json, &token));
        }
        if (status != DP_OK)
            return status;
    }
    return status;
}

/* The whole document, looking for a key in an object. */
static dp_status_t read_document(reading_t *r, const char *key, bool *found)
{
    dp__trace_json_token_t token;
    dp_status_t status = next_token(r, &token);

    *found = status == DP_OK && token.kind == DP__JSON_ARRAY;
    if (*found)
        status = read_table(r);
    else if (status == DP_OK)
        status = read_object(r, key, found);
    if (status == DP_OK)
        status = next_token(r, &token); /* the end, or what may not follow it */
    if (status == DP_OK && dp__trace_json_unclosed(r->json))
        status = dp_fail(DP_ERR_INVALID, "%s: the array is not closed: the file is cut off", r->name);
    return status;
}

dp_status_t matrix_parse_json(const char *name, const char *text, size_t bytes, const char *const *keys,
                              matrix_t *matrix_out)
{
    bool found = false;
    dp_status_t status = DP_OK;

    for (int k = 0; keys[k] != NULL && !found && status == DP_OK; k++) {
        reading_t r = {.name = name, .text = text, .bytes = bytes};

        status = dp__trace_json_open(hand_over_matrix, &r, &r.json);
        if (status != DP_OK)
            return status;
        status = read_document(&r, keys[k], &found);
        dp__trace_json_close(r.json);
        if (status == DP_OK && found)
            *matrix_out = r.matrix;
        else
            matrix_clear(&r.matrix);
    }
    if (status == DP_OK && !found)
        return dp_fail(DP_ERR_INVALID, "%s: there is no array of arrays under the key %s", name, keys[0]);
    return status;
}
