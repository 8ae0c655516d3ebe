/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * trace_draw.h: a trace as a picture. */
#ifndef DP_TOOLS_TRACE_DRAW_H
#define DP_TOOLS_TRACE_DRAW_H

#include "tools/draw/draw_format.h"
#include "tools/io/output.h"
#include "trace_detail.h"

/* DP_ERR_REJECTED: more streams than a page holds. DP_ERR_UNSUPPORTED: there is no cairo. */
dp_status_t trace_draw_put(const trace_detail_t *overlap, const char *title, draw_format_t format, output_t *output);

#endif
