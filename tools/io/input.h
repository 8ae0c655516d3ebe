/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * input.h: files that a command reads whole, up to a size that fits their format: the file may be
 * /dev/zero. */
#ifndef DP_TOOLS_INPUT_H
#define DP_TOOLS_INPUT_H

#include <dualpipe/status.h>
#include <stdbool.h>

/* All of a file, "-" being standard input, with a NUL behind it. The caller frees *text_out.
 * DP_ERR_IO, DP_ERR_NOMEM; DP_ERR_INVALID: more than `most` bytes, of which no more are read. */
dp_status_t input_read(const char *path, size_t most, char **text_out, size_t *bytes_out);

/* Each line of such a file; a failure ends the reading and is returned with file and line in front
 * of its message. */
typedef dp_status_t (*input_line_fn)(void *user, char *line);
dp_status_t input_lines(const char *path, size_t most, input_line_fn take, void *user);
/* The same of a text, into which NULs are written, one behind its end. */
dp_status_t input_split(const char *name, char *text, size_t bytes, input_line_fn take, void *user);

#endif
