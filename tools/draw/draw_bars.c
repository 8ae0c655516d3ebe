/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_bars.c: step times as bars. */
#include "draw_bars.h"

#include <math.h>
#include <stdio.h>

#include "draw_canvas.h"

static const double width = 860.0, margin = 16.0, label_width = 170.0, note_width = 220.0, head_height = 84.0,
                    pitch = 30.0, thickness = 20.0;

static const draw_color_t busy_color = {0.47, 0.77, 0.45}, edge = {0.35, 0.35, 0.38};

static void draw_bar(draw_canvas_t *on, const draw_bar_t *bar, double y, double per_unit)
{
    double x = margin + label_width, busy = bar->busy * per_unit, idle = bar->idle * per_unit;
    double step = bar->busy + bar->idle;
    char text[96];

    draw_font(on, 12.0, false);
    draw_set_color(on, draw_black);
    draw_text(on, x - 10.0, y + thickness / 2.0, 1.0, bar->label);
    draw_fill_rect(on, x, y, busy, thickness, busy_color);
    draw_frame_rect(on, x, y, busy, thickness, 0.6, edge);
    draw_frame_rect(on, x + busy, y, idle, thickness, 0.6, edge);
    snprintf(text, sizeof(text), "%.6g, idle %.1f %%, holds %.4g", step, step > 0.0 ? bar->idle / step * 100.0 : 0.0,
             bar->held);
    draw_set_color(on, draw_black);
    draw_text(on, x + busy + idle + 8.0, y + thickness / 2.0, 0.0, text);
}

static void draw_head(draw_canvas_t *on, const draw_bars_t *picture)
{
    double x = margin, y = 62.0;

    draw_set_color(on, draw_black);
    draw_font(on, 15.0, true);
    draw_text(on, margin, 20.0, 0.0, picture->title);
    draw_set_color(on, draw_grey);
    draw_font(on, 11.0, false);
    draw_text(on, margin, 40.0, 0.0, picture->subtitle);
    draw_fill_rect(on, x, y - 6.0, 26.0, 12.0, busy_color);
    draw_frame_rect(on, x, y - 6.0, 26.0, 12.0, 0.6, edge);
    x += 32.0 + draw_text(on, x + 32.0, y, 0.0, "busy") + 20.0;
    draw_frame_rect(on, x, y - 6.0, 26.0, 12.0, 0.6, edge);
    draw_set_color(on, draw_grey);
    draw_text(on, x + 32.0, y, 0.0, "idle, mean over the ranks; holds: micro-batches' activations on the fullest rank");
}

dp_status_t draw_bars_write(const draw_bars_t *picture, draw_format_t format, dp_write_fn write, void *user)
{
    double longest = 0.0, per_unit;
    draw_canvas_t canvas;
    dp_status_t status;

    for (int32_t b = 0; b < picture->count; b++)
        longest = fmax(longest, picture->bars[b].busy + picture->bars[b].idle);
    if (picture->count < 1)
        return dp_fail(DP_ERR_INVALID, "drawing: there is no bar");
    per_unit = longest > 0.0 ? (width - 2.0 * margin - label_width - note_width) / longest : 0.0;
    status = draw_canvas_open(&canvas, format, width, head_height + pitch * picture->count + margin, 2.0, write, user);
    if (status != DP_OK)
        return status;
    draw_head(&canvas, picture);
    for (int32_t b = 0; b < picture->count; b++)
        draw_bar(&canvas, &picture->bars[b], head_height + pitch * b, per_unit);
    return draw_canvas_close(&canvas);
}
