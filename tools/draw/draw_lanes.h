/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_lanes.h: what ran on which stream when, as a picture: lanes of boxes, with bands that name
 * stretches of them. */
#ifndef DP_TOOLS_DRAW_LANES_H
#define DP_TOOLS_DRAW_LANES_H

#include "draw_format.h"

typedef enum draw_paint {
    DRAW_FORWARD,
    DRAW_BACKWARD,
    DRAW_WEIGHTS,
    DRAW_COMPUTE,
    DRAW_COMM,
    DRAW_WAIT,
    DRAW_EXPOSED,
    DRAW_PAINTS
} draw_paint_t;

typedef struct draw_box {
    double start, end;
    const char *label; /* shown where there is room; NULL: none */
    uint8_t paint;     /* draw_paint_t */
} draw_box_t;

typedef enum draw_lane_kind {
    DRAW_LANE_HEAD,  /* label and note as a heading */
    DRAW_LANE_BOXES, /* bands above boxes */
    DRAW_LANE_STRIP  /* boxes, low */
} draw_lane_kind_t;

typedef struct draw_lane {
    draw_lane_kind_t kind;
    const char *label, *note;
    draw_box_t *bands, *boxes; /* by start; a strip's boxes do not overlap */
    size_t nbands, nboxes;
} draw_lane_t;

typedef struct draw_lanes {
    const char *title, *subtitle, *unit; /* unit: what the axis counts */
    double end;                          /* the axis goes from 0 to it, in that unit, as boxes do */
    const draw_lane_t *lanes;
    size_t count;
} draw_lanes_t;

/* DP_ERR_INVALID: no lane, or too many for a page. DP_ERR_UNSUPPORTED: there is no cairo, and it is
 * not SVG. */
dp_status_t draw_lanes_write(const draw_lanes_t *picture, draw_format_t format, dp_write_fn write, void *user);

#endif
