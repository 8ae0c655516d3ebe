/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * layouts_html.c: the answer of `dualpipe plan` as a page. It loads nothing and runs nothing. */
#include "layouts_output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/draw/draw_operations.h"
#include "tools/draw/draw_timeline.h"
#include "tools/io/size.h"

#define GIB SIZE_GIB

static const char head[] =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
    "<title>dualpipe plan</title>\n<style>\n"
    ":root { color-scheme: light dark; }\n"
    "body { max-width: 1100px; margin: 2em auto; padding: 0 1em; font: 14px/1.45 system-ui, sans-serif; }\n"
    "h1 { font-size: 20px; }\nh2 { font-size: 16px; margin: 2em 0 .5em; }\np { max-width: 48em; }\n"
    "pre, .wide { overflow-x: auto; }\npre { background: #8881; padding: 1em; }\n"
    "svg { background: #fff; display: block; width: 100%; height: auto; }\n"
    "table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }\n"
    "th, td { text-align: right; padding: 3px 8px; border-bottom: 1px solid #8884; white-space: nowrap; }\n"
    "th:first-child, td:first-child { text-align: left; }\n.why { white-space: normal; }\n"
    ".bar { display: flex; position: relative; width: 260px; height: 12px; background: #8882; }\n"
    ".long .bar { width: 560px; }\n.bar i { display: block; height: 100%; }\n"
    ".bar b { position: absolute; top: -3px; height: 18px; border-left: 2px solid #d22; }\n.out { opacity: .6; }\n"
    ".key i { display: inline-block; width: 12px; height: 12px; margin: 0 4px 0 12px; }\n"
    "</style>\n</head>\n<body>\n";

enum { KINDS = 6 };
static const char *const kinds[KINDS] = {
    "weights", "gradients", "optimizer", "kept activations", "logits and transfers", "reserve"};
static const char *const colors[KINDS] = {"#3565c9", "#8ecae6", "#7cb98a", "#f4a261", "#e9c46a", "#999999"};

static void put_escaped(FILE *to, const char *text)
{
    for (; *text != '\0'; text++)
        if (*text == '<' || *text == '&')
            fputs(*text == '<' ? "&lt;" : "&amp;", to);
        else
            fputc(*text, to);
}

/* What text says first. */
static dp_status_t put_asked(FILE *to, const layouts_report_t *r)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    if (file == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a page");
    layouts_put_head(file, r);
    if (fclose(file) != 0) {
        free(text);
        return dp_fail(DP_ERR_NOMEM, "no memory for a page");
    }
    fputs("<pre>", to);
    put_escaped(to, text);
    fputs("</pre>\n", to);
    free(text);
    return DP_OK;
}

/* ---- bars ---- */

static void put_key(FILE *to, const char *const *names, const char *const *paints, int count)
{
    fputs("<p class=\"key\">", to);
    for (int k = 0; k < count; k++)
        fprintf(to, "<i style=\"background:%s\"></i>%s", paints[k], names[k]);
    fputs("</p>\n", to);
}

/* A part of a bar that is `whole` long. */
static void put_part(FILE *to, double part, double whole, const char *paint, const char *name, const char *unit)
{
    fprintf(to, "<i style=\"width:%.2f%%;background:%s\" title=\"%s: %.4g %s\"></i>", 100 * part / whole, paint, name,
            part, unit);
}

/* Bytes by kind, with a line where the memory of a GPU ends. */
static void put_memory_bar(FILE *to, const dp_layout_t *l, double memory, double whole)
{
    const double bytes[KINDS] = {l->weights,
                                 l->gradients,
                                 l->optimizer,
                                 l->activations,
                                 l->logits + l->transfers,
                                 l->total - l->weights - l->gradients - l->optimizer - l->activations - l->logits -
                                     l->transfers};

    fputs("<div class=\"bar\">", to);
    for (int k = 0; k < KINDS; k++)
        put_part(to, bytes[k] / GIB, whole / GIB, colors[k], kinds[k], "GiB");
    fprintf(to, "<b style=\"left:%.2f%%\"></b></div>", 100 * memory / whole);
}

/* ---- the best layout ---- */

enum { MOST_ROWS = 16 }; /* of a picture */

/* Without the declaration that only a file begins with. */
static dp_status_t put_svg(FILE *to, const draw_timeline_t *picture)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    output_t output = {.file = file};
    dp_status_t status;

    if (file == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for a picture");
    status = draw_timeline_write(picture, DRAW_SVG, output_write, &output);
    if (fclose(file) != 0 && status >= 0)
        status = dp_fail(DP_ERR_NOMEM, "no memory for a picture");
    if (status >= 0 && strstr(text, "<svg") != NULL)
        fputs(strstr(text, "<svg"), to);
    free(text);
    return status;
}

static dp_status_t put_timeline(FILE *to, const dp_schedule_t *schedule, const dp_simulation_t *simulation)
{
    dp_timeline_t *operations = NULL;
    dp_status_t status = draw_operations(schedule, simulation->timeline, false, &operations);
    const draw_timeline_t picture = {.timeline = operations,
                                     .unit = "ms",
                                     .ns_per_unit = 1e6,
                                     .step = -1,
                                     .longest = 900,
                                     .nranks = schedule->ranks < MOST_ROWS ? schedule->ranks : MOST_ROWS,
                                     .chunks = schedule->chunks,
                                     .placement = schedule->placement,
                                     .second_direction = schedule->placement == DP_PLACE_BIDIRECTIONAL
                                                             ? dp_schedule_path_microbatches(schedule, 0)
                                                             : 0};

    if (status >= 0)
        status = put_svg(to, &picture);
    dp_timeline_free(operations);
    return status;
}

/* A step of few micro-batches: begin, end, and what repeats in between. */
static dp_status_t put_schedule(FILE *to, const layouts_report_t *r, const dp_layout_t *best)
{
    const int32_t rounds = best->pp >= 6 ? 2 : (11 + best->pp) / best->pp, few = rounds * best->pp;
    dp_simulation_t simulation = {.struct_size = sizeof(simulation)};
    dp_schedule_t *schedule = NULL;
    char name[64];
    dp_status_t status = dp_layouts_simulate(r->layouts, 0, few < best->microbatches ? few : 0, &schedule, &simulation);

    if (status < 0)
        return status;
    layouts_put_schedule(name, sizeof(name), best);
    fprintf(to, "<h2>A step of %s</h2>\n<p>%d of the %d micro-batches of a pipeline of %d ranks", name,
            (int)schedule->microbatches, (int)best->microbatches, (int)best->pp);
    if (schedule->ranks > MOST_ROWS)
        fprintf(to, ", its first %d", MOST_ROWS);
    fprintf(to, ": %.4g ms. With all of them, and %.4g s in which gradients are summed, a step takes %.4g s.</p>\n",
            simulation.step_time, best->reduce_time, best->step_time);
    status = put_timeline(to, schedule, &simulation);
    if (status == DP_ERR_UNSUPPORTED) {
        fputs("<p>There is no picture: ", to);
        put_escaped(to, dp_last_error());
        fputs(".</p>\n", to);
        status = DP_OK;
    }
    dp_simulation_clear(&simulation);
    dp_schedule_free(schedule);
    return status;
}

static dp_status_t put_ranks(FILE *to, const layouts_report_t *r, const dp_layout_t *best)
{
    const double memory = r->request->gpu->memory, whole = fmax(memory, best->total);
    dp_status_t status = DP_OK;

    fprintf(
        to,
        "<h2>Memory of each rank</h2>\n<table class=\"long\">\n<tr><th>rank</th><th>GiB of %.1f</th><th></th></tr>\n",
        memory / GIB);
    for (int32_t rank = 0; rank < best->pp && status >= 0; rank++) {
        dp_layout_t one = {.struct_size = sizeof(one)};

        status = dp_layouts_rank(r->layouts, 0, rank, &one);
        fprintf(to, "<tr class=\"rank\"><td>%d</td><td>%.1f</td><td>", (int)rank, one.total / GIB);
        put_memory_bar(to, &one, memory, whole);
        fputs("</td></tr>\n", to);
    }
    fputs("</table>\n", to);
    put_key(to, kinds, colors, KINDS);
    return status;
}

/* ---- all of them ---- */

enum { SHARES = 3 };
static const char *const shares[SHARES] = {"computation", "waiting and recomputation", "sums of gradients"};
static const char *const share_colors[SHARES] = {"#7cb98a", "#f4a261", "#8ecae6"};

static void put_steps(FILE *to, const layouts_report_t *r, int32_t timed)
{
    double longest = 0;

    for (int32_t i = 0; i < timed; i++)
        longest = fmax(longest, layouts_row(r, i).step_time);
    fputs(
        "<h2>Seconds of a step</h2>\n<table class=\"long\">\n<tr><th>schedule</th><th>pp</th><th>ep</th><th>step s</th>"
        "<th></th></tr>\n",
        to);
    for (int32_t i = 0; i < timed; i++) {
        const dp_layout_t l = layouts_row(r, i);
        const double useful = l.useful * l.step_time,
                     times[SHARES] = {useful, l.step_time - useful - l.reduce_time, l.reduce_time};
        char name[64];

        layouts_put_schedule(name, sizeof(name), &l);
        fprintf(to, "<tr class=\"step\"><td>%s</td><td>%d</td><td>%d</td><td>%.4g</td><td><div class=\"bar\">", name,
                (int)l.pp, (int)l.ep, l.step_time);
        for (int k = 0; k < SHARES; k++)
            put_part(to, times[k], longest, share_colors[k], shares[k], "s");
        fputs("</div></td></tr>\n", to);
    }
    fputs("</table>\n", to);
    put_key(to, shares, share_colors, SHARES);
}

static void put_row(FILE *to, const layouts_report_t *r, int32_t row)
{
    const double memory = r->request->gpu->memory;
    const dp_layout_t l = layouts_row(r, row);
    char name[64];

    layouts_put_schedule(name, sizeof(name), &l);
    fprintf(to, "<tr class=\"layout%s\"><td>%s</td><td>%d</td><td>%d</td><td>%d</td><td>%d</td><td>%s</td>",
            l.fits ? "" : " out", name, (int)l.pp, (int)l.ep, (int)l.dp, (int)l.microbatches,
            layouts_levels[l.recompute]);
    if (l.fits && l.timed) {
        fprintf(to, "<td>%.4g</td><td>%+.1f %%</td><td>%.1f %%</td>", l.step_time, 100 * l.gain, 100 * l.useful);
    } else {
        fputs("<td class=\"why\" colspan=\"3\">", to);
        if (l.reason[0] != '\0')
            put_escaped(to, l.reason);
        else if (!l.fits)
            fprintf(to, "%.1f GiB too much", (l.total - memory) / GIB);
        else
            fputs("slower", to);
        fputs("</td>", to);
    }
    fprintf(to, "<td>%.1f</td><td>", l.total / GIB);
    put_memory_bar(to, &l, memory, fmax(memory, l.total));
    fputs("</td></tr>\n", to);
}

static void put_all_layouts(FILE *to, const layouts_report_t *r, int32_t rows)
{
    fputs(
        "<h2>Layouts</h2>\n<div class=\"wide\"><table>\n<tr><th>schedule</th><th>pp</th><th>ep</th><th>dp</th><th>M</th>"
        "<th>again</th><th>step s</th><th>gain</th><th>useful</th><th>GiB</th><th>of a GPU</th></tr>\n",
        to);
    for (int32_t i = 0; i < rows; i++)
        put_row(to, r, i);
    fputs("</table></div>\n", to);
    put_key(to, kinds, colors, KINDS);
    fputs(
        "<p>M: micro-batches of a pipeline. again: what is recomputed. gain: over 1f1b with the same ranks. useful: "
        "computation that one rank alone would do as well. GiB: of the fullest GPU, reserve included; the line is where "
        "its memory ends. Times are estimates; ratios between layouts are better than the times themselves.</p>\n",
        to);
}

dp_status_t layouts_put_html(FILE *to, const layouts_report_t *r)
{
    const dp_layouts_about_t all = layouts_about(r);
    const int32_t rows = all.count < r->show ? all.count : r->show;
    dp_status_t status;

    fputs(head, to);
    fputs("<h1>", to);
    put_escaped(to, all.advice);
    fputs("</h1>\n", to);
    status = put_asked(to, r);
    if (status >= 0 && all.timed > 0) {
        const dp_layout_t best = layouts_row(r, 0);

        if (best.pp > 1)
            status = put_schedule(to, r, &best);
        if (status >= 0)
            status = put_ranks(to, r, &best);
        put_steps(to, r, all.timed < rows ? all.timed : rows);
    }
    put_all_layouts(to, r, rows);
    fputs("</body>\n</html>\n", to);
    return status;
}
