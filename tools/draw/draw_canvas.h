/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_canvas.h: a page to draw on, whatever its format; cairo is known here and in the draw_*.c
 * files only. */
#ifndef DP_TOOLS_DRAW_CANVAS_H
#define DP_TOOLS_DRAW_CANVAS_H

#include <stdbool.h>

#include "draw_cairo.h"
#include "draw_format.h"

typedef struct draw_color {
    double r, g, b;
} draw_color_t;

extern const draw_color_t draw_black, draw_white, draw_grey, draw_light_grey;

typedef struct draw_canvas {
    cairo_surface_t *surface;
    cairo_t *cr;
    draw_format_t format;
    dp_write_fn write;
    void *user;
    dp_status_t status; /* of the write function */
} draw_canvas_t;

/* Width and height in points. PNG gets `scale` pixels a point, less where the picture would be too
 * large. On failure nothing is left open. */
dp_status_t draw_canvas_open(draw_canvas_t *canvas, draw_format_t format, double width, double height, double scale,
                             dp_write_fn write, void *user);
/* Writes what is left, frees everything, and returns the first failure. */
dp_status_t draw_canvas_close(draw_canvas_t *canvas);

void draw_set_color(cairo_t *cr, draw_color_t color);
void draw_fill_rect(cairo_t *cr, double x, double y, double width, double height, draw_color_t color);
void draw_frame_rect(cairo_t *cr, double x, double y, double width, double height, double line, draw_color_t color);
/* The closed line through `count` corners. */
void draw_outline(cairo_t *cr, const double corners[][2], int count, double line, draw_color_t color);
void draw_line(cairo_t *cr, double x0, double y0, double x1, double y1, double line, draw_color_t color);
/* align: the part of the text left of x, 0, 0.5 or 1; y is the middle of the digits' height.
 * Returns the width. */
double draw_text(cairo_t *cr, double x, double y, double align, const char *text);
void draw_font(cairo_t *cr, double size, bool bold);
double draw_text_width(cairo_t *cr, const char *text);

/* The 1, 2 or 5 times a power of ten that cuts `range` into about `parts`. */
double draw_nice_step(double range, double parts);
/* A tick's number with the decimals that a step between ticks calls for. */
void draw_tick_text(char *text, size_t bytes, double value, double step);

#endif
