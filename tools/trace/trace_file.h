/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_file.h: the bytes of a trace, from a file or standard input, gzip or not. */
#ifndef DP_TOOLS_TRACE_FILE_H
#define DP_TOOLS_TRACE_FILE_H

#include "trace_json.h"

typedef struct trace_file trace_file_t;

/* "-": standard input. DP_ERR_IO: it cannot be opened. */
dp_status_t trace_file_open(const char *path, trace_file_t **file_out);
void trace_file_close(trace_file_t *file);
/* A json_read_fn; user is the trace_file_t. DP_ERR_REJECTED: a gzip file that is damaged or cut off.
 * DP_ERR_UNSUPPORTED: a gzip file, and built without zlib. */
dp_status_t trace_file_read(void *file, void *buffer, size_t room, size_t *bytes_out);

#endif
