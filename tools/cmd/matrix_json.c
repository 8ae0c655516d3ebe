/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * matrix_json.c: tables of numbers from JSON. */
#include "config.h"
#include "matrix.h"

#ifndef HAVE_JANSSON

dp_status_t matrix_parse_json(const char *name, const char *text, size_t bytes, const char *const *keys,
                              matrix_t *matrix_out)
{
    (void)text;
    (void)bytes;
    (void)keys;
    (void)matrix_out;
    return dp_fail(DP_ERR_UNSUPPORTED, "%s: built without jansson, which reads JSON (Debian: libjansson-dev)", name);
}

#else

#include <jansson.h>
#include <stdlib.h>

static dp_status_t check_rows(const char *name, const json_t *table, size_t rows, size_t columns)
{
    if (rows == 0 || columns == 0 || rows > MATRIX_LIMIT || columns > MATRIX_LIMIT)
        return dp_fail(DP_ERR_INVALID, "%s: %zu rows of %zu numbers; 1 to %d of each are possible", name, rows, columns,
                       MATRIX_LIMIT);
    for (size_t r = 0; r < rows; r++) {
        const json_t *row = json_array_get(table, r);

        if (json_array_size(row) != columns)
            return dp_fail(DP_ERR_INVALID, "%s: row %zu is not an array of %zu numbers, as the first one is", name, r,
                           columns);
        for (size_t c = 0; c < columns; c++)
            if (!json_is_number(json_array_get(row, c)))
                return dp_fail(DP_ERR_INVALID, "%s: row %zu, column %zu is not a number", name, r, c);
    }
    return DP_OK;
}

static dp_status_t read_table(const char *name, const json_t *table, matrix_t *matrix_out)
{
    size_t rows = json_array_size(table), columns = json_array_size(json_array_get(table, 0));
    dp_status_t status = check_rows(name, table, rows, columns);
    double *values;

    if (status != DP_OK)
        return status;
    values = calloc(rows * columns, sizeof(*values));
    if (values == NULL)
        return dp_fail(DP_ERR_NOMEM, "%s: no memory for %zu numbers", name, rows * columns);
    for (size_t i = 0; i < rows * columns; i++)
        values[i] = json_number_value(json_array_get(json_array_get(table, i / columns), i % columns));
    *matrix_out = (matrix_t){(int32_t)rows, (int32_t)columns, values};
    return DP_OK;
}

dp_status_t matrix_parse_json(const char *name, const char *text, size_t bytes, const char *const *keys,
                              matrix_t *matrix_out)
{
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    const json_t *table = root;
    dp_status_t status;

    if (root == NULL)
        return dp_fail(DP_ERR_INVALID, "%s:%d:%d: %s", name, error.line, error.column, error.text);
    for (int k = 0; json_is_object(root) && keys[k] != NULL; k++) {
        table = json_object_get(root, keys[k]);
        if (table != NULL)
            break;
    }
    if (!json_is_array(table))
        status = dp_fail(DP_ERR_INVALID, "%s: there is no array of arrays%s%s", name,
                         json_is_object(root) ? " under the key " : "", json_is_object(root) ? keys[0] : "");
    else
        status = read_table(name, table, matrix_out);
    json_decref(root);
    return status;
}

#endif
