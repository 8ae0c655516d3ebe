/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_lanes.c: what ran on which stream when, as a picture. */
#include "draw_lanes.h"

#include <math.h>
#include <stdio.h>

#include "draw_canvas.h"

#define TALLEST 30000.0

static const double width = 1240.0, margin = 16.0, label_width = 112.0, head_height = 58.0, axis_height = 30.0,
                    legend_height = 24.0, band_height = 16.0, box_height = 18.0, strip_height = 9.0,
                    heading_height = 26.0, gap = 6.0;

static const struct {
    const char *name;
    draw_color_t box, band;
} paints[DRAW_PAINTS] = {{"forward", {0.96, 0.70, 0.36}, {0.99, 0.86, 0.68}},
                         {"backward", {0.47, 0.77, 0.45}, {0.74, 0.90, 0.72}},
                         {"backward for weights", {0.45, 0.66, 0.92}, {0.76, 0.87, 0.98}},
                         {"computation", {0.62, 0.69, 0.78}, {0.85, 0.88, 0.92}},
                         {"communication", {0.80, 0.56, 0.84}, {0.92, 0.82, 0.94}},
                         {"waiting", {0.86, 0.86, 0.86}, {0.93, 0.93, 0.93}},
                         {"exposed communication", {0.84, 0.25, 0.24}, {0.95, 0.70, 0.70}}};

static double plot_x(void)
{
    return margin + label_width;
}

static double plot_width(void)
{
    return width - 2.0 * margin - label_width;
}

static double lane_height(const draw_lane_t *lane)
{
    if (lane->kind == DRAW_LANE_HEAD)
        return heading_height;
    if (lane->kind == DRAW_LANE_STRIP)
        return strip_height + 2.0 * gap;
    return (lane->nbands > 0 ? band_height + 1.0 : 0.0) + box_height + gap;
}

/* ---- boxes ---- */

typedef struct run {
    double start, end;
    uint8_t paint;
    bool any;
} run_t;

static void flush_run(draw_canvas_t *on, run_t *run, double y, double height)
{
    if (run->any)
        draw_fill_rect(on, run->start, y, fmax(run->end - run->start, 0.4), height, paints[run->paint].box);
    run->any = false;
}

/* Boxes too narrow to be told apart become one, so that a picture's size does not depend on how
 * many there are. */
static void draw_boxes(draw_canvas_t *on, const draw_lane_t *lane, double y, double height, double per_unit)
{
    run_t run = {.any = false};

    for (size_t b = 0; b < lane->nboxes; b++) {
        const draw_box_t *box = &lane->boxes[b];
        double start = plot_x() + box->start * per_unit, end = plot_x() + box->end * per_unit;

        if (end - start >= 2.0) {
            flush_run(on, &run, y, height);
            draw_fill_rect(on, start, y, end - start - 0.5, height, paints[box->paint].box);
            continue;
        }
        if (run.any && (run.paint != box->paint || start > run.end + 0.4))
            flush_run(on, &run, y, height);
        if (!run.any)
            run = (run_t){start, end, box->paint, true};
        run.end = fmax(run.end, end);
    }
    flush_run(on, &run, y, height);
}

/* Short stretches are as pale as they are short: a column of the page is coloured by the part of it
 * that is covered. */
static void draw_strip(draw_canvas_t *on, const draw_lane_t *lane, double y, double height, double per_unit,
                       draw_color_t paper)
{
    size_t b = 0;

    for (double x = plot_x(); x < plot_x() + plot_width(); x += 1.0) {
        double covered = 0.0;
        draw_color_t color;

        while (b < lane->nboxes && plot_x() + lane->boxes[b].end * per_unit <= x)
            b++;
        for (size_t k = b; k < lane->nboxes && plot_x() + lane->boxes[k].start * per_unit < x + 1.0; k++)
            covered += fmax(0.0, fmin(x + 1.0, plot_x() + lane->boxes[k].end * per_unit) -
                                     fmax(x, plot_x() + lane->boxes[k].start * per_unit));
        if (covered <= 0.0)
            continue;
        covered = fmin(1.0, fmax(covered, 0.2));
        color = paints[lane->boxes[b].paint].box;
        color.r = paper.r + covered * (color.r - paper.r);
        color.g = paper.g + covered * (color.g - paper.g);
        color.b = paper.b + covered * (color.b - paper.b);
        draw_fill_rect(on, x, y, 1.0, height, color);
    }
}

static void draw_bands(draw_canvas_t *on, const draw_lane_t *lane, double y, double per_unit)
{
    double reached = -1.0;

    draw_font(on, 8.5, false);
    for (size_t b = 0; b < lane->nbands; b++) {
        const draw_box_t *band = &lane->bands[b];
        double x = plot_x() + band->start * per_unit, w = (band->end - band->start) * per_unit;

        if (x + w < reached + 0.3)
            continue;
        reached = x + w;
        draw_fill_rect(on, x, y, fmax(w - 0.5, 0.4), band_height, paints[band->paint].band);
        if (band->label == NULL || w < 12.0 || draw_text_width(on, band->label) > w - 2.0)
            continue;
        draw_set_color(on, draw_black);
        draw_text(on, x + w / 2.0, y + band_height / 2.0, 0.5, band->label);
    }
}

static void draw_heading(draw_canvas_t *on, const draw_lane_t *lane, double y)
{
    double used;

    draw_font(on, 12.0, true);
    draw_set_color(on, draw_black);
    used = draw_text(on, margin, y + heading_height / 2.0, 0.0, lane->label);
    draw_font(on, 11.0, false);
    draw_set_color(on, draw_grey);
    if (lane->note != NULL)
        draw_text(on, margin + used + 14.0, y + heading_height / 2.0, 0.0, lane->note);
}

static void draw_lane(draw_canvas_t *on, const draw_lane_t *lane, double y, double per_unit)
{
    static const draw_color_t paper = {0.955, 0.96, 0.97};
    double height = lane_height(lane) - (lane->kind == DRAW_LANE_STRIP ? 2.0 * gap : gap), top = y;

    if (lane->kind == DRAW_LANE_HEAD) {
        draw_heading(on, lane, y);
        return;
    }
    draw_fill_rect(on, plot_x(), y, plot_width(), height, paper);
    if (lane->nbands > 0) {
        draw_bands(on, lane, y, per_unit);
        top += band_height + 1.0;
    }
    if (lane->kind == DRAW_LANE_STRIP)
        draw_strip(on, lane, y, height, per_unit, paper);
    else
        draw_boxes(on, lane, top, y + height - top, per_unit);
    draw_font(on, lane->kind == DRAW_LANE_STRIP ? 9.5 : 11.0, false);
    draw_set_color(on, lane->kind == DRAW_LANE_STRIP ? draw_grey : draw_black);
    draw_text(on, plot_x() - 8.0, y + height / 2.0 - (lane->note != NULL ? 6.0 : 0.0), 1.0, lane->label);
    if (lane->note == NULL)
        return;
    draw_font(on, 9.0, false);
    draw_set_color(on, draw_grey);
    draw_text(on, plot_x() - 8.0, y + height / 2.0 + 7.0, 1.0, lane->note);
}

/* ---- around them ---- */

static void draw_axis(draw_canvas_t *on, const draw_lanes_t *picture, double y, double per_unit)
{
    double step = draw_nice_step(picture->end, 11.0);
    char text[64];

    draw_line(on, plot_x(), y, plot_x() + plot_width(), y, 1.0, draw_grey);
    draw_font(on, 10.5, false);
    for (double k = 0.0; step > 0.0 && k * step <= picture->end * (1.0 + 1e-9); k += 1.0) {
        double x = plot_x() + k * step * per_unit;

        draw_line(on, x, y, x, y + 4.0, 1.0, draw_grey);
        draw_tick_text(text, sizeof(text), k * step, step);
        draw_set_color(on, draw_grey);
        draw_text(on, x, y + 13.0, 0.5, text);
    }
    draw_set_color(on, draw_grey);
    draw_text(on, plot_x() - 8.0, y + 13.0, 1.0, picture->unit);
}

static void draw_legend(draw_canvas_t *on, const draw_lanes_t *picture, double y)
{
    bool used[DRAW_PAINTS] = {false};
    double x = plot_x();

    for (size_t l = 0; l < picture->count; l++)
        for (size_t b = 0; b < picture->lanes[l].nboxes; b++)
            used[picture->lanes[l].boxes[b].paint] = true;
    draw_font(on, 11.0, false);
    for (int p = 0; p < DRAW_PAINTS; p++) {
        if (!used[p])
            continue;
        draw_fill_rect(on, x, y - 5.0, 18.0, 10.0, paints[p].box);
        draw_set_color(on, draw_black);
        x += 24.0 + draw_text(on, x + 24.0, y, 0.0, paints[p].name) + 18.0;
    }
}

dp_status_t draw_lanes_write(const draw_lanes_t *picture, draw_format_t format, dp_write_fn write, void *user)
{
    double height = head_height + axis_height + legend_height + margin, y = head_height;
    double per_unit = picture->end > 0.0 ? plot_width() / picture->end : 0.0;
    draw_canvas_t canvas;
    dp_status_t status;

    for (size_t l = 0; l < picture->count; l++)
        height += lane_height(&picture->lanes[l]);
    if (picture->count == 0 || height > TALLEST)
        return dp_fail(DP_ERR_INVALID, "drawing: %zu lanes are %s", picture->count,
                       picture->count == 0 ? "nothing to draw" : "more than a page holds");
    status = draw_canvas_open(&canvas, format, width, height, 2.0, write, user);
    if (status != DP_OK)
        return status;
    draw_set_color(&canvas, draw_black);
    draw_font(&canvas, 15.0, true);
    draw_text(&canvas, margin, 20.0, 0.0, picture->title);
    draw_set_color(&canvas, draw_grey);
    draw_font(&canvas, 11.0, false);
    draw_text(&canvas, margin, 40.0, 0.0, picture->subtitle);
    for (size_t l = 0; l < picture->count; l++) {
        draw_lane(&canvas, &picture->lanes[l], y, per_unit);
        y += lane_height(&picture->lanes[l]);
    }
    draw_axis(&canvas, picture, y, per_unit);
    draw_legend(&canvas, picture, y + axis_height + legend_height / 2.0);
    return draw_canvas_close(&canvas);
}
