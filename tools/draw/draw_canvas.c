/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_canvas.c: pages, text and ticks. */
#include "draw_canvas.h"

#include "draw_svg.h"

#include <math.h>
#include <stdio.h>

/* What cairo takes for an image, and what a page may cost in memory: 4 bytes a pixel. */
#define MAX_SIDE   32000.0
#define MAX_PIXELS 120e6

const draw_color_t draw_black = {0.10, 0.10, 0.12}, draw_white = {1.0, 1.0, 1.0}, draw_grey = {0.45, 0.45, 0.48},
                   draw_light_grey = {0.87, 0.87, 0.89};

#if defined(__SANITIZE_ADDRESS__)
/* The font library keeps what it found until the process ends. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libfontconfig\n";
}
#endif

static cairo_status_t write_bytes_to(void *user, const unsigned char *data, unsigned int length)
{
    draw_canvas_t *canvas = user;

    if (canvas->status == DP_OK)
        canvas->status = canvas->write(canvas->user, (const char *)data, length);
    return canvas->status == DP_OK ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

static double fitting_scale(double width, double height, double scale)
{
    scale = fmin(scale, MAX_SIDE / fmax(width, height));
    return fmin(scale, sqrt(MAX_PIXELS / (width * height)));
}

static dp_status_t failed(cairo_status_t status)
{
    return dp_fail(status == CAIRO_STATUS_NO_MEMORY ? DP_ERR_NOMEM : DP_ERR_IO, "drawing: %s",
                   cairo.status_to_string(status));
}

dp_status_t draw_canvas_open(draw_canvas_t *canvas, draw_format_t format, double width, double height, double scale,
                             dp_write_fn write, void *user)
{
    cairo_status_t status;

    *canvas = (draw_canvas_t){.format = format, .write = write, .user = user, .status = DP_OK};
    if (format == DRAW_SVG) {
        draw_svg_begin(canvas, width, height);
        return DP_OK;
    }
    if (draw_cairo_load() < 0)
        return DP_ERR_UNSUPPORTED;
    scale = fitting_scale(width, height, scale);
    if (format == DRAW_PDF)
        canvas->surface = cairo.pdf_surface_create_for_stream(write_bytes_to, canvas, width, height);
    else
        canvas->surface =
            cairo.image_surface_create(CAIRO_FORMAT_RGB24, (int)ceil(width * scale), (int)ceil(height * scale));
    canvas->cr = cairo.create(canvas->surface);
    status = cairo.status(canvas->cr);
    if (status != CAIRO_STATUS_SUCCESS) {
        cairo.destroy(canvas->cr);
        cairo.surface_destroy(canvas->surface);
        return failed(status);
    }
    if (format == DRAW_PNG)
        cairo.scale(canvas->cr, scale, scale);
    draw_set_color(canvas, draw_white);
    cairo.paint(canvas->cr);
    return DP_OK;
}

dp_status_t draw_canvas_close(draw_canvas_t *canvas)
{
    cairo_status_t status;

    if (canvas->format == DRAW_SVG) {
        draw_svg_end(canvas);
        return canvas->status;
    }
    cairo.show_page(canvas->cr);
    status = cairo.status(canvas->cr);
    cairo.destroy(canvas->cr);
    if (canvas->format == DRAW_PNG && status == CAIRO_STATUS_SUCCESS)
        status = cairo.surface_write_to_png_stream(canvas->surface, write_bytes_to, canvas);
    cairo.surface_finish(canvas->surface);
    if (status == CAIRO_STATUS_SUCCESS)
        status = cairo.surface_status(canvas->surface);
    cairo.surface_destroy(canvas->surface);
    if (canvas->status != DP_OK)
        return canvas->status;
    return status == CAIRO_STATUS_SUCCESS ? DP_OK : failed(status);
}

dp_status_t draw_as_image(draw_canvas_t *on, double width, double height,
                          void (*draw)(const void *job, draw_canvas_t *on), const void *job)
{
    const double scale = fmin(1.0, fmin(MAX_SIDE / height, sqrt(MAX_PIXELS / 2.0 / (width * height))));
    draw_canvas_t inner = {.format = DRAW_PNG, .status = DP_OK};
    cairo_status_t status;

    inner.surface = cairo.image_surface_create(CAIRO_FORMAT_RGB24, (int)ceil(width * scale), (int)ceil(height * scale));
    inner.cr = cairo.create(inner.surface);
    cairo.scale(inner.cr, scale, scale);
    draw_set_color(&inner, draw_white);
    cairo.paint(inner.cr);
    draw(job, &inner);
    status = cairo.status(inner.cr);
    cairo.destroy(inner.cr);
    cairo.save(on->cr);
    cairo.scale(on->cr, 1.0 / scale, 1.0 / scale);
    cairo.set_source_surface(on->cr, inner.surface, 0.0, 0.0);
    cairo.paint(on->cr);
    cairo.restore(on->cr);
    cairo.surface_destroy(inner.surface);
    return status == CAIRO_STATUS_SUCCESS ? DP_OK : failed(status);
}

void draw_move(draw_canvas_t *on, double x, double y)
{
    if (on->format != DRAW_SVG)
        cairo.translate(on->cr, x, y);
    on->svg.x += x;
    on->svg.y += y;
}

void draw_title(draw_canvas_t *on, const char *text)
{
    snprintf(on->svg.title, sizeof(on->svg.title), "%s", text);
}

void draw_set_color(draw_canvas_t *on, draw_color_t color)
{
    if (on->format != DRAW_SVG)
        cairo.set_source_rgb(on->cr, color.r, color.g, color.b);
    on->svg.color = color;
}

void draw_fill_rect(draw_canvas_t *on, double x, double y, double width, double height, draw_color_t color)
{
    draw_set_color(on, color);
    if (on->format == DRAW_SVG) {
        draw_svg_fill(on, x, y, width, height);
        return;
    }
    cairo.rectangle(on->cr, x, y, width, height);
    cairo.fill(on->cr);
}

void draw_frame_rect(draw_canvas_t *on, double x, double y, double width, double height, double line,
                     draw_color_t color)
{
    draw_set_color(on, color);
    if (on->format == DRAW_SVG) {
        draw_svg_frame(on, x, y, width, height, line);
        return;
    }
    cairo.set_line_width(on->cr, line);
    cairo.rectangle(on->cr, x, y, width, height);
    cairo.stroke(on->cr);
}

void draw_outline(draw_canvas_t *on, const double corners[][2], int count, double line, draw_color_t color)
{
    draw_set_color(on, color);
    if (on->format == DRAW_SVG) {
        draw_svg_line(on, corners, count, true, line);
        return;
    }
    cairo.set_line_width(on->cr, line);
    cairo.new_path(on->cr);
    for (int k = 0; k < count; k++)
        cairo.line_to(on->cr, corners[k][0], corners[k][1]);
    cairo.close_path(on->cr);
    cairo.stroke(on->cr);
}

void draw_line(draw_canvas_t *on, double x0, double y0, double x1, double y1, double line, draw_color_t color)
{
    const double ends[2][2] = {{x0, y0}, {x1, y1}};

    draw_set_color(on, color);
    if (on->format == DRAW_SVG) {
        draw_svg_line(on, ends, 2, false, line);
        return;
    }
    cairo.set_line_width(on->cr, line);
    cairo.move_to(on->cr, x0, y0);
    cairo.line_to(on->cr, x1, y1);
    cairo.stroke(on->cr);
}

void draw_font(draw_canvas_t *on, double size, bool bold)
{
    on->svg.size = size;
    on->svg.bold = bold;
    if (on->format == DRAW_SVG)
        return;
    cairo.select_font_face(on->cr, "DejaVu Sans", CAIRO_FONT_SLANT_NORMAL,
                           bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo.set_font_size(on->cr, size);
}

double draw_text_width(draw_canvas_t *on, const char *text)
{
    cairo_text_extents_t extents;

    if (on->format == DRAW_SVG)
        return draw_svg_width(on, text);
    cairo.text_extents(on->cr, text, &extents);
    return extents.x_advance;
}

double draw_text(draw_canvas_t *on, double x, double y, double align, const char *text)
{
    const double width = draw_text_width(on, text);
    cairo_text_extents_t digit;

    if (on->format == DRAW_SVG) {
        draw_svg_text(on, x, y, align, text);
        return width;
    }
    cairo.text_extents(on->cr, "0", &digit);
    cairo.move_to(on->cr, x - align * width, y - digit.y_bearing / 2.0);
    cairo.show_text(on->cr, text);
    return width;
}

double draw_nice_step(double range, double parts)
{
    double rough = range / parts, power;

    if (!(rough > 0.0) || !isfinite(rough))
        return 1.0;
    power = pow(10.0, floor(log10(rough)));
    rough /= power;
    return (rough <= 1.0 ? 1.0 : rough <= 2.0 ? 2.0 : rough <= 5.0 ? 5.0 : 10.0) * power;
}

void draw_tick_text(char *text, size_t bytes, double value, double step)
{
    int decimals = (int)fmax(0.0, -floor(log10(step) + 1e-9));

    if (fabs(value) < step / 1e6)
        value = 0.0;
    if (fabs(value) >= 1e7 || decimals > 6)
        snprintf(text, bytes, "%.4g", value);
    else
        snprintf(text, bytes, "%.*f", decimals, value);
}
