/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_timeline.c: a timeline as a picture. */
#include "draw_timeline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "draw_canvas.h"

#define ROW_HEIGHT    24.0
#define LANES_HEIGHT  48.0 /* of a row with lanes: names, computation, all-to-all */
#define NAMES_HEIGHT  0.26 /* of that */
#define STRIP_HEIGHT  0.30
#define LANES_BOX     3.0    /* least width of most boxes there: they have no numbers */
#define NAMED_BOX     30.0   /* the same on average of forwards alone, whose boxes have names, */
#define NAMED_PLOT    3000.0 /* where the plot is no wider than this */
#define ROW_GAP       4.0
#define NUMBER_SIZE   10.0
#define NAME_SIZE     8.5
#define SHORTEST_PLOT 760.0
#define LONGEST_PLOT  14000.0
#define TALLEST_ROWS  30000.0
/* past that, a drawing program chokes on single boxes: they become one image */
#define MANY_CELLS 40000

static const double margin = 16.0, head_height = 62.0, bare_height = 22.0, label_width = 58.0, idle_width = 58.0,
                    axis_height = 48.0,
                    /* a page this wide has room for the whole legend in one */
    legend_line = 20.0, one_line = 1200.0;

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
    uint16_t name;
    uint8_t kind;
    uint8_t pair;
    bool strip; /* all-to-all, at the foot of the row */
} cell_t;

/* What a rank runs as one operation. */
typedef struct group {
    cell_t passes[DP_BRAID_PASSES];
    int npasses;
    uint8_t pair; /* 0: it has one pass */
    bool on[2];   /* has boxes in the lane; [1]: in the strip */
    int64_t start[2], end[2];
} group_t;

typedef struct row {
    cell_t *cells;
    group_t *groups; /* [count], in the order of the operations */
    int64_t count, ngroups;
    double idle; /* of the window, 0 to 1: nothing computes */
} row_t;

typedef struct page {
    const draw_timeline_t *picture;
    row_t *rows;
    int64_t start, end; /* window */
    int64_t ncells;
    bool has_kind[KINDS], has_pair, has_strip;
    bool serves; /* forwards alone beside each other: by micro-batch in two colours, with names */
    double plot_width, row_height, row_pitch, head, width, height;
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
    case DP_OP_R: /* for its I, right before it */
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
        .name = span->name,
        .kind = (uint8_t)kind_of(span),
        .pair = span->pair,
        .strip = span->lane == DP_LANE_ALL_TO_ALL};
}

static bool is_same_pass(const cell_t *a, const cell_t *b)
{
    return a->microbatch == b->microbatch && a->chunk == b->chunk && (a->kind == KIND_F) == (b->kind == KIND_F);
}

static bool belongs(const group_t *group, const cell_t *cell)
{
    return group->pair == cell->pair && (cell->pair != 0 || is_same_pass(&group->passes[0], cell));
}

/* An I and a W of the same micro-batch are a B. */
static void add_to_group(group_t *group, const cell_t *cell)
{
    int k = 0;

    group->pair = cell->pair;
    group->start[cell->strip] = group->on[cell->strip] ? group->start[cell->strip] : cell->start;
    group->end[cell->strip] = cell->end;
    group->on[cell->strip] = true;
    while (k < group->npasses && !is_same_pass(&group->passes[k], cell))
        k++;
    if (k == group->npasses && k < DP_BRAID_PASSES)
        group->passes[group->npasses++] = *cell;
    else if (k < group->npasses && group->passes[k].kind != cell->kind)
        group->passes[k].kind = KIND_B;
}

/* From the group `at` on: the lanes have their operations in the same order, of which one may have
 * none. */
static group_t *group_of(row_t *row, const cell_t *cell, int64_t *at)
{
    for (int64_t k = *at; k < row->ngroups && k < *at + DP_SPAN_PAIRS; k++)
        if (belongs(&row->groups[k], cell)) {
            *at = k;
            return &row->groups[k];
        }
    *at = cell->strip ? *at : row->ngroups;
    return &row->groups[row->ngroups++];
}

static void gather_groups(row_t *row, bool strip)
{
    int64_t at = 0;

    for (int64_t i = 0; i < row->count; i++)
        if (row->cells[i].strip == strip)
            add_to_group(group_of(row, &row->cells[i], &at), &row->cells[i]);
}

static dp_status_t gather_row(page_t *page, int32_t index)
{
    const draw_timeline_t *picture = page->picture;
    row_t *row = &page->rows[index];
    int64_t count;
    const dp_span_t *spans = dp_timeline_spans(picture->timeline, picture->first_rank + index, &count);

    row->cells = malloc(((size_t)count + 1) * sizeof(*row->cells));
    row->groups = calloc((size_t)count + 1, sizeof(*row->groups));
    if (row->cells == NULL || row->groups == NULL)
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
        page->has_strip |= row->cells[row->count].strip;
        page->has_kind[row->cells[row->count].kind] = true;
        page->has_pair |= row->cells[row->count].pair != 0;
        row->count++;
    }
    qsort(row->cells, (size_t)row->count, sizeof(*row->cells), by_start);
    gather_groups(row, false);
    gather_groups(row, true);
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

            if (row->cells[i].end > from && !row->cells[i].strip) {
                busy += row->cells[i].end - from;
                reached = row->cells[i].end;
            }
        }
        row->idle = page->end > page->start ? 1.0 - (double)busy / (double)(page->end - page->start) : 0.0;
    }
}

static dp_status_t gather_spans(page_t *page)
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
    page->serves = page->has_strip && page->has_pair && !page->has_kind[KIND_B] && !page->has_kind[KIND_I] &&
                   !page->has_kind[KIND_W];
    return status;
}

static void let_go_row(row_t *row)
{
    free(row->cells);
    free(row->groups);
}

static void free_picture(page_t *page)
{
    for (int32_t r = 0; page->rows != NULL && r < page->picture->nranks; r++)
        let_go_row(&page->rows[r]);
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
    page->plot_width = window / (double)(cell > 0 ? cell : 1) *
                       (page->has_strip ? LANES_BOX : digits_of(top_mb) * NUMBER_SIZE * 0.64 + 6.0);
    if (page->serves)
        page->plot_width = fmin((double)page->ncells / picture->nranks * NAMED_BOX, NAMED_PLOT);
    page->plot_width =
        fmin(fmax(page->plot_width, SHORTEST_PLOT), picture->longest > 0 ? picture->longest : LONGEST_PLOT);
    page->row_height = fmin(page->has_strip ? LANES_HEIGHT : ROW_HEIGHT, TALLEST_ROWS / picture->nranks * 0.86);
    page->row_pitch = page->row_height + fmin(ROW_GAP, ROW_GAP * page->row_height / ROW_HEIGHT);
    page->head = picture->title != NULL || picture->subtitle != NULL ? head_height : bare_height;
    page->width = margin + label_width + page->plot_width + idle_width + margin;
    page->height = page->head + page->row_pitch * picture->nranks + axis_height +
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
    return page->head + row * page->row_pitch;
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

/* A lane within a row that begins at y. */
static void lane_of(const page_t *page, bool strip, double y, double *top, double *height)
{
    double names = page->has_strip ? NAMES_HEIGHT : 0.0, foot = page->has_strip ? STRIP_HEIGHT : 0.0;

    *top = y + page->row_height * (strip ? 1.0 - foot : names);
    *height = page->row_height * (strip ? foot : 1.0 - names - foot);
}

/* "rank 3: attention F 5, 12 to 13.5", for who points at the box. */
static void name_cell(const page_t *page, draw_canvas_t *on, int32_t rank, const cell_t *cell)
{
    static const char letters[KINDS] = {'F', 'B', 'I', 'W'};
    const char *name = dp_timeline_name_text(page->picture->timeline, cell->name);
    const double unit = page->picture->ns_per_unit;
    char text[160], which[32] = "";

    if (name[0] == 0 && cell->microbatch >= 0)
        snprintf(which, sizeof(which), "%c %d", letters[cell->kind], cell->microbatch);
    snprintf(text, sizeof(text), "rank %d: %s%s, %.6g to %.6g", rank, name, which,
             (double)(cell->start - page->start) / unit, (double)(cell->end - page->start) / unit);
    draw_title(on, text);
}

static void draw_cell(const page_t *page, draw_canvas_t *on, double y, const cell_t *cell)
{
    static const draw_color_t edge = {0.35, 0.35, 0.38};
    double x = time_x(page, cell->start), width = time_x(page, cell->end) - x, top, height;
    bool odd = page->serves && cell->microbatch % 2 == 1;
    draw_color_t color = color_of(page->picture, odd ? KIND_W : cell->kind, cell->chunk);
    char number[16];
    const char *text = number;

    lane_of(page, cell->strip, y, &top, &height);
    draw_fill_rect(on, x, top, width, height, color);
    if (width >= 3.0 && height >= 6.0)
        draw_frame_rect(on, x, top, width, height, page->has_strip ? 0.3 : 0.5, edge);
    if (cell->microbatch < 0 || (page->has_strip && !page->serves) || height < NUMBER_SIZE)
        return;
    snprintf(number, sizeof(number), "%d", cell->microbatch);
    if (page->serves)
        text = dp_timeline_name_text(page->picture->timeline, cell->name);
    if (draw_text_width(on, text) > width - 1.0)
        return;
    draw_set_color(on, ink_on(color));
    draw_text(on, x + width / 2.0, top + height / 2.0, 0.5, text);
}

/* "F0.3|B1.5", chunk and micro-batch, or "F3|B5" where the number says which; as much of it as
 * there is room for. */
static void draw_names(const page_t *page, draw_canvas_t *on, const group_t *group, double x, double width, double y)
{
    static const char letters[KINDS] = {'F', 'B', 'I', 'W'};
    char text[24 * DP_BRAID_PASSES] = "";
    size_t used = 0;

    for (int k = 0; k < group->npasses; k++) {
        const cell_t *pass = &group->passes[k];
        const char *between = k > 0 ? "|" : "";

        if (page->picture->chunks > 1 && page->picture->second_direction == 0)
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%c%d.%d", between, letters[pass->kind],
                                     pass->chunk, pass->microbatch);
        else
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%c%d", between, letters[pass->kind],
                                     pass->microbatch);
    }
    while (used > 0 && draw_text_width(on, text) > width - 2.0) {
        while (used > 0 && text[used - 1] != '|')
            used--;
        text[used > 0 ? --used : 0] = 0;
    }
    draw_set_color(on, group->pair != 0 ? draw_black : draw_grey);
    draw_text(on, x + 1.0, y, 0.0, text);
}

/* Around its boxes in both lanes, which it may have at different times. */
static void draw_frame(const page_t *page, draw_canvas_t *on, const group_t *group, double y)
{
    double from[2], to[2], top[2], height[2];

    for (int lane = 0; lane < 2; lane++) {
        from[lane] = time_x(page, group->start[lane]);
        to[lane] = time_x(page, group->end[lane]);
        lane_of(page, lane, y, &top[lane], &height[lane]);
    }
    if (group->on[0] && group->on[1] && from[1] < to[0] && from[0] < to[1]) {
        const double corners[8][2] = {{from[0], top[0]},
                                      {to[0], top[0]},
                                      {to[0], top[1]},
                                      {to[1], top[1]},
                                      {to[1], top[1] + height[1]},
                                      {from[1], top[1] + height[1]},
                                      {from[1], top[1]},
                                      {from[0], top[1]}};

        draw_outline(on, corners, 8, 1.8, draw_black);
        return;
    }
    for (int lane = 0; lane < 2; lane++)
        if (group->on[lane] && to[lane] - from[lane] >= 4.0)
            draw_frame_rect(on, from[lane], top[lane], to[lane] - from[lane], height[lane], 1.8, draw_black);
}

static void draw_groups(const page_t *page, draw_canvas_t *on, const row_t *row, double y)
{
    double named = 0.0; /* up to there in the line of names */

    for (int64_t k = 0; k < row->ngroups; k++) {
        const group_t *group = &row->groups[k];
        double x = fmax(named, time_x(page, group->start[0])), end = time_x(page, group->end[0]);

        if (group->pair != 0)
            draw_frame(page, on, group, y);
        if (!page->has_strip || !group->on[0] || page->row_height < LANES_HEIGHT)
            continue;
        draw_names(page, on, group, x, end - x, y + 0.5 * NAMES_HEIGHT * LANES_HEIGHT);
        named = end;
    }
}

static void draw_rows(const page_t *page, draw_canvas_t *on)
{
    for (int32_t r = 0; r < page->picture->nranks; r++) {
        double y = r * page->row_pitch;

        if (page->row_height >= 4.0)
            draw_frame_rect(on, 0.0, y, page->plot_width, page->row_height, 0.6, draw_light_grey);
        draw_font(on, page->serves ? NAME_SIZE : NUMBER_SIZE, false);
        for (int64_t i = 0; i < page->rows[r].count; i++) {
            if (page->ncells <= MANY_CELLS)
                name_cell(page, on, page->picture->first_rank + r, &page->rows[r].cells[i]);
            draw_cell(page, on, y, &page->rows[r].cells[i]);
        }
        draw_font(on, NUMBER_SIZE, false);
        draw_groups(page, on, &page->rows[r], y);
    }
}

static void draw_rows_of(const void *page, draw_canvas_t *on)
{
    draw_rows(page, on);
}

/* ---- around the boxes ---- */

static void draw_head(const page_t *page, draw_canvas_t *on)
{
    const draw_timeline_t *picture = page->picture;

    draw_set_color(on, draw_black);
    draw_font(on, 15.0, true);
    if (picture->title != NULL)
        draw_text(on, margin, 20.0, 0.0, picture->title);
    draw_set_color(on, draw_grey);
    draw_font(on, 11.0, false);
    if (picture->subtitle != NULL)
        draw_text(on, margin, 40.0, 0.0, picture->subtitle);
    draw_text(on, page->width - margin, page->head - 10.0, 1.0, "idle");
}

static void draw_row_labels(const page_t *page, draw_canvas_t *on)
{
    int32_t every = page->row_pitch >= 12.0 ? 1 : (int32_t)ceil(14.0 / page->row_pitch);

    for (int32_t r = 0; r < page->picture->nranks; r += every) {
        double y = row_y(page, r) + page->row_height / 2.0;
        char text[32];

        draw_font(on, 11.0, false);
        draw_set_color(on, draw_black);
        snprintf(text, sizeof(text), "rank %d", page->picture->first_rank + r);
        draw_text(on, plot_x() - 8.0, page->has_strip ? row_y(page, r) + 0.5 * NAMES_HEIGHT * page->row_height : y, 1.0,
                  text);
        draw_set_color(on, draw_grey);
        snprintf(text, sizeof(text), "%.1f %%", fabs(page->rows[r].idle) * 100.0);
        draw_text(on, page->width - margin, y, 1.0, text);
        draw_font(on, 9.5, false);
        for (int lane = 0; lane < 2 && page->has_strip && page->row_height == LANES_HEIGHT; lane++) {
            double top, height;

            lane_of(page, lane, row_y(page, r), &top, &height);
            draw_text(on, plot_x() - 8.0, top + height / 2.0, 1.0, lane == 0 ? "compute" : "all-to-all");
        }
    }
}

static void draw_axis(const page_t *page, draw_canvas_t *on)
{
    double range = (double)(page->end - page->start) / page->picture->ns_per_unit;
    double y = row_y(page, page->picture->nranks) + 2.0, per_unit = range > 0.0 ? page->plot_width / range : 0.0;
    double step = draw_nice_step(range, page->plot_width / 90.0), label;
    char text[64];

    draw_line(on, plot_x(), y, plot_x() + page->plot_width, y, 1.0, draw_grey);
    draw_font(on, 10.5, false);
    for (double k = 0.0; k * step <= range * (1.0 + 1e-9) && step > 0.0; k += 1.0) {
        double x = plot_x() + k * step * per_unit;

        draw_line(on, x, y, x, y + 4.0, 1.0, draw_grey);
        draw_tick_text(text, sizeof(text), k * step, step);
        draw_set_color(on, draw_black);
        draw_text(on, x, y + 13.0, 0.5, text);
    }
    draw_set_color(on, draw_grey);
    snprintf(text, sizeof(text), "time, %s", page->picture->unit);
    for (label = plot_x(); label + 1500.0 < plot_x() + page->plot_width; label += 1500.0)
        draw_text(on, label, y + 30.0, 0.0, text);
    draw_text(on, label, y + 30.0, 0.0, text);
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

static double draw_swatches(const page_t *page, draw_canvas_t *on, double x, double y, int kind)
{
    int shown = page->picture->chunks < 4 ? page->picture->chunks : 4;

    for (int s = 0; s < shown; s++) {
        int chunk = shown > 1 ? s * (page->picture->chunks - 1) / (shown - 1) : 0;

        draw_fill_rect(on, x, y - 6.0, 14.0, 12.0, color_of(page->picture, kind, chunk));
        draw_frame_rect(on, x, y - 6.0, 14.0, 12.0, 0.5, draw_grey);
        x += 14.0;
    }
    return x + 6.0;
}

/* In lines no wider than the page: two are enough for the narrowest. */
static void draw_legend(const page_t *page, draw_canvas_t *on, double y)
{
    double x = plot_x(), right = page->width - margin;
    char text[128];

    draw_font(on, 11.0, false);
    for (int kind = 0; kind <= KINDS + 1; kind++) {
        double before = 14.0 * (page->picture->chunks < 4 ? page->picture->chunks : 4) + 6.0, width;

        if (kind < KINDS && page->serves)
            snprintf(text, sizeof(text), "%s micro-batches", kind == KIND_F ? "even" : "odd");
        else if (kind < KINDS)
            snprintf(text, sizeof(text), "%s", kind_names[kind]);
        else if (kind == KINDS)
            snprintf(text, sizeof(text),
                     page->has_strip ? "run beside each other, as a pair or a braid"
                                     : "overlapped forward and backward");
        else
            shade_text(page->picture, text, sizeof(text));
        if ((kind < KINDS && !page->has_kind[kind] && !(page->serves && kind == KIND_W)) ||
            (kind == KINDS && !page->has_pair) || text[0] == 0 || (kind > KINDS && page->picture->chunks < 2))
            continue;
        width = before + draw_text_width(on, text);
        if (x > plot_x() && x + width > right) {
            x = plot_x();
            y += legend_line;
        }
        if (kind < KINDS)
            x = draw_swatches(page, on, x, y, kind);
        if (kind == KINDS) {
            draw_frame_rect(on, x + 1.0, y - 6.0, 26.0, 12.0, 1.8, draw_black);
            x += 34.0;
        }
        draw_set_color(on, kind > KINDS ? draw_grey : draw_black);
        x += draw_text(on, x, y, 0.0, text) + 22.0;
    }
}

static dp_status_t draw_page(page_t *page, draw_format_t format, dp_write_fn write, void *user)
{
    draw_canvas_t canvas;
    dp_status_t status, closed;

    status = draw_canvas_open(&canvas, format, page->width, page->height, 1.5, write, user);
    if (status != DP_OK)
        return status;
    draw_head(page, &canvas);
    draw_move(&canvas, plot_x(), page->head);
    if (format == DRAW_PDF && page->ncells > MANY_CELLS)
        status = draw_as_image(&canvas, page->plot_width, page->row_pitch * page->picture->nranks, draw_rows_of, page);
    else
        draw_rows(page, &canvas);
    draw_move(&canvas, -plot_x(), -page->head);
    draw_row_labels(page, &canvas);
    draw_axis(page, &canvas);
    draw_legend(page, &canvas, row_y(page, page->picture->nranks) + axis_height + 8.0);
    closed = draw_canvas_close(&canvas);
    return status != DP_OK ? status : closed;
}

dp_status_t draw_timeline_write(const draw_timeline_t *picture, draw_format_t format, dp_write_fn write, void *user)
{
    page_t page = {.picture = picture};
    dp_status_t status = gather_spans(&page);

    if (status == DP_OK) {
        lay_out(&page);
        status = draw_page(&page, format, write, user);
    }
    free_picture(&page);
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
