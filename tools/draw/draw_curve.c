/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_curve.c: curves over two axes. */
#include "draw_curve.h"

#include <math.h>

#include "draw_canvas.h"

#define WIDTH  860.0
#define HEIGHT 460.0

static const double left = 74.0, right = 24.0, top = 48.0, bottom = 56.0;

/* Told apart also without colour vision (Okabe and Ito). */
static const draw_color_t palette[] = {{0.00, 0.45, 0.70}, {0.84, 0.37, 0.00}, {0.00, 0.62, 0.45},
                                       {0.80, 0.47, 0.65}, {0.90, 0.62, 0.00}, {0.34, 0.71, 0.91}};

typedef struct axis {
    double low, high, step; /* data range; low and high are where the axis ends */
    double start, length;   /* on the page; negative length: upwards */
} axis_t;

static bool is_point(const draw_series_t *series, int64_t i)
{
    return isfinite(series->x[i]) && isfinite(series->y[i]);
}

static double place(const axis_t *axis, double value)
{
    return axis->start + (value - axis->low) / (axis->high - axis->low) * axis->length;
}

static void make_axis(axis_t *axis, double start, double length, double parts)
{
    if (axis->high - axis->low <= 1e-12 * fmax(fabs(axis->high), fabs(axis->low))) {
        double pad = axis->high != 0.0 ? fabs(axis->high) * 0.1 : 1.0;

        axis->low -= pad;
        axis->high += pad;
    }
    axis->step = draw_nice_step(axis->high - axis->low, parts);
    axis->start = start;
    axis->length = length;
}

/* x ends where the data end, y at whole ticks. */
static bool make_axes(const draw_curve_t *curve, axis_t *x, axis_t *y)
{
    *x = *y = (axis_t){.low = INFINITY, .high = -INFINITY};
    for (int32_t s = 0; s < curve->nseries; s++) {
        const draw_series_t *series = &curve->series[s];

        for (int64_t i = 0; i < series->count; i++) {
            if (!is_point(series, i))
                continue;
            x->low = fmin(x->low, series->x[i]);
            x->high = fmax(x->high, series->x[i]);
            y->low = fmin(y->low, series->y[i]);
            y->high = fmax(y->high, series->y[i]);
        }
    }
    if (x->low > x->high)
        return false;
    make_axis(x, left, WIDTH - left - right, 10.0);
    make_axis(y, HEIGHT - bottom, -(HEIGHT - top - bottom), 6.0);
    y->low = floor(y->low / y->step + 1e-9) * y->step;
    y->high = ceil(y->high / y->step - 1e-9) * y->step;
    return true;
}

static void draw_ticks(cairo_t *cr, const axis_t *x, const axis_t *y)
{
    char text[32];

    draw_font(cr, 11.0, false);
    for (double k = ceil(x->low / x->step - 1e-9); k * x->step <= x->high + x->step * 1e-9; k += 1.0) {
        double at = place(x, k * x->step);

        draw_tick_text(text, sizeof(text), k * x->step, x->step);
        draw_line(cr, at, y->start, at, y->start + 5.0, 1.0, draw_grey);
        draw_set_color(cr, draw_black);
        draw_text(cr, at, y->start + 16.0, 0.5, text);
    }
    for (double k = ceil(y->low / y->step - 1e-9); k * y->step <= y->high + y->step * 1e-9; k += 1.0) {
        double at = place(y, k * y->step);

        draw_tick_text(text, sizeof(text), k * y->step, y->step);
        draw_line(cr, x->start, at, x->start + x->length, at, 1.0, draw_light_grey);
        draw_set_color(cr, draw_black);
        draw_text(cr, x->start - 8.0, at, 1.0, text);
    }
}

static void draw_labels(cairo_t *cr, const draw_curve_t *curve)
{
    draw_set_color(cr, draw_black);
    draw_font(cr, 15.0, true);
    draw_text(cr, left, top / 2.0, 0.0, curve->title != NULL ? curve->title : "");
    draw_font(cr, 12.0, false);
    draw_text(cr, left + (WIDTH - left - right) / 2.0, HEIGHT - 18.0, 0.5,
              curve->x_label != NULL ? curve->x_label : "");
    cairo_save(cr);
    cairo_translate(cr, 18.0, top + (HEIGHT - top - bottom) / 2.0);
    cairo_rotate(cr, -M_PI / 2.0);
    draw_text(cr, 0.0, 0.0, 0.5, curve->y_label != NULL ? curve->y_label : "");
    cairo_restore(cr);
}

/* Of many points in one column of the page only first, lowest, highest and last can be seen. */
static void draw_series(cairo_t *cr, const draw_series_t *series, const axis_t *x, const axis_t *y)
{
    bool pen_down = false;

    for (int64_t i = 0; i < series->count;) {
        double column = floor(place(x, series->x[i]) * 2.0), low, high, last;
        int64_t first = i;

        if (!is_point(series, i)) {
            pen_down = false;
            i++;
            continue;
        }
        low = high = last = series->y[i];
        for (; i < series->count && is_point(series, i) && floor(place(x, series->x[i]) * 2.0) == column; i++) {
            low = fmin(low, series->y[i]);
            high = fmax(high, series->y[i]);
            last = series->y[i];
        }
        (pen_down ? cairo_line_to : cairo_move_to)(cr, place(x, series->x[first]), place(y, series->y[first]));
        cairo_line_to(cr, place(x, series->x[i - 1]), place(y, low));
        cairo_line_to(cr, place(x, series->x[i - 1]), place(y, high));
        cairo_line_to(cr, place(x, series->x[i - 1]), place(y, last));
        pen_down = true;
    }
    cairo_stroke(cr);
}

static void draw_legend(cairo_t *cr, const draw_curve_t *curve)
{
    double at = WIDTH - right;

    draw_font(cr, 12.0, false);
    for (int32_t s = curve->nseries - 1; s >= 0; s--) {
        const char *name = curve->series[s].name;

        if (name == NULL)
            continue;
        draw_set_color(cr, draw_black);
        at -= draw_text(cr, at, top / 2.0, 1.0, name);
        draw_line(cr, at - 26.0, top / 2.0, at - 6.0, top / 2.0, 2.5,
                  palette[(size_t)s % (sizeof(palette) / sizeof(palette[0]))]);
        at -= 44.0;
    }
}

dp_status_t draw_curve_write(const draw_curve_t *curve, draw_format_t format, dp_write_fn write, void *user)
{
    draw_canvas_t canvas;
    dp_status_t status;
    axis_t x, y;

    if (!make_axes(curve, &x, &y))
        return dp_fail(DP_ERR_INVALID, "drawing: the curve has no point");
    status = draw_canvas_open(&canvas, format, WIDTH, HEIGHT, 2.0, write, user);
    if (status != DP_OK)
        return status;
    draw_ticks(canvas.cr, &x, &y);
    draw_line(canvas.cr, left, y.start, left + x.length, y.start, 1.0, draw_grey);
    draw_labels(canvas.cr, curve);
    draw_legend(canvas.cr, curve);
    cairo_set_line_join(canvas.cr, CAIRO_LINE_JOIN_ROUND);
    cairo_set_line_cap(canvas.cr, CAIRO_LINE_CAP_ROUND);
    for (int32_t s = 0; s < curve->nseries; s++) {
        draw_set_color(canvas.cr, palette[(size_t)s % (sizeof(palette) / sizeof(palette[0]))]);
        cairo_set_line_width(canvas.cr, 1.6);
        draw_series(canvas.cr, &curve->series[s], &x, &y);
    }
    return draw_canvas_close(&canvas);
}

static dp_status_t write_job(const void *job, draw_format_t format, dp_write_fn write, void *user)
{
    return draw_curve_write(job, format, write, user);
}

dp_status_t draw_curve_save(const draw_curve_t *curve, const char *path)
{
    return draw_save(path, write_job, curve);
}
