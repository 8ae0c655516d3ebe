/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * matrix.h: tables of numbers from files: rows of numbers, or JSON with an array of arrays. */
#ifndef DP_TOOLS_MATRIX_H
#define DP_TOOLS_MATRIX_H

#include <dualpipe/status.h>

/* Most rows, and most numbers in a row. */
#define MATRIX_LIMIT 65536

typedef struct matrix {
    int32_t rows, columns;
    double *values; /* [rows, columns], freed by matrix_clear() */
} matrix_t;

/* Reads a file, "-" for standard input. Text that begins with { or [ is JSON: an array of arrays of
 * numbers, or an object that has one under one of the keys [NULL terminated]. Other text has a row
 * a line, numbers parted by tabs, spaces or commas; # begins a comment. DP_ERR_INVALID: not a
 * table; the message has line and column. DP_ERR_IO, DP_ERR_NOMEM. */
dp_status_t matrix_read(const char *path, const char *const *keys, matrix_t *matrix_out);
/* The same from text of `bytes` bytes, text[bytes] being 0. name: for messages. */
dp_status_t matrix_parse(const char *name, const char *text, size_t bytes, const char *const *keys,
                         matrix_t *matrix_out);
dp_status_t matrix_parse_json(const char *name, const char *text, size_t bytes, const char *const *keys,
                              matrix_t *matrix_out);
void matrix_clear(matrix_t *matrix);

#endif
