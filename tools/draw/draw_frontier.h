/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_frontier.h: the shortest step for each amount of memory, as stairs. */
#ifndef DP_TOOLS_DRAW_FRONTIER_H
#define DP_TOOLS_DRAW_FRONTIER_H

#include "draw_format.h"

typedef struct draw_point {
    double memory, step;
    const char *label;
} draw_point_t;

typedef struct draw_frontier {
    const char *title, *subtitle, *unit; /* of memory */
    const draw_point_t *points;          /* by memory; each step shorter than the one before */
    int32_t count;
} draw_frontier_t;

/* DP_ERR_INVALID: no point. DP_ERR_UNSUPPORTED: there is no cairo, and it is not SVG. */
dp_status_t draw_frontier_write(const draw_frontier_t *picture, draw_format_t format, dp_write_fn write, void *user);

#endif
