/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_svg.h: pages of SVG with text as text and boxes that have a title. It takes no cairo. Sizes
 * and colours are those of draw_canvas.h, which calls these. */
#ifndef DP_TOOLS_DRAW_SVG_H
#define DP_TOOLS_DRAW_SVG_H

#include "draw_canvas.h"

void draw_svg_begin(draw_canvas_t *on, double width, double height);
/* Writes what is left. */
void draw_svg_end(draw_canvas_t *on);
/* All in the color that was set. */
void draw_svg_fill(draw_canvas_t *on, double x, double y, double width, double height);
void draw_svg_frame(draw_canvas_t *on, double x, double y, double width, double height, double line);
void draw_svg_line(draw_canvas_t *on, const double points[][2], int count, bool closed, double line);
void draw_svg_text(draw_canvas_t *on, double x, double y, double align, const char *text);
/* Of a text in DejaVu Sans. */
double draw_svg_width(const draw_canvas_t *on, const char *text);

#endif
