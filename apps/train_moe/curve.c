/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * curve.c: the loss over the steps as an SVG: a trainer needs no drawing library to start. */
#include <math.h>

#include "tools/io/output.h"
#include "train_moe.h"

enum { WIDTH = 800, HEIGHT = 450, LEFT = 60, RIGHT = 20, TOP = 40, BOTTOM = 50 };

typedef struct axes {
    double steps, low, high;
} axes_t;

static double x_of(const axes_t *a, double step)
{
    return LEFT + (WIDTH - LEFT - RIGHT) * step / a->steps;
}

static double y_of(const axes_t *a, double loss)
{
    return TOP + (HEIGHT - TOP - BOTTOM) * (a->high - loss) / (a->high - a->low);
}

static axes_t find_axes(const history_t *h)
{
    double high = h->frequency_loss;

    for (int64_t i = 0; i < h->steps; i++)
        high = fmax(high, h->loss[i]);
    return (axes_t){.steps = (double)h->steps, .low = 0, .high = ceil(high)};
}

/* 1, 2 or 5 times a power of ten, so that there are at most ten of them. */
static double tick(double range)
{
    const double ten = pow(10, floor(log10(range / 10)));
    const double steps[] = {1, 2, 5, 10};

    for (int i = 0; i < 4; i++)
        if (range / (steps[i] * ten) <= 10)
            return steps[i] * ten;
    return 10 * ten;
}

static void draw_axes(FILE *f, const axes_t *a)
{
    for (double y = a->low; y <= a->high + 1e-9; y += tick(a->high - a->low))
        fprintf(f,
                "<path d='M%d %.1fH%d' stroke='#ddd'/>"
                "<text x='%d' y='%.1f' text-anchor='end'>%g</text>\n",
                LEFT, y_of(a, y), WIDTH - RIGHT, LEFT - 8, y_of(a, y) + 4, y);
    for (double x = 0; x <= a->steps + 1e-9; x += fmax(1, tick(a->steps)))
        fprintf(f, "<text x='%.1f' y='%d' text-anchor='middle'>%g</text>\n", x_of(a, x), HEIGHT - BOTTOM + 20, x);
    fprintf(f,
            "<path d='M%d %dV%dH%d' fill='none' stroke='#333'/>"
            "<text x='%d' y='%d' text-anchor='middle'>training steps</text>"
            "<text x='%d' y='%d'>loss, nats per byte</text>\n",
            LEFT, TOP, HEIGHT - BOTTOM, WIDTH - RIGHT, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, 10, TOP - 20);
}

static void draw_key(FILE *f, int row, const char *colour, const char *text)
{
    fprintf(f,
            "<rect x='%d' y='%d' width='14' height='4' fill='%s'/>"
            "<text x='%d' y='%d'>%s</text>\n",
            WIDTH - 260, TOP + 10 + 20 * row, colour, WIDTH - 240, TOP + 16 + 20 * row, text);
}

static void draw_lines(FILE *f, const axes_t *a, const history_t *h)
{
    fprintf(f, "<path d='M%d %.1fH%d' stroke='#888' stroke-dasharray='6 4'/>\n", LEFT, y_of(a, h->frequency_loss),
            WIDTH - RIGHT);
    fputs("<polyline fill='none' stroke='#1f6fb4' stroke-width='1.2' points='", f);
    for (int64_t i = 0; i < h->steps; i++)
        fprintf(f, "%.1f,%.2f ", x_of(a, (double)i + 1), y_of(a, h->loss[i]));
    fputs("'/>\n", f);
    for (int64_t i = 0; i < h->nvalid; i++)
        fprintf(f, "<circle cx='%.1f' cy='%.2f' r='4' fill='#d1582a'/>\n", x_of(a, (double)h->valid_step[i]),
                y_of(a, h->valid_loss[i]));
}

static void draw_history(FILE *f, const history_t *h)
{
    const axes_t a = find_axes(h);

    fprintf(f,
            "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' font-family='sans-serif' "
            "font-size='12'>\n"
            "<rect width='100%%' height='100%%' fill='white'/>\n",
            WIDTH, HEIGHT);
    draw_axes(f, &a);
    draw_lines(f, &a, h);
    draw_key(f, 0, "#1f6fb4", "training text");
    draw_key(f, 1, "#d1582a", "held-out text");
    draw_key(f, 2, "#888", "guessing bytes by their frequency");
    fputs("</svg>\n", f);
}

dp_status_t curve_write(const history_t *history, const char *path)
{
    output_t output;
    const dp_status_t status = output_open(&output, path);

    if (status < 0)
        return status;
    draw_history(output.file, history);
    return output_close(&output, DP_OK);
}
