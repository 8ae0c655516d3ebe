/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * comparison_output.c: a comparison as text, a table for other programs or a picture. */
#include "comparison.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reasons.h"
#include "tools/draw/draw_bars.h"
#include "tools/io/size.h"

enum { LINE = 80 };

static void put_sentence(FILE *to, const char *text)
{
    while (strlen(text) > LINE) {
        int end = LINE;

        while (end > 1 && text[end] != ' ')
            end--;
        fprintf(to, "%.*s\n", end, text);
        text += end + 1;
    }
    fprintf(to, "%s\n", text);
}

static dp_status_t put_table(const comparison_t *table, const reasons_t *reasons, output_t *output)
{
    FILE *to = output->file;
    char costs[160], sizes[64];
    const char *unit_name;
    double most = 0.0, unit;
    int width = (int)strlen("schedule");

    costs_text(&table->args->costs, costs, sizeof(costs));
    fprintf(to, "%s, costs %s\n%s\n", output_sizes(table->args->ranks, table->args->microbatches, sizes, sizeof(sizes)),
            costs, table->args->costs.segments != NULL ? plan_by_segments : "");
    for (size_t e = 0; e < table->fitting; e++) {
        width = (int)strlen(table->entries[e].label) > width ? (int)strlen(table->entries[e].label) : width;
        most = fmax(most, args_in_bytes(table->args) ? table->entries[e].bytes : 0.0);
    }
    unit_name = size_unit(most, &unit);
    fprintf(to, "%-*s     step    gain     idle         formula    held weights", width, "schedule");
    if (args_in_bytes(table->args))
        fprintf(to, " %8s", unit_name);
    fputs(table->args->recompute > DP_RECOMPUTE_NONE ? "  backwards\n" : "\n", to);
    for (size_t e = 0; e < table->fitting; e++) {
        const entry_t *entry = &table->entries[e];
        char formula[32] = "-", gain[32] = "-";

        if (isfinite(entry->formula))
            snprintf(formula, sizeof(formula), "%.6g", entry->formula);
        if (isfinite(entry->gain))
            snprintf(gain, sizeof(gain), "%+.1f%%", 100.0 * entry->gain);
        fprintf(to, "%-*s %8.6g %7s %8.6g %5.1f %% %7s %7.5g %6dx", width, entry->label, entry->step, gain,
                fabs(entry->bubble), entry->step > 0.0 ? fabs(entry->bubble) / entry->step * 100.0 : 0.0, formula,
                entry->peak, entry->copies);
        if (args_in_bytes(table->args))
            fprintf(to, " %8.4g", entry->bytes / unit);
        if (table->args->recompute > DP_RECOMPUTE_NONE)
            fprintf(to, " %10.6g", entry->backward_buffer);
        fputc('\n', to);
    }
    if (table->fitting < table->count)
        fputs("\nthese do not fit:\n", to);
    for (size_t e = table->fitting; e < table->count; e++)
        fprintf(to, "%-30s %s\n", table->entries[e].label, table->entries[e].reason);
    if (reasons->count > 0)
        fputc('\n', to);
    for (int32_t i = 0; i < reasons->count; i++)
        put_sentence(to, reasons->text[i]);
    fputs("\ngain: over 1f1b. idle: mean over the ranks. held: most micro-batches'\n"
          "activations at once on a rank, in units of its stage inputs. weights: copies of\n"
          "the model.\n",
          to);
    if (args_in_bytes(table->args))
        fprintf(to, "%s: of the fullest rank, its weights included.\n", unit_name);
    if (table->args->recompute > DP_RECOMPUTE_NONE)
        fputs("backwards: most at once per rank between I or B and its end.\n", to);
    return DP_OK;
}

/* ---- the schema of JSON, CSV and Markdown ---- */

/* One figure of a row, NaN where there is none. The names are those of dp_simulation_t. */
static const struct figure {
    const char *name;
    size_t at;
    bool whole; /* int32_t, else double */
} figures[] = {
    {"step_time", offsetof(entry_t, step), false},
    {"gain", offsetof(entry_t, gain), false},
    {"bubble", offsetof(entry_t, bubble), false},
    {"formula_bubble", offsetof(entry_t, formula), false},
    {"peak_activations", offsetof(entry_t, peak), false},
    {"peak_backward_buffers", offsetof(entry_t, backward_buffer), false},
    {"weight_copies", offsetof(entry_t, copies), true},
    {"slots", offsetof(entry_t, slots), true},
    {"bytes", offsetof(entry_t, bytes), false},
};
enum { FIGURES = sizeof(figures) / sizeof(figures[0]) };

static double figure_of(const entry_t *entry, int f)
{
    const char *at = (const char *)entry + figures[f].at;

    return figures[f].whole ? (double)*(const int32_t *)(const void *)at : *(const double *)(const void *)at;
}

static dp_status_t put_json(const comparison_t *table, const reasons_t *reasons, output_t *output)
{
    FILE *to = output->file;

    fprintf(to, "{\"schema\":1,\"ranks\":%d,\"microbatches\":%d,\"model\":\"%s\",", table->args->ranks,
            table->args->microbatches, table->args->costs.segments != NULL ? "lanes" : "operations");
    plan_json_costs(to, &table->args->costs);
    fputs(",\"schedules\":[", to);
    for (size_t e = 0; e < table->count; e++) {
        const entry_t *entry = &table->entries[e];
        bool fits = entry->reason[0] == 0;

        fprintf(to, "%s\n {\"method\":\"%s\",\"chunks\":%d,\"fits\":%s", e > 0 ? "," : "", entry->method->name,
                entry->chunks, fits ? "true" : "false");
        if (table->args->on_hosts)
            fprintf(to, ",\"placing\":\"%s\"", topology_placing_name(entry->placing));
        for (int f = 0; f < FIGURES && fits; f++) {
            fprintf(to, ",\"%s\":", figures[f].name);
            output_json_number(to, figure_of(entry, f));
        }
        if (!fits) {
            fputs(",\"reason\":", to);
            output_json_string(to, entry->reason);
        }
        fputc('}', to);
    }
    fputs("\n],\"reasons\":[", to);
    for (int32_t i = 0; i < reasons->count; i++) {
        fputs(i > 0 ? ",\n " : "\n ", to);
        output_json_string(to, reasons->text[i]);
    }
    fputs("]}\n", to);
    return DP_OK;
}

/* Names, or what an entry has. Those that do not fit have no figures. */
static void put_row(const comparison_t *table, FILE *to, const entry_t *entry, const char *between)
{
    fprintf(to, "%s%s", entry != NULL ? entry->method->name : "method", between);
    if (entry != NULL)
        fprintf(to, "%d", entry->chunks);
    else
        fputs("chunks", to);
    if (table->args->on_hosts)
        fprintf(to, "%s%s", between, entry != NULL ? topology_placing_name(entry->placing) : "placing");
    fprintf(to, "%s%s", between, entry == NULL ? "fits" : entry->reason[0] == 0 ? "true" : "false");
    for (int f = 0; f < FIGURES; f++) {
        fputs(between, to);
        if (entry == NULL)
            fputs(figures[f].name, to);
        else if (entry->reason[0] == 0 && isfinite(figure_of(entry, f)))
            fprintf(to, "%.15g", figure_of(entry, f));
    }
}

static dp_status_t put_csv(const comparison_t *table, output_t *output)
{
    for (size_t e = 0; e <= table->count; e++) {
        put_row(table, output->file, e > 0 ? &table->entries[e - 1] : NULL, ",");
        fputc('\n', output->file);
    }
    return DP_OK;
}

static dp_status_t put_markdown(const comparison_t *table, const reasons_t *reasons, output_t *output)
{
    const int columns = FIGURES + 3 + table->args->on_hosts;
    FILE *to = output->file;

    for (size_t e = 0; e <= table->count; e++) {
        fputs("| ", to);
        put_row(table, to, e > 0 ? &table->entries[e - 1] : NULL, " | ");
        fputs(" |\n", to);
        for (int c = 0; c < columns && e == 0; c++)
            fputs(c == 0 ? "|---|" : "---:|", to);
        if (e == 0)
            fputc('\n', to);
    }
    for (int32_t i = 0; i < reasons->count; i++)
        fprintf(to, "%s- %s\n", i == 0 ? "\n" : "", reasons->text[i]);
    return DP_OK;
}

static dp_status_t put_picture(const comparison_t *table, output_t *output)
{
    draw_bar_t *bars = calloc(table->fitting + 1, sizeof(*bars));
    char title[96], subtitle[192], costs[160], sizes[64];
    draw_bars_t picture = {title, subtitle, bars, (int32_t)table->fitting};
    format_t format = table->args->format;
    dp_status_t status;

    if (bars == NULL)
        return dp_fail(DP_ERR_NOMEM, "no memory for %zu bars", table->fitting);
    snprintf(title, sizeof(title), "Step time of %s",
             output_sizes(table->args->ranks, table->args->microbatches, sizes, sizeof(sizes)));
    costs_text(&table->args->costs, costs, sizeof(costs));
    snprintf(subtitle, sizeof(subtitle), "costs %s", costs);
    for (size_t e = 0; e < table->fitting; e++) {
        const entry_t *entry = &table->entries[e];

        bars[e] = (draw_bar_t){.label = entry->label,
                               .busy = entry->step - entry->bubble,
                               .idle = fmax(entry->bubble, 0.0),
                               .held = entry->peak};
    }
    status = draw_bars_write(&picture,
                             format == FORMAT_PNG   ? DRAW_PNG
                             : format == FORMAT_PDF ? DRAW_PDF
                                                    : DRAW_SVG,
                             output_write, output);
    free(bars);
    return status;
}

bool comparison_is_text(format_t format)
{
    return format == FORMAT_TEXT || format == FORMAT_JSON || format == FORMAT_CSV || format == FORMAT_MARKDOWN;
}

dp_status_t comparison_put(const comparison_t *table, output_t *output)
{
    const format_t format = table->args->format;
    reasons_t reasons;
    dp_status_t status;

    if (format == FORMAT_CSV)
        return put_csv(table, output);
    if (!comparison_is_text(format))
        return put_picture(table, output);
    status = reasons_find(table, &reasons);
    if (status < 0)
        return status;
    return (format == FORMAT_TEXT   ? put_table
            : format == FORMAT_JSON ? put_json
                                    : put_markdown)(table, &reasons, output);
}
