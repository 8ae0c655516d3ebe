/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_bars.h: step times as bars, the idle part apart. */
#ifndef DP_TOOLS_DRAW_BARS_H
#define DP_TOOLS_DRAW_BARS_H

#include "draw_format.h"

typedef struct draw_bar {
    const char *label;
    double busy, idle; /* together the bar's length */
    double held;       /* micro-batches' activations */
} draw_bar_t;

typedef struct draw_bars {
    const char *title, *subtitle;
    const draw_bar_t *bars;
    int32_t count;
} draw_bars_t;

/* DP_ERR_INVALID: no bar. DP_ERR_UNSUPPORTED: there is no cairo, and it is not
 * SVG. */
dp_status_t draw_bars_write(const draw_bars_t *picture, draw_format_t format, dp_write_fn write, void *user);

#endif
