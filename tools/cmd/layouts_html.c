/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * layouts_html.c: the answer of `dualpipe plan` as a page. It loads nothing and runs nothing. */
#include "layouts_output.h"

#include <stdlib.h>

#include "tools/io/size.h"

#define GIB SIZE_GIB

static const char head[] =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
    "<title>dualpipe plan</title>\n<style>\n"
    "body { max-width: 1100px; margin: 2em auto; padding: 0 1em; font: 14px/1.45 system-ui, sans-serif; }\n"
    "h1 { font-size: 20px; }\npre { overflow-x: auto; background: #8881; padding: 1em; }\n"
    "table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }\n"
    "th, td { text-align: right; padding: 3px 8px; border-bottom: 1px solid #8884; }\n"
    "th:first-child, td:first-child { text-align: left; }\n"
    ".bar { display: flex; width: 260px; height: 12px; background: #8882; }\n"
    ".bar i { display: block; height: 100%; }\n.out { opacity: .6; }\n"
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

/* Of the memory of a GPU, or of what is needed where that is more. */
static void put_bar(FILE *to, const dp_layout_t *l, double memory)
{
    const double bytes[KINDS] = {l->weights,
                                 l->gradients,
                                 l->optimizer,
                                 l->activations,
                                 l->logits + l->transfers,
                                 l->total - l->weights - l->gradients - l->optimizer - l->activations - l->logits -
                                     l->transfers};
    const double whole = l->total > memory ? l->total : memory;

    fputs("<div class=\"bar\">", to);
    for (int k = 0; k < KINDS; k++)
        fprintf(to, "<i style=\"width:%.2f%%;background:%s\" title=\"%s: %.2f GiB\"></i>", 100 * bytes[k] / whole,
                colors[k], kinds[k], bytes[k] / GIB);
    fputs("</div>", to);
}

static void put_row(FILE *to, const layouts_report_t *r, int32_t row)
{
    const double memory = r->request->gpu->memory;
    const dp_layout_t l = layouts_row(r, row);
    char name[64];

    layouts_put_schedule(name, sizeof(name), &l);
    fprintf(to, "<tr%s><td>%s</td><td>%d</td><td>%d</td><td>%d</td><td>%d</td><td>%s</td>",
            l.fits ? "" : " class=\"out\"", name, (int)l.pp, (int)l.ep, (int)l.dp, (int)l.microbatches,
            layouts_levels[l.recompute]);
    if (l.fits && l.timed) {
        fprintf(to, "<td>%.4g</td><td>%+.1f %%</td><td>%.1f %%</td>", l.step_time, 100 * l.gain, 100 * l.useful);
    } else {
        fputs("<td colspan=\"3\">", to);
        if (l.reason[0] != '\0')
            put_escaped(to, l.reason);
        else if (!l.fits)
            fprintf(to, "%.1f GiB too much", (l.total - memory) / GIB);
        else
            fputs("slower", to);
        fputs("</td>", to);
    }
    fprintf(to, "<td>%.1f</td><td>", l.total / GIB);
    put_bar(to, &l, memory);
    fputs("</td></tr>\n", to);
}

dp_status_t layouts_put_html(FILE *to, const layouts_report_t *r)
{
    const dp_layouts_about_t all = layouts_about(r);
    dp_status_t status;

    fputs(head, to);
    fputs("<h1>", to);
    put_escaped(to, all.advice);
    fputs("</h1>\n", to);
    status = put_asked(to, r);
    fputs("<table>\n<tr><th>schedule</th><th>pp</th><th>ep</th><th>dp</th><th>M</th><th>again</th><th>step s</th>"
          "<th>gain</th><th>useful</th><th>GiB</th><th>of a GPU</th></tr>\n",
          to);
    for (int32_t i = 0; i < all.count && i < r->show; i++)
        put_row(to, r, i);
    fputs("</table>\n<p class=\"key\">", to);
    for (int k = 0; k < KINDS; k++)
        fprintf(to, "<i style=\"background:%s\"></i>%s", colors[k], kinds[k]);
    fputs(
        "</p>\n<p>M: micro-batches of a pipeline. again: what is recomputed. gain: over 1f1b with the same ranks. useful: "
        "computation that one rank alone would do as well. GiB: of the fullest GPU, reserve included. Times are "
        "estimates; ratios between layouts are better than the times themselves.</p>\n</body>\n</html>\n",
        to);
    return status;
}
