/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_cairo.h: what pictures use of cairo 1.14 and later, with its types and numbers. The library
 * is loaded for the first picture, so that nothing else needs it, nor what it links: X11's. */
#ifndef DP_TOOLS_DRAW_CAIRO_H
#define DP_TOOLS_DRAW_CAIRO_H

#include <dualpipe/status.h>

typedef struct _cairo cairo_t;
typedef struct _cairo_surface cairo_surface_t;
typedef enum cairo_status {
    CAIRO_STATUS_SUCCESS,
    CAIRO_STATUS_NO_MEMORY,
    CAIRO_STATUS_WRITE_ERROR = 11
} cairo_status_t;
typedef enum cairo_format { CAIRO_FORMAT_RGB24 = 1 } cairo_format_t;
typedef enum cairo_font_slant { CAIRO_FONT_SLANT_NORMAL } cairo_font_slant_t;
typedef enum cairo_font_weight { CAIRO_FONT_WEIGHT_NORMAL, CAIRO_FONT_WEIGHT_BOLD } cairo_font_weight_t;
typedef cairo_status_t (*cairo_write_func_t)(void *user, const unsigned char *data, unsigned int length);

typedef struct cairo_text_extents {
    double x_bearing, y_bearing, width, height, x_advance, y_advance;
} cairo_text_extents_t;

/* X(what it returns, name behind "cairo_", arguments) */
#define DRAW_CAIRO_FUNCTIONS(X)                                                                                        \
    X(cairo_surface_t *, image_surface_create, (cairo_format_t, int, int))                                             \
    X(cairo_surface_t *, pdf_surface_create_for_stream, (cairo_write_func_t, void *, double, double))                  \
    X(cairo_status_t, surface_write_to_png_stream, (cairo_surface_t *, cairo_write_func_t, void *))                    \
    X(cairo_status_t, surface_status, (cairo_surface_t *))                                                             \
    X(void, surface_finish, (cairo_surface_t *))                                                                       \
    X(void, surface_destroy, (cairo_surface_t *))                                                                      \
    X(cairo_t *, create, (cairo_surface_t *))                                                                          \
    X(void, destroy, (cairo_t *))                                                                                      \
    X(cairo_status_t, status, (cairo_t *))                                                                             \
    X(const char *, status_to_string, (cairo_status_t))                                                                \
    X(void, show_page, (cairo_t *))                                                                                    \
    X(void, save, (cairo_t *))                                                                                         \
    X(void, restore, (cairo_t *))                                                                                      \
    X(void, scale, (cairo_t *, double, double))                                                                        \
    X(void, translate, (cairo_t *, double, double))                                                                    \
    X(void, set_source_rgb, (cairo_t *, double, double, double))                                                       \
    X(void, set_source_surface, (cairo_t *, cairo_surface_t *, double, double))                                        \
    X(void, set_line_width, (cairo_t *, double))                                                                       \
    X(void, new_path, (cairo_t *))                                                                                     \
    X(void, move_to, (cairo_t *, double, double))                                                                      \
    X(void, line_to, (cairo_t *, double, double))                                                                      \
    X(void, close_path, (cairo_t *))                                                                                   \
    X(void, rectangle, (cairo_t *, double, double, double, double))                                                    \
    X(void, fill, (cairo_t *))                                                                                         \
    X(void, stroke, (cairo_t *))                                                                                       \
    X(void, paint, (cairo_t *))                                                                                        \
    X(void, select_font_face, (cairo_t *, const char *, cairo_font_slant_t, cairo_font_weight_t))                      \
    X(void, set_font_size, (cairo_t *, double))                                                                        \
    X(void, text_extents, (cairo_t *, const char *, cairo_text_extents_t *))                                           \
    X(void, show_text, (cairo_t *, const char *))

#define DRAW_CAIRO_MEMBER(result, name, arguments) result(*name) arguments;
typedef struct draw_cairo {
    DRAW_CAIRO_FUNCTIONS(DRAW_CAIRO_MEMBER)
} draw_cairo_t;

/* Filled by draw_cairo_load. */
extern draw_cairo_t cairo;

/* DP_ERR_UNSUPPORTED: there is no cairo. */
dp_status_t draw_cairo_load(void);

#endif
