/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_loads.c: a cell for each layer and GPU, coloured by its load over the layer's mean, and a
 * bar for the fullest GPU. */
#include "draw_loads.h"

#include <math.h>
#include <stdio.h>

#include "draw_canvas.h"

static const double width = 900.0, margin = 16.0, axis = 44.0, head = 92.0, bars_width = 150.0, gap = 14.0,
                    panel_gap = 46.0, most_height = 420.0;

/* More layers or GPUs than this are cells nobody sees. */
#define MOST_CELLS 8192

static const draw_color_t low = {0.26, 0.49, 0.76}, middle = {0.96, 0.96, 0.94}, high = {0.80, 0.21, 0.18},
                          bar_color = {0.62, 0.62, 0.66};

static draw_color_t mix(draw_color_t from, draw_color_t to, double part)
{
    return (draw_color_t){from.r + (to.r - from.r) * part, from.g + (to.g - from.g) * part,
                          from.b + (to.b - from.b) * part};
}

/* ratio: load over mean; `most` is where the colour is full. */
static draw_color_t color_of(double ratio, double most)
{
    return ratio >= 1.0 ? mix(middle, high, fmin((ratio - 1.0) / (most - 1.0), 1.0)) : mix(low, middle, ratio);
}

static double mean_of(const double *loads, int32_t count)
{
    double sum = 0.0;

    for (int32_t k = 0; k < count; k++)
        sum += loads[k];
    return sum / count;
}

static double peak_ratio(const double *loads, int32_t count)
{
    double peak = 0.0, mean = mean_of(loads, count);

    for (int32_t k = 0; k < count; k++)
        peak = fmax(peak, loads[k]);
    return mean > 0.0 ? peak / mean : 1.0;
}

typedef struct page {
    const draw_loads_t *picture;
    draw_canvas_t *on;
    double row, column; /* size of a cell */
    double most;        /* largest ratio there is */
} page_t;

static void draw_cells(const page_t *p, const double *loads, double x, double y)
{
    for (int32_t layer = 0; layer < p->picture->layers; layer++) {
        const double *row = loads + (size_t)layer * (size_t)p->picture->gpus;
        double mean = mean_of(row, p->picture->gpus);

        for (int32_t gpu = 0; gpu < p->picture->gpus; gpu++)
            draw_fill_rect(p->on, x + gpu * p->column, y + layer * p->row, p->column, p->row,
                           color_of(mean > 0.0 ? row[gpu] / mean : 1.0, p->most));
    }
}

static void draw_grid(const page_t *p, double x, double y)
{
    double wide = p->column * p->picture->gpus, tall = p->row * p->picture->layers, last = -100.0;
    char text[32];

    for (int32_t node = 1; node < p->picture->nodes; node++)
        draw_line(p->on, x + p->picture->node_first[node] * p->column, y, x + p->picture->node_first[node] * p->column,
                  y + tall, 0.8, draw_black);
    draw_frame_rect(p->on, x, y, wide, tall, 0.8, draw_black);
    draw_font(p->on, 10.0, false);
    draw_set_color(p->on, draw_grey);
    for (int32_t node = 0; node < p->picture->nodes; node++) {
        double middle_of = x + p->column * (p->picture->node_first[node] + p->picture->node_first[node + 1]) / 2.0;

        if (middle_of - last < 46.0)
            continue;
        last = middle_of;
        snprintf(text, sizeof(text), "node %d", node);
        draw_text(p->on, middle_of, y + tall + 10.0, 0.5, text);
    }
    for (int32_t layer = 0; layer < p->picture->layers; layer += 1 + (int32_t)(14.0 / p->row)) {
        snprintf(text, sizeof(text), "%d", layer);
        draw_text(p->on, x - 6.0, y + (layer + 0.5) * p->row, 1.0, text);
    }
}

static void draw_peaks(const page_t *p, const double *loads, double x, double y)
{
    double per_unit = (bars_width - 40.0) / p->most, tall = p->row * p->picture->layers;
    char text[32];

    draw_font(p->on, 9.0, false);
    for (int32_t layer = 0; layer < p->picture->layers; layer++) {
        double ratio = peak_ratio(loads + (size_t)layer * (size_t)p->picture->gpus, p->picture->gpus);

        draw_fill_rect(p->on, x, y + layer * p->row, ratio * per_unit, fmax(p->row - 0.5, p->row * 0.7), bar_color);
        if (p->row < 10.0)
            continue;
        snprintf(text, sizeof(text), "%.3f", ratio);
        draw_set_color(p->on, draw_black);
        draw_text(p->on, x + ratio * per_unit + 4.0, y + (layer + 0.5) * p->row, 0.0, text);
    }
    draw_line(p->on, x + per_unit, y - 3.0, x + per_unit, y + tall + 3.0, 0.8, draw_black);
    draw_set_color(p->on, draw_grey);
    draw_text(p->on, x + per_unit, y + tall + 10.0, 0.5, "mean");
}

static void draw_panel(const page_t *p, int which, double y)
{
    double x = margin + axis;

    draw_set_color(p->on, draw_black);
    draw_font(p->on, 12.0, true);
    draw_text(p->on, x, y - 10.0, 0.0, p->picture->label[which]);
    draw_cells(p, p->picture->load[which], x, y);
    draw_grid(p, x, y);
    draw_peaks(p, p->picture->load[which], x + p->column * p->picture->gpus + gap, y);
}

static void draw_head(const page_t *p)
{
    double x = margin + axis, y = 58.0;
    char text[64];

    draw_set_color(p->on, draw_black);
    draw_font(p->on, 15.0, true);
    draw_text(p->on, margin, 20.0, 0.0, p->picture->title);
    draw_set_color(p->on, draw_grey);
    draw_font(p->on, 11.0, false);
    draw_text(p->on, margin, 40.0, 0.0, p->picture->subtitle);
    x += draw_text(p->on, x, y, 0.0, "load of a GPU: 0") + 6.0;
    for (int k = 0; k < 60; k++)
        draw_fill_rect(p->on, x + 2.0 * k, y - 6.0, 2.0, 12.0, color_of(k / 60.0 * p->most, p->most));
    draw_frame_rect(p->on, x, y - 6.0, 120.0, 12.0, 0.6, draw_grey);
    snprintf(text, sizeof(text), "%.2f times the layer's mean; bars: the fullest GPU of the layer", p->most);
    draw_set_color(p->on, draw_grey);
    draw_text(p->on, x + 126.0, y, 0.0, text);
}

dp_status_t draw_loads_write(const draw_loads_t *picture, draw_format_t format, dp_write_fn write, void *user)
{
    page_t page = {.picture = picture, .most = 1.05};
    draw_canvas_t canvas;
    double tall;
    dp_status_t status;

    if (picture->layers < 1 || picture->layers > MOST_CELLS || picture->gpus < 1 || picture->gpus > MOST_CELLS)
        return dp_fail(DP_ERR_INVALID, "drawing: %d layers of %d GPUs; 1 to %d of each can be drawn", picture->layers,
                       picture->gpus, MOST_CELLS);
    for (int which = 0; which < 2; which++)
        for (int32_t layer = 0; layer < picture->layers; layer++)
            page.most = fmax(page.most,
                             peak_ratio(picture->load[which] + (size_t)layer * (size_t)picture->gpus, picture->gpus));
    page.row = fmin(22.0, most_height / picture->layers);
    page.column = (width - 2.0 * margin - axis - bars_width - gap) / picture->gpus;
    tall = page.row * picture->layers;
    status = draw_canvas_open(&canvas, format, width, head + 2.0 * tall + panel_gap + 24.0 + margin, 2.0, write, user);
    if (status != DP_OK)
        return status;
    page.on = &canvas;
    draw_head(&page);
    draw_panel(&page, 0, head + 4.0);
    draw_panel(&page, 1, head + 4.0 + tall + panel_gap);
    return draw_canvas_close(&canvas);
}
