/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * draw_svg.c: pages of SVG. */
#include "draw_svg.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define DIGIT_HEIGHT 0.729 /* of DejaVu Sans, in sizes */

/* Of DejaVu Sans, from ' ' to '~', in thousandths of the size. */
static const short advances[] = {318,  401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337,
                                 636,  636, 636, 636, 636, 636, 636, 636, 636, 636, 337, 337, 838, 838, 838, 531,
                                 1000, 684, 686, 698, 770, 632, 575, 775, 752, 295, 295, 656, 557, 863, 748, 787,
                                 603,  787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390, 337, 390, 838, 500,
                                 500,  613, 635, 550, 635, 615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612,
                                 635,  635, 411, 521, 392, 634, 592, 818, 592, 592, 525, 636, 337, 636, 838};
enum { OTHER_ADVANCE = 1000, BOLD_PERCENT = 112 };

static void write_out(draw_canvas_t *on)
{
    if (on->status == DP_OK && on->svg.used > 0)
        on->status = on->write(on->user, on->svg.text, on->svg.used);
    on->svg.used = 0;
}

static void add_bytes(draw_canvas_t *on, const char *bytes, size_t count)
{
    if (on->svg.used + count > sizeof(on->svg.text))
        write_out(on);
    if (count > sizeof(on->svg.text))
        return;
    memcpy(on->svg.text + on->svg.used, bytes, count);
    on->svg.used += count;
}

static void put(draw_canvas_t *on, const char *fmt, ...) DP_PRINTF(2, 3);
static void put(draw_canvas_t *on, const char *fmt, ...)
{
    char text[512];
    va_list list;
    int length;

    va_start(list, fmt);
    length = vsnprintf(text, sizeof(text), fmt, list);
    va_end(list);
    if (length > 0)
        add_bytes(on, text, (size_t)length < sizeof(text) ? (size_t)length : sizeof(text) - 1);
}

/* Two decimals and no zeros behind them. */
static void put_number(draw_canvas_t *on, const char *before, double value, const char *behind)
{
    char text[64];
    size_t length = (size_t)snprintf(text, sizeof(text), "%.2f", value);

    while (text[length - 1] == '0')
        length--;
    length -= text[length - 1] == '.';
    text[length] = 0;
    put(on, "%s%s%s", before, strcmp(text, "-0") == 0 ? "0" : text, behind);
}

static void put_color(draw_canvas_t *on, const char *name, draw_color_t color)
{
    put(on, " %s=\"#%02x%02x%02x\"", name, (unsigned)lround(color.r * 255.0), (unsigned)lround(color.g * 255.0),
        (unsigned)lround(color.b * 255.0));
}

/* Bytes of the UTF-8 character there, as far as XML can have it; 0: there is none. */
static size_t character(const unsigned char *at)
{
    const size_t bytes = at[0] < 0x80   ? 1
                         : at[0] < 0xc2 ? 0
                         : at[0] < 0xe0 ? 2
                         : at[0] < 0xf0 ? 3
                         : at[0] < 0xf5 ? 4
                                        : 0;

    if (bytes == 1)
        return at[0] >= 0x20 && at[0] != 0x7f;
    for (size_t k = 1; k < bytes; k++)
        if ((at[k] & 0xc0) != 0x80)
            return 0;
    if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) || (at[0] == 0xf0 && at[1] < 0x90) ||
        (at[0] == 0xf4 && at[1] > 0x8f) || (at[0] == 0xef && at[1] == 0xbf && at[2] > 0xbd))
        return 0;
    return bytes;
}

static void put_text(draw_canvas_t *on, const char *text)
{
    for (const unsigned char *at = (const unsigned char *)text; *at != 0;) {
        const size_t bytes = character(at);

        if (*at == '&' || *at == '<' || *at == '>')
            put(on, "&%s;", *at == '&' ? "amp" : *at == '<' ? "lt" : "gt");
        else if (bytes == 0)
            put(on, "?");
        else
            add_bytes(on, (const char *)at, bytes);
        at += bytes > 0 ? bytes : 1;
    }
}

static void put_box(draw_canvas_t *on, const double box[4])
{
    put_number(on, "<rect x=\"", on->svg.x + box[0], "\"");
    put_number(on, " y=\"", on->svg.y + box[1], "\"");
    put_number(on, " width=\"", box[2], "\"");
    put_number(on, " height=\"", box[3], "\"");
}

/* The box that waits for its frame; NULL: it has none. */
static void end_box(draw_canvas_t *on, const draw_color_t *edge, double line)
{
    if (!on->svg.has_box)
        return;
    on->svg.has_box = false;
    put_box(on, on->svg.box);
    put_color(on, "fill", on->svg.filled);
    if (edge != NULL) {
        put_color(on, "stroke", *edge);
        put_number(on, " stroke-width=\"", line, "\"");
    }
    if (on->svg.box_title[0] != 0) {
        put(on, "><title>");
        put_text(on, on->svg.box_title);
        put(on, "</title></rect>\n");
    } else {
        put(on, "/>\n");
    }
}

void draw_svg_begin(draw_canvas_t *on, double width, double height)
{
    put(on, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\"");
    put_number(on, " width=\"", width, "\"");
    put_number(on, " height=\"", height, "\"");
    put_number(on, " viewBox=\"0 0 ", width, "");
    put_number(on, " ", height, "\" font-family=\"DejaVu Sans, Verdana, sans-serif\"");
    put_color(on, "fill", draw_black);
    put(on, ">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n");
}

void draw_svg_end(draw_canvas_t *on)
{
    end_box(on, NULL, 0.0);
    put(on, "</svg>\n");
    write_out(on);
}

void draw_svg_fill(draw_canvas_t *on, double x, double y, double width, double height)
{
    end_box(on, NULL, 0.0);
    on->svg.has_box = width > 0.0 && height > 0.0;
    on->svg.filled = on->svg.color;
    memcpy(on->svg.box, (const double[4]){x, y, width, height}, sizeof(on->svg.box));
    memcpy(on->svg.box_title, on->svg.title, sizeof(on->svg.title));
    on->svg.title[0] = 0;
}

void draw_svg_frame(draw_canvas_t *on, double x, double y, double width, double height, double line)
{
    const double box[4] = {x, y, width, height};
    bool same = on->svg.has_box;

    for (int k = 0; k < 4; k++)
        same = same && box[k] == on->svg.box[k];
    end_box(on, same ? &on->svg.color : NULL, line);
    if (same || width <= 0.0 || height <= 0.0)
        return;
    put_box(on, box);
    put_color(on, "fill=\"none\" stroke", on->svg.color);
    put_number(on, " stroke-width=\"", line, "\"/>\n");
}

void draw_svg_line(draw_canvas_t *on, const double points[][2], int count, bool closed, double line)
{
    end_box(on, NULL, 0.0);
    put(on, closed ? "<polygon points=\"" : "<polyline points=\"");
    for (int k = 0; k < count; k++) {
        put_number(on, k > 0 ? " " : "", on->svg.x + points[k][0], ",");
        put_number(on, "", on->svg.y + points[k][1], "");
    }
    put(on, "\" fill=\"none\"");
    put_color(on, "stroke", on->svg.color);
    put_number(on, " stroke-width=\"", line, "\"/>\n");
}

/* The baseline is half a digit below the middle. */
void draw_svg_text(draw_canvas_t *on, double x, double y, double align, const char *text)
{
    const draw_color_t *color = &on->svg.color;

    end_box(on, NULL, 0.0);
    if (text[0] == 0)
        return;
    put_number(on, "<text x=\"", on->svg.x + x, "\"");
    put_number(on, " y=\"", on->svg.y + y + DIGIT_HEIGHT / 2.0 * on->svg.size, "\"");
    put_number(on, " font-size=\"", on->svg.size, "\"");
    if (on->svg.bold)
        put(on, " font-weight=\"bold\"");
    if (align > 0.0)
        put(on, " text-anchor=\"%s\"", align < 1.0 ? "middle" : "end");
    if (color->r != draw_black.r || color->g != draw_black.g || color->b != draw_black.b)
        put_color(on, "fill", *color);
    put(on, ">");
    put_text(on, text);
    put(on, "</text>\n");
}

double draw_svg_width(const draw_canvas_t *on, const char *text)
{
    double width = 0.0;

    for (const unsigned char *at = (const unsigned char *)text; *at != 0; at++)
        if (*at >= ' ' && *at <= '~')
            width += advances[*at - ' '];
        else if ((*at & 0xc0) != 0x80)
            width += OTHER_ADVANCE;
    return width * on->svg.size / 1000.0 * (on->svg.bold ? BOLD_PERCENT / 100.0 : 1.0);
}
