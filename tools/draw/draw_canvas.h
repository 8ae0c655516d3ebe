/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_canvas.h: a page to draw on, whatever its format. SVG is written by draw_svg.c, the others
 * by cairo. */
#ifndef DP_TOOLS_DRAW_CANVAS_H
#define DP_TOOLS_DRAW_CANVAS_H

#include <stdbool.h>

#include "draw_cairo.h"
#include "draw_format.h"

typedef struct draw_color {
    double r, g, b;
} draw_color_t;

extern const draw_color_t draw_black, draw_white, draw_grey, draw_light_grey;

/* Where a page of SVG is. */
typedef struct draw_svg {
    double x, y, size; /* of draw_move(); of the font */
    bool bold;
    draw_color_t color;
    /* a filled box that is not written yet: its frame may follow */
    bool has_box;
    double box[4];
    draw_color_t filled;
    char title[160], box_title[160]; /* of the next box, and of that one; "" none */
    char text[4096];                 /* not written yet */
    size_t used;
} draw_svg_t;

typedef struct draw_canvas {
    cairo_surface_t *surface; /* of SVG neither */
    cairo_t *cr;
    draw_svg_t svg;
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

/* What comes then is drawn so much further to the right and further down. */
void draw_move(draw_canvas_t *on, double x, double y);
/* Names the box that is filled next, for who points at it; SVG has it, no other format. */
void draw_title(draw_canvas_t *on, const char *text);
/* As one image inside a vector format: what `draw` draws on a page of that size. */
dp_status_t draw_as_image(draw_canvas_t *on, double width, double height,
                          void (*draw)(const void *job, draw_canvas_t *on), const void *job);
void draw_set_color(draw_canvas_t *on, draw_color_t color);
void draw_fill_rect(draw_canvas_t *on, double x, double y, double width, double height, draw_color_t color);
void draw_frame_rect(draw_canvas_t *on, double x, double y, double width, double height, double line,
                     draw_color_t color);
/* The closed line through `count` corners. */
void draw_outline(draw_canvas_t *on, const double corners[][2], int count, double line, draw_color_t color);
void draw_line(draw_canvas_t *on, double x0, double y0, double x1, double y1, double line, draw_color_t color);
/* align: the part of the text left of x, 0, 0.5 or 1; y is the middle of the digits' height.
 * Returns the width. */
double draw_text(draw_canvas_t *on, double x, double y, double align, const char *text);
void draw_font(draw_canvas_t *on, double size, bool bold);
double draw_text_width(draw_canvas_t *on, const char *text);

/* The 1, 2 or 5 times a power of ten that cuts `range` into about `parts`. */
double draw_nice_step(double range, double parts);
/* A tick's number with the decimals that a step between ticks calls for. */
void draw_tick_text(char *text, size_t bytes, double value, double step);

#endif
