/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * output.h: where a command writes: its own file, or standard output. */
#ifndef DP_TOOLS_OUTPUT_H
#define DP_TOOLS_OUTPUT_H

#include <dualpipe/schedule.h>
#include <stdio.h>

typedef struct output {
    FILE *file;
    const char *path; /* NULL: standard output */
} output_t;

dp_status_t output_open(output_t *output, const char *path);
/* A dp_write_fn: user is the output_t. */
dp_status_t output_write(void *output, const char *text, size_t bytes);
/* Hands on what was printed. Its error has the cause, unless that is gone with an earlier write. */
dp_status_t output_flush(FILE *file, const char *name);
/* Syncs and closes what was opened; a file is removed when `status`, or its writing, is a failure.
 * Returns the first failure. */
dp_status_t output_close(output_t *output, dp_status_t status);

/* "1 rank, 8 micro-batches", in `text`. */
const char *output_sizes(int32_t ranks, int32_t microbatches, char *text, size_t bytes);

/* A JSON string, quotes included. Bytes that are not UTF-8 become U+FFFD. */
void output_json_string(FILE *to, const char *text);
/* The same for JSON inside a <script>, which must not hold "</" or "<!--". */
void output_script_string(FILE *to, const char *text);
/* A JSON number; null when it is not finite. */
void output_json_number(FILE *to, double number);

#endif
