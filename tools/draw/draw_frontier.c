/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_frontier.c: the shortest step for each amount of memory, as stairs. */
#include "draw_frontier.h"

#include <math.h>
#include <stdio.h>

#include "draw_canvas.h"

static const double width = 860.0, height = 460.0, left = 90.0, right = 210.0, top = 64.0, bottom = 56.0;

static const draw_color_t line_color = {0.20, 0.45, 0.70};

/* What an axis shows, and where. */
typedef struct axis {
    double low, high, from, to;
} axis_t;

static double place_on(const axis_t *axis, double value)
{
    return axis->from + (value - axis->low) / (axis->high - axis->low) * (axis->to - axis->from);
}

/* Some room around the values, and never none. */
static axis_t make_axis(double low, double high, double from, double to)
{
    double room = high > low ? 0.08 * (high - low) : 0.1 * fmax(fabs(high), 1e-9);

    return (axis_t){fmax(low - room, 0.0), high + room, from, to};
}

static void draw_ticks(draw_canvas_t *on, const axis_t *axis, bool across)
{
    const double step = draw_nice_step(axis->high - axis->low, 6.0);

    for (double value = ceil(axis->low / step) * step; value <= axis->high; value += step) {
        const double at = place_on(axis, value);
        char text[32];

        draw_tick_text(text, sizeof(text), value, step);
        if (across)
            draw_line(on, at, top, at, height - bottom, 0.5, draw_light_grey);
        else
            draw_line(on, left, at, width - right, at, 0.5, draw_light_grey);
        draw_set_color(on, draw_black);
        if (across)
            draw_text(on, at, height - bottom + 14.0, 0.5, text);
        else
            draw_text(on, left - 8.0, at, 1.0, text);
    }
}

static void draw_titles(draw_canvas_t *on, const draw_frontier_t *picture)
{
    char text[96];

    draw_set_color(on, draw_black);
    draw_font(on, 15.0, true);
    draw_text(on, 16.0, 20.0, 0.0, picture->title);
    draw_set_color(on, draw_grey);
    draw_font(on, 11.0, false);
    draw_text(on, 16.0, 40.0, 0.0, picture->subtitle);
    snprintf(text, sizeof(text), "memory of the fullest rank, %s", picture->unit);
    draw_text(on, (left + width - right) / 2.0, height - 18.0, 0.5, text);
    draw_text(on, 16.0, top - 8.0, 0.0, "step");
}

dp_status_t draw_frontier_write(const draw_frontier_t *picture, draw_format_t format, dp_write_fn write, void *user)
{
    const draw_point_t *p = picture->points, *last = p + picture->count - 1;
    axis_t x, y;
    draw_canvas_t canvas;
    dp_status_t status;

    if (picture->count < 1)
        return dp_fail(DP_ERR_INVALID, "drawing: there is no point");
    x = make_axis(p->memory, last->memory, left, width - right);
    y = make_axis(last->step, p->step, height - bottom, top);
    status = draw_canvas_open(&canvas, format, width, height, 2.0, write, user);
    if (status != DP_OK)
        return status;
    draw_titles(&canvas, picture);
    draw_ticks(&canvas, &x, true);
    draw_ticks(&canvas, &y, false);
    for (; p <= last; p++) {
        const double at = place_on(&x, p->memory), high = place_on(&y, p->step);
        const double next = p < last ? place_on(&x, p[1].memory) : width - right;

        draw_line(&canvas, at, high, next, high, 1.6, line_color);
        if (p < last)
            draw_line(&canvas, next, high, next, place_on(&y, p[1].step), 1.6, line_color);
        draw_fill_rect(&canvas, at - 3.0, high - 3.0, 6.0, 6.0, line_color);
        draw_set_color(&canvas, draw_black);
        draw_text(&canvas, at + 6.0, high - 9.0, 0.0, p->label);
    }
    return draw_canvas_close(&canvas);
}
