/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_timeline.c: a timeline as a picture. */
#include "draw_timeline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "draw_canvas.h"

#define ROW_HEIGHT    24.0
#define ROW_GAP       4.0
#define NUMBER_SIZE   10.0
#define SHORTEST_PLOT 760.0
#define LONGEST_PLOT  14000.0
#define TALLEST_ROWS  30000.0
#define MANY_CELLS    40000 /* past that, a drawing program chokes on single boxes: they become one image */

static const double margin = 16.0, label_width = 58.0, idle_width = 58.0, head_height = 62.0, axis_height = 48.0,
                    legend_line = 20.0, one_line = 1200.0; /* a page this wide has room for the whole legend in one */

/* Columns of the palette, in the legend's order. */
enum { KIND_F, KIND_B, KIND_I, KIND_W, KINDS };

static const char *const kind_names[KINDS] = {"forward", "backward", "backward for input", "backward for weights"};

/* First and last shade of each kind. */
static const draw_color_t shades[KINDS][2] = {
    {{0.99, 0.80, 0.54}, {0.89, 0.50, 0.12}},
    {{0.47, 0.77, 0.45}, {0.16, 0.50, 0.23}},
    {{0.84, 0.94, 0.76}, {0.66, 0.85, 0.52}},
    {{0.67, 0.81, 0.97}, {0.25, 0.46, 0.78}},
};

/* A box of a row. */
typedef struct cell {
    int64_t start, end;
    int32_t microbatch;
    int16_t chunk;
    uint8_t kind;
    bool pair, strip; /* strip: at the foot of the row */
} cell_t;

typedef struct row {
    cell_t *cells;
    int64_t count;
    bool has_strip;
    double idle; /* of the window, 0 to 1 */
} row_t;

typedef struct page {
    const draw_timeline_t *picture;
    row_t *rows;
    int64_t start, end; /* window */
    int64_t ncells;
    bool has_kind[KINDS], has_pair;
    double plot_width, row_height, row_pitch, width, height;
} page_t;

/* ---- what there is to draw ---- */

static bool is_shown(const draw_timeline_t *picture, const dp_span_t *span)
{
    return (picture->step < 0 || span->step == picture->step) && span->kind == DP_SPAN_COMPUTE &&
           span->lane <= DP_LANE_ALL_TO_ALL;
}

static int kind_of(const dp_span_t *span)
{
    switch (span->pass) {
    case DP_OP_F:
        return KIND_F;
    case DP_OP_I:
        return KIND_I;
    case DP_OP_W:
        return KIND_W;
    default:
        return KIND_B;
    }
}

static int by_start(const void *a, const void *b)
{
    const cell_t *x = a, *y = b;

    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static cell_t cell_of(const draw_timeline_t *picture, const dp_span_t *span)
{
    return (cell_t){
        .start = span->start_ns,
        .end = span->end_ns,
        .microbatch = span->microbatch < 0 ? -1 : span->microbatch + (span->chunk == 1 ? picture->second_direction : 0),
        .chunk = span->chunk,
        .kind = (uint8_t)kind_of(span),
        .pair = span->pair != 0,
        .strip = span->lane == DP_LANE_ALL_TO_ALL};
}

static dp_status_t gather_row(page_t *page, int32_t index)
{
    const draw_timeline_t *picture = page->picture;
    row_t *row = &page->rows[index];
    int64_t count;
    const dp_span_t *spans = dp_timeline_spans(picture->timeline, picture->first_rank + index, &count);

    row->cells = malloc(((size_t)count + 1) * sizeof(*row->cells));
    if (row->cells == NULL)
        return dp_fail(DP_ERR_NOMEM, "drawing: no memory for %lld boxes", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        bool whole_step = spans[i].kind == DP_SPAN_STEP && (picture->step < 0 || spans[i].step == picture->step);

        if (!is_shown(picture, &spans[i]) && !whole_step)
            continue;
        page->start = spans[i].start_ns < page->start ? spans[i].start_ns : page->start;
        page->end = spans[i].end_ns > page->end ? spans[i].end_ns : page->end;
        if (whole_step)
            continue;
        row->cells[row->count] = cell_of(picture, &spans[i]);
        row->has_strip |= row->cells[row->count].strip;
        page->has_kind[row->cells[row->count].kind] = true;
        page->has_pair |= row->cells[row->count].pair;
        row->count++;
    }
    qsort(row->cells, (size_t)row->count, sizeof(*row->cells), by_start);
    page->ncells += row->count;
    return DP_OK;
}

static void measure_idle(page_t *page)
{
    for (int32_t r = 0; r < page->picture->nranks; r++) {
        row_t *row = &page->rows[r];
        int64_t reached = page->start, busy = 0;

        for (int64_t i = 0; i < row->count; i++) {
            int64_t from = row->cells[i].start > reached ? row->cells[i].start : reached;

            if (row->cells[i].end > from) {
                busy += row->cells[i].end - from;
                reached = row->cells[i].end;
            }
        }
        row->idle = page->end > page->start ? 1.0 - (double)busy / (double)(page->end - page->start) : 0.0;
    }
}

static dp_status_t gather(page_t *page)
{
    const draw_timeline_t *picture = page->picture;
    dp_status_t status = DP_OK;

    page->start = INT64_MAX;
    page->rows = calloc((size_t)picture->nranks, sizeof(*page->rows));
    if (page->rows == NULL)
        return dp_fail(DP_ERR_NOMEM, "drawing: no memory for %d rows", picture->nranks);
    for (int32_t r = 0; r < picture->nranks && status == DP_OK; r++)
        status = gather_row(page, r);
    if (status == DP_OK && page->ncells == 0)
        return dp_fail(DP_ERR_INVALID, "drawing: there is no operation in the rows and step asked for");
    measure_idle(page);
    return status;
}

static void let_go(page_t *page)
{
    for (int32_t r = 0; page->rows != NULL && r < page->picture->nranks; r++)
        free(page->rows[r].cells);
    free(page->rows);
}

/* ---- sizes ---- */

static int digits_of(int64_t number)
{
    int digits = 1;

    for (; number >= 10; number /= 10)
        digits++;
    return digits;
}

/* The time that most boxes last at least: every box that is as long gets its number. */
static int64_t short_cell(const page_t *page)
{
    int64_t shortest[KINDS] = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX}, least = INT64_MAX, most = 1;

    for (int32_t r = 0; r < page->picture->nranks; r++) {
        for (int64_t i = 0; i < page->rows[r].count; i++) {
            const cell_t *cell = &page->rows[r].cells[i];

            if (cell->end > cell->start && cell->end - cell->start < shortest[cell->kind])
                shortest[cell->kind] = cell->end - cell->start;
        }
    }
    for (int k = 0; k < KINDS; k++) {
        if (shortest[k] == INT64_MAX)
            continue;
        least = shortest[k] < least ? shortest[k] : least;
        most = shortest[k] > most ? shortest[k] : most;
    }
    return least > most / 4 ? least : most / 4;
}

static void lay_out(page_t *page)
{
    const draw_timeline_t *picture = page->picture;
    int64_t top_mb = 0, cell = short_cell(page);
    double window = (double)(page->end - page->start);

    for (int32_t r = 0; r < picture->nranks; r++)
        for (int64_t i = 0; i < page->rows[r].count; i++)
            top_mb = page->rows[r].cells[i].microbatch > top_mb ? page->rows[r].cells[i].microbatch : top_mb;
    page->plot_width = window / (double)(cell > 0 ? cell : 1) * (digits_of(top_mb) * NUMBER_SIZE * 0.64 + 6.0);
    page->plot_width = fmin(fmax(page->plot_width, SHORTEST_PLOT), LONGEST_PLOT);
    page->row_height = fmin(ROW_HEIGHT, TALLEST_ROWS / picture->nranks * 0.86);
    page->row_pitch = page->row_height + ROW_GAP * page->row_height / ROW_HEIGHT;
    page->width = margin + label_width + page->plot_width + idle_width + margin;
    page->height = head_height + page->row_pitch * picture->nranks + axis_height +
                   (page->width < one_line ? 2.0 : 1.0) * legend_line + margin;
}

static double plot_x(void)
{
    return margin + label_width;
}

static double time_x(const page_t *page, int64_t time)
{
    double window = (double)(page->end - page->start);

    return window > 0.0 ? (double)(time - page->start) / window * page->plot_width : 0.0;
}

static double row_y(const page_t *page, int32_t row)
{
    return head_height + row * page->row_pitch;
}

/* ---- boxes ---- */

/* How far from the first shade to the last a chunk is. */
static double depth_of(const draw_timeline_t *picture, int chunk)
{
    if (picture->chunks < 2 || chunk <= 0)
        return 0.0;
    return fmin(1.0, (double)chunk / (picture->chunks - 1));
}

static draw_color_t color_of(const draw_timeline_t *picture, int kind, int chunk)
{
    double depth = depth_of(picture, chunk);
    const draw_color_t *from = &shades[kind][0], *to = &shades[kind][1];

    return (draw_color_t){from->r + depth * (to->r - from->r), from->g + depth * (to->g - from->g),
                          from->b + depth * (to->b - from->b)};
}

static draw_color_t ink_on(draw_color_t paper)
{
    return 0.30 * paper.r + 0.59 * paper.g + 0.11 * paper.b < 0.58 ? draw_white : draw_black;
}

static void draw_cell(const page_t *page, cairo_t *cr, const row_t *row, double y, const cell_t *cell)
{
    static const draw_color_t edge = {0.35, 0.35, 0.38};
    double strip = row->has_strip ? page->row_height * 0.32 : 0.0;
    double x = time_x(page, cell->start), width = time_x(page, cell->end) - x;
    double top = cell->strip ? y + page->row_height - strip : y;
    double height = cell->strip ? strip : page->row_height - strip;
    draw_color_t color = color_of(page->picture, cell->kind, cell->chunk);
    char number[16];

    draw_fill_rect(cr, x, top, width, height, color);
    if (width >= 3.0 && height >= 6.0)
        draw_frame_rect(cr, x, top, width, height, 0.5, edge);
    if (cell->microbatch < 0 || cell->strip || height < NUMBER_SIZE)
        return;
    snprintf(number, sizeof(number), "%d", cell->microbatch);
    if (draw_text_width(cr, number) > width - 1.0)
        return;
    draw_set_color(cr, ink_on(color));
    draw_text(cr, x + width / 2.0, top + height / 2.0, 0.5, number);
}

static bool joins(const cell_t *cell, const cell_t *half)
{
    return half == NULL || (half->microbatch == cell->microbatch && half->chunk == cell->chunk);
}

/* Frames each pair: the boxes of one forward and one backward, which may alternate. */
static void draw_pairs(const page_t *page, cairo_t *cr, const row_t *row, double y)
{
    const cell_t *forward = NULL, *backward = NULL;
    int64_t start = 0, end = 0;

    for (int64_t i = 0; i <= row->count; i++) {
        const cell_t *cell = i < row->count ? &row->cells[i] : NULL;
        bool in_pair = cell != NULL && cell->pair && (!cell->strip || forward != NULL || backward != NULL);
        bool is_forward = in_pair && cell->kind == KIND_F;
        bool same = in_pair && joins(cell, is_forward ? forward : backward);

        if (cell != NULL && cell->strip && !same)
            continue;
        if (!same && (forward != NULL || backward != NULL)) {
            double x = time_x(page, start), width = time_x(page, end) - x;

            if (width >= 4.0)
                draw_frame_rect(cr, x, y, width, page->row_height, 1.8, draw_black);
            forward = backward = NULL;
        }
        if (!in_pair)
            continue;
        if (forward == NULL && backward == NULL) {
            start = cell->start;
            end = cell->end;
        }
        end = cell->end > end ? cell->end : end;
        *(is_forward ? &forward : &backward) = cell;
    }
}

static void draw_rows(const page_t *page, cairo_t *cr)
{
    draw_font(cr, NUMBER_SIZE, false);
    for (int32_t r = 0; r < page->picture->nranks; r++) {
        double y = r * page->row_pitch;

        if (page->row_height >= 4.0)
            draw_frame_rect(cr, 0.0, y, page->plot_width, page->row_height, 0.6, draw_light_grey);
        for (int64_t i = 0; i < page->rows[r].count; i++)
            draw_cell(page, cr, &page->rows[r], y, &page->rows[r].cells[i]);
        if (page->has_pair)
            draw_pairs(page, cr, &page->rows[r], y);
    }
}

/* The rows as one image inside a vector format. */
static dp_status_t draw_rows_as_image(const page_t *page, cairo_t *cr)
{
    double height = page->row_pitch * page->picture->nranks;
    double scale = fmin(1.0, fmin(32000.0 / height, sqrt(60e6 / (page->plot_width * height))));
    cairo_surface_t *image =
        cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)ceil(page->plot_width * scale), (int)ceil(height * scale));
    cairo_t *inner = cairo_create(image);
    cairo_status_t status;

    cairo_scale(inner, scale, scale);
    draw_set_color(inner, draw_white);
    cairo_paint(inner);
    draw_rows(page, inner);
    status = cairo_status(inner);
    cairo_destroy(inner);
    cairo_save(cr);
    cairo_scale(cr, 1.0 / scale, 1.0 / scale);
    cairo_set_source_surface(cr, image, 0.0, 0.0);
    cairo_paint(cr);
    cairo_restore(cr);
    cairo_surface_destroy(image);
    return status == CAIRO_STATUS_SUCCESS ? DP_OK
                                          : dp_fail(DP_ERR_NOMEM, "drawing: %s", cairo_status_to_string(status));
}

/* ---- around the boxes ---- */

static void draw_head(const page_t *page, cairo_t *cr)
{
    const draw_timeline_t *picture = page->picture;

    draw_set_color(cr, draw_black);
    draw_font(cr, 15.0, true);
    if (picture->title != NULL)
        draw_text(cr, margin, 20.0, 0.0, picture->title);
    draw_set_color(cr, draw_grey);
    draw_font(cr, 11.0, false);
    if (picture->subtitle != NULL)
        draw_text(cr, margin, 40.0, 0.0, picture->subtitle);
    draw_text(cr, page->width - margin, head_height - 10.0, 1.0, "idle");
}

static void draw_row_labels(const page_t *page, cairo_t *cr)
{
    int32_t every = page->row_pitch >= 12.0 ? 1 : (int32_t)ceil(14.0 / page->row_pitch);

    for (int32_t r = 0; r < page->picture->nranks; r += every) {
        double y = row_y(page, r) + page->row_height / 2.0;
        char text[32];

        draw_font(cr, 11.0, false);
        draw_set_color(cr, draw_black);
        snprintf(text, sizeof(text), "rank %d", page->picture->first_rank + r);
        draw_text(cr, plot_x() - 8.0, y, 1.0, text);
        draw_set_color(cr, draw_grey);
        snprintf(text, sizeof(text), "%.1f %%", fabs(page->rows[r].idle) * 100.0);
        draw_text(cr, page->width - margin, y, 1.0, text);
    }
}

static void draw_axis(const page_t *page, cairo_t *cr)
{
    double range = (double)(page->end - page->start) / page->picture->ns_per_unit;
    double y = row_y(page, page->picture->nranks) + 2.0, per_unit = range > 0.0 ? page->plot_width / range : 0.0;
    double step = draw_nice_step(range, page->plot_width / 90.0), label;
    char text[64];

    draw_line(cr, plot_x(), y, plot_x() + page->plot_width, y, 1.0, draw_grey);
    draw_font(cr, 10.5, false);
    for (double k = 0.0; k * step <= range * (1.0 + 1e-9) && step > 0.0; k += 1.0) {
        double x = plot_x() + k * step * per_unit;

        draw_line(cr, x, y, x, y + 4.0, 1.0, draw_grey);
        draw_tick_text(text, sizeof(text), k * step, step);
        draw_set_color(cr, draw_black);
        draw_text(cr, x, y + 13.0, 0.5, text);
    }
    draw_set_color(cr, draw_grey);
    snprintf(text, sizeof(text), "time, %s", page->picture->unit);
    for (label = plot_x(); label + 1500.0 < plot_x() + page->plot_width; label += 1500.0)
        draw_text(cr, label, y + 30.0, 0.0, text);
    draw_text(cr, label, y + 30.0, 0.0, text);
}

static void shade_text(const draw_timeline_t *picture, char *text, size_t bytes)
{
    switch (picture->placement) {
    case DP_PLACE_BIDIRECTIONAL:
        snprintf(text, bytes, "light: entered at rank 0, dark: entered at the last rank");
        break;
    case DP_PLACE_V:
        snprintf(text, bytes, "light: first leg of the V, dark: second leg");
        break;
    case DP_PLACE_LOOP:
        snprintf(text, bytes, "light to dark: model chunks 0 to %d of the rank", picture->chunks - 1);
        break;
    default:
        text[0] = 0;
    }
}

static double draw_swatches(const page_t *page, cairo_t *cr, double x, double y, int kind)
{
    int shown = page->picture->chunks < 4 ? page->picture->chunks : 4;

    for (int s = 0; s < shown; s++) {
        int chunk = shown > 1 ? s * (page->picture->chunks - 1) / (shown - 1) : 0;

        draw_fill_rect(cr, x, y - 6.0, 14.0, 12.0, color_of(page->picture, kind, chunk));
        draw_frame_rect(cr, x, y - 6.0, 14.0, 12.0, 0.5, draw_grey);
        x += 14.0;
    }
    return x + 6.0;
}

/* In lines no wider than the page: two are enough for the narrowest. */
static void draw_legend(const page_t *page, cairo_t *cr, double y)
{
    double x = plot_x(), right = page->width - margin;
    char text[128];

    draw_font(cr, 11.0, false);
    for (int kind = 0; kind <= KINDS + 1; kind++) {
        double before = 14.0 * (page->picture->chunks < 4 ? page->picture->chunks : 4) + 6.0, width;

        if (kind < KINDS)
            snprintf(text, sizeof(text), "%s", kind_names[kind]);
        else if (kind == KINDS)
            snprintf(text, sizeof(text), "overlapped forward and backward");
        else
            shade_text(page->picture, text, sizeof(text));
        if ((kind < KINDS && !page->has_kind[kind]) || (kind == KINDS && !page->has_pair) || text[0] == 0 ||
            (kind > KINDS && page->picture->chunks < 2))
            continue;
        width = before + draw_text_width(cr, text);
        if (x > plot_x() && x + width > right) {
            x = plot_x();
            y += legend_line;
        }
        if (kind < KINDS)
            x = draw_swatches(page, cr, x, y, kind);
        if (kind == KINDS) {
            draw_frame_rect(cr, x + 1.0, y - 6.0, 26.0, 12.0, 1.8, draw_black);
            x += 34.0;
        }
        draw_set_color(cr, kind > KINDS ? draw_grey : draw_black);
        x += draw_text(cr, x, y, 0.0, text) + 22.0;
    }
}

static dp_status_t draw_page(page_t *page, draw_format_t format, dp_write_fn write, void *user)
{
    draw_canvas_t canvas;
    dp_status_t status, closed;

    status = draw_canvas_open(&canvas, format, page->width, page->height, 1.5, write, user);
    if (status != DP_OK)
        return status;
    draw_head(page, canvas.cr);
    cairo_save(canvas.cr);
    cairo_translate(canvas.cr, plot_x(), head_height);
    if (format != DRAW_PNG && page->ncells > MANY_CELLS)
        status = draw_rows_as_image(page, canvas.cr);
    else
        draw_rows(page, canvas.cr);
    cairo_restore(canvas.cr);
    draw_row_labels(page, canvas.cr);
    draw_axis(page, canvas.cr);
    draw_legend(page, canvas.cr, row_y(page, page->picture->nranks) + axis_height + 8.0);
    closed = draw_canvas_close(&canvas);
    return status != DP_OK ? status : closed;
}

dp_status_t draw_timeline_write(const draw_timeline_t *picture, draw_format_t format, dp_write_fn write, void *user)
{
    page_t page = {.picture = picture};
    dp_status_t status = gather(&page);

    if (status == DP_OK) {
        lay_out(&page);
        status = draw_page(&page, format, write, user);
    }
    let_go(&page);
    return status;
}

static dp_status_t write_job(const void *job, draw_format_t format, dp_write_fn write, void *user)
{
    return draw_timeline_write(job, format, write, user);
}

dp_status_t draw_timeline_save(const draw_timeline_t *picture, const char *path)
{
    return draw_save(path, write_job, picture);
}
