/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_view.h: a trace as one page for a browser. */
#ifndef DP_TOOLS_TRACE_VIEW_H
#define DP_TOOLS_TRACE_VIEW_H

#include "tools/io/output.h"
#include "trace_detail.h"

/* The page needs no network and no other file. DP_ERR_REJECTED: more records than a browser can
 * show. */
dp_status_t trace_view_put(const trace_detail_t *overlap, const char *title, output_t *output);

#endif
