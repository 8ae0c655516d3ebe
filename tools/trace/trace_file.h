/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_file.h: traces from a file or standard input, gzip or not. */
#ifndef DP_TOOLS_TRACE_FILE_H
#define DP_TOOLS_TRACE_FILE_H

#include "trace/read.h"

/* As dp_trace_read(), of a file; "-": standard input. Messages begin with the path. DP_ERR_IO: it
 * cannot be read. DP_ERR_REJECTED: also a gzip file that is damaged or cut off. DP_ERR_UNSUPPORTED:
 * a gzip file, and built without zlib. */
dp_status_t trace_load(const char *path, const dp_trace_options_t *options, dp_trace_t **trace_out);
/* As dp__trace_read(), likewise. */
dp_status_t trace_read_file(const char *path, bool keep, dp__trace_event_fn on_event, void *user,
                            dp__trace_head_t *head_out);

#endif
